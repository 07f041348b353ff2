// SPDX-License-Identifier: Apache-2.0
// Syntax tree of a template. Immutable after parsing, so one tree serves many renderings at once.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "text/jinja/value.h"

namespace fluvial::jinja {

enum class ExprKind : uint8_t {
  kConst,      // value
  kName,       // id
  kNsRef,      // id, name: target only
  kTuple,      // kids
  kList,       // kids
  kDict,       // kids: key, value, key, value, ...
  kCondition,  // kids: test, then, [else]
  kOr,
  kAnd,
  kNot,
  kCompare,  // kids: first, then one per entry of ops
  kBinary,   // op, kids
  kConcat,   // kids
  kNegate,
  kPlus,
  kGetAttr,  // kids: object; name
  kGetItem,  // kids: object, key
  kSlice,    // kids: object, then start, stop, step (null: absent)
  kCall,     // kids: callee; args
  kFilter,   // kids: input (null inside a filter block); name; args
  kTest,     // kids: input; name; args
};

enum class Op : uint8_t {
  kAdd,
  kSub,
  kMul,
  kDiv,
  kFloorDiv,
  kMod,
  kPow,
  kEq,
  kNe,
  kLt,
  kLe,
  kGt,
  kGe,
  kIn,
  kNotIn,
};

/// The operator as written.
std::string_view OpText(Op op);

struct Expr;
using ExprPtr = std::unique_ptr<Expr>;

struct CallArgs {
  std::vector<ExprPtr> positional;
  std::vector<std::pair<std::string, ExprPtr>> keywords;
  ExprPtr star;         ///< *args
  ExprPtr double_star;  ///< **kwargs
};

struct Expr {
  ExprKind kind = ExprKind::kConst;
  Op op = Op::kAdd;
  uint32_t offset = 0;  ///< byte offset in the source, for messages
  int depth = 1;
  int id = -1;
  Value value;
  std::string name;
  std::vector<ExprPtr> kids;
  std::vector<Op> ops;
  std::unique_ptr<CallArgs> args;
};

enum class StmtKind : uint8_t {
  kText,       // text
  kPrint,      // expr
  kFor,        // target, expr, test, body, orelse, recursive
  kIf,         // branches
  kSet,        // target, expr
  kSetBlock,   // target, expr (filter or null), body
  kMacro,      // macro
  kCallBlock,  // expr (the call), macro (the caller block)
  kFilter,     // expr, body
  kWith,       // bindings, body
  kScope,      // body: `generation`
  kBreak,
  kContinue,
};

struct Stmt;
using Block = std::vector<std::unique_ptr<Stmt>>;

struct MacroSpec {
  std::string name;
  int id = -1;
  std::vector<std::pair<int, std::string>> params;
  std::vector<ExprPtr> defaults;  ///< one per param, null: none
  Block body;
  std::vector<int> hidden;                              ///< names to start undefined (symbols.cc)
  int caller_id = -1, kwargs_id = -1, varargs_id = -1;  ///< set when the body reads the special name
};

struct Stmt {
  StmtKind kind = StmtKind::kText;
  uint32_t offset = 0;
  std::string text;
  ExprPtr target, expr, test;
  Block body, orelse;
  std::vector<std::pair<ExprPtr, Block>> branches;    ///< if, elif (a null test is else)
  std::vector<std::pair<ExprPtr, ExprPtr>> bindings;  ///< with: target, value
  std::unique_ptr<MacroSpec> macro;
  bool recursive = false;
  std::vector<int> hidden, hidden_orelse;  ///< names that body and orelse start undefined (symbols.cc)
  int loop_id = -1;                        ///< for: id of the name `loop`
};

struct Program {
  std::string source;
  Block body;
  std::vector<std::string> names;  ///< name ids
  std::vector<int> hidden;         ///< names to start undefined
};

/// Fills the `hidden` lists.
void AnalyzeSymbols(Program* program);

/// Parses template text; throws JinjaError with its position set.
Program Parse(std::string_view text);

}  // namespace fluvial::jinja
