// SPDX-License-Identifier: Apache-2.0
// text.format(...).
#include <algorithm>

#include "text/jinja/builtins.h"
#include "text/jinja/format_spec.h"
#include "text/jinja/interpreter.h"
#include "text/jinja/repr.h"
#include "text/jinja/unicode.h"

namespace fluvial::jinja {
namespace {

FormatSpec ParseSpec(const std::string& text) {
  FormatSpec spec;
  size_t at = 0;
  auto is_align = [](char c) { return c == '<' || c == '>' || c == '^' || c == '='; };
  size_t first = 0;
  if (!text.empty()) DecodeAt(text, &first);
  if (first > 0 && first < text.size() && is_align(text[first])) {
    spec.fill = text.substr(0, first);
    spec.align = text[first];
    at = first + 1;
  } else if (!text.empty() && is_align(text[0])) {
    spec.align = text[0];
    at = 1;
  }
  auto peek = [&] { return at < text.size() ? text[at] : '\0'; };
  if (peek() == '+' || peek() == '-' || peek() == ' ') {
    spec.sign = peek() == '-' ? '\0' : peek();
    ++at;
  }
  if (peek() == '#') {
    spec.alternate = true;
    ++at;
  }
  if (peek() == '0') {
    spec.zero = true;
    if (spec.align == 0) {
      spec.fill = "0";
      spec.align = '=';
    }
    ++at;
  }
  auto number = [&] {
    Int value = 0;
    while (peek() >= '0' && peek() <= '9') {
      value = value * 10 + (text[at++] - '0');
      CheckStringSize(value);
    }
    return value;
  };
  spec.width = number();
  if (peek() == ',' || peek() == '_') spec.group = text[at++];
  if (peek() == '.') {
    ++at;
    if (peek() < '0' || peek() > '9') FailRuntime("format specifier missing precision");
    spec.precision = number();
  }
  if (at < text.size()) spec.type = text[at++];
  if (at != text.size()) FailRuntime("invalid format specifier");
  return spec;
}

std::string FormatValue(const Value& v, const std::string& text) {
  if (text.empty()) return Str(v);
  FormatSpec spec = ParseSpec(text);
  if (spec.precision > kMaxPrecision && !v.string()) Fail(ErrorKind::kLimit, "a precision above 400");
  auto is = [&](std::string_view types) { return spec.type != 0 && types.find(spec.type) != std::string_view::npos; };
  auto unknown = [&] {
    FailRuntime(std::string("unknown or unsupported format code '") + spec.type + "' for " + TypeName(v));
  };
  if (v.string()) {
    if (spec.type != 0 && spec.type != 's') unknown();
    if (spec.sign != 0 || spec.alternate || spec.group != 0 || (spec.align == '=' && !spec.zero)) {
      FailRuntime("this format specifier is not allowed for strings");
    }
    if (spec.align == '=') spec.align = '<';
    return FormatText(v.Text(), spec, '<');
  }
  if (v.integral() && (spec.type == 0 || is("dboxX"))) {
    if (spec.precision >= 0) FailRuntime("precision not allowed in integer format specifier");
    return FormatInteger(v.AsInt(), spec);
  }
  if (v.numeric() && is("eEfFgG%")) return FormatDouble(v.AsDouble(), spec);
  if (v.Is(Type::kFloat) && spec.type == 0) {
    if (spec.precision >= 0) Fail(ErrorKind::kUnsupported, "a precision without a type is not supported");
    return FormatDouble(v.AsDouble(), spec);
  }
  if (v.numeric()) unknown();
  FailRuntime("unsupported format string passed to " + TypeName(v) + ".__format__");
}

class BraceFormatter {
 public:
  BraceFormatter(Interpreter& interpreter, const Args& args) : interpreter_(interpreter), args_(args) {}

  std::string Run(const std::string& format, int level) {
    if (level > 2) FailRuntime("max string recursion exceeded");
    std::string out;
    for (size_t at = 0; at < format.size();) {
      char c = format[at++];
      bool doubled = at < format.size() && format[at] == c;
      if (c == '{' && !doubled) {
        out += Field(format, &at, level);
      } else if (c == '}' && !doubled) {
        FailRuntime("single '}' encountered in format string");
      } else {
        if (c == '{' || c == '}') ++at;
        out += c;
      }
      CheckStringSize(static_cast<Int>(out.size()));
    }
    return out;
  }

 private:
  std::string Field(const std::string& format, size_t* at, int level) {
    size_t begin = *at;
    int open = 1;
    bool bracket = false;
    size_t end = begin;
    for (; end < format.size(); ++end) {
      char c = format[end];
      if (c == '[') bracket = true;
      if (c == ']') bracket = false;
      if (c == '{' && !bracket) ++open;
      if (c == '}' && !bracket && --open == 0) break;
    }
    if (end >= format.size()) FailRuntime("expected '}' before end of string");
    std::string field = format.substr(begin, end - begin);
    *at = end + 1;
    size_t name_end = 0;
    for (bool inside = false; name_end < field.size(); ++name_end) {
      if (field[name_end] == '[') inside = true;
      if (field[name_end] == ']') inside = false;
      if (!inside && (field[name_end] == ':' || field[name_end] == '!')) break;
    }
    std::string name = field.substr(0, name_end), spec;
    char conversion = 0;
    size_t rest = name_end;
    if (rest < field.size() && field[rest] == '!') {
      if (rest + 1 >= field.size()) FailRuntime("end of string while looking for conversion specifier");
      conversion = field[rest + 1];
      rest += 2;
      if (rest < field.size() && field[rest] != ':') FailRuntime("expected ':' after conversion specifier");
    }
    if (rest < field.size()) spec = field.substr(rest + 1);
    Value v = Lookup(name);
    if (conversion == 's') {
      v = Value::String(Str(v));
    } else if (conversion == 'r') {
      v = Value::String(Repr(v));
    } else if (conversion != 0) {
      Fail(ErrorKind::kUnsupported, std::string("the conversion !") + conversion + " is not supported");
    }
    return FormatValue(v, Run(spec, level + 1));
  }

  Value Lookup(const std::string& name) {
    size_t end = std::min(name.find_first_of(".["), name.size());
    std::string first = name.substr(0, end);
    Value v;
    if (first.empty() || ParseInt(first, 10)) {
      bool automatic = first.empty();
      if (numbering_ != 0 && numbering_ != (automatic ? 1 : 2)) {
        FailRuntime("cannot switch between automatic and manual field numbering");
      }
      numbering_ = automatic ? 1 : 2;
      Int index = automatic ? next_++ : *ParseInt(first, 10);
      if (index < 0 || index >= static_cast<Int>(args_.positional.size())) {
        FailRuntime("replacement index " + IntText(index) + " out of range for positional args tuple");
      }
      v = args_.positional[static_cast<size_t>(index)];
    } else {
      auto it = std::find_if(args_.keywords.begin(), args_.keywords.end(),
                             [&](const auto& keyword) { return keyword.first == first; });
      if (it == args_.keywords.end()) FailRuntime("KeyError: " + ReprString(first));
      v = it->second;
    }
    while (end < name.size()) {
      if (name[end] == '.') {
        size_t stop = std::min(name.find_first_of(".[", end + 1), name.size());
        v = GetAttribute(interpreter_, v, name.substr(end + 1, stop - end - 1));
        end = stop;
      } else {
        size_t stop = name.find(']', end);
        if (name[end] != '[' || stop == std::string::npos) FailRuntime("missing ']' in format string");
        std::string key = name.substr(end + 1, stop - end - 1);
        bool digits = !key.empty() && key.find_first_not_of("0123456789") == std::string::npos;
        v = GetItem(interpreter_, v, digits ? Value::OfInt(*ParseInt(key, 10)) : Value::String(key));
        end = stop + 1;
      }
    }
    return v;
  }

  Interpreter& interpreter_;
  const Args& args_;
  int numbering_ = 0;  // 1 automatic, 2 manual
  Int next_ = 0;
};

}  // namespace

std::string BraceFormat(Interpreter& interpreter, const std::string& format, const Args& args) {
  for (const Value& v : args.positional) interpreter.ChargeWalk(v);
  for (const auto& keyword : args.keywords) interpreter.ChargeWalk(keyword.second);
  return BraceFormatter(interpreter, args).Run(format, 0);
}

}  // namespace fluvial::jinja
