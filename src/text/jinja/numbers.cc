// SPDX-License-Identifier: Apache-2.0
// Numbers from text as int() and float() of Python read them.
#include <cctype>
#include <cmath>
#include <cstdlib>

#include "text/jinja/builtins.h"
#include "text/jinja/unicode.h"

namespace fluvial::jinja {
namespace {

bool Digit(char c) { return c >= '0' && c <= '9'; }

// Digits with single underscores between them, copied without them; false when there is none.
bool TakeDigits(std::string_view text, size_t* at, std::string* out) {
  size_t begin = *at;
  while (*at < text.size()) {
    char c = text[*at];
    bool separator = c == '_' && *at > begin && Digit(text[*at - 1]) && *at + 1 < text.size() && Digit(text[*at + 1]);
    if (!Digit(c) && !separator) break;
    if (!separator) out->push_back(c);
    ++*at;
  }
  return *at > begin;
}

std::string LowerAscii(std::string_view text) {
  std::string out;
  for (char c : text) out.push_back(c >= 'A' && c <= 'Z' ? static_cast<char>(c + 32) : c);
  return out;
}

}  // namespace

std::optional<double> ParseFloat(std::string_view text) {
  std::string body = LowerAscii(StripSpace(text, Side::kBoth));
  size_t at = 0;
  std::string clean;
  if (at < body.size() && (body[at] == '-' || body[at] == '+')) clean.push_back(body[at++]);
  std::string word = body.substr(at);
  if (word == "inf" || word == "infinity") return clean == "-" ? -HUGE_VAL : HUGE_VAL;
  if (word == "nan") return std::nan("");
  bool digits = TakeDigits(body, &at, &clean);
  if (at < body.size() && body[at] == '.') {
    clean.push_back(body[at++]);
    digits = TakeDigits(body, &at, &clean) || digits;
  }
  if (!digits) return std::nullopt;
  if (at < body.size() && body[at] == 'e') {
    clean.push_back(body[at++]);
    if (at < body.size() && (body[at] == '-' || body[at] == '+')) clean.push_back(body[at++]);
    if (!TakeDigits(body, &at, &clean)) return std::nullopt;
  }
  if (at != body.size()) return std::nullopt;
  return std::strtod(clean.c_str(), nullptr);
}

std::optional<Int> ParseInt(std::string_view text, int base) {
  if (base != 0 && (base < 2 || base > 36)) return std::nullopt;
  std::string body = LowerAscii(StripSpace(text, Side::kBoth));
  size_t at = 0;
  bool negative = false;
  if (at < body.size() && (body[at] == '-' || body[at] == '+')) negative = body[at++] == '-';
  bool prefixed = false;
  if (at + 1 < body.size() && body[at] == '0') {
    char letter = body[at + 1];
    int marked = letter == 'x' ? 16 : letter == 'o' ? 8 : letter == 'b' ? 2 : 0;
    if (marked != 0 && (base == 0 || base == marked)) {
      base = marked;
      at += 2;
      prefixed = true;
      if (at < body.size() && body[at] == '_') ++at;
    }
  }
  bool leading_zero = base == 0 && !prefixed && at < body.size() && body[at] == '0';
  if (base == 0) base = 10;
  Int value = 0;
  bool any = false, last_digit = false;
  for (; at < body.size(); ++at) {
    char c = body[at];
    if (c == '_' && last_digit) {
      last_digit = false;
      continue;
    }
    int digit = Digit(c) ? c - '0' : c >= 'a' && c <= 'z' ? c - 'a' + 10 : 99;
    if (digit >= base) return std::nullopt;
    if (__builtin_mul_overflow(value, static_cast<Int>(base), &value) ||
        __builtin_add_overflow(value, static_cast<Int>(digit), &value)) {
      Fail(ErrorKind::kUnsupported, "an integer of more than 127 bits");
    }
    any = last_digit = true;
  }
  if (!any || !last_digit || (leading_zero && value != 0)) return std::nullopt;
  return negative ? -value : value;
}

Int TruncateDouble(double d) {
  if (std::isnan(d)) FailRuntime("cannot convert float NaN to integer");
  if (std::isinf(d)) FailRuntime("cannot convert float infinity to integer");
  if (std::fabs(d) >= 1.7e38) Fail(ErrorKind::kUnsupported, "an integer of more than 127 bits");
  return static_cast<Int>(d);
}

}  // namespace fluvial::jinja
