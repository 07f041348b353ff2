// SPDX-License-Identifier: Apache-2.0
// Equality, order, hashing and iteration of values, as Python defines them.
#include <algorithm>
#include <cmath>
#include <cstring>

#include "text/jinja/unicode.h"
#include "text/jinja/value.h"

namespace fluvial::jinja {
namespace {

// Compares an integer with a double exactly: -1, 0, 1, or 2 for NaN.
int CompareIntDouble(Int i, double d) {
  if (std::isnan(d)) return 2;
  if (d >= 1.7e38) return -1;
  if (d <= -1.7e38) return 1;
  double whole = std::trunc(d);
  Int w = static_cast<Int>(whole);
  if (i != w) return i < w ? -1 : 1;
  double rest = d - whole;
  return rest > 0 ? -1 : rest < 0 ? 1 : 0;
}

int CompareNumbers(const Value& a, const Value& b) {
  bool fa = a.Is(Type::kFloat), fb = b.Is(Type::kFloat);
  if (fa && fb) {
    double x = a.AsDouble(), y = b.AsDouble();
    if (std::isnan(x) || std::isnan(y)) return 2;
    return x < y ? -1 : x > y ? 1 : 0;
  }
  if (fb) return CompareIntDouble(a.AsInt(), b.AsDouble());
  if (fa) {
    int c = CompareIntDouble(b.AsInt(), a.AsDouble());
    return c == 2 ? 2 : -c;
  }
  return a.AsInt() < b.AsInt() ? -1 : a.AsInt() > b.AsInt() ? 1 : 0;
}

// `is` first, as Python's containers do; also keeps comparisons of shared parts cheap.
bool SameOrEqual(const Value& a, const Value& b) {
  if (a.object() != nullptr && a.object() == b.object() && a.type() == b.type()) return true;
  return Equal(a, b);
}

bool EqualDicts(const DictObject& a, const DictObject& b) {
  if (a.items.size() != b.items.size()) return false;
  for (const auto& [key, value] : a.items) {
    const Value* other = b.Find(key);
    if (other == nullptr || !SameOrEqual(value, *other)) return false;
  }
  return true;
}

bool EqualRanges(const RangeObject& a, const RangeObject& b) {
  if (a.count != b.count) return false;
  if (a.count == 0) return true;
  return a.start == b.start && (a.count == 1 || a.step == b.step);
}

Value PairTuple(const std::pair<Value, Value>& item) { return Value::Tuple({item.first, item.second}); }

}  // namespace

bool Equal(const Value& a, const Value& b) {
  if (a.numeric() && b.numeric()) return CompareNumbers(a, b) == 0;
  if (a.type() != b.type()) return false;
  switch (a.type()) {
    case Type::kUndefined:
    case Type::kNone:
      return true;
    case Type::kString:
      return a.Text() == b.Text();
    case Type::kList:
    case Type::kTuple:
      return a.Seq().size() == b.Seq().size() &&
             std::equal(a.Seq().begin(), a.Seq().end(), b.Seq().begin(), SameOrEqual);
    case Type::kDict:
      return EqualDicts(a.Mapping(), b.Mapping());
    case Type::kRange:
      return EqualRanges(a.As<RangeObject>(), b.As<RangeObject>());
    case Type::kView: {
      const auto& va = a.As<ViewObject>();
      const auto& vb = b.As<ViewObject>();
      if (va.part == 1 || vb.part == 1) return a.object() == b.object();
      if (va.part != vb.part) Fail(ErrorKind::kUnsupported, "comparing different dict views is not supported");
      if (va.part == 2) return EqualDicts(va.dict.Mapping(), vb.dict.Mapping());
      if (Length(a) != Length(b)) return false;
      return std::all_of(va.dict.Mapping().items.begin(), va.dict.Mapping().items.end(),
                         [&](const auto& item) { return vb.dict.Mapping().Find(item.first) != nullptr; });
    }
    default:
      return a.object() == b.object();
  }
}

bool Less(const Value& a, const Value& b, const char* symbol) {
  if (a.numeric() && b.numeric()) return CompareNumbers(a, b) == -1;
  RequireDefined(a);
  RequireDefined(b);
  if (a.string() && b.string()) return a.Text() < b.Text();
  bool sequences = (a.Is(Type::kList) && b.Is(Type::kList)) || (a.Is(Type::kTuple) && b.Is(Type::kTuple));
  if (!sequences) {
    FailRuntime(std::string("'") + symbol + "' not supported between instances of '" + TypeName(a) + "' and '" +
                TypeName(b) + "'");
  }
  const Items &x = a.Seq(), &y = b.Seq();
  for (size_t i = 0; i < std::min(x.size(), y.size()); ++i) {
    if (!SameOrEqual(x[i], y[i])) return Less(x[i], y[i], symbol);
  }
  return x.size() < y.size();
}

std::string HashKey(const Value& v) {
  switch (v.type()) {
    case Type::kUndefined:
      return "u";
    case Type::kNone:
      return "n";
    case Type::kBool:
    case Type::kInt:
      return "i" + IntText(v.AsInt());
    case Type::kFloat: {
      double d = v.AsDouble();
      if (std::isfinite(d) && d == std::trunc(d) && std::fabs(d) < 1e38) return "i" + IntText(static_cast<Int>(d));
      uint64_t bits;
      std::memcpy(&bits, &d, sizeof bits);
      return "f" + std::to_string(bits);
    }
    case Type::kString:
      return "s" + v.Text();
    case Type::kTuple: {
      std::string key = "t";
      for (const Value& item : v.Seq()) {
        std::string part = HashKey(item);
        key += std::to_string(part.size()) + ":" + part;
      }
      return key;
    }
    case Type::kList:
    case Type::kDict:
      FailRuntime("unhashable type: '" + TypeName(v) + "'");
    case Type::kRange:
    case Type::kView:
      Fail(ErrorKind::kUnsupported, "a " + TypeName(v) + " as key is not supported");
    default:
      return "p" + std::to_string(reinterpret_cast<uintptr_t>(v.object().get()));
  }
}

bool Iterable(const Value& v) {
  switch (v.type()) {
    case Type::kUndefined:
    case Type::kString:
    case Type::kList:
    case Type::kTuple:
    case Type::kDict:
    case Type::kRange:
    case Type::kView:
    case Type::kIterator:
    case Type::kLoop:
      return true;
    default:
      return false;
  }
}

std::function<bool(Value*)> Iterate(const Value& v) {
  switch (v.type()) {
    case Type::kUndefined:
      return [](Value*) { return false; };
    case Type::kString:
      return [v, at = size_t{0}](Value* out) mutable {
        const std::string& text = v.Text();
        if (at >= text.size()) return false;
        size_t begin = at;
        DecodeAt(text, &at);
        *out = Value::String(text.substr(begin, at - begin));
        return true;
      };
    case Type::kList:
    case Type::kTuple:
      return [v, at = size_t{0}](Value* out) mutable {
        if (at >= v.Seq().size()) return false;
        *out = v.Seq()[at++];
        return true;
      };
    case Type::kRange:
      return [v, at = Int{0}](Value* out) mutable {
        const auto& range = v.As<RangeObject>();
        if (at >= range.count) return false;
        *out = Value::OfInt(range.start + range.step * at++);
        return true;
      };
    case Type::kDict:
    case Type::kView: {
      Value dict = v.Is(Type::kDict) ? v : v.As<ViewObject>().dict;
      int part = v.Is(Type::kDict) ? 0 : v.As<ViewObject>().part;
      return [dict, part, at = size_t{0}](Value* out) mutable {
        const auto& items = dict.Mapping().items;
        if (at >= items.size()) return false;
        const auto& item = items[at++];
        *out = part == 0 ? item.first : part == 1 ? item.second : PairTuple(item);
        return true;
      };
    }
    case Type::kIterator:
      return [v](Value* out) { return v.As<IteratorObject>().next(out); };
    case Type::kLoop:
      return [v](Value* out) {
        Value item;
        if (!v.As<LoopObject>().Next(&item)) return false;
        *out = Value::Tuple({item, v});
        return true;
      };
    default:
      FailRuntime("'" + TypeName(v) + "' object is not iterable");
  }
}

Items ToItems(const Value& v) {
  if (v.Is(Type::kList) || v.Is(Type::kTuple)) return v.Seq();
  Items out;
  auto next = Iterate(v);
  Value item;
  while (next(&item)) {
    out.push_back(std::move(item));
    CheckItemCount(static_cast<Int>(out.size()));
  }
  return out;
}

}  // namespace fluvial::jinja
