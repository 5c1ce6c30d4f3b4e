// The tree of a compiled template. Immutable after parsing, shared by all renders.
#pragma once

#include "common/chat/value.h"

#include <memory>
#include <string>
#include <utility>
#include <vector>

namespace tandem::chat {

class Interp;
struct Args;
using FilterFn = Value (*)(Interp&, const Value&, Args&);
using TestFn = bool (*)(Interp&, const Value&, Args&);

struct Expr;
using ExprPtr = std::unique_ptr<Expr>;

enum class ExprKind {
  kNone,
  kBool,     ///< flag
  kInt,      ///< integer
  kFloat,    ///< number
  kString,   ///< text
  kName,     ///< text
  kList,     ///< items
  kTuple,    ///< items
  kDict,     ///< items: key, value, key, value, ...
  kNot,      ///< items[0]
  kNegate,   ///< items[0]
  kPlus,     ///< items[0]
  kAnd,      ///< items[0], items[1]
  kOr,       ///< items[0], items[1]
  kBinary,   ///< items[0] text items[1]
  kCompare,  ///< items[0] ops[0] items[1] ops[1] items[2] ...
  kConcat,   ///< items
  kCond,     ///< items[0] if items[1] else items[2] (may be null)
  kGetAttr,  ///< items[0].text
  kGetItem,  ///< items[0][items[1]]
  kSlice,    ///< items[0][items[1]:items[2]:items[3]], each may be null
  kCall,     ///< items[0](items[1...])
  kFilter,   ///< items[0] | text(items[1...]); items[0] is null in a filter block
  kTest,     ///< items[0] is text(items[1...]); flag: negated
};

struct Expr {
  ExprKind kind = ExprKind::kNone;
  int line = 0;
  bool flag = false;
  Int integer = 0;
  double number = 0;
  std::string text;
  std::vector<ExprPtr> items;
  std::vector<std::string> ops;
  std::vector<std::pair<std::string, ExprPtr>> named;
  ExprPtr star;
  ExprPtr star_star;
  FilterFn filter = nullptr;
  TestFn test = nullptr;
};

struct Stmt;
using Body = std::vector<Stmt>;

enum class StmtKind {
  kText,      ///< text
  kOutput,    ///< expr
  kIf,        ///< expr, body, other
  kFor,       ///< target, expr, condition (may be null), body, other, flag: recursive
  kSet,       ///< target, expr
  kSetBlock,  ///< target, condition: filter chain (may be null), body
  kMacro,     ///< text: name, params, body
  kCall,      ///< expr: the call, params, body
  kFilter,    ///< expr: filter chain, body
  kWith,      ///< targets, values, body
  kScope,     ///< body (generation)
  kBlock,     ///< body, run on the outermost variables
  kBreak,
  kContinue,
};

struct Param {
  std::string name;
  ExprPtr fallback;  ///< may be null
};

struct Stmt {
  StmtKind kind = StmtKind::kText;
  int line = 0;
  bool flag = false;
  /// Macros and call blocks: what the body mentions.
  bool uses_varargs = false;
  bool uses_kwargs = false;
  bool uses_caller = false;
  std::string text;
  ExprPtr expr;
  ExprPtr target;
  ExprPtr condition;
  std::vector<ExprPtr> targets;
  std::vector<ExprPtr> values;
  std::vector<Param> params;
  Body body;
  Body other;
};

}  // namespace tandem::chat
