// Methods of dict, list and the small helper objects.
#include "common/chat/methods.h"

#include "common/chat/interp.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>

namespace tandem::chat {
namespace {

template <Seq::Style kStyle>
Value dict_view(Interp& in, const Value& self, Args& args) {
  const Bound b("this method", args, {});
  std::vector<Value> items;
  for (const auto& [key, value] : self.dict().items) {
    if (kStyle == Seq::kItems) {
      items.push_back(in.arena().seq({key, value}, Seq::kTuple));
    } else {
      items.push_back(kStyle == Seq::kKeys ? key : value);
    }
  }
  in.charge(items.size() / 8);
  return in.arena().seq(std::move(items), kStyle);
}

Value dict_get(Interp& in, const Value& self, Args& args) {
  const Bound b("get", args, {"key", "default"});
  in.charge(self.dict().items.size() / 16);
  const Value* found = self.dict().find(b.need(0));
  return found != nullptr ? *found : b.get(1, Value::none());
}

Value dict_copy(Interp& in, const Value& self, Args& args) {
  const Bound b("copy", args, {});
  const Value copy = in.arena().dict();
  in.arena().charge(self.dict().items.size() * 2 * sizeof(Value));
  copy.dict().items = self.dict().items;
  return copy;
}

constexpr MethodEntry kDictMethods[] = {
    {"copy", dict_copy},
    {"get", dict_get},
    {"items", dict_view<Seq::kItems>},
    {"keys", dict_view<Seq::kKeys>},
    {"values", dict_view<Seq::kValues>},
};

Value list_count(Interp& in, const Value& self, Args& args) {
  const Bound b("count", args, {"value"});
  const auto& items = self.seq().items;
  in.charge(items.size() / 16);
  return Value::integer(std::count_if(
      items.begin(), items.end(), [&](const Value& item) { return equal(item, b.need(0)); }));
}

Value list_index(Interp& in, const Value& self, Args& args) {
  const Bound b("index", args, {"value"});
  const auto& items = self.seq().items;
  in.charge(items.size() / 16);
  const auto found = std::find_if(
      items.begin(), items.end(), [&](const Value& item) { return equal(item, b.need(0)); });
  if (found == items.end()) fail("the value is not in the list");
  return Value::integer(found - items.begin());
}

Value list_copy(Interp& in, const Value& self, Args& args) {
  const Bound b("copy", args, {});
  return in.arena().seq(self.seq().items);
}

constexpr MethodEntry kListMethods[] = {
    {"count", list_count}, {"index", list_index}, {"copy", list_copy}};

Value cycler_next(Interp&, const Value& self, Args&) {
  Cycler& cycler = *static_cast<Cycler*>(self.obj);
  const Value value = cycler.items[cycler.pos];
  cycler.pos = (cycler.pos + 1) % cycler.items.size();
  return value;
}

Value cycler_reset(Interp&, const Value& self, Args&) {
  static_cast<Cycler*>(self.obj)->pos = 0;
  return Value::none();
}

constexpr MethodEntry kCyclerMethods[] = {{"next", cycler_next}, {"reset", cycler_reset}};

Value loop_cycle(Interp&, const Value& self, Args& args) {
  if (args.positional.empty()) fail("no items for cycling given");
  return args.positional[static_cast<Loop*>(self.obj)->index % args.positional.size()];
}

Value loop_changed(Interp& in, const Value& self, Args& args) {
  Loop& loop = *static_cast<Loop*>(self.obj);
  const Value now = in.arena().seq(args.positional, Seq::kTuple);
  const bool changed = !loop.last_changed || !equal(*loop.last_changed, now);
  loop.last_changed = now;
  return Value::boolean(changed);
}

constexpr MethodEntry kLoopMethods[] = {{"cycle", loop_cycle}, {"changed", loop_changed}};

MethodFn find_method(const Value& self, std::string_view name) {
  switch (self.type) {
    case Type::kString:
      return find_string_method(name);
    case Type::kDict:
      return find_method_in(kDictMethods, name);
    case Type::kSeq:
      if (self.seq().style == Seq::kList || self.seq().style == Seq::kTuple) {
        return find_method_in(kListMethods, name);
      }
      return nullptr;
    case Type::kCycler:
      return find_method_in(kCyclerMethods, name);
    case Type::kLoop:
      return find_method_in(kLoopMethods, name);
    default:
      return nullptr;
  }
}

}  // namespace

bool has_method(const Value& self, std::string_view name) {
  return find_method(self, name) != nullptr;
}

bool is_mutating(const Value& self, std::string_view name) {
  constexpr std::array<std::string_view, 8> kList = {
      "append", "clear", "pop", "reverse", "insert", "sort", "extend", "remove"};
  constexpr std::array<std::string_view, 5> kDict = {
      "clear", "pop", "popitem", "setdefault", "update"};
  const auto in = [&](const auto& names) {
    return std::find(names.begin(), names.end(), name) != names.end();
  };
  if (self.is(Type::kSeq)) return self.seq().style == Seq::kList && in(kList);
  return self.is(Type::kDict) && in(kDict);
}

Value call_method(Interp& in, const Method& method, Args& args) {
  return find_method(method.self, method.name)(in, method.self, args);
}

}  // namespace tandem::chat
