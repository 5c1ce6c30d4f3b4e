#include "common/chat/value.h"

#include <fmt/format.h>

#include <algorithm>

namespace tandem::chat {

void fail(std::string message) {
  throw RenderError{std::move(message)};
}

Value Value::none() {
  Value v;
  v.type = Type::kNone;
  return v;
}

Value Value::boolean(bool flag) {
  Value v;
  v.type = Type::kBool;
  v.b = flag;
  return v;
}

Value Value::integer(Int number) {
  Value v;
  v.type = Type::kInt;
  v.i = number;
  return v;
}

Value Value::number(double number) {
  Value v;
  v.type = Type::kFloat;
  v.d = number;
  return v;
}

Value Value::string(std::string_view text) {
  Value v;
  v.type = Type::kString;
  v.s = text.data();
  v.size = text.size();
  return v;
}

Value Value::undefined(std::string_view message) {
  Value v;
  v.s = message.data();
  v.size = message.size();
  return v;
}

Value Value::object(Type type, Obj* obj) {
  Value v;
  v.type = type;
  v.obj = obj;
  return v;
}

Seq& Value::seq() const {
  return *static_cast<Seq*>(obj);
}

Dict& Value::dict() const {
  return *static_cast<Dict*>(obj);
}

bool Value::is_number() const {
  return type == Type::kBool || type == Type::kInt || type == Type::kFloat;
}

const Value* Dict::find(const Value& key) const {
  for (const auto& [k, v] : items) {
    if (equal(k, key)) return &v;
  }
  return nullptr;
}

const Value* Dict::find(std::string_view key) const {
  for (const auto& [k, v] : items) {
    if (k.is(Type::kString) && k.str() == key) return &v;
  }
  return nullptr;
}

void Dict::set(const Value& key, const Value& value) {
  for (auto& [k, v] : items) {
    if (equal(k, key)) {
      v = value;
      return;
    }
  }
  items.emplace_back(key, value);
}

void Arena::charge(std::size_t byte_count) {
  if (byte_count > bytes_left_) {
    throw RenderError{"the template uses too much memory", Code::kResourceExhausted};
  }
  bytes_left_ -= byte_count;
}

Value Arena::string(std::string text) {
  charge(text.size());
  Text* owner = make<Text>();
  owner->text = std::move(text);
  return Value::string(owner->text);
}

Value Arena::seq(std::vector<Value> items, Seq::Style style) {
  charge(items.size() * sizeof(Value));
  Seq* seq = make<Seq>();
  seq->items = std::move(items);
  seq->style = style;
  return Value::object(Type::kSeq, seq);
}

Value Arena::dict() {
  return Value::object(Type::kDict, make<Dict>());
}

Value Arena::from_json(const json::Value& value, int depth) {
  if (depth > kValueDepthMax) fail("the context is nested too deeply");
  switch (value.kind()) {
    case json::Kind::kNull:
      return Value::none();
    case json::Kind::kBool:
      return Value::boolean(*value.if_bool());
    case json::Kind::kInt:
      return Value::integer(*value.if_int());
    case json::Kind::kUint:
      return Value::integer(*value.if_uint());
    case json::Kind::kDouble:
      return Value::number(*value.if_double());
    case json::Kind::kString:
      return Value::string(*value.if_string());
    case json::Kind::kArray: {
      std::vector<Value> items;
      items.reserve(value.if_array()->size());
      for (const json::Value& item : *value.if_array()) {
        items.push_back(from_json(item, depth + 1));
      }
      return seq(std::move(items));
    }
    case json::Kind::kIntegers: {
      std::vector<Value> items;
      items.reserve(value.if_integers()->size());
      for (const std::int32_t item : *value.if_integers())
        items.push_back(Value::integer(item));
      return seq(std::move(items));
    }
    case json::Kind::kObject: {
      const Value result = dict();
      charge(value.if_object()->size() * 2 * sizeof(Value));
      auto& items = result.dict().items;
      for (const json::Member& member : *value.if_object()) {
        items.emplace_back(Value::string(member.key), from_json(member.value, depth + 1));
      }
      return result;
    }
  }
  return Value::none();
}

std::string_view type_name(const Value& v) {
  switch (v.type) {
    case Type::kUndefined:
      return "Undefined";
    case Type::kNone:
      return "NoneType";
    case Type::kBool:
      return "bool";
    case Type::kInt:
      return "int";
    case Type::kFloat:
      return "float";
    case Type::kString:
      return "str";
    case Type::kSeq: {
      constexpr std::string_view kNames[] = {
          "list", "tuple", "generator", "range", "dict_keys", "dict_values", "dict_items", "tuple"};
      return kNames[v.seq().style];
    }
    case Type::kDict:
      return "dict";
    case Type::kNamespace:
      return "Namespace";
    case Type::kMacro:
      return "Macro";
    case Type::kLoop:
      return "LoopContext";
    case Type::kFunction:
    case Type::kMethod:
      return "function";
    case Type::kCycler:
      return "Cycler";
    case Type::kJoiner:
      return "Joiner";
  }
  return "?";
}

bool truth(const Value& v) {
  switch (v.type) {
    case Type::kUndefined:
    case Type::kNone:
      return false;
    case Type::kBool:
      return v.b;
    case Type::kInt:
      return v.i != 0;
    case Type::kFloat:
      return v.d != 0;
    case Type::kString:
      return v.size != 0;
    case Type::kSeq:
      return v.seq().style == Seq::kGenerator || !v.seq().items.empty();
    case Type::kDict:
      return !v.dict().items.empty();
    default:
      return true;
  }
}

double as_double(const Value& v) {
  if (v.is(Type::kFloat)) return v.d;
  return static_cast<double>(as_int(v));
}

Int as_int(const Value& v) {
  return v.is(Type::kBool) ? Int{v.b} : v.i;
}

std::int64_t to_index(const Value& v, std::string_view what) {
  if (!v.is(Type::kInt) && !v.is(Type::kBool)) {
    fail(fmt::format("{}: expected an integer, found {}", what, type_name(v)));
  }
  const Int i = as_int(v);
  if (i > INT32_MAX || i < INT32_MIN)
    fail(fmt::format("{}: {} is too large", what, int_to_string(i)));
  return static_cast<std::int64_t>(i);
}

bool equal(const Value& a, const Value& b, int depth) {
  if (depth > kValueDepthMax) fail("values are nested too deeply");
  if (a.is_number() && b.is_number()) {
    if (a.is(Type::kFloat) || b.is(Type::kFloat)) return as_double(a) == as_double(b);
    return as_int(a) == as_int(b);
  }
  if (a.type != b.type) return false;
  switch (a.type) {
    case Type::kUndefined:
    case Type::kNone:
      return true;
    case Type::kString:
      return a.str() == b.str();
    case Type::kSeq: {
      const Seq& x = a.seq();
      const Seq& y = b.seq();
      if (&x == &y) return true;
      if (x.style == Seq::kGenerator || y.style == Seq::kGenerator) return false;
      if ((x.style == Seq::kList) != (y.style == Seq::kList)) return false;
      return std::equal(x.items.begin(),
                        x.items.end(),
                        y.items.begin(),
                        y.items.end(),
                        [&](const Value& p, const Value& q) { return equal(p, q, depth + 1); });
    }
    case Type::kDict: {
      const Dict& x = a.dict();
      const Dict& y = b.dict();
      if (x.items.size() != y.items.size()) return false;
      return std::all_of(x.items.begin(), x.items.end(), [&](const auto& item) {
        const Value* other = y.find(item.first);
        return other != nullptr && equal(item.second, *other, depth + 1);
      });
    }
    default:
      return a.obj == b.obj;
  }
}

int compare(const Value& a, const Value& b, int depth) {
  if (depth > kValueDepthMax) fail("values are nested too deeply");
  if (a.is(Type::kUndefined)) fail(std::string(a.str()));
  if (b.is(Type::kUndefined)) fail(std::string(b.str()));
  if (a.is_number() && b.is_number()) {
    if (a.is(Type::kFloat) || b.is(Type::kFloat)) {
      return as_double(a) < as_double(b) ? -1 : as_double(a) > as_double(b) ? 1 : 0;
    }
    return as_int(a) < as_int(b) ? -1 : as_int(a) > as_int(b) ? 1 : 0;
  }
  if (a.is(Type::kString) && b.is(Type::kString)) {
    const int order = a.str().compare(b.str());
    return order < 0 ? -1 : order > 0 ? 1 : 0;
  }
  if (a.is(Type::kSeq) && b.is(Type::kSeq) && type_name(a) == type_name(b) &&
      (a.seq().style == Seq::kList || a.seq().style == Seq::kTuple)) {
    const auto& x = a.seq().items;
    const auto& y = b.seq().items;
    for (std::size_t i = 0; i < x.size() && i < y.size(); ++i) {
      if (!equal(x[i], y[i])) return compare(x[i], y[i], depth + 1);
    }
    return x.size() < y.size() ? -1 : x.size() > y.size() ? 1 : 0;
  }
  fail(fmt::format(
      "'<' not supported between instances of '{}' and '{}'", type_name(a), type_name(b)));
}

}  // namespace tandem::chat
