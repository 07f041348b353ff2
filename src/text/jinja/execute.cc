// SPDX-License-Identifier: Apache-2.0
// Interpreter: statements, loops and macros.
#include <algorithm>

#include "text/jinja/interpreter.h"
#include "text/jinja/lexer.h"
#include "text/jinja/repr.h"

namespace fluvial::jinja {

void Scope::Set(int id, Value value) {
  for (auto& [key, slot] : variables) {
    if (key == id) {
      slot = std::move(value);
      return;
    }
  }
  variables.emplace_back(id, std::move(value));
}

Interpreter::~Interpreter() {
  // Breaks the cycles that closures and namespaces can form. All are held until the last is empty, so that no
  // destructor follows a chain of them.
  for (auto& scope : macro_scopes_) scope->variables.clear();
  for (auto& object : namespaces_) object->attributes = DictObject{};
}

std::string Interpreter::Run(const DictObject& variables) {
  std::string text;
  out_ = &text;
  try {
    auto globals = std::make_shared<Scope>();
    for (size_t id = 0; id < program_.names.size(); ++id) {
      const std::string& name = program_.names[id];
      std::optional<Value> builtin;
      const Value* value = variables.Find(name);
      if (value == nullptr) builtin = GlobalValue(*this, name);
      if (value == nullptr && builtin) value = &*builtin;
      if (value != nullptr) globals->variables.emplace_back(static_cast<int>(id), *value);
      given_.push_back(value != nullptr);
    }
    scope_ = std::move(globals);
    scope_ = Inner(program_.hidden);
    ExecBlock(program_.body);
  } catch (JinjaError& error) {
    if (error.line != 0) throw;
    FailAt(program_.source, offset_, error.kind, std::move(error.message));
  }
  return text;
}

Value Interpreter::NewNamespace() {
  auto object = std::make_shared<NamespaceObject>();
  namespaces_.push_back(object);
  return Made(Value::Of(Type::kNamespace, std::move(object)));
}

ScopePtr Interpreter::Inner(const std::vector<int>& hidden) const {
  auto scope = std::make_shared<Scope>();
  scope->parent = scope_;
  Hide(scope.get(), hidden);
  return scope;
}

void Interpreter::Hide(Scope* scope, const std::vector<int>& hidden) const {
  for (int id : hidden) {
    auto index = static_cast<size_t>(id);
    if (given_[index]) scope->Set(id, Value::Undefined("'" + program_.names[index] + "' is undefined"));
  }
}

void Interpreter::Write(std::string_view text) {
  Charge(1 + static_cast<int64_t>(text.size()) / 16);
  bytes_ += static_cast<int64_t>(text.size());
  if (bytes_ > options_.max_bytes) Fail(ErrorKind::kLimit, "the template makes too much data");
  if (static_cast<int64_t>(out_->size() + text.size()) > options_.max_output_bytes) {
    Fail(ErrorKind::kLimit, "the template writes too much text");
  }
  *out_ += text;
}

Interpreter::Flow Interpreter::ExecBlock(const Block& block) {
  for (const auto& stmt : block) {
    Flow flow = Exec(*stmt);
    if (flow != Flow::kNormal) return flow;
  }
  return Flow::kNormal;
}

Interpreter::Flow Interpreter::Exec(const Stmt& stmt) {
  Nested nested(this);
  offset_ = stmt.offset;
  switch (stmt.kind) {
    case StmtKind::kText:
      Write(stmt.text);
      return Flow::kNormal;
    case StmtKind::kPrint: {
      Value value = Eval(*stmt.expr);
      offset_ = stmt.offset;
      if (!value.string()) ChargeWalk(value);
      if (value.string()) {
        Write(value.Text());
      } else {
        Write(Str(value));
      }
      return Flow::kNormal;
    }
    case StmtKind::kFor:
      ExecFor(stmt);
      return Flow::kNormal;
    case StmtKind::kIf:
      return ExecIf(stmt);
    case StmtKind::kSet:
      return ExecSet(stmt);
    case StmtKind::kSetBlock:
      return ExecSetBlock(stmt);
    case StmtKind::kMacro:
      scope_->Set(stmt.macro->id, MakeMacro(*stmt.macro, false));
      return Flow::kNormal;
    case StmtKind::kCallBlock: {
      Value caller = MakeMacro(*stmt.macro, true);
      Value result = EvalCall(*stmt.expr, &caller);
      Write(Str(result));
      return Flow::kNormal;
    }
    case StmtKind::kFilter:
      return ExecFilter(stmt);
    case StmtKind::kWith:
      return ExecWith(stmt);
    case StmtKind::kScope: {
      ScopeGuard guard(this, Inner(stmt.hidden));
      return ExecBlock(stmt.body);
    }
    case StmtKind::kBreak:
      return Flow::kBreak;
    case StmtKind::kContinue:
      return Flow::kContinue;
  }
  return Flow::kNormal;
}

Interpreter::Flow Interpreter::ExecIf(const Stmt& stmt) {
  for (const auto& [test, body] : stmt.branches) {
    if (!test || Truth(Eval(*test))) return ExecBlock(body);
  }
  return Flow::kNormal;
}

void Interpreter::ExecFor(const Stmt& stmt) {
  Value iterable = Eval(*stmt.expr);
  offset_ = stmt.expr->offset;
  if (stmt.recursive) {
    Write(RenderLoop(stmt, scope_, iterable, 0).Text());
  } else {
    RunLoop(stmt, iterable, 0);
  }
}

Value Interpreter::RenderLoop(const Stmt& stmt, const ScopePtr& scope, const Value& iterable, int depth0) {
  Nested nested(this);
  ScopeGuard guard(this, scope);
  Capture capture(this);
  RunLoop(stmt, iterable, depth0);
  return Value::String(std::move(capture.text));
}

void Interpreter::RunLoop(const Stmt& stmt, const Value& iterable, int depth0) {
  auto loop = std::make_shared<LoopObject>();
  loop->depth = 1;  // holds items, but never ends up inside a list that recursion walks
  loop->depth0 = depth0;
  loop->source = Iterate(iterable);
  if (!stmt.test) loop->known_length = Length(iterable);
  if (stmt.test) {
    // The filter runs lazily, one item ahead of the body at most.
    loop->source = [this, &stmt, scope = scope_, next = std::move(loop->source)](Value* out) {
      Value item;
      while (next(&item)) {
        Charge(1);
        ScopeGuard outer(this, scope);
        ScopeGuard inner(this, Inner({}));
        Assign(*stmt.target, item);
        if (!Truth(Eval(*stmt.test))) continue;
        *out = stmt.target->kind == ExprKind::kTuple ? Eval(*stmt.target) : item;
        return true;
      }
      return false;
    };
  }
  if (stmt.recursive) {
    loop->recurse = [this, &stmt, scope = std::weak_ptr<Scope>(scope_), depth0](Interpreter&, const Value& inner) {
      ScopePtr outer = scope.lock();
      if (outer == nullptr) FailRuntime("the loop called here has ended");
      return RenderLoop(stmt, outer, inner, depth0 + 1);
    };
  }
  Value handle = Value::Of(Type::kLoop, loop);
  bool completed = false;  // as in Jinja, `else` runs unless one turn came to its end
  Value item;
  while (loop->Next(&item)) {
    Charge(1);
    ScopeGuard guard(this, Inner(stmt.hidden));
    offset_ = stmt.offset;
    Assign(*stmt.target, item);
    scope_->Set(stmt.loop_id, handle);
    Flow flow = ExecBlock(stmt.body);
    if (flow == Flow::kBreak) break;
    if (flow == Flow::kNormal) completed = true;
  }
  if (!completed && !stmt.orelse.empty()) {
    ScopeGuard guard(this, Inner(stmt.hidden_orelse));
    ExecBlock(stmt.orelse);
  }
}

void Interpreter::CheckNamespaces(const Expr& target) {
  for (const ExprPtr& kid : target.kids) CheckNamespaces(*kid);
  if (target.kind != ExprKind::kNsRef) return;
  const Value* found = Find(target.id);
  if (found == nullptr || !found->Is(Type::kNamespace)) {
    offset_ = target.offset;
    FailRuntime("cannot assign attribute on non-namespace object");
  }
}

void Interpreter::Assign(const Expr& target, const Value& value) {
  if (target.kind == ExprKind::kName) {
    scope_->Set(target.id, value);
  } else if (target.kind == ExprKind::kNsRef) {
    const Value* found = Find(target.id);
    if (found == nullptr || !found->Is(Type::kNamespace))
      FailRuntime("cannot assign attribute on non-namespace object");
    if (target.name[0] == '_') FailRuntime("a namespace cannot hold '" + target.name + "': it starts with '_'");
    Value keep = *found;
    keep.As<NamespaceObject>().attributes.Set(Value::String(target.name), value);
  } else {
    if (!Iterable(value)) FailRuntime("cannot unpack a value of type '" + TypeName(value) + "'");
    Items items = ToItems(value);
    if (items.size() != target.kids.size()) {
      FailRuntime("expected " + std::to_string(target.kids.size()) + " values to unpack, got " +
                  std::to_string(items.size()));
    }
    for (size_t i = 0; i < items.size(); ++i) Assign(*target.kids[i], items[i]);
  }
}

Interpreter::Flow Interpreter::ExecSet(const Stmt& stmt) {
  CheckNamespaces(*stmt.target);
  Value value = Eval(*stmt.expr);
  offset_ = stmt.offset;
  Assign(*stmt.target, value);
  return Flow::kNormal;
}

Interpreter::Flow Interpreter::ExecSetBlock(const Stmt& stmt) {
  Value value;
  {
    ScopeGuard guard(this, Inner(stmt.hidden));
    Capture capture(this);
    Flow flow = ExecBlock(stmt.body);
    if (flow != Flow::kNormal) return flow;
    value = Made(Value::String(std::move(capture.text)));
    if (stmt.expr) value = EvalFilter(*stmt.expr, &value);
  }
  offset_ = stmt.offset;
  Assign(*stmt.target, value);
  return Flow::kNormal;
}

Interpreter::Flow Interpreter::ExecFilter(const Stmt& stmt) {
  Value value;
  {
    ScopeGuard guard(this, Inner(stmt.hidden));
    Capture capture(this);
    Flow flow = ExecBlock(stmt.body);
    if (flow != Flow::kNormal) return flow;
    value = Made(Value::String(std::move(capture.text)));
    value = EvalFilter(*stmt.expr, &value);
  }
  Write(Str(value));
  return Flow::kNormal;
}

Interpreter::Flow Interpreter::ExecWith(const Stmt& stmt) {
  Items values;
  for (const auto& binding : stmt.bindings) values.push_back(Eval(*binding.second));
  ScopeGuard guard(this, Inner(stmt.hidden));
  for (size_t i = 0; i < values.size(); ++i) Assign(*stmt.bindings[i].first, values[i]);
  return ExecBlock(stmt.body);
}

Value Interpreter::MakeMacro(const MacroSpec& macro, bool anonymous) {
  auto function = std::make_shared<FunctionObject>();
  function->name = macro.name;
  function->repr = anonymous ? "<Macro anonymous>" : "<Macro '" + macro.name + "'>";
  function->call = [this, &macro, scope = scope_](Interpreter&, Args& args) { return CallMacro(macro, scope, args); };
  if (macro_scopes_.empty() || macro_scopes_.back() != scope_) macro_scopes_.push_back(scope_);
  return Made(Value::Of(Type::kFunction, std::move(function)));
}

Value Interpreter::CallMacro(const MacroSpec& macro, const ScopePtr& scope, Args& args) {
  Nested nested(this);
  auto inner = std::make_shared<Scope>();
  inner->parent = scope;
  Hide(inner.get(), macro.hidden);
  size_t count = macro.params.size();
  auto take = [&](const std::string& name) -> std::optional<Value> {
    auto it = std::find_if(args.keywords.begin(), args.keywords.end(),
                           [&](const auto& keyword) { return keyword.first == name; });
    if (it == args.keywords.end()) return std::nullopt;
    Value value = std::move(it->second);
    args.keywords.erase(it);
    return value;
  };
  std::vector<size_t> missing;
  for (size_t i = 0; i < count; ++i) {
    if (i < args.positional.size()) {
      inner->Set(macro.params[i].first, args.positional[i]);
    } else if (std::optional<Value> given = take(macro.params[i].second)) {
      inner->Set(macro.params[i].first, std::move(*given));
    } else {
      missing.push_back(i);
    }
  }
  if (macro.caller_id >= 0) {
    std::optional<Value> caller = take("caller");
    inner->Set(macro.caller_id, caller && !caller->none() ? *caller : Value::Undefined("No caller defined"));
  }
  if (macro.kwargs_id >= 0) {
    auto rest = std::make_shared<DictObject>();
    for (auto& [name, value] : args.keywords) rest->Set(Value::String(name), value);
    inner->Set(macro.kwargs_id, Value::Dict(std::move(rest)));
  } else if (!args.keywords.empty()) {
    FailRuntime("macro '" + macro.name + "' takes no keyword argument '" + args.keywords[0].first + "'");
  }
  if (macro.varargs_id >= 0) {
    Items rest;
    for (size_t i = count; i < args.positional.size(); ++i) rest.push_back(args.positional[i]);
    inner->Set(macro.varargs_id, Value::Tuple(std::move(rest)));
  } else if (args.positional.size() > count) {
    FailRuntime("macro '" + macro.name + "' takes not more than " + std::to_string(count) + " argument(s)");
  }
  ScopeGuard guard(this, inner);
  for (size_t i : missing) {
    const auto& [id, name] = macro.params[i];
    inner->Set(id, macro.defaults[i] ? Eval(*macro.defaults[i])
                                     : Value::Undefined("parameter '" + name + "' was not provided"));
  }
  Capture capture(this);
  ExecBlock(macro.body);
  return Value::String(std::move(capture.text));
}

}  // namespace fluvial::jinja
