#include "common/chat/builtins.h"
#include "common/chat/interp.h"
#include "common/json/utf8.h"

#include <boost/container/small_vector.hpp>

#include <fmt/format.h>

#include <optional>
#include <utility>

namespace tandem::chat {

Bound::Bound(std::string_view function,
             const Args& args,
             std::initializer_list<std::string_view> names)
    : function_(function), names_(names.begin(), names.end()), values_(names.size()) {
  if (args.positional.size() > names.size()) {
    fail(fmt::format(
        "{}() takes at most {} arguments, got {}", function, names.size(), args.positional.size()));
  }
  for (std::size_t i = 0; i < args.positional.size(); ++i) {
    values_[i] = args.positional[i];
  }
  for (const auto& [name, value] : args.named) {
    std::size_t i = 0;
    while (i < names_.size() && names_[i] != name) {
      ++i;
    }
    if (i == names_.size()) {
      fail(fmt::format("{}() got an unexpected keyword argument '{}'", function, name));
    }
    if (values_[i]) fail(fmt::format("{}() got two values for '{}'", function, name));
    values_[i] = value;
  }
}

const Value& Bound::need(std::size_t index) const {
  if (!values_[index]) {
    fail(fmt::format("{}() misses the argument '{}'", function_, names_[index]));
  }
  return *values_[index];
}

std::vector<Value> Interp::iterate(const Value& v) {
  switch (v.type) {
    case Type::kUndefined:
      return {};
    case Type::kString: {
      std::vector<Value> chars;
      for (const std::string_view c : code_points(v.str())) {
        chars.push_back(Value::string(c));
      }
      charge(chars.size() / 16);
      return chars;
    }
    case Type::kSeq: {
      Seq& seq = v.seq();
      charge(seq.items.size() / 16);
      if (seq.style != Seq::kGenerator) return seq.items;
      if (std::exchange(seq.consumed, true)) return {};
      return seq.items;
    }
    case Type::kDict: {
      std::vector<Value> keys;
      for (const auto& item : v.dict().items) {
        keys.push_back(item.first);
      }
      charge(keys.size() / 16);
      return keys;
    }
    case Type::kLoop: {
      // Iterating the loop variable takes the items that are left.
      Loop& loop = *static_cast<Loop*>(v.obj);
      const auto from = static_cast<std::ptrdiff_t>(loop.index + 1);
      return {loop.items.begin() + from, loop.items.end()};
    }
    default:
      fail(fmt::format("'{}' object is not iterable", type_name(v)));
  }
}

Value Interp::eval(const Expr& expr, Scope& scope) {
  charge(1);
  switch (expr.kind) {
    case ExprKind::kNone:
      return Value::none();
    case ExprKind::kBool:
      return Value::boolean(expr.flag);
    case ExprKind::kInt:
      return Value::integer(expr.integer);
    case ExprKind::kFloat:
      return Value::number(expr.number);
    case ExprKind::kString:
      return Value::string(expr.text);
    case ExprKind::kName:
      return eval_name(expr, scope);
    case ExprKind::kList:
    case ExprKind::kTuple: {
      std::vector<Value> items;
      for (const ExprPtr& item : expr.items) {
        items.push_back(eval(*item, scope));
      }
      return arena_.seq(std::move(items), expr.kind == ExprKind::kList ? Seq::kList : Seq::kTuple);
    }
    case ExprKind::kDict:
      return eval_dict(expr, scope);
    case ExprKind::kNot:
      return Value::boolean(!truth(eval(*expr.items[0], scope)));
    case ExprKind::kNegate:
    case ExprKind::kPlus: {
      const Value v = eval(*expr.items[0], scope);
      if (!v.is_number()) {
        fail(v.is(Type::kUndefined)
                 ? std::string(v.str())
                 : fmt::format("bad operand type for unary -: '{}'", type_name(v)));
      }
      const bool negate = expr.kind == ExprKind::kNegate;
      if (v.is(Type::kFloat)) return Value::number(negate ? -v.d : v.d);
      return Value::integer(negate ? -as_int(v) : as_int(v));
    }
    case ExprKind::kAnd: {
      const Value left = eval(*expr.items[0], scope);
      return truth(left) ? eval(*expr.items[1], scope) : left;
    }
    case ExprKind::kOr: {
      const Value left = eval(*expr.items[0], scope);
      return truth(left) ? left : eval(*expr.items[1], scope);
    }
    case ExprKind::kBinary:
      return eval_binary(expr, scope);
    case ExprKind::kCompare:
      return eval_compare(expr, scope);
    case ExprKind::kConcat:
      return eval_concat(expr, scope);
    case ExprKind::kCond:
      if (truth(eval(*expr.items[1], scope))) return eval(*expr.items[0], scope);
      if (expr.items[2]) return eval(*expr.items[2], scope);
      return Value::undefined(
          "the inline if-expression evaluated to false and no else section was defined.");
    case ExprKind::kGetAttr:
      return get_attr(eval(*expr.items[0], scope), expr.text);
    case ExprKind::kGetItem: {
      const Value obj = eval(*expr.items[0], scope);
      return get_item(obj, eval(*expr.items[1], scope));
    }
    case ExprKind::kSlice:
      return eval_slice(expr, scope);
    case ExprKind::kCall:
      return eval_call(expr, scope, nullptr);
    case ExprKind::kFilter: {
      const Value input = eval(*expr.items[0], scope);
      Args args = eval_args(expr, scope);
      line_ = expr.line;
      charge(8);
      return expr.filter(*this, input, args);
    }
    case ExprKind::kTest: {
      const Value input = eval(*expr.items[0], scope);
      Args args = eval_args(expr, scope);
      line_ = expr.line;
      return Value::boolean(expr.test(*this, input, args) != expr.flag);
    }
  }
  return {};
}

Value Interp::eval_name(const Expr& expr, Scope& scope) {
  for (const Scope* s = &scope; s != nullptr; s = s->parent) {
    if (const Value* found = s->find_here(expr.text)) return *found;
  }
  if (const auto global = find_global(expr.text)) return *global;
  return Value::undefined(make_string(fmt::format("'{}' is undefined", expr.text)).str());
}

Value Interp::eval_dict(const Expr& expr, Scope& scope) {
  const Value result = arena_.dict();
  for (std::size_t i = 0; i < expr.items.size(); i += 2) {
    const Value key = eval(*expr.items[i], scope);
    if (key.is(Type::kDict) || (key.is(Type::kSeq) && key.seq().style == Seq::kList)) {
      fail(fmt::format("unhashable type: '{}'", type_name(key)));
    }
    result.dict().set(key, eval(*expr.items[i + 1], scope));
  }
  return result;
}

namespace {

bool is_sum(const Expr& expr) {
  return expr.kind == ExprKind::kBinary && expr.text == "+";
}

}  // namespace

/// A chain of sums, from the left, as binary_op makes each: strings are put together at once.
Value Interp::eval_sum(const Expr& expr, Scope& scope) {
  boost::container::small_vector<const Expr*, 8> sums = {&expr};
  while (is_sum(*sums.back()->items[0])) {
    sums.push_back(sums.back()->items[0].get());
    charge(1);
  }
  boost::container::small_vector<std::string_view, 9> texts;  // the sum, if there are any
  std::size_t byte_count = 0;
  const auto join = [&] {
    std::string all;
    all.reserve(byte_count);
    for (const std::string_view text : texts)
      all += text;
    texts.clear();
    return make_string(std::move(all));
  };
  Value sum = eval(*sums.back()->items[0], scope);
  for (auto each = sums.rbegin(); each != sums.rend(); ++each) {
    const Value added = eval(*(*each)->items[1], scope);
    line_ = (*each)->line;
    const bool are_texts = (!texts.empty() || sum.is(Type::kString)) && added.is(Type::kString);
    if (!are_texts) {
      if (!texts.empty()) sum = join();
      sum = binary_op(*this, "+", sum, added);
      continue;
    }
    if (texts.empty()) {
      texts.push_back(sum.str());
      byte_count = sum.size;
    }
    charge((byte_count + added.size) / 256);
    arena_.charge(added.size);
    texts.push_back(added.str());
    byte_count += added.size;
  }
  return texts.empty() ? sum : join();
}

Value Interp::eval_binary(const Expr& expr, Scope& scope) {
  if (is_sum(expr) && is_sum(*expr.items[0])) return eval_sum(expr, scope);
  const Value a = eval(*expr.items[0], scope);
  const Value b = eval(*expr.items[1], scope);
  line_ = expr.line;
  return binary_op(*this, expr.text, a, b);
}

Value Interp::eval_compare(const Expr& expr, Scope& scope) {
  Value left = eval(*expr.items[0], scope);
  for (std::size_t i = 0; i < expr.ops.size(); ++i) {
    const Value right = eval(*expr.items[i + 1], scope);
    const std::string& op = expr.ops[i];
    bool holds = false;
    if (op == "==") {
      holds = equal(left, right);
    } else if (op == "!=") {
      holds = !equal(left, right);
    } else if (op == "in") {
      holds = contains(*this, right, left);
    } else if (op == "not in") {
      holds = !contains(*this, right, left);
    } else {
      const int order = compare(left, right);
      holds = op == "<" ? order < 0 : op == ">" ? order > 0 : op == "<=" ? order <= 0 : order >= 0;
    }
    if (!holds) return Value::boolean(false);
    left = right;
  }
  return Value::boolean(true);
}

Value Interp::eval_concat(const Expr& expr, Scope& scope) {
  std::string text;
  for (const ExprPtr& item : expr.items) {
    append_str(text, eval(*item, scope));
  }
  charge(text.size() / 256);
  return make_string(std::move(text));
}

Value Interp::eval_slice(const Expr& expr, Scope& scope) {
  Value parts[4];
  for (std::size_t i = 0; i < 4; ++i) {
    parts[i] = expr.items[i] ? eval(*expr.items[i], scope) : Value::none();
  }
  return slice(*this, parts[0], parts[1], parts[2], parts[3]);
}

Args Interp::eval_args(const Expr& expr, Scope& scope) {
  Args args;
  for (std::size_t i = 1; i < expr.items.size(); ++i) {
    args.positional.push_back(eval(*expr.items[i], scope));
  }
  for (const auto& [name, value] : expr.named) {
    args.named.emplace_back(name, eval(*value, scope));
  }
  if (expr.star) {
    for (const Value& item : iterate(eval(*expr.star, scope))) {
      args.positional.push_back(item);
    }
  }
  if (expr.star_star) {
    const Value more = eval(*expr.star_star, scope);
    if (!more.is(Type::kDict)) fail("the argument after ** must be a mapping");
    for (const auto& [key, value] : more.dict().items) {
      if (!key.is(Type::kString)) fail("keywords must be strings");
      args.named.emplace_back(key.str(), value);
    }
  }
  return args;
}

Value Interp::eval_call(const Expr& expr, Scope& scope, Args* extra) {
  const Value callee = eval(*expr.items[0], scope);
  Args args = eval_args(expr, scope);
  if (extra != nullptr) {
    args.named.insert(args.named.end(), extra->named.begin(), extra->named.end());
  }
  line_ = expr.line;
  charge(16);
  return call(callee, args);
}

Value Interp::apply_filters(const Expr& chain, const Value& input, Scope& scope) {
  const Value inner = chain.items[0] ? apply_filters(*chain.items[0], input, scope) : input;
  Args args = eval_args(chain, scope);
  return chain.filter(*this, inner, args);
}

Value Interp::call(const Value& callee, Args& args) {
  switch (callee.type) {
    case Type::kMacro:
      return call_macro(*static_cast<Macro*>(callee.obj), args);
    case Type::kFunction:
      return static_cast<GlobalFunction*>(callee.obj)->function(*this, args);
    case Type::kMethod:
      return call_method(*this, *static_cast<Method*>(callee.obj), args);
    case Type::kLoop:
      return call_loop(callee, args);
    case Type::kJoiner: {
      Joiner& joiner = *static_cast<Joiner*>(callee.obj);
      return std::exchange(joiner.used, true) ? joiner.separator : Value::string("");
    }
    case Type::kUndefined:
      fail(std::string(callee.str()));
    default:
      fail(fmt::format("'{}' object is not callable", type_name(callee)));
  }
}

Value Interp::loop_attr(Loop& loop, std::string_view name) {
  const auto size = static_cast<Int>(loop.items.size());
  const auto index = static_cast<Int>(loop.index);
  if (name == "index") return Value::integer(index + 1);
  if (name == "index0") return Value::integer(index);
  if (name == "revindex") return Value::integer(size - index);
  if (name == "revindex0") return Value::integer(size - index - 1);
  if (name == "first") return Value::boolean(index == 0);
  if (name == "last") return Value::boolean(index + 1 == size);
  if (name == "length") return Value::integer(size);
  if (name == "depth") return Value::integer(loop.depth + 1);
  if (name == "depth0") return Value::integer(loop.depth);
  if (name == "previtem") {
    return index > 0 ? loop.items[loop.index - 1] : Value::undefined("there is no previous item");
  }
  if (name == "nextitem") {
    return index + 1 < size ? loop.items[loop.index + 1]
                            : Value::undefined("there is no next item");
  }
  return Value::undefined("the loop has no such attribute");
}

Value Interp::get_attr(const Value& obj, std::string_view name) {
  if (obj.is(Type::kUndefined)) fail(std::string(obj.str()));
  if (name.starts_with("__")) {
    return Value::undefined(
        make_string(
            fmt::format("access to attribute '{}' of '{}' object is unsafe.", name, type_name(obj)))
            .str());
  }
  if (obj.is(Type::kLoop) && name != "cycle" && name != "changed") {
    return loop_attr(*static_cast<Loop*>(obj.obj), name);
  }
  if (obj.is(Type::kNamespace)) {
    for (const auto& [key, value] : static_cast<Namespace*>(obj.obj)->attrs) {
      if (key == name) return value;
    }
  }
  if (obj.is(Type::kSeq) && obj.seq().style == Seq::kGroup) {
    if (name == "grouper") return obj.seq().items[0];
    if (name == "list") return obj.seq().items[1];
  }
  if (obj.is(Type::kCycler) && name == "current") {
    const Cycler& cycler = *static_cast<Cycler*>(obj.obj);
    return cycler.items[cycler.pos];
  }
  if (is_mutating(obj, name)) {
    return Value::undefined(
        make_string(
            fmt::format("access to attribute '{}' of '{}' object is unsafe.", name, type_name(obj)))
            .str());
  }
  if (has_method(obj, name)) {
    Method* method = arena_.make<Method>();
    method->self = obj;
    method->name = name;
    return Value::object(Type::kMethod, method);
  }
  if (obj.is(Type::kMacro) && name == "name") {
    return Value::string(static_cast<Macro*>(obj.obj)->stmt->text);
  }
  if (obj.is(Type::kDict)) {
    charge(obj.dict().items.size() / 16);
    if (const Value* found = obj.dict().find(name)) return *found;
  }
  return Value::undefined(
      make_string(fmt::format("'{} object' has no attribute '{}'", type_name(obj), name)).str());
}

Value Interp::get_item(const Value& obj, const Value& key) {
  if (obj.is(Type::kUndefined)) fail(std::string(obj.str()));
  if (obj.is(Type::kDict)) {
    charge(obj.dict().items.size() / 16);
    if (const Value* found = obj.dict().find(key)) return *found;
  }
  const bool is_index = key.is(Type::kInt) || key.is(Type::kBool);
  if (is_index && obj.is(Type::kSeq)) {
    const Seq& seq = obj.seq();
    const bool indexable = seq.style == Seq::kList || seq.style == Seq::kTuple ||
                           seq.style == Seq::kRange || seq.style == Seq::kGroup;
    const auto size = static_cast<Int>(seq.items.size());
    const Int at = as_int(key) < 0 ? as_int(key) + size : as_int(key);
    if (indexable && at >= 0 && at < size) return seq.items[static_cast<std::size_t>(at)];
  }
  if (is_index && obj.is(Type::kString)) {
    const std::string_view text = obj.str();
    charge(text.size() / 256);
    const auto size = static_cast<Int>(json::count_code_points(text));
    const Int at = as_int(key) < 0 ? as_int(key) + size : as_int(key);
    if (at >= 0 && at < size) {
      if (static_cast<std::size_t>(size) == text.size()) {
        return Value::string(text.substr(static_cast<std::size_t>(at), 1));
      }
      return Value::string(code_points(text)[static_cast<std::size_t>(at)]);
    }
  }
  if (key.is(Type::kString) && !obj.is(Type::kDict)) return get_attr(obj, key.str());
  if (key.is(Type::kString) && has_method(obj, key.str())) return get_attr(obj, key.str());
  std::string shown;
  append_repr(shown, key);
  return Value::undefined(
      make_string(fmt::format("'{} object' has no element {}", type_name(obj), shown)).str());
}

}  // namespace tandem::chat
