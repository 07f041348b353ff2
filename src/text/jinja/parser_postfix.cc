// SPDX-License-Identifier: Apache-2.0
// Parser, continued: literals, subscripts, calls, filters, tests and assignment targets.
#include <algorithm>

#include "text/jinja/builtins.h"
#include "text/jinja/parser.h"

namespace fluvial::jinja {
namespace {

std::vector<ExprPtr> One(ExprPtr a) {
  std::vector<ExprPtr> kids;
  kids.push_back(std::move(a));
  return kids;
}

}  // namespace

ExprPtr Parser::ListLiteral() {
  Token at = Look();
  ExpectOp("[");
  std::vector<ExprPtr> kids;
  while (!IsOp("]")) {
    if (!kids.empty()) ExpectOp(",");
    if (IsOp("]")) break;
    kids.push_back(Expression());
  }
  ExpectOp("]");
  return Make(ExprKind::kList, at, std::move(kids));
}

ExprPtr Parser::DictLiteral() {
  Token at = Look();
  ExpectOp("{");
  std::vector<ExprPtr> kids;
  while (!IsOp("}")) {
    if (!kids.empty()) ExpectOp(",");
    if (IsOp("}")) break;
    kids.push_back(Expression());
    ExpectOp(":");
    kids.push_back(Expression());
  }
  ExpectOp("}");
  return Make(ExprKind::kDict, at, std::move(kids));
}

ExprPtr Parser::Postfix(ExprPtr node) {
  while (true) {
    if (IsOp(".") || IsOp("[")) {
      node = Subscript(std::move(node));
    } else if (IsOp("(")) {
      node = Call(std::move(node));
    } else {
      return node;
    }
  }
}

ExprPtr Parser::FilterExpression(ExprPtr node) {
  while (true) {
    if (IsOp("|")) {
      node = Filters(std::move(node), false);
    } else if (IsName("is")) {
      node = Test(std::move(node));
    } else if (IsOp("(")) {
      node = Call(std::move(node));
    } else {
      return node;
    }
  }
}

ExprPtr Parser::Subscript(ExprPtr node) {
  Token at = Next();
  if (at.text == ".") {
    Token attribute = Next();
    if (attribute.kind == Tok::kName) {
      ExprPtr get = Make(ExprKind::kGetAttr, at, One(std::move(node)));
      get->name = attribute.text;
      return get;
    }
    if (attribute.kind != Tok::kInt) Error(attribute, "expected a name or a number after '.'");
    ExprPtr key = Make(ExprKind::kConst, attribute);
    key->value = Value::OfInt(attribute.integer);
    std::vector<ExprPtr> kids = One(std::move(node));
    kids.push_back(std::move(key));
    return Make(ExprKind::kGetItem, at, std::move(kids));
  }
  std::vector<ExprPtr> parts;  // one key, or start, stop, step of a slice
  bool slice = false;
  if (!IsOp(":")) {
    if (IsOp("]")) Error(Look(), "expected an expression in the subscript");
    parts.push_back(Expression());
  } else {
    parts.push_back(nullptr);
  }
  while (IsOp(":")) {
    slice = true;
    if (parts.size() == 3) Error(Look(), "a slice has at most three parts");
    Next();
    parts.push_back(IsOp(":") || IsOp("]") ? nullptr : Expression());
  }
  if (IsOp(",") && slice) Unsupported(Look(), "several slices in one subscript are not supported");
  std::vector<ExprPtr> kids = One(std::move(node));
  if (!slice && IsOp(",")) {
    std::vector<ExprPtr> keys = std::move(parts);
    while (SkipOp(",")) keys.push_back(Expression());
    ExpectOp("]");
    kids.push_back(Make(ExprKind::kTuple, at, std::move(keys)));
    return Make(ExprKind::kGetItem, at, std::move(kids));
  }
  ExpectOp("]");
  if (slice) parts.resize(3);
  for (ExprPtr& part : parts) kids.push_back(std::move(part));
  return Make(slice ? ExprKind::kSlice : ExprKind::kGetItem, at, std::move(kids));
}

int Parser::ArgumentsDepth(const CallArgs& args) const {
  int depth = 0;
  for (const ExprPtr& arg : args.positional) depth = std::max(depth, arg->depth);
  for (const auto& keyword : args.keywords) depth = std::max(depth, keyword.second->depth);
  if (args.star) depth = std::max(depth, args.star->depth);
  if (args.double_star) depth = std::max(depth, args.double_star->depth);
  return depth;
}

std::unique_ptr<CallArgs> Parser::Arguments() {
  auto args = std::make_unique<CallArgs>();
  Token open = Look();
  ExpectOp("(");
  auto ensure = [&](bool ok) {
    if (!ok) Error(open, "invalid order of arguments in this call");
  };
  bool comma = false;
  while (!IsOp(")")) {
    if (comma) {
      ExpectOp(",");
      if (IsOp(")")) break;
    }
    if (SkipOp("*")) {
      ensure(!args->star && !args->double_star);
      args->star = Expression();
    } else if (SkipOp("**")) {
      ensure(!args->double_star);
      args->double_star = Expression();
    } else if (Look().kind == Tok::kName && IsOp("=", 1)) {
      ensure(!args->double_star);
      Token name = Next();
      Next();
      for (const auto& keyword : args->keywords) {
        if (keyword.first == name.text) Error(name, "keyword argument repeated: " + name.text);
      }
      args->keywords.emplace_back(name.text, Expression());
    } else {
      ensure(!args->star && !args->double_star && args->keywords.empty());
      args->positional.push_back(Expression());
    }
    comma = true;
  }
  ExpectOp(")");
  return args;
}

ExprPtr Parser::Call(ExprPtr node) {
  Token at = Look();
  auto args = Arguments();
  ExprPtr call = Make(ExprKind::kCall, at, One(std::move(node)));
  call->depth = std::max(call->depth, ArgumentsDepth(*args) + 1);
  call->args = std::move(args);
  return call;
}

ExprPtr Parser::Filters(ExprPtr node, bool start_inline) {
  while (start_inline || IsOp("|")) {
    if (!start_inline) Next();
    start_inline = false;
    Token at = Look();
    std::string name = ExpectName();
    while (SkipOp(".")) name += "." + ExpectName();
    if (!context_.soft && FilterKnown(name) == Known::kNo) unknown_.push_back(at);
    auto args = IsOp("(") ? Arguments() : std::make_unique<CallArgs>();
    ExprPtr filter = Make(ExprKind::kFilter, at, One(std::move(node)));
    filter->name = std::move(name);
    filter->depth = std::max(filter->depth, ArgumentsDepth(*args) + 1);
    filter->args = std::move(args);
    node = std::move(filter);
  }
  return node;
}

ExprPtr Parser::Test(ExprPtr node) {
  Token at = Next();
  bool negated = SkipName("not");
  Token name_at = Look();
  std::string name = ExpectName();
  while (SkipOp(".")) name += "." + ExpectName();
  if (!context_.soft && TestKnown(name) == Known::kNo) unknown_.push_back(name_at);
  auto args = std::make_unique<CallArgs>();
  const Token& next = Look();
  bool literal = next.kind == Tok::kString || next.kind == Tok::kInt || next.kind == Tok::kFloat || IsOp("[") ||
                 IsOp("{") || next.kind == Tok::kName;
  if (IsOp("(")) {
    args = Arguments();
  } else if (literal && !IsName("else") && !IsName("or") && !IsName("and")) {
    if (IsName("is")) Error(next, "tests with 'is' cannot be chained");
    args->positional.push_back(Postfix(Primary(false, false)));
  }
  ExprPtr test = Make(ExprKind::kTest, at, One(std::move(node)));
  test->name = std::move(name);
  test->depth = std::max(test->depth, ArgumentsDepth(*args) + 1);
  test->args = std::move(args);
  return negated ? Make(ExprKind::kNot, at, One(std::move(test))) : std::move(test);
}

ExprPtr Parser::AssignTarget(std::string_view end_name, bool with_namespace) {
  Token at = Look();
  ExprPtr target = TupleOf(true, true, end_name, false, with_namespace, true);
  CheckTarget(*target, at);
  return target;
}

void Parser::CheckTarget(const Expr& target, const Token& at) const {
  if (target.kind == ExprKind::kTuple) {
    for (const ExprPtr& kid : target.kids) CheckTarget(*kid, at);
  } else if (target.kind != ExprKind::kName && target.kind != ExprKind::kNsRef) {
    Error(at, "can't assign to this");
  }
}

}  // namespace fluvial::jinja
