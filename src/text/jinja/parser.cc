// SPDX-License-Identifier: Apache-2.0
#include "text/jinja/parser.h"

#include <algorithm>

#include "text/jinja/builtins.h"

namespace fluvial::jinja {
namespace {

constexpr int kMaxNesting = 150;    // brackets and statements inside each other
constexpr int kMaxExprDepth = 400;  // height of one expression tree, long chains of + included

struct CompareToken {
  std::string_view text;
  Op op;
};
constexpr CompareToken kCompare[] = {{"==", Op::kEq}, {"!=", Op::kNe}, {"<", Op::kLt},
                                     {"<=", Op::kLe}, {">", Op::kGt},  {">=", Op::kGe}};
constexpr CompareToken kSum[] = {{"+", Op::kAdd}, {"-", Op::kSub}};
constexpr CompareToken kProduct[] = {{"*", Op::kMul}, {"/", Op::kDiv}, {"//", Op::kFloorDiv}, {"%", Op::kMod}};

}  // namespace

struct Parser::DepthGuard {
  explicit DepthGuard(Parser* parser) : parser(parser) {
    if (++parser->depth_ > kMaxNesting) {
      FailAt(parser->program_->source, parser->Look().offset, ErrorKind::kLimit, "expressions are nested too deep");
    }
  }
  ~DepthGuard() { --parser->depth_; }
  Parser* parser;
};

std::string_view OpText(Op op) {
  static constexpr std::string_view kTexts[] = {
      "+", "-", "*", "/", "//", "%", "**", "==", "!=", "<", "<=", ">", ">=", "in", "not in"};
  return kTexts[static_cast<size_t>(op)];
}

Program Parse(std::string_view text) {
  Program program;
  program.source = NormalizeSource(text);
  Parser(&program).ParseTemplate();
  AnalyzeSymbols(&program);
  return program;
}

Parser::Parser(Program* program) : program_(program), tokens_(Tokenize(program->source)) {}

const Token& Parser::Look(size_t ahead) const { return tokens_[std::min(at_ + ahead, tokens_.size() - 1)]; }

Token Parser::Next() {
  Token token = Look();
  if (at_ + 1 < tokens_.size()) ++at_;
  return token;
}

bool Parser::IsOp(std::string_view op, size_t ahead) const {
  return Look(ahead).kind == Tok::kOperator && Look(ahead).text == op;
}
bool Parser::IsName(std::string_view name, size_t ahead) const {
  return Look(ahead).kind == Tok::kName && Look(ahead).text == name;
}
bool Parser::SkipOp(std::string_view op) {
  bool found = IsOp(op);
  if (found) Next();
  return found;
}
bool Parser::SkipName(std::string_view name) {
  bool found = IsName(name);
  if (found) Next();
  return found;
}
void Parser::ExpectOp(std::string_view op) {
  if (!SkipOp(op)) Error(Look(), "expected '" + std::string(op) + "', got " + Describe(Look()));
}
std::string Parser::ExpectName() {
  if (Look().kind != Tok::kName) Error(Look(), "expected a name, got " + Describe(Look()));
  return Next().text;
}

void Parser::Error(const Token& token, const std::string& message) const {
  FailAt(program_->source, token.offset, ErrorKind::kSyntax, message);
}
void Parser::Unsupported(const Token& token, const std::string& message) const {
  FailAt(program_->source, token.offset, ErrorKind::kUnsupported, message);
}

std::string Parser::Describe(const Token& token) const {
  switch (token.kind) {
    case Tok::kEnd:
      return "the end of the template";
    case Tok::kVariableEnd:
      return "'}}'";
    case Tok::kBlockEnd:
      return "'%}'";
    case Tok::kString:
      return "a string";
    case Tok::kInt:
    case Tok::kFloat:
      return "a number";
    case Tok::kName:
    case Tok::kOperator:
      return "'" + token.text + "'";
    default:
      return "template text";
  }
}

int Parser::NameId(const std::string& name) {
  auto [it, added] = ids_.emplace(name, static_cast<int>(program_->names.size()));
  if (added) program_->names.push_back(name);
  return it->second;
}

// A macro gets `caller`, `kwargs` and `varargs` only when its body reads the name before assigning it.
void Parser::NoteLoad(const std::string& name) {
  if (macros_.empty() || (name != "caller" && name != "kwargs" && name != "varargs")) return;
  for (MacroScope& scope : macros_) {
    if (std::find(scope.hidden.begin(), scope.hidden.end(), name) != scope.hidden.end()) continue;
    int& slot = name == "caller"   ? scope.macro->caller_id
                : name == "kwargs" ? scope.macro->kwargs_id
                                   : scope.macro->varargs_id;
    slot = NameId(name);
  }
}

void Parser::NoteStore(const std::string& name, const Token& token) {
  if (any_loops_ > 0 && name == "loop") Error(token, "can't assign to the special variable 'loop' in a for loop");
  for (MacroScope& scope : macros_) scope.hidden.push_back(name);
}

ExprPtr Parser::Make(ExprKind kind, const Token& at, std::vector<ExprPtr> kids) const {
  auto node = std::make_unique<Expr>();
  node->kind = kind;
  node->offset = at.offset;
  for (const ExprPtr& kid : kids) {
    if (kid) node->depth = std::max(node->depth, kid->depth + 1);
  }
  node->kids = std::move(kids);
  if (node->depth > kMaxExprDepth) {
    FailAt(program_->source, at.offset, ErrorKind::kLimit, "this expression is too deep; split it with set");
  }
  return node;
}

namespace {
std::vector<ExprPtr> Kids(ExprPtr a, ExprPtr b = nullptr) {
  std::vector<ExprPtr> kids;
  kids.push_back(std::move(a));
  if (b) kids.push_back(std::move(b));
  return kids;
}
}  // namespace

ExprPtr Parser::Expression(bool with_condition) {
  DepthGuard guard(this);
  return with_condition ? Condition() : Or();
}

ExprPtr Parser::Condition() {
  Saved<bool> soft(&context_.soft);
  Token at = Look();
  size_t unknown = unknown_.size();
  ExprPtr then = Or();
  while (SkipName("if")) {
    unknown_.resize(unknown);  // what the condition guards is checked only when it is reached
    context_.soft = true;
    std::vector<ExprPtr> kids;
    kids.push_back(Or());
    kids.push_back(std::move(then));
    if (SkipName("else")) {
      DepthGuard guard(this);
      kids.push_back(Condition());
    }
    then = Make(ExprKind::kCondition, at, std::move(kids));
  }
  return then;
}

ExprPtr Parser::Or() {
  ExprPtr left = And();
  while (IsName("or")) {
    Token at = Next();
    left = Make(ExprKind::kOr, at, Kids(std::move(left), And()));
  }
  return left;
}

ExprPtr Parser::And() {
  ExprPtr left = Not();
  while (IsName("and")) {
    Token at = Next();
    left = Make(ExprKind::kAnd, at, Kids(std::move(left), Not()));
  }
  return left;
}

ExprPtr Parser::Not() {
  if (!IsName("not")) return Compare();
  DepthGuard guard(this);
  Token at = Next();
  return Make(ExprKind::kNot, at, Kids(Not()));
}

ExprPtr Parser::Compare() {
  Token at = Look();
  std::vector<ExprPtr> kids;
  kids.push_back(Sum());
  std::vector<Op> ops;
  while (true) {
    const auto* found = std::find_if(std::begin(kCompare), std::end(kCompare),
                                     [&](const CompareToken& entry) { return IsOp(entry.text); });
    if (found != std::end(kCompare)) {
      Next();
      ops.push_back(found->op);
    } else if (SkipName("in")) {
      ops.push_back(Op::kIn);
    } else if (IsName("not") && IsName("in", 1)) {
      Next();
      Next();
      ops.push_back(Op::kNotIn);
    } else {
      break;
    }
    kids.push_back(Sum());
  }
  if (ops.empty()) return std::move(kids[0]);
  ExprPtr node = Make(ExprKind::kCompare, at, std::move(kids));
  node->ops = std::move(ops);
  return node;
}

ExprPtr Parser::Sum() {
  ExprPtr left = Concat();
  while (true) {
    const auto* found =
        std::find_if(std::begin(kSum), std::end(kSum), [&](const CompareToken& entry) { return IsOp(entry.text); });
    if (found == std::end(kSum)) return left;
    Token at = Next();
    left = Make(ExprKind::kBinary, at, Kids(std::move(left), Concat()));
    left->op = found->op;
  }
}

ExprPtr Parser::Concat() {
  Token at = Look();
  std::vector<ExprPtr> kids;
  kids.push_back(Product());
  while (SkipOp("~")) kids.push_back(Product());
  return kids.size() == 1 ? std::move(kids[0]) : Make(ExprKind::kConcat, at, std::move(kids));
}

ExprPtr Parser::Product() {
  ExprPtr left = Power();
  while (true) {
    const auto* found = std::find_if(std::begin(kProduct), std::end(kProduct),
                                     [&](const CompareToken& entry) { return IsOp(entry.text); });
    if (found == std::end(kProduct)) return left;
    Token at = Next();
    left = Make(ExprKind::kBinary, at, Kids(std::move(left), Power()));
    left->op = found->op;
  }
}

// Left associative, unlike Python: Jinja builds (2 ** 3) ** 2.
ExprPtr Parser::Power() {
  ExprPtr left = Unary(true);
  while (IsOp("**")) {
    Token at = Next();
    left = Make(ExprKind::kBinary, at, Kids(std::move(left), Unary(true)));
    left->op = Op::kPow;
  }
  return left;
}

ExprPtr Parser::Unary(bool with_filter) {
  Token at = Look();
  ExprPtr node;
  if (IsOp("-") || IsOp("+")) {
    DepthGuard guard(this);
    Next();
    node = Make(at.text == "-" ? ExprKind::kNegate : ExprKind::kPlus, at, Kids(Unary(false)));
  } else {
    node = Primary(false, false);
  }
  node = Postfix(std::move(node));
  return with_filter ? FilterExpression(std::move(node)) : std::move(node);
}

ExprPtr Parser::Primary(bool with_namespace, bool store) {
  Token token = Look();
  ExprPtr node;
  if (token.kind == Tok::kName) {
    Next();
    const std::string& name = token.text;
    if (name == "true" || name == "True" || name == "false" || name == "False") {
      node = Make(ExprKind::kConst, token);
      node->value = Value::Bool(name[0] == 't' || name[0] == 'T');
    } else if (name == "none" || name == "None") {
      node = Make(ExprKind::kConst, token);
      node->value = Value::None();
    } else if (with_namespace && IsOp(".")) {
      Next();
      node = Make(ExprKind::kNsRef, token);
      node->id = NameId(name);
      node->name = ExpectName();
      NoteLoad(name);
    } else {
      node = Make(ExprKind::kName, token);
      node->id = NameId(name);
      node->name = name;
      if (store) {
        NoteStore(name, token);
      } else {
        NoteLoad(name);
      }
    }
  } else if (token.kind == Tok::kString) {
    std::string text;
    while (Look().kind == Tok::kString) text += Next().text;
    node = Make(ExprKind::kConst, token);
    node->value = Value::String(std::move(text));
  } else if (token.kind == Tok::kInt || token.kind == Tok::kFloat) {
    Next();
    node = Make(ExprKind::kConst, token);
    node->value = token.kind == Tok::kInt ? Value::OfInt(token.integer) : Value::Float(token.number);
  } else if (SkipOp("(")) {
    node = TupleOf(false, true, {}, true, false, store);
    ExpectOp(")");
  } else if (IsOp("[")) {
    node = ListLiteral();
  } else if (IsOp("{")) {
    node = DictLiteral();
  } else {
    Error(token, "unexpected " + Describe(token));
  }
  return node;
}

ExprPtr Parser::TupleOf(bool simplified, bool with_condition, std::string_view end_name, bool parentheses,
                        bool with_namespace, bool store) {
  DepthGuard guard(this);
  Token at = Look();
  std::vector<ExprPtr> kids;
  bool tuple = false;
  while (true) {
    if (!kids.empty()) ExpectOp(",");
    if (Look().kind == Tok::kVariableEnd || Look().kind == Tok::kBlockEnd || IsOp(")")) break;
    if (!end_name.empty() && IsName(end_name)) break;
    kids.push_back(simplified || store ? Primary(with_namespace, store) : Expression(with_condition));
    if (!IsOp(",")) break;
    tuple = true;
  }
  if (!tuple) {
    if (!kids.empty()) return std::move(kids[0]);
    if (!parentheses) Error(Look(), "expected an expression, got " + Describe(Look()));
  }
  return Make(ExprKind::kTuple, at, std::move(kids));
}

void Parser::ParseTemplate() {
  program_->body = Body({});
  if (!unknown_.empty()) Error(unknown_[0], "there is no filter or test named '" + unknown_[0].text + "'");
}

}  // namespace fluvial::jinja
