// SPDX-License-Identifier: Apache-2.0
// Interpreter: expressions.
#include <algorithm>

#include "text/jinja/interpreter.h"
#include "text/jinja/lexer.h"
#include "text/jinja/repr.h"

namespace fluvial::jinja {
namespace {

// What an operation that looks at the top level of `v` costs.
int64_t Cost(const Value& v) {
  switch (v.type()) {
    case Type::kString:
      return v.weight();
    case Type::kList:
    case Type::kTuple:
      return 1 + static_cast<int64_t>(v.Seq().size()) / 2;
    default:
      return 1;
  }
}

}  // namespace

void Interpreter::Charge(int64_t steps) {
  steps_ += steps;
  if (steps_ > options_.max_steps) Fail(ErrorKind::kLimit, "the template takes too many steps");
}

Value Interpreter::Made(Value v) {
  constexpr int64_t kObjectBytes = 160;  // about what one heap object of any type takes
  if (v.object() != nullptr) bytes_ += kObjectBytes;
  if (v.string()) {
    bytes_ += static_cast<int64_t>(v.Text().size());
  } else if (v.Is(Type::kList) || v.Is(Type::kTuple)) {
    bytes_ += static_cast<int64_t>(v.Seq().size() * sizeof(Value));
  } else if (v.Is(Type::kDict)) {
    bytes_ += static_cast<int64_t>(v.Mapping().items.size() * 3 * sizeof(Value));
  }
  if (bytes_ > options_.max_bytes) Fail(ErrorKind::kLimit, "the template makes too much data");
  Charge(Cost(v));
  return v;
}

const Value* Interpreter::Find(int id) const {
  for (const Scope* scope = scope_.get(); scope != nullptr; scope = scope->parent.get()) {
    for (const auto& [key, value] : scope->variables) {
      if (key == id) return &value;
    }
  }
  return nullptr;
}

Value Interpreter::EvalName(int id, const std::string& name) {
  const Value* found = Find(id);
  return found != nullptr ? *found : Value::Undefined("'" + name + "' is undefined");
}

Value Interpreter::Eval(const Expr& node) {
  Nested nested(this);
  offset_ = node.offset;
  Charge(1);
  switch (node.kind) {
    case ExprKind::kConst:
      return node.value;
    case ExprKind::kName:
      return EvalName(node.id, node.name);
    case ExprKind::kTuple:
      return Made(Value::Tuple(EvalItems(node.kids)));
    case ExprKind::kList:
      return Made(Value::List(EvalItems(node.kids)));
    case ExprKind::kDict:
      return EvalDict(node);
    case ExprKind::kCondition:
      if (Truth(Eval(*node.kids[0]))) return Eval(*node.kids[1]);
      if (node.kids.size() == 3) return Eval(*node.kids[2]);
      return Value::Undefined("the inline if-expression evaluated to false and no else section was defined");
    case ExprKind::kOr: {
      Value left = Eval(*node.kids[0]);
      return Truth(left) ? left : Eval(*node.kids[1]);
    }
    case ExprKind::kAnd: {
      Value left = Eval(*node.kids[0]);
      return Truth(left) ? Eval(*node.kids[1]) : left;
    }
    case ExprKind::kNot:
      return Value::Bool(!Truth(Eval(*node.kids[0])));
    case ExprKind::kCompare:
      return EvalCompare(node);
    case ExprKind::kBinary:
      return EvalBinary(node);
    case ExprKind::kConcat:
      return EvalConcat(node);
    case ExprKind::kNegate:
    case ExprKind::kPlus: {
      Value operand = Eval(*node.kids[0]);
      offset_ = node.offset;
      return node.kind == ExprKind::kNegate ? Negate(operand) : Plus(operand);
    }
    case ExprKind::kGetAttr: {
      Value object = Eval(*node.kids[0]);
      offset_ = node.offset;
      return GetAttribute(*this, object, node.name);
    }
    case ExprKind::kGetItem: {
      Value object = Eval(*node.kids[0]);
      Value key = Eval(*node.kids[1]);
      offset_ = node.offset;
      if (object.string()) Charge(Cost(object));
      return GetItem(*this, object, key);
    }
    case ExprKind::kSlice:
      return EvalSlice(node);
    case ExprKind::kCall:
      return EvalCall(node, nullptr);
    case ExprKind::kFilter:
      return EvalFilter(node, nullptr);
    case ExprKind::kTest: {
      Value input = Eval(*node.kids[0]);
      Args args = EvalArgs(*node.args);
      offset_ = node.offset;
      return Value::Bool(CallTest(node.name, input, args));
    }
    case ExprKind::kNsRef:
      break;
  }
  Fail(ErrorKind::kUnsupported, "this expression cannot be evaluated");
}

Items Interpreter::EvalItems(const std::vector<ExprPtr>& nodes) {
  Items items;
  items.reserve(nodes.size());
  for (const ExprPtr& node : nodes) items.push_back(Eval(*node));
  return items;
}

Value Interpreter::EvalDict(const Expr& node) {
  auto dict = std::make_shared<DictObject>();
  for (size_t i = 0; i < node.kids.size(); i += 2) {
    Value key = Eval(*node.kids[i]);
    Value value = Eval(*node.kids[i + 1]);
    dict->Set(std::move(key), std::move(value));
  }
  return Made(Value::Dict(std::move(dict)));
}

bool Interpreter::CompareOne(Op op, const Value& a, const Value& b) {
  Charge(std::min(a.weight(), b.weight()));
  switch (op) {
    case Op::kEq:
      return Equal(a, b);
    case Op::kNe:
      return !Equal(a, b);
    case Op::kLt:
      return Less(a, b, "<");
    case Op::kGt:
      return Less(b, a, ">");
    case Op::kLe:
    case Op::kGe: {
      const Value &low = op == Op::kLe ? a : b, &high = op == Op::kLe ? b : a;
      // Not the negation of the reverse: NaN compares false both ways. Undefined equals undefined but has no order.
      RequireDefined(a);
      RequireDefined(b);
      return Less(low, high, op == Op::kLe ? "<=" : ">=") || Equal(low, high);
    }
    default:
      ChargeWalk(b);
      return Contains(b, a) == (op == Op::kIn);
  }
}

Value Interpreter::EvalCompare(const Expr& node) {
  Value left = Eval(*node.kids[0]);
  for (size_t i = 0; i < node.ops.size(); ++i) {
    Value right = Eval(*node.kids[i + 1]);
    offset_ = node.offset;
    if (!CompareOne(node.ops[i], left, right)) return Value::Bool(false);
    left = std::move(right);
  }
  return Value::Bool(true);
}

Value Interpreter::EvalBinary(const Expr& node) {
  Value a = Eval(*node.kids[0]);
  Value b = Eval(*node.kids[1]);
  offset_ = node.offset;
  switch (node.op) {
    case Op::kAdd:
      return Made(Add(a, b));
    case Op::kSub:
      return Subtract(a, b);
    case Op::kMul:
      return Made(Multiply(a, b));
    case Op::kDiv:
      return Divide(a, b);
    case Op::kFloorDiv:
      return FloorDivide(a, b);
    case Op::kMod:
      return Made(Modulo(*this, a, b));
    default:
      return Power(a, b);
  }
}

Value Interpreter::EvalConcat(const Expr& node) {
  Items parts = EvalItems(node.kids);
  offset_ = node.offset;
  std::string text;
  for (const Value& part : parts) {
    if (!part.string()) ChargeWalk(part);
    text += Str(part);
    CheckStringSize(static_cast<Int>(text.size()));
  }
  return Made(Value::String(std::move(text)));
}

Value Interpreter::EvalSlice(const Expr& node) {
  Value object = Eval(*node.kids[0]);
  Value bounds[3];
  for (size_t i = 0; i < 3; ++i) bounds[i] = node.kids[i + 1] ? Eval(*node.kids[i + 1]) : Value::None();
  offset_ = node.offset;
  Charge(Cost(object));
  return Made(GetSlice(object, bounds[0], bounds[1], bounds[2]));
}

Args Interpreter::EvalArgs(const CallArgs& nodes) {
  Args args;
  args.positional = EvalItems(nodes.positional);
  for (const auto& [name, node] : nodes.keywords) args.keywords.emplace_back(name, Eval(*node));
  if (nodes.star) {
    for (Value& item : ToItems(Eval(*nodes.star))) args.positional.push_back(std::move(item));
  }
  if (nodes.double_star) {
    Value more = Eval(*nodes.double_star);
    if (!more.Is(Type::kDict)) FailRuntime("the argument after ** must be a mapping, not " + TypeName(more));
    for (const auto& [key, value] : more.Mapping().items) {
      if (!key.string()) FailRuntime("keywords must be strings");
      bool repeated = std::any_of(args.keywords.begin(), args.keywords.end(),
                                  [&](const auto& keyword) { return keyword.first == key.Text(); });
      if (repeated) FailRuntime("got multiple values for keyword argument '" + key.Text() + "'");
      args.keywords.emplace_back(key.Text(), value);
    }
  }
  return args;
}

Value Interpreter::EvalCall(const Expr& node, const Value* caller) {
  Value callee = Eval(*node.kids[0]);
  Args args = EvalArgs(*node.args);
  if (caller != nullptr) args.keywords.emplace_back("caller", *caller);
  offset_ = node.offset;
  return CallValue(callee, args);
}

Value Interpreter::CallValue(const Value& callee, Args& args) {
  RequireDefined(callee);
  if (callee.Is(Type::kFunction)) {
    // The function must outlive its call even if the call overwrites the variable that held it.
    Value keep = callee;
    return Made(keep.As<FunctionObject>().call(*this, args));
  }
  if (callee.Is(Type::kLoop)) {
    auto& loop = callee.As<LoopObject>();
    Bound bound("loop", args, {"iterable"}, 1);
    if (!loop.recurse) FailRuntime("the loop must have the 'recursive' marker to be called recursively");
    return Made(loop.recurse(*this, *bound[0]));
  }
  FailRuntime("'" + TypeName(callee) + "' object is not callable");
}

Value Interpreter::EvalFilter(const Expr& node, const Value* input) {
  Value value = node.kids[0]
                    ? (node.kids[0]->kind == ExprKind::kFilter ? EvalFilter(*node.kids[0], input) : Eval(*node.kids[0]))
                    : *input;
  Args args = EvalArgs(*node.args);
  offset_ = node.offset;
  return CallFilter(node.name, value, args);
}

Value Interpreter::CallFilter(const std::string& name, const Value& input, const Args& args) {
  FilterFn filter = FindFilter(name);
  if (filter == nullptr) {
    if (FilterKnown(name) == Known::kUnsupported) {
      Fail(ErrorKind::kUnsupported, "the filter '" + name + "' is not supported");
    }
    FailRuntime("there is no filter named '" + name + "'");
  }
  Charge(Cost(input));
  return Made(filter(*this, input, args));
}

bool Interpreter::CallTest(const std::string& name, const Value& input, const Args& args) {
  TestFn test = FindTest(name);
  if (test == nullptr) FailRuntime("there is no test named '" + name + "'");
  Charge(1);
  return test(*this, input, args);
}

}  // namespace fluvial::jinja
