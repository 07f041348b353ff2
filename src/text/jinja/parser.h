// SPDX-License-Identifier: Apache-2.0
// Recursive descent over the tokens, one function per rule of Jinja's grammar (precedence: filter and test, power,
// unary, * / // %, ~, + -, comparison, not, and, or, if-else).
#pragma once

#include <initializer_list>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "text/jinja/ast.h"
#include "text/jinja/lexer.h"

namespace fluvial::jinja {

/// Restores a variable when a rule ends.
template <class T>
class Saved {
 public:
  explicit Saved(T* place) : place_(place), value_(*place) {}
  ~Saved() { *place_ = value_; }
  Saved(const Saved&) = delete;
  Saved& operator=(const Saved&) = delete;

 private:
  T* place_;
  T value_;
};

class Parser {
 public:
  explicit Parser(Program* program);
  void ParseTemplate();

 private:
  // Where the parser stands, for rules that depend on the surroundings.
  struct Context {
    int loops = 0;      ///< `for` bodies open in this function: break and continue need one
    bool soft = false;  ///< in an `if`: an unknown filter or test is an error only when reached
  };
  struct MacroScope {
    MacroSpec* macro;
    std::vector<std::string> hidden;  ///< special names the body assigned before reading
  };
  struct DepthGuard;

  // parser.cc: tokens and expressions
  const Token& Look(size_t ahead = 0) const;
  Token Next();
  bool IsOp(std::string_view op, size_t ahead = 0) const;
  bool IsName(std::string_view name, size_t ahead = 0) const;
  bool SkipOp(std::string_view op);
  bool SkipName(std::string_view name);
  void ExpectOp(std::string_view op);
  std::string ExpectName();
  [[noreturn]] void Error(const Token& token, const std::string& message) const;
  [[noreturn]] void Unsupported(const Token& token, const std::string& message) const;
  std::string Describe(const Token& token) const;

  int NameId(const std::string& name);
  void NoteLoad(const std::string& name);
  void NoteStore(const std::string& name, const Token& token);
  ExprPtr Make(ExprKind kind, const Token& at, std::vector<ExprPtr> kids = {}) const;

  ExprPtr Expression(bool with_condition = true);
  ExprPtr Condition();
  ExprPtr Or();
  ExprPtr And();
  ExprPtr Not();
  ExprPtr Compare();
  ExprPtr Sum();
  ExprPtr Concat();
  ExprPtr Product();
  ExprPtr Power();
  ExprPtr Unary(bool with_filter);
  ExprPtr Primary(bool with_namespace, bool store);
  ExprPtr TupleOf(bool simplified, bool with_condition, std::string_view end_name, bool parentheses,
                  bool with_namespace, bool store);
  ExprPtr TupleExpression() { return TupleOf(false, true, {}, false, false, false); }
  ExprPtr ListLiteral();
  ExprPtr DictLiteral();
  ExprPtr Postfix(ExprPtr node);
  ExprPtr FilterExpression(ExprPtr node);
  ExprPtr Subscript(ExprPtr node);
  ExprPtr Call(ExprPtr node);
  ExprPtr Filters(ExprPtr node, bool start_inline);
  ExprPtr Test(ExprPtr node);
  std::unique_ptr<CallArgs> Arguments();
  int ArgumentsDepth(const CallArgs& args) const;
  ExprPtr AssignTarget(std::string_view end_name, bool with_namespace);
  void CheckTarget(const Expr& target, const Token& at) const;

  // parser_statements.cc
  using EndNames = std::initializer_list<std::string_view>;
  Block Body(EndNames end_names);
  Block Statements(EndNames end_names);
  std::unique_ptr<Stmt> Statement();
  std::unique_ptr<Stmt> For(const Token& at);
  std::unique_ptr<Stmt> If(const Token& at);
  std::unique_ptr<Stmt> Set(const Token& at);
  std::unique_ptr<Stmt> With(const Token& at);
  std::unique_ptr<Stmt> Macro(const Token& at);
  std::unique_ptr<Stmt> CallBlock(const Token& at);
  std::unique_ptr<Stmt> FilterBlock(const Token& at);
  void Signature(MacroSpec* macro);
  Block MacroBody(MacroSpec* macro, std::string_view end_name);
  Block ScopedBody(EndNames end_names);

  Program* program_;
  std::vector<Token> tokens_;
  size_t at_ = 0;
  int depth_ = 0;
  int any_loops_ = 0;  ///< `for` statements open anywhere around, through macros
  Context context_;
  std::vector<MacroScope> macros_;
  std::vector<Token> unknown_;  ///< unknown filters and tests outside any condition
  std::unordered_map<std::string, int> ids_;
};

}  // namespace fluvial::jinja
