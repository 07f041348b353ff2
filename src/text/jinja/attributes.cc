// SPDX-License-Identifier: Apache-2.0
// Attribute and subscript access: environment.getattr and getitem of the immutable sandbox.
#include <algorithm>
#include <cmath>

#include "text/jinja/builtins.h"
#include "text/jinja/interpreter.h"
#include "text/jinja/repr.h"
#include "text/jinja/unicode.h"

namespace fluvial::jinja {
namespace {

using Names = std::initializer_list<std::string_view>;
bool In(std::string_view name, Names names) { return std::find(names.begin(), names.end(), name) != names.end(); }

[[noreturn]] void UnsupportedAttribute(const Value& object, const std::string& name) {
  Fail(ErrorKind::kUnsupported, "the attribute '" + name + "' of '" + TypeName(object) + "' is not supported");
}

Value Hidden(const Value& object, const std::string& name) {
  return Value::Undefined("access to attribute '" + name + "' of '" + TypeName(object) + "' object is unsafe.");
}

Value Method(const Value& object, const std::string& name,
             std::function<Value(Interpreter&, const Value& object, Args&)> call) {
  Value method = Function(name, [object, call = std::move(call)](Interpreter& interpreter, Args& args) {
    return call(interpreter, object, args);
  });
  method.object()->depth = object.depth() + 1;
  if (method.depth() > kMaxDepth) Fail(ErrorKind::kLimit, "bound methods nested too deep");
  return method;
}

Value CountIn(Interpreter& interpreter, const Value& object, Args& args) {
  Bound bound("count", args, {"value"}, 1, 1);
  interpreter.ChargeWalk(object);
  return Value::OfInt(std::count_if(object.Seq().begin(), object.Seq().end(),
                                    [&](const Value& item) { return Equal(item, *bound[0]); }));
}

Value IndexIn(Interpreter& interpreter, const Value& object, Args& args) {
  Bound bound("index", args, {"value", "start", "stop"}, 1, 3);
  interpreter.ChargeWalk(object);
  Int first, stride, count;
  SliceIndices(bound[1].value_or(Value::None()), bound[2].value_or(Value::None()), Value::None(), Length(object),
               &first, &stride, &count);
  for (Int i = first; i < first + count; ++i) {
    if (Equal(object.Seq()[static_cast<size_t>(i)], *bound[0])) return Value::OfInt(i);
  }
  FailRuntime("value is not in the " + TypeName(object));
}

std::optional<Value> SequenceAttribute(const Value& object, const std::string& name) {
  if (name == "count") return Method(object, name, CountIn);
  if (name == "index") return Method(object, name, IndexIn);
  if (object.Is(Type::kList)) {
    if (name == "copy") {
      return Method(object, name, [](Interpreter&, const Value& self, Args& args) {
        Bound bound("copy", args, {});
        return Value::List(self.Seq());
      });
    }
    if (In(name, {"append", "clear", "pop", "reverse", "insert", "sort", "extend", "remove"})) {
      return Hidden(object, name);
    }
  } else if (object.As<SequenceObject>().group) {
    if (name == "grouper") return object.Seq()[0];
    if (name == "list") return object.Seq()[1];
  }
  return std::nullopt;
}

std::optional<Value> DictAttribute(const Value& object, const std::string& name) {
  int part = name == "keys" ? 0 : name == "values" ? 1 : name == "items" ? 2 : -1;
  if (part >= 0) {
    return Method(object, name, [part, name](Interpreter&, const Value& self, Args& args) {
      Bound bound(name.c_str(), args, {});
      return Value::View(self, part);
    });
  }
  if (name == "get") {
    return Method(object, name, [](Interpreter&, const Value& self, Args& args) {
      Bound bound("get", args, {"key", "default"}, 1, 2);
      const Value* found = self.Mapping().Find(*bound[0]);
      return found != nullptr ? *found : bound[1].value_or(Value::None());
    });
  }
  if (name == "copy") {
    return Method(object, name, [](Interpreter&, const Value& self, Args& args) {
      Bound bound("copy", args, {});
      return self;  // dicts cannot change here
    });
  }
  if (In(name, {"clear", "pop", "popitem", "setdefault", "update"})) return Hidden(object, name);
  if (name == "fromkeys") UnsupportedAttribute(object, name);
  return std::nullopt;
}

std::optional<Value> NumberAttribute(const Value& object, const std::string& name) {
  bool is_float = object.Is(Type::kFloat);
  if (name == "real" || (!is_float && name == "numerator")) return is_float ? object : Plus(object);
  if (name == "imag") return is_float ? Value::Float(0) : Value::OfInt(0);
  if (!is_float && name == "denominator") return Value::OfInt(1);
  if (is_float && name == "is_integer") {
    return Method(object, name, [](Interpreter&, const Value& self, Args& args) {
      Bound bound("is_integer", args, {});
      return Value::Bool(std::isfinite(self.AsDouble()) && self.AsDouble() == std::trunc(self.AsDouble()));
    });
  }
  if (In(name, {"conjugate", "as_integer_ratio"})) UnsupportedAttribute(object, name);
  if (is_float && In(name, {"hex", "fromhex"})) UnsupportedAttribute(object, name);
  if (!is_float && In(name, {"bit_length", "bit_count", "to_bytes", "from_bytes"})) UnsupportedAttribute(object, name);
  return std::nullopt;
}

std::optional<Value> RangeAttribute(const Value& object, const std::string& name) {
  const auto& range = object.As<RangeObject>();
  if (name == "start") return Value::OfInt(range.start);
  if (name == "stop") return Value::OfInt(range.stop);
  if (name == "step") return Value::OfInt(range.step);
  if (In(name, {"count", "index"})) UnsupportedAttribute(object, name);
  return std::nullopt;
}

Value LoopChanged(Interpreter& interpreter, const Value& object, Args& args) {
  auto& loop = object.As<LoopObject>();
  if (!args.keywords.empty()) FailRuntime("loop.changed() takes no keyword arguments");
  Value now = Value::Tuple(args.positional);
  interpreter.ChargeWalk(now);
  if (loop.has_changed && Equal(loop.last_changed, now)) return Value::Bool(false);
  loop.has_changed = true;
  loop.last_changed = now;
  return Value::Bool(true);
}

std::optional<Value> LoopAttribute(const Value& object, const std::string& name) {
  auto& loop = object.As<LoopObject>();
  if (name == "index") return Value::OfInt(loop.index0 + 1);
  if (name == "index0") return Value::OfInt(loop.index0);
  if (name == "first") return Value::Bool(loop.index0 == 0);
  if (name == "last") return Value::Bool(loop.Peek() == nullptr);
  if (name == "length") return Value::OfInt(loop.Length());
  if (name == "revindex") return Value::OfInt(loop.Length() - loop.index0);
  if (name == "revindex0") return Value::OfInt(loop.Length() - loop.index0 - 1);
  if (name == "depth") return Value::OfInt(loop.depth0 + 1);
  if (name == "depth0") return Value::OfInt(loop.depth0);
  if (name == "previtem") return loop.index0 == 0 ? Value::Undefined("there is no previous item") : loop.before;
  if (name == "nextitem") {
    const Value* next = loop.Peek();
    return next != nullptr ? *next : Value::Undefined("there is no next item");
  }
  if (name == "cycle") {
    return Method(object, name, [](Interpreter&, const Value& self, Args& args) {
      if (args.positional.empty()) FailRuntime("no items for cycling given");
      Int count = static_cast<Int>(args.positional.size());
      return args.positional[static_cast<size_t>(self.As<LoopObject>().index0 % count)];
    });
  }
  if (name == "changed") return Method(object, name, LoopChanged);
  return std::nullopt;
}

std::optional<Value> CyclerAttribute(const Value& object, const std::string& name) {
  auto& cycler = object.As<CyclerObject>();
  if (name == "current") return cycler.items[cycler.position];
  if (name == "items") return Value::Tuple(cycler.items);
  if (name == "pos") return Value::OfInt(static_cast<Int>(cycler.position));
  if (name == "next") {
    return Method(object, name, [](Interpreter&, const Value& self, Args& args) {
      Bound bound("next", args, {});
      auto& state = self.As<CyclerObject>();
      Value item = state.items[state.position];
      state.position = (state.position + 1) % state.items.size();
      return item;
    });
  }
  if (name == "reset") {
    return Method(object, name, [](Interpreter&, const Value& self, Args& args) {
      Bound bound("reset", args, {});
      self.As<CyclerObject>().position = 0;
      return Value::None();
    });
  }
  return std::nullopt;
}

std::string ObjectName(const Value& object) { return object.none() ? "'None'" : "'" + TypeName(object) + " object'"; }

// object[key]; nullopt where Python raises TypeError or LookupError.
std::optional<Value> Subscript(const Value& object, const Value& key) {
  if (object.Is(Type::kDict)) {
    if (key.Is(Type::kList) || key.Is(Type::kDict)) return std::nullopt;
    const Value* found = object.Mapping().Find(key);
    return found != nullptr ? std::optional<Value>(*found) : std::nullopt;
  }
  bool indexable = object.string() || object.Is(Type::kList) || object.Is(Type::kTuple) || object.Is(Type::kRange);
  if (!indexable || !key.integral()) return std::nullopt;
  Int length = Length(object), i = key.AsInt();
  if (i < 0) i += length;
  if (i < 0 || i >= length) return std::nullopt;
  if (object.Is(Type::kRange)) {
    const auto& range = object.As<RangeObject>();
    return Value::OfInt(range.start + i * range.step);
  }
  if (!object.string()) return object.Seq()[static_cast<size_t>(i)];
  const std::string& text = object.Text();
  size_t begin = object.TextLength() == static_cast<int64_t>(text.size())
                     ? static_cast<size_t>(i)
                     : OffsetOfCodePoint(text, static_cast<int64_t>(i));
  size_t end = begin;
  DecodeAt(text, &end);
  return Value::String(text.substr(begin, end - begin), object.markup());
}

}  // namespace

std::optional<Value> TypeAttribute(Interpreter&, const Value& object, const std::string& name) {
  if (name.size() > 4 && name.starts_with("__") && name.ends_with("__")) return std::nullopt;
  switch (object.type()) {
    case Type::kString:
      return StringMethod(object, name);
    case Type::kList:
    case Type::kTuple:
      return SequenceAttribute(object, name);
    case Type::kDict:
      return DictAttribute(object, name);
    case Type::kBool:
    case Type::kInt:
    case Type::kFloat:
      return NumberAttribute(object, name);
    case Type::kRange:
      return RangeAttribute(object, name);
    case Type::kLoop:
      return LoopAttribute(object, name);
    case Type::kCycler:
      return CyclerAttribute(object, name);
    case Type::kNamespace: {
      const Value* found = object.As<NamespaceObject>().attributes.Find(std::string_view(name));
      return found != nullptr ? std::optional<Value>(*found) : std::nullopt;
    }
    case Type::kView:
      if (In(name, {"isdisjoint", "mapping"})) UnsupportedAttribute(object, name);
      return std::nullopt;
    case Type::kIterator:
    case Type::kFunction:
      UnsupportedAttribute(object, name);
    default:
      return std::nullopt;
  }
}

Value GetAttribute(Interpreter& interpreter, const Value& object, const std::string& name) {
  RequireDefined(object);
  if (std::optional<Value> value = TypeAttribute(interpreter, object, name)) return *value;
  if (object.Is(Type::kDict)) {
    if (const Value* found = object.Mapping().Find(std::string_view(name))) return *found;
  }
  return Value::Undefined(ObjectName(object) + " has no attribute '" + name + "'");
}

Value GetItem(Interpreter& interpreter, const Value& object, const Value& key) {
  RequireDefined(object);
  if (std::optional<Value> value = Subscript(object, key)) return *value;
  if (key.string()) {
    if (std::optional<Value> value = TypeAttribute(interpreter, object, key.Text())) return *value;
    return Value::Undefined(ObjectName(object) + " has no attribute " + ReprString(key.Text()));
  }
  bool scalar = key.numeric() || key.none();
  return Value::Undefined(ObjectName(object) + " has no element " + (scalar ? Repr(key) : TypeName(key)));
}

}  // namespace fluvial::jinja
