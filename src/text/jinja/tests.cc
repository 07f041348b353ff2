// SPDX-License-Identifier: Apache-2.0
// The tests of `is`.
#include <algorithm>

#include "text/jinja/builtins.h"
#include "text/jinja/interpreter.h"
#include "text/jinja/repr.h"

namespace fluvial::jinja {
namespace {

template <bool (*kPredicate)(const Value&)>
bool Plain(Interpreter&, const Value& input, const Args& args) {
  Bound bound("test", args, {});
  return kPredicate(input);
}

bool Defined(const Value& v) { return !v.undefined(); }
bool Undefined(const Value& v) { return v.undefined(); }
bool None(const Value& v) { return v.none(); }
bool Boolean(const Value& v) { return v.Is(Type::kBool); }
bool True(const Value& v) { return v.Is(Type::kBool) && v.AsBool(); }
bool False(const Value& v) { return v.Is(Type::kBool) && !v.AsBool(); }
bool Integer(const Value& v) { return v.Is(Type::kInt); }
bool Float(const Value& v) { return v.Is(Type::kFloat); }
bool String(const Value& v) { return v.string(); }
bool Mapping(const Value& v) { return v.Is(Type::kDict); }
bool Number(const Value& v) { return v.numeric(); }
bool Escaped(const Value& v) { return v.markup(); }
bool Callable(const Value& v) { return v.Is(Type::kFunction) || v.Is(Type::kLoop) || v.undefined(); }
bool Sequence(const Value& v) {
  return v.undefined() || v.string() || v.Is(Type::kList) || v.Is(Type::kTuple) || v.Is(Type::kDict) ||
         v.Is(Type::kRange);
}
bool Odd(const Value& v) { return v.integral() ? v.AsInt() % 2 != 0 : false; }
bool IsFilter(const Value& v) { return v.string() && FilterKnown(v.Text()) != Known::kNo; }
bool IsTest(const Value& v) { return v.string() && TestKnown(v.Text()) != Known::kNo; }

bool Remainder(Interpreter& interpreter, const Value& v, const Value& divisor, Int wanted) {
  return Equal(Modulo(interpreter, v, divisor), Value::OfInt(wanted));
}

bool OddTest(Interpreter& interpreter, const Value& input, const Args& args) {
  Bound bound("odd", args, {});
  return input.integral() ? Odd(input) : Remainder(interpreter, input, Value::OfInt(2), 1);
}

bool EvenTest(Interpreter& interpreter, const Value& input, const Args& args) {
  Bound bound("even", args, {});
  return input.integral() ? !Odd(input) : Remainder(interpreter, input, Value::OfInt(2), 0);
}

bool DivisibleBy(Interpreter& interpreter, const Value& input, const Args& args) {
  Bound bound("divisibleby", args, {"num"}, 1);
  return Remainder(interpreter, input, *bound[0], 0);
}

template <bool kUpper>
bool CaseTest(Interpreter& interpreter, const Value& input, const Args& args) {
  Bound bound("lower", args, {});
  Args none;
  Value text = Value::String(Str(input));
  return Truth(interpreter.CallValue(*StringMethod(text, kUpper ? "isupper" : "islower"), none));
}

bool SameAs(Interpreter&, const Value& input, const Args& args) {
  Bound bound("sameas", args, {"other"}, 1);
  const Value& other = *bound[0];
  if (input.type() != other.type()) return false;
  if (input.Is(Type::kFloat)) Fail(ErrorKind::kUnsupported, "identity of floats is not supported");
  if (input.object() == nullptr || input.string() || input.undefined()) return Equal(input, other);
  return input.object() == other.object();
}

bool InTest(Interpreter& interpreter, const Value& input, const Args& args) {
  Bound bound("in", args, {"seq"}, 1);
  interpreter.ChargeWalk(*bound[0]);
  return Contains(*bound[0], input);
}

bool IterableTest(Interpreter&, const Value& input, const Args& args) {
  Bound bound("iterable", args, {});
  return Iterable(input);
}

enum class Order { kEq, kNe, kLt, kLe, kGt, kGe };

template <Order kOrder>
bool CompareTest(Interpreter& interpreter, const Value& input, const Args& args) {
  Bound bound("comparison", args, {"other"}, 1, 1);
  const Value& other = *bound[0];
  interpreter.Charge(std::min(input.weight(), other.weight()));
  switch (kOrder) {
    case Order::kEq:
      return Equal(input, other);
    case Order::kNe:
      return !Equal(input, other);
    case Order::kLt:
      return Less(input, other);
    case Order::kGt:
      return Less(other, input, ">");
    default:
      RequireDefined(input);
      RequireDefined(other);
      return (kOrder == Order::kLe ? Less(input, other, "<=") : Less(other, input, ">=")) || Equal(input, other);
  }
}

struct Entry {
  std::string_view name;
  TestFn call;
};
constexpr Entry kTests[] = {
    {"!=", CompareTest<Order::kNe>},
    {"<", CompareTest<Order::kLt>},
    {"<=", CompareTest<Order::kLe>},
    {"==", CompareTest<Order::kEq>},
    {">", CompareTest<Order::kGt>},
    {">=", CompareTest<Order::kGe>},
    {"boolean", Plain<Boolean>},
    {"callable", Plain<Callable>},
    {"defined", Plain<Defined>},
    {"divisibleby", DivisibleBy},
    {"eq", CompareTest<Order::kEq>},
    {"equalto", CompareTest<Order::kEq>},
    {"escaped", Plain<Escaped>},
    {"even", EvenTest},
    {"false", Plain<False>},
    {"filter", Plain<IsFilter>},
    {"float", Plain<Float>},
    {"ge", CompareTest<Order::kGe>},
    {"greaterthan", CompareTest<Order::kGt>},
    {"gt", CompareTest<Order::kGt>},
    {"in", InTest},
    {"integer", Plain<Integer>},
    {"iterable", IterableTest},
    {"le", CompareTest<Order::kLe>},
    {"lessthan", CompareTest<Order::kLt>},
    {"lower", CaseTest<false>},
    {"lt", CompareTest<Order::kLt>},
    {"mapping", Plain<Mapping>},
    {"ne", CompareTest<Order::kNe>},
    {"none", Plain<None>},
    {"number", Plain<Number>},
    {"odd", OddTest},
    {"sameas", SameAs},
    {"sequence", Plain<Sequence>},
    {"string", Plain<String>},
    {"test", Plain<IsTest>},
    {"true", Plain<True>},
    {"undefined", Plain<Undefined>},
    {"upper", CaseTest<true>},
};

}  // namespace

TestFn FindTest(std::string_view name) {
  for (const Entry& entry : kTests) {
    if (entry.name == name) return entry.call;
  }
  return nullptr;
}

Known TestKnown(std::string_view name) { return FindTest(name) != nullptr ? Known::kYes : Known::kNo; }

}  // namespace fluvial::jinja
