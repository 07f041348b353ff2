// SPDX-License-Identifier: Apache-2.0
// text % values.
#include <algorithm>

#include "text/jinja/builtins.h"
#include "text/jinja/format_spec.h"
#include "text/jinja/interpreter.h"
#include "text/jinja/repr.h"
#include "text/jinja/unicode.h"

namespace fluvial::jinja {
namespace {

double RequireNumber(const Value& v, const char* what) {
  RequireDefined(v);
  if (!v.numeric()) FailRuntime(std::string(what) + " format: a number is required, not " + TypeName(v));
  return v.AsDouble();
}

class PercentFormatter {
 public:
  PercentFormatter(const std::string& format, const Value& values) : format_(format), values_(values) {
    if (values.Is(Type::kTuple)) {
      items_ = values.Seq();
    } else {
      items_ = {values};
      // Anything with a subscript counts as a mapping, which need not be used up.
      mapping_ = !values.string() &&
                 (values.Is(Type::kDict) || values.Is(Type::kList) || values.Is(Type::kRange) || values.undefined());
    }
  }

  std::string Run() {
    std::string out;
    while (at_ < format_.size()) {
      if (format_[at_] != '%') {
        out += format_[at_++];
        continue;
      }
      ++at_;
      out += Field();
      CheckStringSize(static_cast<Int>(out.size()));
    }
    if (!mapping_ && next_ < items_.size()) FailRuntime("not all arguments converted during string formatting");
    return out;
  }

 private:
  char Peek() const {
    if (at_ >= format_.size()) FailRuntime("incomplete format");
    return format_[at_];
  }

  const Value& NextValue() {
    if (next_ >= items_.size()) FailRuntime("not enough arguments for format string");
    return items_[next_++];
  }

  Int Amount() {
    if (Peek() == '*') {
      ++at_;
      return RequireInt(NextValue(), "* in a format");
    }
    Int amount = 0;
    while (Peek() >= '0' && Peek() <= '9') {
      amount = amount * 10 + (format_[at_++] - '0');
      CheckStringSize(amount);
    }
    return amount;
  }

  std::string Field() {
    const Value* named = nullptr;
    if (Peek() == '(') {
      size_t end = format_.find(')', at_);
      if (end == std::string::npos) FailRuntime("incomplete format key");
      if (!values_.Is(Type::kDict)) FailRuntime("format requires a mapping");
      std::string key = format_.substr(at_ + 1, end - at_ - 1);
      named = values_.Mapping().Find(std::string_view(key));
      if (named == nullptr) FailRuntime("KeyError: " + ReprString(key));
      at_ = end + 1;
      next_ = items_.size();
    }
    FormatSpec spec;
    for (bool flags = true; flags;) {
      switch (Peek()) {
        case '-':
          spec.align = '<';
          break;
        case '+':
          spec.sign = '+';
          break;
        case ' ':
          if (spec.sign == 0) spec.sign = ' ';
          break;
        case '0':
          spec.zero = true;
          break;
        case '#':
          spec.alternate = true;
          break;
        default:
          flags = false;
      }
      if (flags) ++at_;
    }
    spec.width = Amount();
    if (spec.width < 0) {
      spec.align = '<';
      spec.width = -spec.width;
    }
    CheckStringSize(spec.width);
    if (Peek() == '.') {
      ++at_;
      spec.precision = std::max<Int>(0, Amount());
    }
    if (Peek() == 'h' || Peek() == 'l' || Peek() == 'L') ++at_;
    spec.type = Peek();
    ++at_;
    if (spec.type == '%') return "%";
    return Convert(&spec, named != nullptr ? *named : NextValue());
  }

  std::string Convert(FormatSpec* spec, const Value& v) {
    bool zero = spec->zero && spec->align == 0;
    switch (spec->type) {
      case 's':
        return FormatText(Str(v), *spec, '>');
      case 'r':
        return FormatText(Repr(v), *spec, '>');
      case 'c': {
        std::string text;
        if (v.string()) {
          if (v.TextLength() != 1) FailRuntime("%c requires int or char");
          text = v.Text();
        } else {
          Int code = RequireInt(v, "%c");
          if (code < 0 || code > 0x10ffff || (code >= 0xd800 && code < 0xe000)) FailRuntime("%c arg not in range");
          AppendUtf8(&text, static_cast<char32_t>(code));
        }
        spec->precision = -1;
        return FormatText(text, *spec, '>');
      }
      case 'd':
      case 'i':
      case 'u':
      case 'x':
      case 'X':
      case 'o': {
        bool decimal = spec->type == 'd' || spec->type == 'i' || spec->type == 'u';
        RequireNumber(v, "%d");
        if (v.Is(Type::kFloat) && !decimal) FailRuntime("%x format: an integer is required, not float");
        if (spec->precision > kMaxPrecision) Fail(ErrorKind::kLimit, "a precision above 400");
        if (decimal) spec->type = 'd';
        SetZero(spec, zero);
        return FormatInteger(v.Is(Type::kFloat) ? TruncateDouble(v.AsDouble()) : v.AsInt(), *spec);
      }
      case 'e':
      case 'E':
      case 'f':
      case 'F':
      case 'g':
      case 'G':
        RequireNumber(v, "float");
        if (spec->precision > kMaxPrecision) Fail(ErrorKind::kLimit, "a precision above 400");
        SetZero(spec, zero);
        return FormatDouble(v.AsDouble(), *spec);
      case 'a':
        Fail(ErrorKind::kUnsupported, "the format %a is not supported");
      default:
        FailRuntime("unsupported format character in %-formatting");
    }
  }

  static void SetZero(FormatSpec* spec, bool zero) {
    if (!zero) return;
    spec->fill = "0";
    spec->align = '=';
  }

  const std::string& format_;
  const Value& values_;
  Items items_;
  bool mapping_ = false;
  size_t at_ = 0;
  size_t next_ = 0;
};

}  // namespace

Value PercentFormat(Interpreter& interpreter, const Value& format, const Value& values) {
  if (format.markup()) Fail(ErrorKind::kUnsupported, "% formatting of a safe string is not supported");
  interpreter.ChargeWalk(values);
  interpreter.ChargeWalk(format);
  return Value::String(PercentFormatter(format.Text(), values).Run());
}

}  // namespace fluvial::jinja
