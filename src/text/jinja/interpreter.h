// SPDX-License-Identifier: Apache-2.0
// Tree walk over a Program. One Interpreter renders once.
#pragma once

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "text/jinja/ast.h"
#include "text/jinja/builtins.h"
#include "text/jinja/template.h"

namespace fluvial::jinja {

/// Variables of one block; reading falls through to the blocks around it. Loop bodies get a new one per turn.
struct Scope {
  std::shared_ptr<Scope> parent;
  std::vector<std::pair<int, Value>> variables;

  void Set(int id, Value value);
};
using ScopePtr = std::shared_ptr<Scope>;

class Interpreter {
 public:
  Interpreter(const Program& program, const RenderOptions& options) : program_(program), options_(options) {}
  ~Interpreter();
  Interpreter(const Interpreter&) = delete;
  Interpreter& operator=(const Interpreter&) = delete;

  /// Throws JinjaError, its position set.
  std::string Run(const DictObject& variables);

  // What builtins use.
  void Charge(int64_t steps);
  /// Charges for walking everything in `v`.
  void ChargeWalk(const Value& v) { Charge(v.weight()); }
  /// Charges for making `v`; returns it.
  Value Made(Value v);
  Value CallFilter(const std::string& name, const Value& input, const Args& args);
  bool CallTest(const std::string& name, const Value& input, const Args& args);
  Value CallValue(const Value& callee, Args& args);
  Value NewNamespace();
  const RenderOptions& options() const { return options_; }

 private:
  enum class Flow { kNormal, kBreak, kContinue };
  class Nested;      // counts recursion
  class ScopeGuard;  // puts the scope back
  class Capture;     // redirects output into a string

  // evaluate.cc
  Value Eval(const Expr& node);
  Value EvalName(int id, const std::string& name);
  Value EvalDict(const Expr& node);
  Value EvalCompare(const Expr& node);
  Value EvalBinary(const Expr& node);
  Value EvalConcat(const Expr& node);
  Value EvalSlice(const Expr& node);
  Value EvalCall(const Expr& node, const Value* caller);
  Value EvalFilter(const Expr& node, const Value* input);
  Items EvalItems(const std::vector<ExprPtr>& nodes);
  Args EvalArgs(const CallArgs& args);
  bool CompareOne(Op op, const Value& a, const Value& b);
  const Value* Find(int id) const;

  // execute.cc
  Flow ExecBlock(const Block& block);
  Flow Exec(const Stmt& stmt);
  void ExecFor(const Stmt& stmt);
  void RunLoop(const Stmt& stmt, const Value& iterable, int depth0);
  Value RenderLoop(const Stmt& stmt, const ScopePtr& scope, const Value& iterable, int depth0);
  Flow ExecIf(const Stmt& stmt);
  Flow ExecSet(const Stmt& stmt);
  Flow ExecSetBlock(const Stmt& stmt);
  Flow ExecFilter(const Stmt& stmt);
  Flow ExecWith(const Stmt& stmt);
  void CheckNamespaces(const Expr& target);
  void Assign(const Expr& target, const Value& value);
  Value MakeMacro(const MacroSpec& macro, bool anonymous);
  Value CallMacro(const MacroSpec& macro, const ScopePtr& scope, Args& args);
  void Write(std::string_view text);
  /// A scope inside the current one; `hidden` names start undefined.
  ScopePtr Inner(const std::vector<int>& hidden) const;
  void Hide(Scope* scope, const std::vector<int>& hidden) const;

  const Program& program_;
  const RenderOptions& options_;
  ScopePtr scope_;
  std::vector<bool> given_;  ///< by name id: the caller or the environment has a value
  std::string* out_ = nullptr;
  uint32_t offset_ = 0;  ///< source position of the operation under way, for messages
  int recursion_ = 0;
  int64_t steps_ = 0;
  int64_t bytes_ = 0;
  std::vector<ScopePtr> macro_scopes_;                        ///< macros hold them and they macros: emptied at the end
  std::vector<std::shared_ptr<NamespaceObject>> namespaces_;  ///< may hold each other: emptied at the end
};

class Interpreter::Nested {
 public:
  explicit Nested(Interpreter* interpreter) : interpreter_(interpreter) {
    if (++interpreter_->recursion_ > interpreter_->options_.max_recursion) {
      --interpreter_->recursion_;
      Fail(ErrorKind::kLimit, "the template recurses too deep");
    }
  }
  ~Nested() { --interpreter_->recursion_; }
  Nested(const Nested&) = delete;
  Nested& operator=(const Nested&) = delete;

 private:
  Interpreter* interpreter_;
};

class Interpreter::ScopeGuard {
 public:
  ScopeGuard(Interpreter* interpreter, ScopePtr scope) : interpreter_(interpreter), saved_(std::move(scope)) {
    saved_.swap(interpreter_->scope_);
  }
  ~ScopeGuard() { saved_.swap(interpreter_->scope_); }
  ScopeGuard(const ScopeGuard&) = delete;
  ScopeGuard& operator=(const ScopeGuard&) = delete;

 private:
  Interpreter* interpreter_;
  ScopePtr saved_;
};

class Interpreter::Capture {
 public:
  explicit Capture(Interpreter* interpreter) : interpreter_(interpreter), saved_(interpreter->out_) {
    interpreter_->out_ = &text;
  }
  ~Capture() { interpreter_->out_ = saved_; }
  Capture(const Capture&) = delete;
  Capture& operator=(const Capture&) = delete;

  std::string text;

 private:
  Interpreter* interpreter_;
  std::string* saved_;
};

}  // namespace fluvial::jinja
