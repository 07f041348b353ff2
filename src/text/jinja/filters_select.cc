// SPDX-License-Identifier: Apache-2.0
// Filters that take another filter or a test: map, select, reject and their attr forms. All are lazy, as in Jinja.
#include <algorithm>

#include "text/jinja/attribute_path.h"
#include "text/jinja/builtins.h"
#include "text/jinja/interpreter.h"

namespace fluvial::jinja {
namespace {

// map(attribute=..., default=...) or map('filter', ...).
Value Map(Interpreter& interpreter, const Value& input, const Args& args) {
  std::function<Value(const Value&)> apply;
  int depth = input.depth();
  Args rest = args;
  bool attribute =
      args.positional.empty() && std::any_of(args.keywords.begin(), args.keywords.end(),
                                             [](const auto& keyword) { return keyword.first == "attribute"; });
  if (attribute) {
    Bound bound("map", args, {"attribute", "default"});
    Value fallback = bound[1].value_or(Value::None());
    depth = std::max(depth, fallback.depth());
    apply = [&interpreter, path = AttributePath(*bound[0]), fallback](const Value& item) {
      return path.Get(interpreter, item, fallback.none() ? nullptr : &fallback);
    };
  } else {
    depth = std::max(depth, MaxDepth(args.positional));
    for (const auto& keyword : args.keywords) depth = std::max(depth, keyword.second.depth());
    std::string name;
    if (!rest.positional.empty()) {
      name = rest.positional[0].string() ? rest.positional[0].Text() : "";
      rest.positional.erase(rest.positional.begin());
    } else if (Truth(input)) {
      // Python raises when the generator is first read, which an empty input never does.
      return Value::Iterator([](Value*) -> bool { FailRuntime("map requires a filter argument"); }, depth);
    }
    apply = [&interpreter, name, rest](const Value& item) { return interpreter.CallFilter(name, item, rest); };
  }
  if (!Truth(input)) return IteratorOver({});
  return Value::Iterator(
      [&interpreter, apply = std::move(apply), input, next = std::function<bool(Value*)>()](Value* out) mutable {
        if (!next) next = Iterate(input);
        Value item;
        if (!next(&item)) return false;
        interpreter.Charge(1);
        *out = apply(item);
        return true;
      },
      depth);
}

template <bool kKeep, bool kAttribute>
Value Select(Interpreter& interpreter, const Value& input, const Args& args) {
  int depth = std::max(input.depth(), MaxDepth(args.positional));
  for (const auto& keyword : args.keywords) depth = std::max(depth, keyword.second.depth());
  if (!Truth(input)) return IteratorOver({});
  Args rest = args;
  AttributePath path(Value::None());
  if (kAttribute) {
    if (rest.positional.empty()) {
      return Value::Iterator([](Value*) -> bool { FailRuntime("missing parameter for attribute name"); }, depth);
    }
    path = AttributePath(rest.positional[0]);
    rest.positional.erase(rest.positional.begin());
  }
  bool test = !rest.positional.empty();
  std::string name;
  if (test) {
    name = rest.positional[0].string() ? rest.positional[0].Text() : "";
    rest.positional.erase(rest.positional.begin());
  }
  return Value::Iterator(
      [&interpreter, path, test, name, rest, input, next = std::function<bool(Value*)>()](Value* out) mutable {
        if (!next) next = Iterate(input);
        Value item;
        while (next(&item)) {
          interpreter.Charge(1);
          Value subject = path.Get(interpreter, item);
          bool found = test ? interpreter.CallTest(name, subject, rest) : Truth(subject);
          if (found != kKeep) continue;
          *out = std::move(item);
          return true;
        }
        return false;
      },
      depth);
}

struct Entry {
  std::string_view name;
  FilterFn call;
};
constexpr Entry kFilters[] = {
    {"map", Map},
    {"reject", Select<false, false>},
    {"rejectattr", Select<false, true>},
    {"select", Select<true, false>},
    {"selectattr", Select<true, true>},
};

}  // namespace

FilterFn FindSelectFilter(std::string_view name) {
  for (const Entry& entry : kFilters) {
    if (entry.name == name) return entry.call;
  }
  return nullptr;
}

}  // namespace fluvial::jinja
