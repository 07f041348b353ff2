// SPDX-License-Identifier: Apache-2.0
#include "text/jinja/format_spec.h"

#include <algorithm>
#include <cmath>
#include <cstdio>

#include "text/jinja/repr.h"
#include "text/jinja/unicode.h"

namespace fluvial::jinja {
namespace {

std::string Aligned(const FormatSpec& spec, const std::string& sign, const std::string& body, char own_align) {
  CheckStringSize(spec.width * 4 + static_cast<Int>(body.size()));
  Int pad = std::max<Int>(0, spec.width - CountCodePoints(sign) - CountCodePoints(body));
  char align = spec.align != 0 ? spec.align : own_align;
  Int left = align == '<' || align == '=' ? 0 : align == '^' ? pad / 2 : pad;
  std::string out;
  for (Int i = 0; i < left; ++i) out += spec.fill;
  out += sign;
  if (align == '=') {
    for (Int i = 0; i < pad; ++i) out += spec.fill;
    pad = 0;
  }
  out += body;
  for (Int i = left; i < pad; ++i) out += spec.fill;
  return out;
}

std::string Grouped(const std::string& digits, char separator, size_t every) {
  if (separator == 0) return digits;
  std::string out;
  for (size_t i = 0; i < digits.size(); ++i) {
    if (i != 0 && (digits.size() - i) % every == 0) out += separator;
    out += digits[i];
  }
  return out;
}

std::string SignText(bool negative, char sign) { return negative ? "-" : sign != 0 ? std::string(1, sign) : ""; }

std::string DigitsInBase(Int value, int base, bool upper) {
  std::string out;
  do {
    int digit = static_cast<int>(value % base);
    if (digit < 0) digit = -digit;
    out.push_back((upper ? "0123456789ABCDEF" : "0123456789abcdef")[digit]);
    value /= base;
  } while (value != 0);
  std::reverse(out.begin(), out.end());
  return out;
}

}  // namespace

std::string FormatInteger(Int value, const FormatSpec& spec) {
  int base = spec.type == 'x' || spec.type == 'X' ? 16 : spec.type == 'o' ? 8 : spec.type == 'b' ? 2 : 10;
  std::string digits = DigitsInBase(value, base, spec.type == 'X');
  if (spec.precision > static_cast<Int>(digits.size())) {
    digits.insert(0, static_cast<size_t>(spec.precision) - digits.size(), '0');
  }
  std::string prefix = SignText(value < 0, spec.sign);
  if (spec.alternate && base != 10) prefix += base == 16 ? (spec.type == 'X' ? "0X" : "0x") : base == 8 ? "0o" : "0b";
  if (spec.group != 0 && spec.zero) Fail(ErrorKind::kUnsupported, "grouping together with zero padding");
  return Aligned(spec, prefix, Grouped(digits, spec.group, base == 10 ? 3 : 4), '>');
}

std::string FormatDouble(double value, const FormatSpec& spec) {
  bool upper = spec.type >= 'A' && spec.type <= 'Z';
  bool negative = std::signbit(value) && !std::isnan(value);
  std::string body;
  if (std::isnan(value) || std::isinf(value)) {
    body = std::isnan(value) ? (upper ? "NAN" : "nan") : (upper ? "INF" : "inf");
    if (spec.type == '%') body += "%";
    return Aligned(spec, SignText(negative, spec.sign), body, '>');
  }
  if (spec.type == 0) {
    body = FloatText(std::fabs(value));
  } else {
    char conversion = spec.type == '%' ? 'f' : spec.type;
    std::string format = std::string("%") + (spec.alternate ? "#" : "") + ".*" + conversion;
    char buffer[1024];
    double magnitude = std::fabs(value) * (spec.type == '%' ? 100 : 1);
    int precision = static_cast<int>(spec.precision < 0 ? 6 : spec.precision);
    std::snprintf(buffer, sizeof buffer, format.c_str(), precision, magnitude);
    body = buffer;
    if (spec.type == '%') body += "%";
  }
  if (spec.group != 0) {
    if (spec.zero) Fail(ErrorKind::kUnsupported, "grouping together with zero padding");
    size_t whole = body.find_first_not_of("0123456789");
    whole = std::min(whole, body.size());
    body = Grouped(body.substr(0, whole), spec.group, 3) + body.substr(whole);
  }
  return Aligned(spec, SignText(negative, spec.sign), body, '>');
}

std::string FormatText(std::string_view text, const FormatSpec& spec, char own_align) {
  if (spec.precision >= 0 && spec.precision < static_cast<Int>(text.size())) {
    text = text.substr(0, OffsetOfCodePoint(text, static_cast<int64_t>(spec.precision)));
  }
  return Aligned(spec, "", std::string(text), own_align);
}

}  // namespace fluvial::jinja
