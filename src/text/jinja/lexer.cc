// SPDX-License-Identifier: Apache-2.0
#include "text/jinja/lexer.h"

#include <algorithm>
#include <array>
#include <cstdlib>

#include "text/jinja/unicode.h"

namespace fluvial::jinja {
namespace {

constexpr std::array<std::string_view, 26> kOperators = {"//", "**", "==", "!=", ">=", "<=", "+", "-", "/",
                                                         "*",  "%",  "~",  "[",  "]",  "(",  ")", "{", "}",
                                                         ">",  "<",  "=",  ".",  ":",  "|",  ",", ";"};

bool Digit(char c) { return c >= '0' && c <= '9'; }
char Fold(char c) { return c >= 'A' && c <= 'Z' ? static_cast<char>(c + 32) : c; }

class Lexer {
 public:
  explicit Lexer(const std::string& source) : source_(source) {}

  std::vector<Token> Run() {
    while (pos_ < source_.size()) Root();
    Push(Tok::kEnd, pos_);
    return std::move(tokens_);
  }

 private:
  bool At(std::string_view text) const { return source_.compare(pos_, text.size(), text) == 0; }
  bool At(size_t pos, std::string_view text) const {
    return pos <= source_.size() && source_.compare(pos, text.size(), text) == 0;
  }
  size_t SkipSpace(size_t pos) const {
    while (pos < source_.size()) {
      size_t next = pos;
      if (!IsSpace(DecodeAt(source_, &next))) break;
      pos = next;
    }
    return pos;
  }

  Token& Push(Tok kind, size_t offset, std::string text = {}) {
    Token token;
    token.kind = kind;
    token.offset = static_cast<uint32_t>(offset);
    token.text = std::move(text);
    tokens_.push_back(std::move(token));
    return tokens_.back();
  }

  [[noreturn]] void Error(size_t offset, const std::string& message) const {
    FailAt(source_, offset, ErrorKind::kSyntax, message);
  }

  // Literal text before a tag, after the strip rules. `sign` is the tag's '-', '+' or 0.
  void PushData(size_t begin, size_t end, char sign, bool lstrip) {
    std::string_view text(source_.data() + begin, end - begin);
    if (sign == '-') {
      text = StripSpace(text, Side::kRight);
    } else if (sign != '+' && lstrip) {
      size_t newline = text.rfind('\n');
      size_t line = newline == std::string_view::npos ? 0 : newline + 1;
      if ((line > 0 || line_starting_) && StripSpace(text.substr(line), Side::kLeft).empty())
        text = text.substr(0, line);
    }
    if (!text.empty()) Push(Tok::kData, begin, std::string(text));
  }

  // End of a tag at pos_: consumes what the end swallows and notes whether a line starts after it.
  void FinishTag(size_t end_of_mark, char sign, bool trim_newline) {
    size_t end = end_of_mark;
    if (sign == '-') {
      end = SkipSpace(end);
    } else if (trim_newline && sign != '+' && end < source_.size() && source_[end] == '\n') {
      ++end;
    }
    pos_ = end;
    line_starting_ = source_[end - 1] == '\n';
  }

  void Root() {
    size_t begin = pos_;
    size_t tag = begin;
    while (true) {
      tag = source_.find('{', tag);
      if (tag == std::string::npos || tag + 1 >= source_.size()) {
        Push(Tok::kData, begin, source_.substr(begin));
        pos_ = source_.size();
        return;
      }
      char c = source_[tag + 1];
      if (c == '{' || c == '%' || c == '#') break;
      ++tag;
    }
    char kind = source_[tag + 1];
    size_t inside = tag + 2;
    char sign = inside < source_.size() && (source_[inside] == '-' || source_[inside] == '+') ? source_[inside] : '\0';
    if (sign != '\0') ++inside;
    PushData(begin, tag, sign, kind != '{');
    pos_ = inside;
    line_starting_ = false;
    if (kind == '#') return Comment(tag);
    if (kind == '%' && Raw(tag)) return;
    Push(kind == '{' ? Tok::kVariableBegin : Tok::kBlockBegin, tag);
    Tag(kind == '{');
  }

  void Comment(size_t tag) {
    size_t end = source_.find("#}", pos_);
    if (end == std::string::npos) Error(tag, "missing end of comment tag");
    char sign = end > pos_ && (source_[end - 1] == '-' || source_[end - 1] == '+') ? source_[end - 1] : '\0';
    FinishTag(end + 2, sign, true);
  }

  // Matches `raw %}` after the block begin; text up to endraw is data.
  bool Raw(size_t tag) {
    size_t p = SkipSpace(pos_);
    if (!At(p, "raw")) return false;
    p = SkipSpace(p + 3);
    if (At(p, "-%}")) {
      FinishTag(p + 3, '-', false);
    } else if (At(p, "%}")) {
      FinishTag(p + 2, '\0', false);
    } else {
      return false;
    }
    for (size_t open = source_.find("{%", pos_); open != std::string::npos; open = source_.find("{%", open + 1)) {
      size_t q = open + 2;
      char sign = At(q, "-") || At(q, "+") ? source_[q] : '\0';
      q = SkipSpace(sign != '\0' ? q + 1 : q);
      if (!At(q, "endraw")) continue;
      q = SkipSpace(q + 6);
      char end_sign = At(q, "-%}") ? '-' : At(q, "+%}") ? '+' : '\0';
      if (end_sign != '\0') ++q;
      if (!At(q, "%}")) continue;
      PushData(pos_, open, sign, true);
      FinishTag(q + 2, end_sign, true);
      return true;
    }
    Error(tag, "missing end of raw directive");
  }

  void Tag(bool variable) {
    std::string open;  // brackets that are not closed yet
    std::string_view mark = variable ? "}}" : "%}";
    while (true) {
      pos_ = SkipSpace(pos_);
      if (pos_ >= source_.size()) return;
      if (open.empty()) {
        char sign = source_[pos_] == '-' || (!variable && source_[pos_] == '+') ? source_[pos_] : '\0';
        size_t p = sign != '\0' ? pos_ + 1 : pos_;
        if (At(p, mark)) {
          Push(variable ? Tok::kVariableEnd : Tok::kBlockEnd, pos_);
          FinishTag(p + 2, sign, !variable);
          return;
        }
      }
      if (Number() || Name() || StringLiteral()) continue;
      Operator(&open);
    }
  }

  // Digits with single underscores between them; returns the end, or `p` when there is none.
  size_t Digits(size_t p) const {
    size_t end = p;
    while (end < source_.size() && (Digit(source_[end]) || (source_[end] == '_' && end > p && source_[end - 1] != '_' &&
                                                            end + 1 < source_.size() && Digit(source_[end + 1])))) {
      ++end;
    }
    return end;
  }

  bool Number() {
    if (!Digit(source_[pos_])) return false;
    size_t whole = Digits(pos_);
    if (pos_ == 0 || source_[pos_ - 1] != '.') {
      size_t end = whole;
      if (At(end, ".") && Digits(end + 1) > end + 1) end = Digits(end + 1);
      size_t exponent = end;
      if (exponent < source_.size() && Fold(source_[exponent]) == 'e') {
        ++exponent;
        if (At(exponent, "+") || At(exponent, "-")) ++exponent;
        if (Digits(exponent) > exponent) end = Digits(exponent);
      }
      if (end > whole) {
        std::string digits = source_.substr(pos_, end - pos_);
        digits.erase(std::remove(digits.begin(), digits.end(), '_'), digits.end());
        Push(Tok::kFloat, pos_).number = std::strtod(digits.c_str(), nullptr);
        pos_ = end;
        return true;
      }
    }
    Integer(whole);
    return true;
  }

  void Integer(size_t whole) {
    int base = 10;
    size_t p = pos_;
    size_t end = whole;
    if (source_[pos_] == '0') {
      char letter = pos_ + 1 < source_.size() ? Fold(source_[pos_ + 1]) : '\0';
      int wanted = letter == 'x' ? 16 : letter == 'o' ? 8 : letter == 'b' ? 2 : 0;
      size_t prefixed = wanted != 0 ? BaseDigits(pos_ + 2, wanted) : 0;
      if (prefixed > pos_ + 2) {
        base = wanted;
        p = pos_ + 2;
        end = prefixed;
      } else {
        end = pos_ + 1;
        while (end < whole && (source_[end] == '0' || (source_[end] == '_' && source_[end + 1] == '0'))) ++end;
      }
    }
    Int value = 0;
    for (; p < end; ++p) {
      if (source_[p] == '_') continue;
      char c = Fold(source_[p]);
      Int digit = c >= 'a' ? c - 'a' + 10 : c - '0';
      if (__builtin_mul_overflow(value, static_cast<Int>(base), &value) ||
          __builtin_add_overflow(value, digit, &value)) {
        FailAt(source_, pos_, ErrorKind::kUnsupported, "an integer of more than 127 bits");
      }
    }
    Push(Tok::kInt, pos_).integer = value;
    pos_ = end;
  }

  size_t BaseDigits(size_t p, int base) const {
    auto ok = [&](size_t at) {
      if (at >= source_.size()) return false;
      char c = Fold(source_[at]);
      return base == 16 ? Digit(c) || (c >= 'a' && c <= 'f') : c >= '0' && c < '0' + base;
    };
    while (ok(p) || (At(p, "_") && ok(p + 1))) ++p;
    return p;
  }

  bool Name() {
    size_t p = pos_;
    bool valid = true;
    while (p < source_.size()) {
      size_t next = p;
      char32_t c = DecodeAt(source_, &next);
      bool word = c < 0x80 ? c == '_' || Digit(static_cast<char>(c)) ||
                                 (Fold(static_cast<char>(c)) >= 'a' && Fold(static_cast<char>(c)) <= 'z')
                           : IsIdentifierPart(c) || IsNumericLetter(c);
      if (!word) break;
      valid = valid && (p == pos_ ? IsIdentifierStart(c) : IsIdentifierPart(c));
      p = next;
    }
    if (p == pos_) return false;
    if (!valid) Error(pos_, "invalid character in identifier");
    Push(Tok::kName, pos_, source_.substr(pos_, p - pos_));
    pos_ = p;
    return true;
  }

  bool StringLiteral() {
    char quote = source_[pos_];
    if (quote != '\'' && quote != '"') return false;
    size_t p = pos_ + 1;
    while (p < source_.size() && source_[p] != quote) p += source_[p] == '\\' ? 2 : 1;
    if (p >= source_.size()) Error(pos_, "this string is not closed");
    Push(Tok::kString, pos_, Unescape(pos_ + 1, p));
    pos_ = p + 1;
    return true;
  }

  // Escapes of Python string literals; unknown ones keep their backslash.
  std::string Unescape(size_t p, size_t end) const {
    std::string out;
    while (p < end) {
      if (source_[p] != '\\') {
        out += source_[p++];
        continue;
      }
      size_t start = p++;
      char c = source_[p++];
      static constexpr std::string_view kLetters = "abfnrtv\\'\"", kValues = "\a\b\f\n\r\t\v\\'\"";
      size_t at = kLetters.find(c);
      if (at != std::string_view::npos) {
        out += kValues[at];
      } else if (c == '\n') {
        continue;
      } else if (c == 'x' || c == 'u' || c == 'U') {
        p = AppendHexEscape(&out, start, p, c == 'x' ? 2 : c == 'u' ? 4 : 8, end);
      } else if (c >= '0' && c <= '7') {
        char32_t value = static_cast<char32_t>(c - '0');
        for (int k = 0; k < 2 && p < end && source_[p] >= '0' && source_[p] <= '7'; ++k) {
          value = value * 8 + static_cast<char32_t>(source_[p++] - '0');
        }
        AppendUtf8(&out, value);
      } else if (c == 'N') {
        FailAt(source_, start, ErrorKind::kUnsupported, "named characters (\\N{...}) are not supported");
      } else {
        out += '\\';
        --p;
        size_t next = p;
        DecodeAt(source_, &next);
        // Python escapes a character outside ASCII before unescaping, so its backslash protects that escape.
        if (static_cast<signed char>(c) < 0) {
          FailAt(source_, start, ErrorKind::kUnsupported, "a backslash before a character outside ASCII");
        }
        out.append(source_, p, next - p);
        p = next;
      }
    }
    return out;
  }

  size_t AppendHexEscape(std::string* out, size_t start, size_t p, int digits, size_t end) const {
    char32_t value = 0;
    for (int k = 0; k < digits; ++k, ++p) {
      char c = p < end ? Fold(source_[p]) : '\0';
      if (!Digit(c) && !(c >= 'a' && c <= 'f')) Error(start, "this character escape is cut short");
      value = value * 16 + static_cast<char32_t>(c >= 'a' ? c - 'a' + 10 : c - '0');
    }
    if (value > 0x10ffff) Error(start, "this escape is beyond U+10FFFF");
    if (value >= 0xd800 && value < 0xe000) {
      FailAt(source_, start, ErrorKind::kUnsupported, "surrogate escapes are not supported; write \\U and 8 digits");
    }
    AppendUtf8(out, value);
    return p;
  }

  void Operator(std::string* open) {
    for (std::string_view op : kOperators) {
      if (!At(op)) continue;
      char c = op[0];
      if (op.size() == 1 && (c == '(' || c == '[' || c == '{')) {
        open->push_back(c == '(' ? ')' : c == '[' ? ']' : '}');
      } else if (c == ')' || c == ']' || c == '}') {
        if (open->empty()) Error(pos_, "unexpected '" + std::string(op) + "'");
        if (open->back() != c) {
          Error(pos_, "unexpected '" + std::string(op) + "', expected '" + open->back() + "'");
        }
        open->pop_back();
      }
      Push(Tok::kOperator, pos_, std::string(op));
      pos_ += op.size();
      return;
    }
    size_t next = pos_;
    DecodeAt(source_, &next);
    Error(pos_, "unexpected character '" + source_.substr(pos_, next - pos_) + "'");
  }

  const std::string& source_;
  size_t pos_ = 0;
  bool line_starting_ = true;
  std::vector<Token> tokens_;
};

}  // namespace

std::string NormalizeSource(std::string_view source) {
  std::string out;
  out.reserve(source.size());
  for (size_t i = 0; i < source.size(); ++i) {
    if (source[i] == '\r') {
      out += '\n';
      if (i + 1 < source.size() && source[i + 1] == '\n') ++i;
    } else {
      out += source[i];
    }
  }
  if (!out.empty() && out.back() == '\n') out.pop_back();
  return out;
}

std::vector<Token> Tokenize(const std::string& source) { return Lexer(source).Run(); }

void FailAt(const std::string& source, size_t offset, ErrorKind kind, std::string message) {
  offset = std::min(offset, source.size());
  std::string_view before = std::string_view(source).substr(0, offset);
  size_t newline = before.rfind('\n');
  size_t line_begin = newline == std::string_view::npos ? 0 : newline + 1;
  throw JinjaError{kind, std::move(message), static_cast<int>(std::count(before.begin(), before.end(), '\n')) + 1,
                   static_cast<int>(CountCodePoints(before.substr(line_begin))) + 1};
}

}  // namespace fluvial::jinja
