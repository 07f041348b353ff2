// SPDX-License-Identifier: Apache-2.0
// Filters on text and numbers.
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>

#include "text/jinja/builtins.h"
#include "text/jinja/interpreter.h"
#include "text/jinja/repr.h"
#include "text/jinja/unicode.h"

namespace fluvial::jinja {
namespace {

// soft_str: text stays (marked safe or not), the rest becomes str(value).
Value SoftText(Interpreter& interpreter, const Value& v) {
  if (v.string()) return v;
  interpreter.ChargeWalk(v);
  return Value::String(Str(v));
}

Value CallMethod(Interpreter& interpreter, const Value& text, const char* method, Args args) {
  return interpreter.CallValue(*StringMethod(text, method), args);
}

template <std::string (*kMap)(std::string_view)>
Value Mapped(Interpreter& interpreter, const Value& input, const Args& args) {
  Bound bound("filter", args, {});
  Value text = SoftText(interpreter, input);
  return Value::String(kMap(text.Text()), text.markup());
}

// Word starts are after blanks and any of - ( { [ <, not where str.title sees them.
std::string TitleWords(std::string_view text) {
  std::string out;
  size_t begin = 0;
  auto separator = [](char32_t c) { return IsSpace(c) || c == '-' || c == '(' || c == '{' || c == '[' || c == '<'; };
  while (begin < text.size()) {
    size_t end = begin;
    bool kind = false;
    for (bool first = true; end < text.size(); first = false) {
      size_t next = end;
      bool is = separator(DecodeAt(text, &next));
      if (first) kind = is;
      if (is != kind) break;
      end = next;
    }
    std::string_view item = text.substr(begin, end - begin);
    size_t head = 0;
    DecodeAt(item, &head);
    out += Upper(item.substr(0, head)) + Lower(item.substr(head));
    begin = end;
  }
  return out;
}

Value Trim(Interpreter& interpreter, const Value& input, const Args& args) {
  Bound bound("trim", args, {"chars"});
  Args strip;
  if (bound.Has(0)) strip.positional.push_back(*bound[0]);
  return CallMethod(interpreter, SoftText(interpreter, input), "strip", std::move(strip));
}

Value ReplaceFilter(Interpreter& interpreter, const Value& input, const Args& args) {
  Bound bound("replace", args, {"old", "new", "count"}, 2);
  Int count = bound.NoneOrAbsent(2) ? -1 : RequireInt(*bound[2], "replace");
  std::string text = SoftText(interpreter, input).Text();
  return Value::String(
      ReplaceText(text, SoftText(interpreter, *bound[0]).Text(), SoftText(interpreter, *bound[1]).Text(), count));
}

Value StringFilter(Interpreter& interpreter, const Value& input, const Args& args) {
  Bound bound("string", args, {});
  return SoftText(interpreter, input);
}

Value Safe(Interpreter& interpreter, const Value& input, const Args& args) {
  Bound bound("safe", args, {});
  return Value::String(SoftText(interpreter, input).Text(), true);
}

Value Escape(Interpreter& interpreter, const Value& input, const Args& args) {
  Bound bound("escape", args, {});
  if (input.markup()) return input;
  return Value::String(EscapeHtml(SoftText(interpreter, input).Text()), true);
}

Value ForceEscape(Interpreter& interpreter, const Value& input, const Args& args) {
  Bound bound("forceescape", args, {});
  return Value::String(EscapeHtml(SoftText(interpreter, input).Text()), true);
}

Value Center(Interpreter& interpreter, const Value& input, const Args& args) {
  Bound bound("center", args, {"width"});
  Args width;
  width.positional.push_back(bound[0].value_or(Value::OfInt(80)));
  return CallMethod(interpreter, SoftText(interpreter, input), "center", std::move(width));
}

Value Indent(Interpreter& interpreter, const Value& input, const Args& args) {
  Bound bound("indent", args, {"width", "first", "blank"});
  RequireText(input, "indent");
  std::string indention(4, ' ');
  if (bound.Has(0)) {
    if (bound[0]->string()) {
      indention = bound[0]->Text();
    } else {
      Int width = RequireInt(*bound[0], "indent");
      CheckStringSize(width);
      indention.assign(static_cast<size_t>(std::max<Int>(width, 0)), ' ');
    }
  }
  bool blank = bound.Bool(2, false);
  std::string source = input.Text() + "\n";
  std::vector<std::string_view> lines = SplitLines(source, false);
  interpreter.Charge(static_cast<int64_t>(lines.size()));
  CheckStringSize(static_cast<Int>(lines.size()) * static_cast<Int>(indention.size()) +
                  static_cast<Int>(source.size()));
  std::string out = bound.Bool(1, false) ? indention : "";
  for (size_t i = 0; i < lines.size(); ++i) {
    if (i != 0) {
      out += '\n';
      if (blank || !lines[i].empty()) out += indention;
    }
    out += lines[i];
  }
  return Value::String(std::move(out), input.markup());
}

Value Truncate(Interpreter&, const Value& input, const Args& args) {
  Bound bound("truncate", args, {"length", "killwords", "end", "leeway"});
  Int length = bound.Integer(0, 255);
  Value end = bound[2].value_or(Value::String("..."));
  RequireText(end, "truncate");
  Int leeway = bound.NoneOrAbsent(3) ? 5 : RequireInt(*bound[3], "truncate");
  if (length < end.TextLength() || leeway < 0) FailRuntime("truncate: length or leeway is too small");
  Int size = Length(input);
  if (size >= 0 && size <= length + leeway) return input;
  RequireText(input, "truncate");
  std::string text = input.Text();
  text.resize(OffsetOfCodePoint(text, static_cast<int64_t>(length - end.TextLength())));
  if (!bound.Bool(1, false)) {
    size_t blank = text.rfind(' ');
    if (blank != std::string::npos) text.resize(blank);
  }
  return Add(Value::String(std::move(text), input.markup()), end);
}

Value WordCount(Interpreter& interpreter, const Value& input, const Args& args) {
  Bound bound("wordcount", args, {});
  std::string text = SoftText(interpreter, input).Text();
  Int words = 0;
  bool inside = false;
  for (size_t i = 0; i < text.size();) {
    char32_t c = DecodeAt(text, &i);
    bool word = c == '_' || IsAlpha(c) || IsNumericLetter(c);
    if (word && !inside) ++words;
    inside = word;
  }
  return Value::OfInt(words);
}

Value FormatFilter(Interpreter& interpreter, const Value& input, const Args& args) {
  if (!args.positional.empty() && !args.keywords.empty()) {
    FailRuntime("format: positional and keyword arguments together");
  }
  Value text = SoftText(interpreter, input);
  if (args.keywords.empty()) return PercentFormat(interpreter, text, Value::Tuple(args.positional));
  auto named = std::make_shared<DictObject>();
  for (const auto& [name, value] : args.keywords) named->Set(Value::String(name), value);
  return PercentFormat(interpreter, text, Value::Dict(std::move(named)));
}

Value ToJson(Interpreter& interpreter, const Value& input, const Args& args) {
  Bound bound("tojson", args, {"ensure_ascii", "indent", "separators", "sort_keys"});
  interpreter.ChargeWalk(input);
  JsonStyle style;
  style.ensure_ascii = bound.Bool(0, false);
  style.sort_keys = bound.Bool(3, false);
  if (!bound.NoneOrAbsent(1)) {
    style.pretty = true;
    style.item_separator = ",";
    if (bound[1]->string()) {
      style.indent = bound[1]->Text();
    } else {
      Int width = RequireInt(*bound[1], "tojson(indent)");
      CheckStringSize(width);
      style.indent.assign(static_cast<size_t>(std::max<Int>(width, 0)), ' ');
    }
  }
  if (!bound.NoneOrAbsent(2)) {
    Items pair = ToItems(*bound[2]);
    if (pair.size() != 2) FailRuntime("tojson: separators must be two strings");
    style.item_separator = RequireText(pair[0], "tojson(separators)");
    style.key_separator = RequireText(pair[1], "tojson(separators)");
  }
  return Value::String(JsonDumps(input, style));
}

Value Abs(Interpreter&, const Value& input, const Args& args) {
  Bound bound("abs", args, {});
  RequireDefined(input);
  if (input.Is(Type::kFloat)) return Value::Float(std::fabs(input.AsDouble()));
  if (!input.integral()) FailRuntime("bad operand type for abs(): '" + TypeName(input) + "'");
  return input.AsInt() < 0 ? Negate(input) : Plus(input);
}

Value ToInt(Interpreter&, const Value& input, const Args& args) {
  Bound bound("int", args, {"default", "base"});
  Value fallback = bound[0].value_or(Value::OfInt(0));
  Value base = bound[1].value_or(Value::OfInt(10));
  RequireDefined(input);
  if (input.integral()) return Plus(input);
  if (input.string()) {
    // A base that is no integer is one more reason for the fallback, as in Jinja.
    int radix = base.integral() ? static_cast<int>(std::clamp<Int>(base.AsInt(), -1, 99)) : -1;
    if (std::optional<Int> value = ParseInt(input.Text(), radix)) return Value::OfInt(*value);
    std::optional<double> number = ParseFloat(input.Text());
    if (!number || !std::isfinite(*number)) return fallback;
    return Value::OfInt(TruncateDouble(*number));
  }
  if (!input.Is(Type::kFloat) || std::isnan(input.AsDouble())) return fallback;
  return Value::OfInt(TruncateDouble(input.AsDouble()));
}

Value ToFloat(Interpreter&, const Value& input, const Args& args) {
  Bound bound("float", args, {"default"});
  RequireDefined(input);
  if (input.numeric()) return Value::Float(input.AsDouble());
  std::optional<double> number = input.string() ? ParseFloat(input.Text()) : std::nullopt;
  return number ? Value::Float(*number) : bound[0].value_or(Value::Float(0));
}

// round(): half to even of the exact binary value, which is what printf rounds.
double RoundDouble(double value, Int digits) {
  if (!std::isfinite(value) || digits > 323) return value;
  if (digits < -308) return std::copysign(0.0, value);
  if (digits < 0) {
    double unit = std::pow(10.0, static_cast<double>(-digits));
    return std::nearbyint(value / unit) * unit;
  }
  char buffer[800];
  std::snprintf(buffer, sizeof buffer, "%.*f", static_cast<int>(digits), value);
  return std::strtod(buffer, nullptr);
}

Int RoundInt(Int value, Int digits) {
  if (digits >= 0) return value;
  if (digits < -38) return 0;
  Int unit = 1;
  for (Int i = 0; i < -digits && i < 38; ++i) unit *= 10;
  Int low = value / unit * unit;
  if (low > value) low -= unit;
  Int rest = value - low;
  bool up = rest * 2 > unit || (rest * 2 == unit && (low / unit) % 2 != 0);
  return up ? low + unit : low;
}

Value Round(Interpreter&, const Value& input, const Args& args) {
  Bound bound("round", args, {"precision", "method"});
  Int digits = bound.Integer(0, 0);
  std::string method = bound.Text(1, "common");
  RequireDefined(input);
  if (method != "common" && method != "ceil" && method != "floor") FailRuntime("method must be common, ceil or floor");
  if (!input.numeric()) FailRuntime("type " + TypeName(input) + " doesn't define __round__ method");
  if (method == "common") {
    if (input.integral()) return Value::OfInt(RoundInt(input.AsInt(), digits));
    return Value::Float(RoundDouble(input.AsDouble(), digits));
  }
  Value scale = Power(Value::OfInt(10), Value::OfInt(digits));
  double scaled = Multiply(input, scale).AsDouble();
  if (!std::isfinite(scaled)) FailRuntime("cannot convert float infinity or NaN to integer");
  return Divide(Value::OfInt(TruncateDouble(method == "ceil" ? std::ceil(scaled) : std::floor(scaled))), scale);
}

struct Entry {
  std::string_view name;
  FilterFn call;
};
constexpr Entry kFilters[] = {
    {"abs", Abs},
    {"capitalize", Mapped<Capitalize>},
    {"center", Center},
    {"e", Escape},
    {"escape", Escape},
    {"float", ToFloat},
    {"forceescape", ForceEscape},
    {"format", FormatFilter},
    {"indent", Indent},
    {"int", ToInt},
    {"lower", Mapped<Lower>},
    {"replace", ReplaceFilter},
    {"round", Round},
    {"safe", Safe},
    {"string", StringFilter},
    {"title", Mapped<TitleWords>},
    {"tojson", ToJson},
    {"trim", Trim},
    {"truncate", Truncate},
    {"upper", Mapped<Upper>},
    {"wordcount", WordCount},
};

}  // namespace

FilterFn FindTextFilter(std::string_view name) {
  for (const Entry& entry : kFilters) {
    if (entry.name == name) return entry.call;
  }
  return nullptr;
}

std::string EscapeHtml(const std::string& text) {
  std::string out;
  out.reserve(text.size());
  for (char c : text) {
    switch (c) {
      case '&':
        out += "&amp;";
        break;
      case '<':
        out += "&lt;";
        break;
      case '>':
        out += "&gt;";
        break;
      case '\'':
        out += "&#39;";
        break;
      case '"':
        out += "&#34;";
        break;
      default:
        out += c;
    }
    CheckStringSize(static_cast<Int>(out.size()));
  }
  return out;
}

std::string ReplaceText(const std::string& text, const std::string& from, const std::string& to, Int count) {
  std::string out;
  size_t at = 0;
  if (from.empty()) {
    // An empty pattern matches before every character and at the end.
    while (count != 0) {
      out += to;
      --count;
      CheckStringSize(static_cast<Int>(out.size()));
      if (at >= text.size()) return out;
      size_t next = at;
      DecodeAt(text, &next);
      out.append(text, at, next - at);
      at = next;
    }
    return out.append(text, at);
  }
  while (count != 0) {
    size_t found = text.find(from, at);
    if (found == std::string::npos) break;
    out.append(text, at, found - at);
    out += to;
    at = found + from.size();
    --count;
    CheckStringSize(static_cast<Int>(out.size()));
  }
  return out.append(text, at);
}

std::vector<std::string_view> SplitLines(std::string_view text, bool keep_ends) {
  std::vector<std::string_view> lines;
  size_t begin = 0;
  for (size_t i = 0; i < text.size();) {
    size_t end = i;
    char32_t c = DecodeAt(text, &i);
    if (!IsLineBreak(c)) continue;
    if (c == '\r' && i < text.size() && text[i] == '\n') ++i;
    lines.push_back(text.substr(begin, (keep_ends ? i : end) - begin));
    begin = i;
  }
  if (begin < text.size()) lines.push_back(text.substr(begin));
  return lines;
}

}  // namespace fluvial::jinja
