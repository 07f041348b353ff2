// SPDX-License-Identifier: Apache-2.0
// Filters, tests, methods and global functions: tables from names to functions, and the binding of call arguments.
#pragma once

#include <initializer_list>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "text/jinja/value.h"

namespace fluvial::jinja {

struct Args {
  Items positional;
  std::vector<std::pair<std::string, Value>> keywords;
};

/// Binds arguments to parameter names like a Python call: positions first, then keywords. Too many, unknown or doubled
/// arguments fail. An absent argument is std::nullopt.
class Bound {
 public:
  Bound(const char* function, const Args& args, std::initializer_list<const char*> names, size_t required = 0,
        size_t positional_only = 0);

  const std::optional<Value>& operator[](size_t i) const { return slots_[i]; }
  bool Has(size_t i) const { return slots_[i].has_value(); }
  bool Bool(size_t i, bool fallback) const;
  Int Integer(size_t i, Int fallback) const;
  std::string Text(size_t i, std::string fallback) const;
  bool NoneOrAbsent(size_t i) const { return !slots_[i] || slots_[i]->none(); }

 private:
  const char* function_;
  std::vector<std::string> names_;
  std::vector<std::optional<Value>> slots_;
};

using FilterFn = Value (*)(Interpreter&, const Value& input, const Args& args);
using TestFn = bool (*)(Interpreter&, const Value& input, const Args& args);

enum class Known { kNo, kUnsupported, kYes };
Known FilterKnown(std::string_view name);
Known TestKnown(std::string_view name);

/// nullptr when there is no such filter here.
FilterFn FindFilter(std::string_view name);
TestFn FindTest(std::string_view name);

FilterFn FindTextFilter(std::string_view name);
FilterFn FindSelectFilter(std::string_view name);

/// An iterator that gives `items` once.
Value IteratorOver(Items items);

/// Attribute `name` of a builtin type as Python sees it: a method, a value, or nullopt when the type has none.
/// What the sandbox hides comes back as undefined; what is not supported here fails.
std::optional<Value> TypeAttribute(Interpreter& interpreter, const Value& object, const std::string& name);
std::optional<Value> StringMethod(const Value& object, const std::string& name);

/// environment.getattr / getitem: attribute first or subscript first, then the other, then undefined.
Value GetAttribute(Interpreter& interpreter, const Value& object, const std::string& name);
Value GetItem(Interpreter& interpreter, const Value& object, const Value& key);
/// object[start:stop:step] with None for absent bounds.
Value GetSlice(const Value& object, const Value& start, const Value& stop, const Value& step);
/// Python's slice.indices: first index, step, number of items, and the index it stops before.
void SliceIndices(const Value& start, const Value& stop, const Value& step, Int length, Int* first, Int* stride,
                  Int* count, Int* end = nullptr);

Value Function(std::string name, std::function<Value(Interpreter&, Args&)> call);
/// Global functions of the environment by name; nullopt when there is none.
std::optional<Value> GlobalValue(Interpreter& interpreter, std::string_view name);

/// int(value) for an argument that must be an integer.
Int RequireInt(const Value& v, const char* what);
const std::string& RequireText(const Value& v, const char* what);

Value Add(const Value& a, const Value& b);
Value Subtract(const Value& a, const Value& b);
Value Multiply(const Value& a, const Value& b);
Value Divide(const Value& a, const Value& b);
Value FloorDivide(const Value& a, const Value& b);
Value Modulo(Interpreter& interpreter, const Value& a, const Value& b);
Value Power(const Value& a, const Value& b);
Value Negate(const Value& v);
Value Plus(const Value& v);
bool Contains(const Value& container, const Value& item);

/// text % values.
Value PercentFormat(Interpreter& interpreter, const Value& format, const Value& values);
/// format.format(*args, **kwargs).
std::string BraceFormat(Interpreter& interpreter, const std::string& format, const Args& args);
/// HTML escape of markupsafe: & < > ' ".
std::string EscapeHtml(const std::string& text);

/// float(text) and int(text, base) of Python; nullopt where they raise ValueError.
std::optional<double> ParseFloat(std::string_view text);
std::optional<Int> ParseInt(std::string_view text, int base);
/// int(double): fails for NaN, infinity or beyond 127 bits.
Int TruncateDouble(double d);

std::string ReplaceText(const std::string& text, const std::string& from, const std::string& to, Int count);
std::vector<std::string_view> SplitLines(std::string_view text, bool keep_ends);

}  // namespace fluvial::jinja
