// Runs a parsed template. One Interp per render; nothing here is shared between renders.
#pragma once

#include "common/chat/ast.h"
#include "common/chat/template.h"
#include "common/chat/value.h"

#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace tandem::chat {

/// Arguments of a call, a filter or a test.
struct Args {
  std::vector<Value> positional;
  std::vector<std::pair<std::string_view, Value>> named;
};

/// Arguments bound to names in order; fails like Python for too many or unknown ones.
class Bound {
 public:
  Bound(std::string_view function, const Args& args, std::initializer_list<std::string_view> names);

  /// Null when the argument was not given.
  [[nodiscard]] const Value* operator[](std::size_t index) const {
    return values_[index] ? &*values_[index] : nullptr;
  }

  /// The argument, or the fallback.
  [[nodiscard]] Value get(std::size_t index, const Value& fallback) const {
    return values_[index] ? *values_[index] : fallback;
  }

  /// The argument; fails when it was not given.
  [[nodiscard]] const Value& need(std::size_t index) const;

 private:
  std::string function_;
  std::vector<std::string> names_;
  std::vector<std::optional<Value>> values_;
};

/// Variables of one block; the parent is the block around it.
struct Scope : Obj {
  Scope* parent = nullptr;
  std::vector<std::pair<std::string_view, Value>> vars;

  [[nodiscard]] const Value* find_here(std::string_view name) const;
  void set(std::string_view name, const Value& value);
};

struct Namespace : Obj {
  std::vector<std::pair<std::string_view, Value>> attrs;
};

struct Macro : Obj {
  const Stmt* stmt = nullptr;
  Scope* closure = nullptr;
};

struct Loop : Obj {
  std::vector<Value> items;
  std::size_t index = 0;
  std::int64_t depth = 0;
  /// For recursive loops.
  const Stmt* stmt = nullptr;
  Scope* scope = nullptr;
  std::optional<Value> last_changed;
};

struct Method : Obj {
  Value self;
  std::string_view name;
};

struct Cycler : Obj {
  std::vector<Value> items;
  std::size_t pos = 0;
};

struct Joiner : Obj {
  Value separator;
  bool used = false;
};

class Interp {
 public:
  Interp(std::span<const Variable> variables, const RenderOptions& options);

  /// The whole output. Throws RenderError.
  std::string run(const Body& body);

  /// Line of the statement or call being run.
  [[nodiscard]] int line() const { return line_; }

  // For filters, tests and functions.
  Arena& arena() { return arena_; }

  [[nodiscard]] const RenderOptions& options() const { return options_; }

  /// Counts work; fails with resource_exhausted when the budget is used up.
  void charge(std::size_t units);
  /// Items of anything that Python can iterate; uses a generator up.
  std::vector<Value> iterate(const Value& v);
  Value get_attr(const Value& obj, std::string_view name);
  Value get_item(const Value& obj, const Value& key);
  Value call(const Value& callee, Args& args);

  Value make_string(std::string text) { return arena_.string(std::move(text)); }

 private:
  enum class Flow {
    kNormal,
    kBreak,
    kContinue
  };

  class DepthGuard;

  Flow run_body(const Body& body, Scope& scope);
  Flow run_stmt(const Stmt& stmt, Scope& scope);
  Flow run_for(const Stmt& stmt, Scope& scope);
  void run_loop(const Stmt& stmt, Scope& scope, const Value& iterable, std::int64_t depth);
  void run_set_block(const Stmt& stmt, Scope& scope);
  void run_call_block(const Stmt& stmt, Scope& scope);
  void run_with(const Stmt& stmt, Scope& scope);
  void assign(const Expr& target, const Value& value, Scope& scope);
  std::string capture(const Body& body, Scope& scope);
  void output(std::string_view text);
  Scope& child(Scope& parent);

  Value eval(const Expr& expr, Scope& scope);
  Value eval_name(const Expr& expr, Scope& scope);
  Value eval_binary(const Expr& expr, Scope& scope);
  Value eval_sum(const Expr& expr, Scope& scope);
  Value eval_compare(const Expr& expr, Scope& scope);
  Value eval_concat(const Expr& expr, Scope& scope);
  Value eval_slice(const Expr& expr, Scope& scope);
  Value eval_dict(const Expr& expr, Scope& scope);
  Value eval_call(const Expr& expr, Scope& scope, Args* extra);
  Args eval_args(const Expr& expr, Scope& scope);
  /// Applies a chain of filters whose innermost input is `input`.
  Value apply_filters(const Expr& chain, const Value& input, Scope& scope);

  Value call_macro(const Macro& macro, Args& args);
  Value call_loop(const Value& loop, Args& args);
  Value loop_attr(Loop& loop, std::string_view name);

  RenderOptions options_;
  Arena arena_;
  std::size_t units_left_;
  int depth_ = 0;
  int line_ = 0;
  Scope root_;
  /// Where output goes: the text of the template or a block being captured.
  std::string* out_ = nullptr;
  std::size_t captured_ = 0;
};

/// Whether an attribute of that name is a method of the value's type (methods.cc).
bool has_method(const Value& self, std::string_view name);
/// Whether calling it would change the value: refused, as in jinja's immutable sandbox.
bool is_mutating(const Value& self, std::string_view name);
Value call_method(Interp& in, const Method& method, Args& args);

/// Arithmetic (operators.cc).
Value binary_op(Interp& in, std::string_view op, const Value& a, const Value& b);
bool contains(Interp& in, const Value& container, const Value& item);
Value slice(Interp& in, const Value& obj, const Value& start, const Value& stop, const Value& step);

/// printf-style and str.format formatting (format.cc).
std::string percent_format(Interp& in, std::string_view pattern, const Value& args);
std::string brace_format(Interp& in, std::string_view pattern, const Args& args);

}  // namespace tandem::chat
