#include "common/chat/interp.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

namespace tandem::chat {
namespace {

[[noreturn]] void unsupported(std::string_view op, const Value& a, const Value& b) {
  if (a.is(Type::kUndefined)) fail(std::string(a.str()));
  if (b.is(Type::kUndefined)) fail(std::string(b.str()));
  fail(fmt::format(
      "unsupported operand type(s) for {}: '{}' and '{}'", op, type_name(a), type_name(b)));
}

Int checked(bool overflow, Int result) {
  if (overflow) fail("an integer is too large");
  return result;
}

Int add(Int a, Int b) {
  Int r = 0;
  const bool overflow = __builtin_add_overflow(a, b, &r);
  return checked(overflow, r);
}

Int subtract(Int a, Int b) {
  Int r = 0;
  const bool overflow = __builtin_sub_overflow(a, b, &r);
  return checked(overflow, r);
}

Int multiply(Int a, Int b) {
  Int r = 0;
  const bool overflow = __builtin_mul_overflow(a, b, &r);
  return checked(overflow, r);
}

/// Rounds towards minus infinity, as Python does.
Int floor_divide(Int a, Int b) {
  const Int q = a / b;
  return a % b != 0 && (a < 0) != (b < 0) ? q - 1 : q;
}

double float_modulo(double a, double b) {
  const double r = std::fmod(a, b);
  return r != 0 && (r < 0) != (b < 0) ? r + b : r;
}

Value power(const Value& a, const Value& b) {
  const bool whole = !a.is(Type::kFloat) && !b.is(Type::kFloat) && as_int(b) >= 0;
  if (!whole) {
    if (as_double(a) == 0 && as_double(b) < 0) fail("0.0 cannot be raised to a negative power");
    const double r = std::pow(as_double(a), as_double(b));
    if (std::isnan(r)) fail("the result of ** is no real number");
    return Value::number(r);
  }
  Int base = as_int(a);
  Int exponent = as_int(b);
  if (exponent > 127 && base != 0 && base != 1 && base != -1) fail("an integer is too large");
  Int result = 1;
  for (exponent = exponent > 127 ? 126 + exponent % 2 : exponent; exponent > 0; --exponent) {
    result = multiply(result, base);
  }
  return Value::integer(result);
}

Value arithmetic(std::string_view op, const Value& a, const Value& b) {
  if (op == "**") return power(a, b);
  const bool is_division = op == "/" || op == "//" || op == "%";
  if (is_division && as_double(b) == 0) fail("division by zero");
  if (op == "/") return Value::number(as_double(a) / as_double(b));
  if (a.is(Type::kFloat) || b.is(Type::kFloat)) {
    const double x = as_double(a);
    const double y = as_double(b);
    if (op == "+") return Value::number(x + y);
    if (op == "-") return Value::number(x - y);
    if (op == "*") return Value::number(x * y);
    if (op == "//") return Value::number(std::floor(x / y));
    return Value::number(float_modulo(x, y));
  }
  const Int x = as_int(a);
  const Int y = as_int(b);
  if (op == "+") return Value::integer(add(x, y));
  if (op == "-") return Value::integer(subtract(x, y));
  if (op == "*") return Value::integer(multiply(x, y));
  if (y == -1) return Value::integer(op == "//" ? subtract(0, x) : 0);
  const Int q = floor_divide(x, y);
  return Value::integer(op == "//" ? q : x - q * y);
}

bool is_plain_seq(const Value& v) {
  return v.is(Type::kSeq) && (v.seq().style == Seq::kList || v.seq().style == Seq::kTuple);
}

Value repeat(Interp& in, const Value& v, const Value& times) {
  const std::int64_t wanted = to_index(times, "*");
  const auto count = static_cast<std::size_t>(std::max<std::int64_t>(0, wanted));
  if (v.is(Type::kString)) {
    in.charge(v.size * count / 256);
    in.arena().charge(v.size * count);
    std::string text;
    text.reserve(v.size * count);
    for (std::size_t i = 0; i < count; ++i) {
      text += v.str();
    }
    return in.make_string(std::move(text));
  }
  in.charge(v.seq().items.size() * count / 16);
  in.arena().charge(v.seq().items.size() * count * sizeof(Value));
  std::vector<Value> items;
  for (std::size_t i = 0; i < count; ++i) {
    items.insert(items.end(), v.seq().items.begin(), v.seq().items.end());
  }
  return in.arena().seq(std::move(items), v.seq().style);
}

bool repeatable(const Value& v) {
  return v.is(Type::kString) || is_plain_seq(v);
}

bool whole(const Value& v) {
  return v.is(Type::kInt) || v.is(Type::kBool);
}

}  // namespace

Value binary_op(Interp& in, std::string_view op, const Value& a, const Value& b) {
  if (a.is_number() && b.is_number()) return arithmetic(op, a, b);
  if (op == "+" && a.is(Type::kString) && b.is(Type::kString)) {
    in.charge((a.size + b.size) / 256);
    std::string text(a.str());
    text += b.str();
    return in.make_string(std::move(text));
  }
  if (op == "+" && is_plain_seq(a) && is_plain_seq(b) && a.seq().style == b.seq().style) {
    std::vector<Value> items = a.seq().items;
    items.insert(items.end(), b.seq().items.begin(), b.seq().items.end());
    in.charge(items.size() / 16);
    return in.arena().seq(std::move(items), a.seq().style);
  }
  if (op == "*" && repeatable(a) && whole(b)) return repeat(in, a, b);
  if (op == "*" && repeatable(b) && whole(a)) return repeat(in, b, a);
  if (op == "%" && a.is(Type::kString)) return in.make_string(percent_format(in, a.str(), b));
  unsupported(op, a, b);
}

bool contains(Interp& in, const Value& container, const Value& item) {
  switch (container.type) {
    case Type::kUndefined:
      return false;
    case Type::kString:
      if (!item.is(Type::kString)) {
        fail(fmt::format("'in <string>' requires string as left operand, not {}", type_name(item)));
      }
      in.charge(container.size / 256);
      return container.str().find(item.str()) != std::string_view::npos;
    case Type::kDict:
      in.charge(container.dict().items.size() / 16);
      return container.dict().find(item) != nullptr;
    case Type::kSeq: {
      const std::vector<Value> items = in.iterate(container);
      return std::any_of(
          items.begin(), items.end(), [&](const Value& each) { return equal(each, item); });
    }
    case Type::kNamespace:
    default:
      fail(fmt::format("argument of type '{}' is not iterable", type_name(container)));
  }
}

Value slice(
    Interp& in, const Value& obj, const Value& start, const Value& stop, const Value& step) {
  if (obj.is(Type::kUndefined)) fail(std::string(obj.str()));
  const bool is_text = obj.is(Type::kString);
  if (!is_text && !is_plain_seq(obj) && !(obj.is(Type::kSeq) && obj.seq().style == Seq::kRange)) {
    fail(fmt::format("'{}' object cannot be sliced", type_name(obj)));
  }
  std::vector<std::string_view> chars;
  if (is_text) chars = code_points(obj.str());
  const auto size = static_cast<std::int64_t>(is_text ? chars.size() : obj.seq().items.size());
  in.charge(static_cast<std::size_t>(size) / 16);
  const std::int64_t by = step.is(Type::kNone) ? 1 : to_index(step, "slice");
  if (by == 0) fail("slice step cannot be zero");
  const auto bound = [&](const Value& v, std::int64_t fallback) {
    if (v.is(Type::kNone)) return fallback;
    std::int64_t at = to_index(v, "slice");
    if (at < 0) at += size;
    return by > 0 ? std::clamp<std::int64_t>(at, 0, size)
                  : std::clamp<std::int64_t>(at, -1, size - 1);
  };
  const std::int64_t from = bound(start, by > 0 ? 0 : size - 1);
  const std::int64_t to = bound(stop, by > 0 ? size : -1);
  std::string text;
  std::vector<Value> items;
  for (std::int64_t at = from; by > 0 ? at < to : at > to; at += by) {
    const auto i = static_cast<std::size_t>(at);
    if (is_text) {
      text += chars[i];
    } else {
      items.push_back(obj.seq().items[i]);
    }
  }
  if (is_text) return in.make_string(std::move(text));
  return in.arena().seq(std::move(items), obj.seq().style);
}

}  // namespace tandem::chat
