// SPDX-License-Identifier: Apache-2.0
// Parser, continued: template text and block statements.
#include <algorithm>

#include "text/jinja/parser.h"

namespace fluvial::jinja {
namespace {

constexpr int kMaxBlocks = 100;  // statements inside each other

std::unique_ptr<Stmt> NewStmt(StmtKind kind, const Token& at) {
  auto stmt = std::make_unique<Stmt>();
  stmt->kind = kind;
  stmt->offset = at.offset;
  return stmt;
}

}  // namespace

// Text, prints and statements up to one of `end_names` (which stays the current token) or the end of the template.
Block Parser::Body(EndNames end_names) {
  Saved<int> depth(&depth_);
  if (++depth_ > kMaxBlocks) {
    FailAt(program_->source, Look().offset, ErrorKind::kLimit, "statements are nested too deep");
  }
  Block block;
  while (Look().kind != Tok::kEnd) {
    Token at = Next();
    if (at.kind == Tok::kData) {
      auto stmt = NewStmt(StmtKind::kText, at);
      stmt->text = std::move(at.text);
      block.push_back(std::move(stmt));
    } else if (at.kind == Tok::kVariableBegin) {
      auto stmt = NewStmt(StmtKind::kPrint, at);
      stmt->expr = TupleExpression();
      if (Look().kind != Tok::kVariableEnd) Error(Look(), "expected '}}', got " + Describe(Look()));
      Next();
      block.push_back(std::move(stmt));
    } else {
      bool ends = std::any_of(end_names.begin(), end_names.end(), [&](std::string_view name) { return IsName(name); });
      if (ends) return block;
      Token tag = Look();
      if (IsName("print")) {
        Next();
        do {
          auto stmt = NewStmt(StmtKind::kPrint, tag);
          stmt->expr = Expression();
          block.push_back(std::move(stmt));
        } while (SkipOp(","));
      } else {
        block.push_back(Statement());
      }
      if (Look().kind != Tok::kBlockEnd) Error(Look(), "expected '%}', got " + Describe(Look()));
      Next();
    }
  }
  if (end_names.size() != 0) {
    std::string wanted;
    for (std::string_view name : end_names) wanted += (wanted.empty() ? "'" : " or '") + std::string(name) + "'";
    Error(Look(), "the template ends where " + wanted + " is missing");
  }
  return block;
}

Block Parser::Statements(EndNames end_names) {
  SkipOp(":");
  if (Look().kind != Tok::kBlockEnd) Error(Look(), "expected '%}', got " + Describe(Look()));
  Next();
  return Body(end_names);
}

Block Parser::ScopedBody(EndNames end_names) {
  Saved<Context> context(&context_);
  context_.soft = false;
  return Statements(end_names);
}

std::unique_ptr<Stmt> Parser::Statement() {
  Token at = Look();
  std::string tag = ExpectName();
  if (tag == "for") return For(at);
  if (tag == "if") return If(at);
  if (tag == "set") return Set(at);
  if (tag == "macro") return Macro(at);
  if (tag == "call") return CallBlock(at);
  if (tag == "filter") return FilterBlock(at);
  if (tag == "with") return With(at);
  if (tag == "break" || tag == "continue") {
    if (context_.loops == 0) Error(at, "'" + tag + "' outside a for loop");
    return NewStmt(tag == "break" ? StmtKind::kBreak : StmtKind::kContinue, at);
  }
  if (tag == "generation") {
    auto stmt = NewStmt(StmtKind::kScope, at);
    Saved<int> loops(&context_.loops);
    context_.loops = 0;  // the body is a function of its own, as in a call block
    stmt->body = ScopedBody({"endgeneration"});
    Next();
    return stmt;
  }
  for (std::string_view known : {"include", "import", "from", "extends", "block", "autoescape"}) {
    if (tag == known) Unsupported(at, "the tag '" + tag + "' is not supported in chat templates");
  }
  Error(at, "unknown tag '" + tag + "'");
}

std::unique_ptr<Stmt> Parser::For(const Token& at) {
  auto stmt = NewStmt(StmtKind::kFor, at);
  ++any_loops_;
  stmt->loop_id = NameId("loop");
  stmt->target = AssignTarget("in", false);
  if (!SkipName("in")) Error(Look(), "expected 'in', got " + Describe(Look()));
  stmt->expr = TupleOf(false, false, "recursive", false, false, false);
  if (SkipName("if")) stmt->test = Expression();
  stmt->recursive = SkipName("recursive");
  {
    Saved<Context> context(&context_);
    ++context_.loops;
    stmt->body = ScopedBody({"endfor", "else"});
  }
  if (Next().text == "else") {
    stmt->orelse = ScopedBody({"endfor"});
    Next();
  }
  --any_loops_;
  return stmt;
}

std::unique_ptr<Stmt> Parser::If(const Token& at) {
  auto stmt = NewStmt(StmtKind::kIf, at);
  Saved<Context> context(&context_);
  context_.soft = true;
  while (true) {
    ExprPtr test = TupleOf(false, false, {}, false, false, false);
    Block body = Statements({"elif", "else", "endif"});
    stmt->branches.emplace_back(std::move(test), std::move(body));
    Token end = Next();
    if (end.text == "elif") continue;
    if (end.text == "else") {
      stmt->branches.emplace_back(nullptr, Statements({"endif"}));
      Next();
    }
    return stmt;
  }
}

std::unique_ptr<Stmt> Parser::Set(const Token& at) {
  auto stmt = NewStmt(StmtKind::kSet, at);
  stmt->target = AssignTarget({}, true);
  if (SkipOp("=")) {
    stmt->expr = TupleExpression();
    return stmt;
  }
  stmt->kind = StmtKind::kSetBlock;
  if (IsOp("|")) stmt->expr = Filters(nullptr, false);
  stmt->body = ScopedBody({"endset"});
  Next();
  return stmt;
}

std::unique_ptr<Stmt> Parser::With(const Token& at) {
  auto stmt = NewStmt(StmtKind::kWith, at);
  while (Look().kind != Tok::kBlockEnd) {
    if (!stmt->bindings.empty()) ExpectOp(",");
    ExprPtr target = AssignTarget({}, false);
    ExpectOp("=");
    stmt->bindings.emplace_back(std::move(target), Expression());
  }
  stmt->body = ScopedBody({"endwith"});
  Next();
  return stmt;
}

void Parser::Signature(MacroSpec* macro) {
  ExpectOp("(");
  bool defaults = false;
  while (!IsOp(")")) {
    if (!macro->params.empty()) ExpectOp(",");
    Token at = Look();
    std::string name = ExpectName();
    if (name == "caller") Unsupported(at, "a macro parameter named 'caller' is not supported");
    for (const auto& param : macro->params) {
      if (param.second == name) Error(at, "duplicate parameter '" + name + "'");
    }
    for (MacroScope& scope : macros_) scope.hidden.push_back(name);
    macro->params.emplace_back(NameId(name), name);
    macro->defaults.push_back(nullptr);
    if (SkipOp("=")) {
      macro->defaults.back() = Expression();
      defaults = true;
    } else if (defaults) {
      Error(Look(), "a parameter without default follows one with a default");
    }
  }
  ExpectOp(")");
}

Block Parser::MacroBody(MacroSpec* macro, std::string_view end_name) {
  Saved<Context> context(&context_);
  context_ = Context{};
  MacroScope scope{macro, {}};
  for (const auto& param : macro->params) scope.hidden.push_back(param.second);
  macros_.push_back(std::move(scope));
  Block body = Statements({end_name});
  macros_.pop_back();
  Next();
  return body;
}

std::unique_ptr<Stmt> Parser::Macro(const Token& at) {
  auto stmt = NewStmt(StmtKind::kMacro, at);
  stmt->macro = std::make_unique<MacroSpec>();
  stmt->macro->name = ExpectName();
  stmt->macro->id = NameId(stmt->macro->name);
  Signature(stmt->macro.get());
  stmt->macro->body = MacroBody(stmt->macro.get(), "endmacro");
  return stmt;
}

std::unique_ptr<Stmt> Parser::CallBlock(const Token& at) {
  auto stmt = NewStmt(StmtKind::kCallBlock, at);
  stmt->macro = std::make_unique<MacroSpec>();
  stmt->macro->name = "caller";
  if (IsOp("(")) Signature(stmt->macro.get());
  stmt->expr = Expression();
  if (stmt->expr->kind != ExprKind::kCall) Error(at, "expected a call after 'call'");
  stmt->macro->body = MacroBody(stmt->macro.get(), "endcall");
  return stmt;
}

std::unique_ptr<Stmt> Parser::FilterBlock(const Token& at) {
  auto stmt = NewStmt(StmtKind::kFilter, at);
  stmt->expr = Filters(nullptr, true);
  stmt->body = ScopedBody({"endfilter"});
  Next();
  return stmt;
}

}  // namespace fluvial::jinja
