// SPDX-License-Identifier: Apache-2.0
#include "text/json_reader.h"

#include <cstring>

#include "text/utf8.h"

namespace fluvial::text {
namespace {

constexpr int kMaxDepth = 200;

bool IsNumberChar(char c) { return (c >= '0' && c <= '9') || c == '-' || c == '+' || c == '.' || c == 'e' || c == 'E'; }

int HexValue(char c) {
  if (c >= '0' && c <= '9') return c - '0';
  if (c >= 'a' && c <= 'f') return c - 'a' + 10;
  if (c >= 'A' && c <= 'F') return c - 'A' + 10;
  return -1;
}

// Four hex digits at the front of `text`; -1 when they are not.
int32_t Hex4(std::string_view text) {
  if (text.size() < 4) return -1;
  int32_t value = 0;
  for (int i = 0; i < 4; ++i) {
    const int digit = HexValue(text[i]);
    if (digit < 0) return -1;
    value = value * 16 + digit;
  }
  return value;
}

}  // namespace

bool JsonReader::Fail(std::string_view what) {
  if (error_.empty()) {
    error_ = what;
    error_pos_ = pos_;
  }
  return false;
}

Status JsonReader::status() const {
  if (ok()) return Status::Ok();
  return Status::UnusableModel(name_ + ": " + error_ + " at byte " + std::to_string(error_pos_) +
                               "; fetch the file again or give another model");
}

void JsonReader::SkipSpace() {
  while (pos_ < text_.size()) {
    const char c = text_[pos_];
    if (c != ' ' && c != '\n' && c != '\r' && c != '\t') break;
    ++pos_;
  }
}

JsonReader::Kind JsonReader::Peek() {
  if (!ok()) return Kind::kNothing;
  SkipSpace();
  if (pos_ == text_.size()) return Kind::kNothing;
  switch (text_[pos_]) {
    case '{':
      return Kind::kObject;
    case '[':
      return Kind::kArray;
    case '"':
      return Kind::kString;
    case 't':
      return Kind::kTrue;
    case 'f':
      return Kind::kFalse;
    case 'n':
      return Kind::kNull;
    default:
      return IsNumberChar(text_[pos_]) ? Kind::kNumber : Kind::kNothing;
  }
}

bool JsonReader::Expect(char c, std::string_view what) {
  if (!ok()) return false;
  SkipSpace();
  if (pos_ == text_.size() || text_[pos_] != c) return Fail(what);
  ++pos_;
  return true;
}

bool JsonReader::EnterObject() { return first_ = Expect('{', "an object was expected"); }

bool JsonReader::EnterArray() { return first_ = Expect('[', "an array was expected"); }

bool JsonReader::NextMember(std::string_view* key) {
  if (!ok()) return false;
  SkipSpace();
  const bool first = first_;
  first_ = false;
  if (pos_ < text_.size() && text_[pos_] == '}') {
    ++pos_;
    return false;
  }
  if (!first && !Expect(',', "a comma or '}' was expected")) return false;
  return ReadString(key, &key_buffer_) && Expect(':', "a colon was expected");
}

bool JsonReader::NextElement() {
  if (!ok()) return false;
  SkipSpace();
  const bool first = first_;
  first_ = false;
  if (pos_ < text_.size() && text_[pos_] == ']') {
    ++pos_;
    return false;
  }
  return first || Expect(',', "a comma or ']' was expected");
}

bool JsonReader::String(std::string_view* value) { return ReadString(value, &buffer_); }

bool JsonReader::ReadString(std::string_view* value, std::string* buffer) {
  if (!Expect('"', "a string was expected")) return false;
  const size_t start = pos_;
  size_t i = start;
  while (i < text_.size() && text_[i] != '"' && text_[i] != '\\' && static_cast<unsigned char>(text_[i]) >= 0x20) ++i;
  if (i < text_.size() && text_[i] == '"') {
    *value = text_.substr(start, i - start);
    pos_ = i + 1;
    return true;
  }
  buffer->assign(text_.substr(start, i - start));
  while (true) {
    pos_ = i;
    if (i == text_.size()) return Fail("a string does not end");
    const char c = text_[i];
    if (c == '"') break;
    if (static_cast<unsigned char>(c) < 0x20) return Fail("a control character stands in a string");
    if (c != '\\') {
      *buffer += c;
      ++i;
      continue;
    }
    if (i + 1 == text_.size()) return Fail("a string does not end");
    const char escape = text_[i + 1];
    i += 2;
    constexpr std::string_view kFrom = "\"\\/bfnrt", kTo = "\"\\/\b\f\n\r\t";
    if (const size_t at = kFrom.find(escape); at != std::string_view::npos) {
      *buffer += kTo[at];
      continue;
    }
    if (escape != 'u') return Fail("a string has an unknown escape");
    int32_t unit = Hex4(text_.substr(i));
    if (unit < 0) return Fail("a \\u escape lacks four hex digits");
    i += 4;
    if (unit >= 0xD800 && unit <= 0xDFFF) {
      const bool low_follows = text_.substr(i, 2) == "\\u";
      const int32_t low = low_follows ? Hex4(text_.substr(i + 2)) : -1;
      if (unit > 0xDBFF || low < 0xDC00 || low > 0xDFFF) return Fail("a \\u escape is half of a surrogate pair");
      i += 6;
      unit = 0x10000 + ((unit - 0xD800) << 10) + (low - 0xDC00);
    }
    AppendUtf8(static_cast<char32_t>(unit), buffer);
  }
  *value = *buffer;
  pos_ = i + 1;
  return true;
}

bool JsonReader::Unsigned(uint32_t* value) {
  if (Peek() != Kind::kNumber) return Fail("a number was expected");
  uint64_t v = 0;
  size_t i = pos_;
  for (; i < text_.size() && text_[i] >= '0' && text_[i] <= '9'; ++i) {
    v = v * 10 + static_cast<uint64_t>(text_[i] - '0');
    if (v > UINT32_MAX) return Fail("a number is too large");
  }
  if (i == pos_ || (i < text_.size() && IsNumberChar(text_[i]))) return Fail("a whole number from 0 was expected");
  *value = static_cast<uint32_t>(v);
  pos_ = i;
  return true;
}

bool JsonReader::SkipString() {
  ++pos_;
  while (pos_ < text_.size()) {
    if (text_[pos_] == '\\') {
      pos_ += 2;
    } else if (text_[pos_] == '"') {
      ++pos_;
      return true;
    } else {
      ++pos_;
    }
  }
  pos_ = text_.size();
  return Fail("a string does not end");
}

bool JsonReader::SkipLiteral() {
  for (const std::string_view word : {"true", "false", "null"}) {
    if (text_.substr(pos_, word.size()) == word) {
      pos_ += word.size();
      return true;
    }
  }
  const size_t start = pos_;
  while (pos_ < text_.size() && IsNumberChar(text_[pos_])) ++pos_;
  return pos_ > start || Fail("a value was expected");
}

bool JsonReader::Skip(std::string_view* raw) {
  if (!ok()) return false;
  SkipSpace();
  const size_t start = pos_;
  int depth = 0;
  do {
    SkipSpace();
    if (pos_ == text_.size()) return Fail("the text ends in the middle of a value");
    const char c = text_[pos_];
    if (c == '{' || c == '[') {
      if (++depth > kMaxDepth) return Fail("values are nested too deeply");
      ++pos_;
    } else if (c == '}' || c == ']') {
      if (--depth < 0) return Fail("a value was expected");
      ++pos_;
    } else if ((c == ',' || c == ':') && depth > 0) {
      ++pos_;
    } else if (c == '"') {
      if (!SkipString()) return false;
    } else if (!SkipLiteral()) {
      return false;
    }
  } while (depth > 0);
  if (raw != nullptr) *raw = text_.substr(start, pos_ - start);
  return true;
}

bool JsonReader::AtEnd() {
  if (!ok()) return false;
  SkipSpace();
  return pos_ == text_.size() || Fail("more text follows the JSON value");
}

}  // namespace fluvial::text
