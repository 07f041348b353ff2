// SPDX-License-Identifier: Apache-2.0
#include "text/regex_dialect.h"

#include <array>
#include <cstdio>
#include <vector>

#include "text/unicode_ranges.h"
#include "text/utf8.h"

namespace fluvial::text {
namespace {

// White_Space as class items (PropList.txt; stable since Unicode 6.3).
constexpr std::string_view kSpaces =
    "\\x{9}-\\x{D}\\x{20}\\x{85}\\x{A0}\\x{1680}\\x{2000}-\\x{200A}\\x{2028}\\x{2029}\\x{202F}\\x{205F}\\x{3000}";

// Upper-ish and lower-ish letters without Han: a look-ahead before each character stands for the intersection.
#define FLUVIAL_UPPER "(?:(?!\\p{Han})[\\p{Lu}\\p{Lt}\\p{Lm}\\p{Lo}\\p{M}])"
#define FLUVIAL_LOWER "(?:(?!\\p{Han})[\\p{Ll}\\p{Lm}\\p{Lo}\\p{M}])"
#define FLUVIAL_KIMI_UPPER "[\\p{Lu}\\p{Lt}\\p{Lm}\\p{Lo}\\p{M}&&[^\\p{Han}]]"
#define FLUVIAL_KIMI_LOWER "[\\p{Ll}\\p{Lm}\\p{Lo}\\p{M}&&[^\\p{Han}]]"
#define FLUVIAL_SUFFIX "(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
#define FLUVIAL_TAIL "\\p{N}{1,3}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+"

constexpr KnownPattern kKnown[] = {
    {"kimi",
     "[\\p{Han}]+"
     "|[^\\r\\n\\p{L}\\p{N}]?" FLUVIAL_KIMI_UPPER "*" FLUVIAL_KIMI_LOWER "+" FLUVIAL_SUFFIX
     "|[^\\r\\n\\p{L}\\p{N}]?" FLUVIAL_KIMI_UPPER "+" FLUVIAL_KIMI_LOWER "*" FLUVIAL_SUFFIX "|" FLUVIAL_TAIL,
     "[\\p{Han}]+"
     "|[^\\r\\n\\p{L}\\p{N}]?" FLUVIAL_UPPER "*" FLUVIAL_LOWER "+" FLUVIAL_SUFFIX
     "|[^\\r\\n\\p{L}\\p{N}]?" FLUVIAL_UPPER "+" FLUVIAL_LOWER "*" FLUVIAL_SUFFIX "|" FLUVIAL_TAIL},
};

#undef FLUVIAL_UPPER
#undef FLUVIAL_LOWER
#undef FLUVIAL_KIMI_UPPER
#undef FLUVIAL_KIMI_LOWER
#undef FLUVIAL_SUFFIX
#undef FLUVIAL_TAIL

bool IsAsciiPunctuation(char c) {
  return (c >= '!' && c <= '/') || (c >= ':' && c <= '@') || (c >= '[' && c <= '`') || (c >= '{' && c <= '~');
}

std::string Quoted(std::string_view a, std::string_view b = {}) {
  return std::string("'").append(a).append(b).append("'");
}

class Translator {
 public:
  explicit Translator(std::string_view pattern) : in_(pattern) {}

  Result<std::string> Run() {
    while (pos_ < in_.size()) FLUVIAL_RETURN_IF_ERROR(Step());
    if (!caseless_.empty()) return Refuse("a group that does not end");
    return std::move(out_);
  }

 private:
  Status Refuse(std::string_view construct) const {
    return Status::UnusableModel(
        "the pattern uses " + std::string(construct) + " at byte " + std::to_string(pos_) +
        ", whose meaning is not checked against PCRE2; patterns of this kind cannot be loaded");
  }

  bool Caseless() const { return !caseless_.empty() && caseless_.back(); }

  Status Step() {
    const char c = in_[pos_];
    switch (c) {
      case '\\':
        return Escape();
      case '[':
        return Class();
      case '(':
        return Group();
      case ')':
        if (caseless_.empty()) return Refuse("a closing bracket without its opening one");
        caseless_.pop_back();
        break;
      case '.':
      case '^':
      case '$':
        return Refuse(Quoted({&c, 1}));
      case '{':
        return Interval();
      case '?':
      case '*':
      case '+':
        // A second sign makes it lazy or possessive, in all three engines alike.
        if (pos_ + 1 < in_.size() && in_[pos_ + 1] == '*') return Refuse("'**'");
        break;
      default:
        break;
    }
    out_ += c;
    ++pos_;
    return Status::Ok();
  }

  Status Group() {
    const std::string_view rest = in_.substr(pos_);
    for (const std::string_view open : {"(?:", "(?i:", "(?=", "(?!", "(?<=", "(?<!"}) {
      if (!rest.starts_with(open)) continue;
      caseless_.push_back(Caseless() || open == "(?i:");
      out_ += open;
      pos_ += open.size();
      return Status::Ok();
    }
    if (rest.starts_with("(?") || rest.starts_with("(*")) return Refuse("the group " + Quoted(rest.substr(0, 4)));
    caseless_.push_back(Caseless());
    out_ += "(?:";
    ++pos_;
    return Status::Ok();
  }

  // {n}, {n,}, {n,m}. A '?' or '+' behind means different things to the engines.
  Status Interval() {
    const size_t close = in_.find('}', pos_);
    if (close == std::string_view::npos) return Refuse("'{'");
    const std::string_view body = in_.substr(pos_ + 1, close - pos_ - 1);
    if (body.empty() || body[0] == ',' || body.find_first_not_of("0123456789,") != std::string_view::npos) {
      return Refuse("'{'");
    }
    const char behind = close + 1 < in_.size() ? in_[close + 1] : '\0';
    if (behind == '?' || behind == '+' || behind == '*') return Refuse(Quoted("}", {&behind, 1}));
    out_ += in_.substr(pos_, close + 1 - pos_);
    pos_ = close + 1;
    return Status::Ok();
  }

  // A backslash outside a class.
  Status Escape() {
    const char c = pos_ + 1 < in_.size() ? in_[pos_ + 1] : '\0';
    if (c == 's' || c == 'S') {
      out_ += c == 's' ? "[" : "[^";
      out_ += kSpaces;
      out_ += "]";
      pos_ += 2;
      return Status::Ok();
    }
    if (c == 'p' || c == 'P' || c == 'd') {
      FLUVIAL_ASSIGN_OR_RETURN(const UnicodeProperty* property, Property());
      out_ += c == 'P' ? "[^" : "[";
      AppendProperty(*property);
      out_ += "]";
      return Status::Ok();
    }
    return PlainEscape();
  }

  // As items of a class.
  void AppendProperty(const UnicodeProperty& property) {
    out_ += property.pcre2;
    std::array<char, 32> item{};
    for (const CodeRange& range : property.added) {
      std::snprintf(item.data(), item.size(), "\\x{%X}-\\x{%X}", range.first, range.last);
      out_ += item.data();
    }
  }

  // An escape that stands for one character.
  Status PlainEscape() {
    const char c = pos_ + 1 < in_.size() ? in_[pos_ + 1] : '\0';
    const bool control = c == 'r' || c == 'n' || c == 't' || c == 'f';
    if (!control && !IsAsciiPunctuation(c)) return Refuse(Quoted("\\", {&c, 1}));
    out_ += in_.substr(pos_, 2);
    pos_ += 2;
    return Status::Ok();
  }

  // \p{Name}, \P{Name} or \d; moves behind it.
  Result<const UnicodeProperty*> Property() {
    std::string_view name = "Nd";
    size_t length = 2;
    if (in_[pos_ + 1] != 'd') {
      const size_t close = in_.find('}', pos_);
      if (pos_ + 2 >= in_.size() || in_[pos_ + 2] != '{' || close == std::string_view::npos) return Refuse("'\\p'");
      name = in_.substr(pos_ + 3, close - pos_ - 3);
      length = close + 1 - pos_;
    }
    for (const UnicodeProperty& property : kUnicodeProperties) {
      if (property.name != name) continue;
      // Engines differ in whether caseless matching closes a class over case.
      if (Caseless()) return Refuse("a property inside a caseless group");
      pos_ += length;
      return &property;
    }
    return Refuse("the property " + Quoted(name));
  }

  Status Class() {
    const size_t start = pos_++;
    out_ += '[';
    if (pos_ < in_.size() && in_[pos_] == '^') out_ += in_[pos_++];
    if (pos_ < in_.size() && in_[pos_] == ']') return Refuse("']' as the first character of a class");
    if (Caseless()) return Refuse("a class inside a caseless group");
    while (pos_ < in_.size() && in_[pos_] != ']') {
      const char c = in_[pos_];
      if (c == '[') return Refuse("a class within a class");
      if (in_.substr(pos_, 2) == "&&") return Refuse("the class intersection '&&'");
      if (c != '\\') {
        out_ += c;
        ++pos_;
        continue;
      }
      const char escape = pos_ + 1 < in_.size() ? in_[pos_ + 1] : '\0';
      if (escape == 's') {
        out_ += kSpaces;
        pos_ += 2;
      } else if (escape == 'p' || escape == 'd') {
        FLUVIAL_ASSIGN_OR_RETURN(const UnicodeProperty* property, Property());
        AppendProperty(*property);
      } else {
        FLUVIAL_RETURN_IF_ERROR(PlainEscape());
      }
    }
    if (pos_ == in_.size()) {
      pos_ = start;
      return Refuse("a class that does not end");
    }
    out_ += in_[pos_++];
    return Status::Ok();
  }

  std::string_view in_;
  size_t pos_ = 0;
  std::string out_;
  std::vector<bool> caseless_;  // one entry an open group
};

}  // namespace

std::span<const KnownPattern> KnownPatterns() { return kKnown; }

std::string_view KimiPattern() { return kKnown[0].pattern; }

std::string_view Gpt2Pattern() {
  return "'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+|\\s+(?!\\S)|\\s+";
}

Result<std::string> ToPcre2(std::string_view pattern) {
  for (const KnownPattern& known : kKnown) {
    if (known.pattern == pattern) return Translator(known.equal).Run();
  }
  return Translator(pattern).Run();
}

std::string LiteralToPcre2(std::string_view text) {
  std::string out;
  for (size_t i = 0; i < text.size();) {
    const size_t start = i;
    const char32_t c = DecodeValid(text, &i);
    if (c < 0x80) {
      constexpr char kDigits[] = "0123456789ABCDEF";
      out += {'\\', 'x', kDigits[c >> 4], kDigits[c & 15]};
    } else {
      out += text.substr(start, i - start);
    }
  }
  return out;
}

}  // namespace fluvial::text
