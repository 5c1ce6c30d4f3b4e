#include "common/chat/builtins.h"
#include "common/chat/interp.h"

#include <fmt/format.h>

namespace tandem::chat {
namespace {

/// Python functions inside one another: macros, recursive loops, nested blocks.
constexpr int kCallDepthMax = 300;
/// Finer than steps: long strings and lists cost parts of a step.
constexpr std::size_t kUnitsPerStep = 16;

}  // namespace

class Interp::DepthGuard {
 public:
  explicit DepthGuard(Interp& in) : in_(in) {
    if (in_.depth_ >= kCallDepthMax) fail("the template recurses too deeply");
    ++in_.depth_;
  }

  DepthGuard(const DepthGuard&) = delete;
  DepthGuard& operator=(const DepthGuard&) = delete;

  ~DepthGuard() { --in_.depth_; }

 private:
  Interp& in_;
};

const Value* Scope::find_here(std::string_view name) const {
  for (const auto& [key, value] : vars) {
    if (key == name) return &value;
  }
  return nullptr;
}

void Scope::set(std::string_view name, const Value& value) {
  for (auto& [key, old] : vars) {
    if (key == name) {
      old = value;
      return;
    }
  }
  vars.emplace_back(name, value);
}

Interp::Interp(std::span<const Variable> variables, const RenderOptions& options)
    : options_(options),
      arena_(options.max_memory_bytes),
      units_left_(options.max_steps * kUnitsPerStep) {
  root_.vars.reserve(variables.size());
  for (const Variable& variable : variables) {
    root_.vars.emplace_back(variable.name, arena_.from_json(*variable.value));
  }
}

void Interp::charge(std::size_t units) {
  if (units > units_left_) {
    throw RenderError{fmt::format("the template takes more than {} steps", options_.max_steps),
                      Code::kResourceExhausted};
  }
  units_left_ -= units;
}

std::string Interp::run(const Body& body) {
  std::string text;
  out_ = &text;
  run_body(body, root_);
  return text;
}

void Interp::output(std::string_view text) {
  if (text.size() + out_->size() + captured_ > options_.max_output_bytes) {
    throw RenderError{fmt::format("the output is longer than {} bytes", options_.max_output_bytes),
                      Code::kResourceExhausted};
  }
  charge(text.size() / 256);
  *out_ += text;
}

std::string Interp::capture(const Body& body, Scope& scope) {
  // Restores the target also when the body fails, although the render ends then.
  struct Redirect {
    Interp& in;
    std::string* outer;
    std::size_t outer_captured;

    ~Redirect() {
      in.out_ = outer;
      in.captured_ = outer_captured;
    }
  };

  std::string text;
  const Redirect restore{*this, out_, captured_};
  captured_ += out_->size();
  out_ = &text;
  run_body(body, scope);
  return text;
}

Scope& Interp::child(Scope& parent) {
  Scope* scope = arena_.make<Scope>();
  scope->parent = &parent;
  return *scope;
}

Interp::Flow Interp::run_body(const Body& body, Scope& scope) {
  const DepthGuard guard(*this);
  for (const Stmt& stmt : body) {
    const Flow flow = run_stmt(stmt, scope);
    if (flow != Flow::kNormal) return flow;
  }
  return Flow::kNormal;
}

Interp::Flow Interp::run_stmt(const Stmt& stmt, Scope& scope) {
  charge(kUnitsPerStep);
  line_ = stmt.line;
  switch (stmt.kind) {
    case StmtKind::kText:
      output(stmt.text);
      break;
    case StmtKind::kOutput: {
      const Value value = eval(*stmt.expr, scope);
      if (value.is(Type::kString)) {
        output(value.str());
      } else {
        output(to_str(value));
      }
      break;
    }
    case StmtKind::kIf:
      return run_body(truth(eval(*stmt.expr, scope)) ? stmt.body : stmt.other, scope);
    case StmtKind::kFor:
      return run_for(stmt, scope);
    case StmtKind::kSet:
      assign(*stmt.target, eval(*stmt.expr, scope), scope);
      break;
    case StmtKind::kSetBlock:
      run_set_block(stmt, scope);
      break;
    case StmtKind::kMacro: {
      Macro* macro = arena_.make<Macro>();
      macro->stmt = &stmt;
      macro->closure = &scope;
      scope.set(stmt.text, Value::object(Type::kMacro, macro));
      break;
    }
    case StmtKind::kCall:
      run_call_block(stmt, scope);
      break;
    case StmtKind::kFilter: {
      const Value text = make_string(capture(stmt.body, child(scope)));
      output(to_str(apply_filters(*stmt.expr, text, scope)));
      break;
    }
    case StmtKind::kWith:
      run_with(stmt, scope);
      break;
    case StmtKind::kScope:
      run_body(stmt.body, child(scope));
      break;
    case StmtKind::kBlock:
      run_body(stmt.body, child(root_));
      break;
    case StmtKind::kBreak:
      return Flow::kBreak;
    case StmtKind::kContinue:
      return Flow::kContinue;
  }
  return Flow::kNormal;
}

Interp::Flow Interp::run_for(const Stmt& stmt, Scope& scope) {
  run_loop(stmt, scope, eval(*stmt.expr, scope), 0);
  return Flow::kNormal;
}

void Interp::run_loop(const Stmt& stmt, Scope& scope, const Value& iterable, std::int64_t depth) {
  const DepthGuard guard(*this);
  Loop* loop = arena_.make<Loop>();
  loop->items = iterate(iterable);
  arena_.charge(loop->items.size() * sizeof(Value));
  loop->depth = depth;
  loop->stmt = &stmt;
  loop->scope = &scope;
  if (stmt.condition) {
    std::vector<Value> kept;
    Scope& test_scope = child(scope);
    for (const Value& item : loop->items) {
      charge(kUnitsPerStep);
      assign(*stmt.target, item, test_scope);
      if (truth(eval(*stmt.condition, test_scope))) kept.push_back(item);
    }
    loop->items = std::move(kept);
  }
  for (loop->index = 0; loop->index < loop->items.size(); ++loop->index) {
    charge(kUnitsPerStep);
    // Each round has variables of its own: what it sets is gone in the next.
    Scope& round = child(scope);
    round.set("loop", Value::object(Type::kLoop, loop));
    assign(*stmt.target, loop->items[loop->index], round);
    if (run_body(stmt.body, round) == Flow::kBreak) break;
  }
  if (loop->items.empty()) run_body(stmt.other, child(scope));
}

void Interp::run_set_block(const Stmt& stmt, Scope& scope) {
  Value value = make_string(capture(stmt.body, child(scope)));
  if (stmt.condition) value = apply_filters(*stmt.condition, value, scope);
  assign(*stmt.target, value, scope);
}

void Interp::run_call_block(const Stmt& stmt, Scope& scope) {
  Macro* caller = arena_.make<Macro>();
  caller->stmt = &stmt;
  caller->closure = &scope;
  Args extra;
  extra.named.emplace_back("caller", Value::object(Type::kMacro, caller));
  output(to_str(eval_call(*stmt.expr, scope, &extra)));
}

void Interp::run_with(const Stmt& stmt, Scope& scope) {
  std::vector<Value> values;
  for (const ExprPtr& expr : stmt.values) {
    values.push_back(eval(*expr, scope));
  }
  Scope& inner = child(scope);
  for (std::size_t i = 0; i < values.size(); ++i) {
    assign(*stmt.targets[i], values[i], inner);
  }
  run_body(stmt.body, inner);
}

void Interp::assign(const Expr& target, const Value& value, Scope& scope) {
  if (target.kind == ExprKind::kName) {
    scope.set(target.text, value);
    return;
  }
  if (target.kind == ExprKind::kGetAttr) {
    const Value holder = eval(*target.items[0], scope);
    if (!holder.is(Type::kNamespace)) fail("cannot assign attribute on non-namespace object");
    auto& attrs = static_cast<Namespace*>(holder.obj)->attrs;
    for (auto& [key, old] : attrs) {
      if (key == target.text) {
        old = value;
        return;
      }
    }
    attrs.emplace_back(target.text, value);
    return;
  }
  const std::vector<Value> parts = iterate(value);
  if (parts.size() != target.items.size()) {
    fail(fmt::format("expected {} values to unpack, got {}", target.items.size(), parts.size()));
  }
  for (std::size_t i = 0; i < parts.size(); ++i) {
    assign(*target.items[i], parts[i], scope);
  }
}

Value Interp::call_macro(const Macro& macro, Args& args) {
  const DepthGuard guard(*this);
  const Stmt& stmt = *macro.stmt;
  Scope& scope = child(*macro.closure);
  std::vector<std::pair<std::string_view, Value>> named = args.named;
  const auto take = [&](std::string_view name) -> std::optional<Value> {
    for (std::size_t i = 0; i < named.size(); ++i) {
      if (named[i].first != name) continue;
      const Value value = named[i].second;
      named.erase(named.begin() + static_cast<std::ptrdiff_t>(i));
      return value;
    }
    return std::nullopt;
  };
  for (std::size_t i = 0; i < stmt.params.size(); ++i) {
    const Param& param = stmt.params[i];
    const std::optional<Value> by_name = take(param.name);
    if (i < args.positional.size()) {
      if (by_name) fail(fmt::format("macro '{}' got two values for '{}'", stmt.text, param.name));
      scope.set(param.name, args.positional[i]);
    } else if (by_name) {
      scope.set(param.name, *by_name);
    } else if (param.fallback) {
      scope.set(param.name, eval(*param.fallback, scope));
    } else {
      scope.set(param.name, Value::undefined("a parameter of the macro was not provided"));
    }
  }
  const std::optional<Value> caller = take("caller");
  if (caller && !stmt.uses_caller) {
    fail(fmt::format("macro '{}' takes no keyword argument 'caller'", stmt.text));
  }
  if (stmt.uses_caller) scope.set("caller", caller.value_or(Value::undefined("No caller defined")));
  std::vector<Value> rest;
  for (std::size_t i = stmt.params.size(); i < args.positional.size(); ++i) {
    rest.push_back(args.positional[i]);
  }
  if (!rest.empty() && !stmt.uses_varargs) {
    fail(fmt::format(
        "macro '{}' takes not more than {} argument(s)", stmt.text, stmt.params.size()));
  }
  if (!named.empty() && !stmt.uses_kwargs) {
    fail(fmt::format("macro '{}' takes no keyword argument '{}'", stmt.text, named[0].first));
  }
  if (stmt.uses_varargs) scope.set("varargs", arena_.seq(std::move(rest), Seq::kTuple));
  if (stmt.uses_kwargs) {
    const Value kwargs = arena_.dict();
    for (const auto& [name, value] : named) {
      kwargs.dict().set(Value::string(name), value);
    }
    scope.set("kwargs", kwargs);
  }
  return make_string(capture(stmt.body, scope));
}

Value Interp::call_loop(const Value& value, Args& args) {
  const Loop& loop = *static_cast<Loop*>(value.obj);
  if (!loop.stmt->flag) fail("the loop is not 'recursive'");
  if (args.positional.size() != 1 || !args.named.empty()) fail("loop() takes one iterable");
  // The recursive rounds write into a text of their own, like a macro.
  std::string text;
  std::string* outer = out_;
  captured_ += outer->size();
  out_ = &text;
  run_loop(*loop.stmt, *loop.scope, args.positional[0], loop.depth + 1);
  out_ = outer;
  captured_ -= outer->size();
  return make_string(std::move(text));
}

}  // namespace tandem::chat
