// SPDX-License-Identifier: Apache-2.0
// Which names a block hides. Jinja decides per block, before running, where each name comes from; the visible part of
// that is: a name that a block assigns somewhere, without reading it earlier in the same block and without a block
// around it that knows the name, is undefined until assigned - also in loops and macros inside that block - even when
// the caller gave a variable or there is a global of that name. Assignments in a branch of an `if` do not hide.
//
// Rules: jinja2 3.1, idtracking.py (Symbols.load, store, branch_update and the frame visitors).
#include <map>
#include <set>

#include "text/jinja/ast.h"

namespace fluvial::jinja {
namespace {

enum class Load { kResolve, kAlias, kUndefined, kParameter };

// The names of one block. A branch of an `if` is an overlay on the names before it.
struct Symbols {
  Symbols* parent = nullptr;  // the block around
  Symbols* base = nullptr;    // what this overlays
  std::map<int, Load> loads;
  std::set<int> stores;

  bool Refers(int id) const {
    for (const Symbols* s = this; s != nullptr; s = s->base) {
      if (s->loads.contains(id)) return true;
    }
    return false;
  }
  bool Finds(int id) const {
    for (const Symbols* s = this; s != nullptr; s = s->parent) {
      if (s->Refers(id)) return true;
    }
    return false;
  }
  bool Stores(int id) const {
    for (const Symbols* s = this; s != nullptr; s = s->base) {
      if (s->stores.contains(id)) return true;
    }
    return false;
  }

  void DoLoad(int id) {
    if (!Finds(id)) loads[id] = Load::kResolve;
  }
  void DoStore(int id) {
    stores.insert(id);
    if (Refers(id)) return;
    loads[id] = parent != nullptr && parent->Finds(id) ? Load::kAlias : Load::kUndefined;
  }
  void Declare(int id) {
    stores.insert(id);
    loads[id] = Load::kParameter;
  }

  Symbols Branch() {
    Symbols branch;
    branch.parent = parent;
    branch.base = this;
    return branch;
  }
  void Join(std::initializer_list<const Symbols*> branches) {
    std::set<int> stored;
    for (const Symbols* branch : branches) {
      for (int id : branch->stores) {
        if (!Stores(id)) stored.insert(id);
      }
    }
    for (const Symbols* branch : branches) {
      for (const auto& [id, load] : branch->loads) loads[id] = load;
    }
    for (int id : stored) {
      stores.insert(id);
      loads[id] = parent != nullptr && parent->Finds(id) ? Load::kAlias : Load::kResolve;
    }
  }
  std::vector<int> Hidden() const {
    std::vector<int> hidden;
    for (const auto& [id, load] : loads) {
      if (load == Load::kUndefined) hidden.push_back(id);
    }
    return hidden;
  }
};

void VisitArgs(const CallArgs& args, Symbols* symbols);

void Visit(const Expr* expr, Symbols* symbols) {
  if (expr == nullptr) return;
  if (expr->kind == ExprKind::kName || expr->kind == ExprKind::kNsRef) symbols->DoLoad(expr->id);
  for (const ExprPtr& kid : expr->kids) Visit(kid.get(), symbols);
  if (expr->args) VisitArgs(*expr->args, symbols);
}

void VisitArgs(const CallArgs& args, Symbols* symbols) {
  for (const ExprPtr& arg : args.positional) Visit(arg.get(), symbols);
  for (const auto& keyword : args.keywords) Visit(keyword.second.get(), symbols);
  Visit(args.star.get(), symbols);
  Visit(args.double_star.get(), symbols);
}

void VisitTarget(const Expr& target, Symbols* symbols, bool parameter) {
  if (target.kind == ExprKind::kNsRef) return symbols->DoLoad(target.id);
  if (target.kind == ExprKind::kName) return parameter ? symbols->Declare(target.id) : symbols->DoStore(target.id);
  for (const ExprPtr& kid : target.kids) VisitTarget(*kid, symbols, parameter);
}

void VisitBlock(const Block& block, Symbols* symbols);

void VisitIf(const Stmt& stmt, Symbols* symbols) {
  Visit(stmt.branches[0].first.get(), symbols);
  Symbols body = symbols->Branch(), elifs = symbols->Branch(), orelse = symbols->Branch();
  VisitBlock(stmt.branches[0].second, &body);
  for (size_t i = 1; i < stmt.branches.size(); ++i) {
    const auto& [test, block] = stmt.branches[i];
    if (!test) {
      VisitBlock(block, &orelse);
      continue;
    }
    Visit(test.get(), &elifs);
    Symbols inner = elifs.Branch();
    VisitBlock(block, &inner);
    elifs.Join({&inner});
  }
  symbols->Join({&body, &elifs, &orelse});
}

void VisitBlock(const Block& block, Symbols* symbols) {
  for (const auto& stmt : block) {
    switch (stmt->kind) {
      case StmtKind::kIf:
        VisitIf(*stmt, symbols);
        break;
      case StmtKind::kSet:
        Visit(stmt->expr.get(), symbols);
        VisitTarget(*stmt->target, symbols, false);
        break;
      case StmtKind::kSetBlock:
        VisitTarget(*stmt->target, symbols, false);
        break;
      case StmtKind::kMacro:
        symbols->DoStore(stmt->macro->id);
        break;
      case StmtKind::kWith:
        for (const auto& binding : stmt->bindings) Visit(binding.second.get(), symbols);
        break;
      default:  // print, for (what it walks), call, filter: the expression belongs to this block, the body does not
        Visit(stmt->expr.get(), symbols);
    }
  }
}

void AnalyzeInner(const Block& block, Symbols* symbols);

std::vector<int> Analyze(const Block& block, Symbols* symbols) {
  VisitBlock(block, symbols);
  AnalyzeInner(block, symbols);
  return symbols->Hidden();
}

void AnalyzeMacro(MacroSpec* macro, Symbols* around) {
  Symbols inner;
  inner.parent = around;
  for (const auto& param : macro->params) inner.Declare(param.first);
  for (int id : {macro->caller_id, macro->kwargs_id, macro->varargs_id}) {
    if (id >= 0) inner.Declare(id);
  }
  for (const ExprPtr& value : macro->defaults) Visit(value.get(), &inner);
  macro->hidden = Analyze(macro->body, &inner);
}

// The blocks directly inside `block`; branches of an `if` are part of it.
void AnalyzeInner(const Block& block, Symbols* symbols) {
  for (const auto& stmt : block) {
    Symbols inner, orelse;
    inner.parent = orelse.parent = symbols;
    switch (stmt->kind) {
      case StmtKind::kIf:
        for (const auto& branch : stmt->branches) AnalyzeInner(branch.second, symbols);
        break;
      case StmtKind::kFor:
        inner.Declare(stmt->loop_id);
        VisitTarget(*stmt->target, &inner, true);
        stmt->hidden = Analyze(stmt->body, &inner);
        stmt->hidden_orelse = Analyze(stmt->orelse, &orelse);
        break;
      case StmtKind::kMacro:
      case StmtKind::kCallBlock:
        AnalyzeMacro(stmt->macro.get(), symbols);
        break;
      case StmtKind::kWith:
        for (const auto& binding : stmt->bindings) VisitTarget(*binding.first, &inner, true);
        [[fallthrough]];
      case StmtKind::kSetBlock:
      case StmtKind::kFilter:
      case StmtKind::kScope:
        stmt->hidden = Analyze(stmt->body, &inner);
        break;
      default:
        break;
    }
  }
}

}  // namespace

void AnalyzeSymbols(Program* program) {
  Symbols root;
  program->hidden = Analyze(program->body, &root);
}

}  // namespace fluvial::jinja
