// Filters on lists and mappings.
#include "common/chat/builtins.h"
#include "common/json/utf8.h"

#include <fmt/format.h>

#include <algorithm>

namespace tandem::chat {
namespace {

/// "a.b.0": items first, as jinja's make_attrgetter does.
Value by_path(Interp& in, Value v, const Value& path) {
  if (!path.is(Type::kString)) return in.get_item(v, path);
  std::string_view rest = path.str();
  while (true) {
    const std::size_t dot = std::min(rest.find('.'), rest.size());
    const std::string_view part = rest.substr(0, dot);
    const bool digits = !part.empty() && part.size() < 10 &&
                        part.find_first_not_of("0123456789") == std::string_view::npos;
    if (digits) {
      v = in.get_item(v, Value::integer(std::stoi(std::string(part))));
    } else {
      v = in.get_item(v, Value::string(part));
    }
    if (dot == rest.size()) return v;
    rest.remove_prefix(dot + 1);
  }
}

/// Text in lower case when case does not matter, else the value itself.
Value fold_case(Interp& in, const Value& v, bool case_sensitive) {
  if (case_sensitive || !v.is(Type::kString)) return v;
  return in.make_string(lower(v.str()));
}

/// What is compared in place of an item.
Value key_of(Interp& in, const Value& item, const Value* attribute, bool case_sensitive) {
  const bool whole = attribute == nullptr || attribute->is(Type::kNone);
  return fold_case(in, whole ? item : by_path(in, item, *attribute), case_sensitive);
}

struct Keyed {
  Value key;
  Value item;
};

void sort_keyed(Interp& in, std::vector<Keyed>& keyed, bool reverse) {
  in.charge(keyed.size() * 2);
  std::stable_sort(keyed.begin(), keyed.end(), [&](const Keyed& a, const Keyed& b) {
    return reverse ? compare(b.key, a.key) < 0 : compare(a.key, b.key) < 0;
  });
}

std::vector<Keyed> keyed_items(Interp& in,
                               const Value& v,
                               const Value* attribute,
                               bool case_sensitive) {
  std::vector<Keyed> keyed;
  for (const Value& item : in.iterate(v)) {
    in.charge(4);
    keyed.push_back({key_of(in, item, attribute, case_sensitive), item});
  }
  return keyed;
}

bool flag(const Value* v) {
  return v != nullptr && truth(*v);
}

Value filter_sort(Interp& in, const Value& v, Args& args) {
  const Bound b("sort", args, {"reverse", "case_sensitive", "attribute"});
  std::vector<Keyed> keyed = keyed_items(in, v, nullptr, true);
  for (Keyed& each : keyed) {
    if (b[2] == nullptr || b[2]->is(Type::kNone)) {
      each.key = fold_case(in, each.item, flag(b[1]));
      continue;
    }
    // "a,b": by a, then by b.
    std::vector<Value> keys;
    std::string_view paths = b[2]->is(Type::kString) ? b[2]->str() : std::string_view();
    if (paths.empty()) keys.push_back(key_of(in, each.item, b[2], flag(b[1])));
    while (!paths.empty()) {
      const std::size_t comma = std::min(paths.find(','), paths.size());
      const Value path = Value::string(paths.substr(0, comma));
      keys.push_back(key_of(in, each.item, &path, flag(b[1])));
      paths.remove_prefix(std::min(comma + 1, paths.size()));
    }
    each.key = in.arena().seq(std::move(keys));
  }
  sort_keyed(in, keyed, flag(b[0]));
  std::vector<Value> items;
  for (const Keyed& each : keyed) {
    items.push_back(each.item);
  }
  return in.arena().seq(std::move(items));
}

Value filter_dictsort(Interp& in, const Value& v, Args& args) {
  const Bound b("dictsort", args, {"case_sensitive", "by", "reverse"});
  if (!v.is(Type::kDict)) fail(fmt::format("dictsort: expected a mapping, found {}", type_name(v)));
  const std::string by = b[1] == nullptr ? "key" : to_str(*b[1]);
  if (by != "key" && by != "value") fail("You can only sort by either \"key\" or \"value\"");
  std::vector<Keyed> keyed;
  for (const auto& [key, value] : v.dict().items) {
    keyed.push_back({fold_case(in, by == "key" ? key : value, flag(b[0])),
                     in.arena().seq({key, value}, Seq::kTuple)});
  }
  sort_keyed(in, keyed, flag(b[2]));
  std::vector<Value> items;
  for (const Keyed& each : keyed) {
    items.push_back(each.item);
  }
  return in.arena().seq(std::move(items));
}

Value filter_groupby(Interp& in, const Value& v, Args& args) {
  const Bound b("groupby", args, {"attribute", "default", "case_sensitive"});
  std::vector<Keyed> keyed;
  std::vector<Value> originals;
  for (const Value& item : in.iterate(v)) {
    Value key = by_path(in, item, b.need(0));
    if (key.is(Type::kUndefined) && b[1] != nullptr) key = *b[1];
    keyed.push_back({fold_case(in, key, flag(b[2])), item});
  }
  sort_keyed(in, keyed, false);
  std::vector<Value> groups;
  for (std::size_t i = 0; i < keyed.size();) {
    std::vector<Value> members;
    const std::size_t first = i;
    while (i < keyed.size() && equal(keyed[i].key, keyed[first].key)) {
      members.push_back(keyed[i++].item);
    }
    Value grouper = by_path(in, keyed[first].item, b.need(0));
    if (grouper.is(Type::kUndefined)) grouper = keyed[first].key;
    groups.push_back(in.arena().seq({grouper, in.arena().seq(std::move(members))}, Seq::kGroup));
  }
  return in.arena().seq(std::move(groups));
}

Value filter_unique(Interp& in, const Value& v, Args& args) {
  const Bound b("unique", args, {"case_sensitive", "attribute"});
  std::vector<Value> seen;
  std::vector<Value> items;
  for (const Keyed& each : keyed_items(in, v, b[1], flag(b[0]))) {
    in.charge(1 + seen.size() / 16);
    const bool known = std::any_of(
        seen.begin(), seen.end(), [&](const Value& old) { return equal(old, each.key); });
    if (known) continue;
    seen.push_back(each.key);
    items.push_back(each.item);
  }
  return in.arena().seq(std::move(items), Seq::kGenerator);
}

template <bool kLargest>
Value filter_extreme(Interp& in, const Value& v, Args& args) {
  const Bound b(kLargest ? "max" : "min", args, {"case_sensitive", "attribute"});
  const std::vector<Keyed> keyed = keyed_items(in, v, b[1], flag(b[0]));
  if (keyed.empty()) return Value::undefined("No aggregated item, sequence was empty.");
  const Keyed* best = &keyed[0];
  for (const Keyed& each : keyed) {
    const int order = compare(each.key, best->key);
    if (kLargest ? order > 0 : order < 0) best = &each;
  }
  return best->item;
}

Value filter_sum(Interp& in, const Value& v, Args& args) {
  const Bound b("sum", args, {"attribute", "start"});
  Value total = b.get(1, Value::integer(0));
  for (const Value& item : in.iterate(v)) {
    in.charge(4);
    total = binary_op(in, "+", total, key_of(in, item, b[0], true));
  }
  return total;
}

Value filter_join(Interp& in, const Value& v, Args& args) {
  const Bound b("join", args, {"d", "attribute"});
  const std::string separator = b[0] == nullptr ? "" : to_str(*b[0]);
  std::string out;
  bool first = true;
  for (const Value& item : in.iterate(v)) {
    if (!first) out += separator;
    first = false;
    append_str(out, key_of(in, item, b[1], true));
    if (out.size() > in.options().max_memory_bytes) in.arena().charge(out.size());
  }
  in.charge(out.size() / 256);
  return in.make_string(std::move(out));
}

Value filter_list(Interp& in, const Value& v, Args& args) {
  const Bound b("list", args, {});
  return in.arena().seq(in.iterate(v));
}

Value filter_first(Interp& in, const Value& v, Args& args) {
  const Bound b("first", args, {});
  const std::vector<Value> items = in.iterate(v);
  return items.empty() ? Value::undefined("No first item, sequence was empty.") : items.front();
}

Value filter_last(Interp& in, const Value& v, Args& args) {
  const Bound b("last", args, {});
  const std::vector<Value> items = in.iterate(v);
  return items.empty() ? Value::undefined("No last item, sequence was empty.") : items.back();
}

Value filter_reverse(Interp& in, const Value& v, Args& args) {
  const Bound b("reverse", args, {});
  std::vector<Value> items = in.iterate(v);
  std::reverse(items.begin(), items.end());
  if (!v.is(Type::kString)) return in.arena().seq(std::move(items), Seq::kGenerator);
  std::string text;
  for (const Value& c : items) {
    text += c.str();
  }
  return in.make_string(std::move(text));
}

Value filter_items(Interp& in, const Value& v, Args& args) {
  const Bound b("items", args, {});
  if (v.is(Type::kUndefined)) return in.arena().seq({}, Seq::kGenerator);
  if (!v.is(Type::kDict)) fail("Can only get item pairs from a mapping.");
  std::vector<Value> items;
  for (const auto& [key, value] : v.dict().items) {
    items.push_back(in.arena().seq({key, value}, Seq::kTuple));
  }
  in.charge(items.size() / 8);
  return in.arena().seq(std::move(items), Seq::kGenerator);
}

Value filter_batch(Interp& in, const Value& v, Args& args) {
  const Bound b("batch", args, {"linecount", "fill_with"});
  const std::int64_t size = to_index(b.need(0), "batch");
  if (size <= 0) fail("batch: expected a positive number");
  std::vector<Value> rows;
  std::vector<Value> row;
  for (const Value& item : in.iterate(v)) {
    if (static_cast<std::int64_t>(row.size()) == size) {
      rows.push_back(in.arena().seq(std::exchange(row, {})));
    }
    row.push_back(item);
  }
  if (!row.empty()) {
    if (b[1] != nullptr && !b[1]->is(Type::kNone)) {
      in.arena().charge(static_cast<std::size_t>(size) * sizeof(Value));
      row.resize(static_cast<std::size_t>(size), *b[1]);
    }
    rows.push_back(in.arena().seq(std::move(row)));
  }
  return in.arena().seq(std::move(rows), Seq::kGenerator);
}

Value filter_slice(Interp& in, const Value& v, Args& args) {
  const Bound b("slice", args, {"slices", "fill_with"});
  const std::int64_t count = to_index(b.need(0), "slice");
  if (count <= 0 || count > 100000) fail("slice: expected a positive number up to 100000");
  const std::vector<Value> items = in.iterate(v);
  const std::size_t slices = static_cast<std::size_t>(count);
  const std::size_t each = items.size() / slices;
  const std::size_t longer = items.size() % slices;
  std::vector<Value> rows;
  std::size_t pos = 0;
  for (std::size_t i = 0; i < slices; ++i) {
    const std::size_t size = each + (i < longer ? 1 : 0);
    const auto from = items.begin() + static_cast<std::ptrdiff_t>(pos);
    std::vector<Value> row(from, from + static_cast<std::ptrdiff_t>(size));
    if (b[1] != nullptr && !b[1]->is(Type::kNone) && i >= longer && longer > 0)
      row.push_back(*b[1]);
    rows.push_back(in.arena().seq(std::move(row)));
    pos += size;
  }
  return in.arena().seq(std::move(rows), Seq::kGenerator);
}

/// Takes the first positional argument away and gives it as text.
std::string take_name(Args& args, std::string_view filter) {
  if (args.positional.empty() || !args.positional[0].is(Type::kString)) {
    fail(fmt::format("{}: expected the name of a filter or test", filter));
  }
  std::string name(args.positional[0].str());
  args.positional.erase(args.positional.begin());
  return name;
}

Value filter_map_items(Interp& in, const Value& v, Args& args) {
  std::vector<Value> out;
  if (args.positional.empty()) {
    const Bound b("map", args, {"attribute", "default"});
    for (const Value& item : in.iterate(v)) {
      in.charge(4);
      Value value = by_path(in, item, b.need(0));
      if (value.is(Type::kUndefined) && b[1] != nullptr) value = *b[1];
      out.push_back(value);
    }
    return in.arena().seq(std::move(out), Seq::kGenerator);
  }
  const std::string name = take_name(args, "map");
  const FilterFn filter = find_filter(name);
  if (filter == nullptr) fail(fmt::format("No filter named '{}'.", name));
  for (const Value& item : in.iterate(v)) {
    in.charge(4);
    Args rest = args;
    out.push_back(filter(in, item, rest));
  }
  return in.arena().seq(std::move(out), Seq::kGenerator);
}

/// select, reject, selectattr, rejectattr.
template <bool kKeep, bool kByAttribute>
Value filter_select(Interp& in, const Value& v, Args& args) {
  std::optional<Value> attribute;
  if (kByAttribute) {
    if (args.positional.empty()) fail("Missing parameter for attribute name");
    attribute = args.positional[0];
    args.positional.erase(args.positional.begin());
  }
  TestFn test = nullptr;
  if (!args.positional.empty()) {
    const std::string name = take_name(args, "select");
    test = find_test(name);
    if (test == nullptr) fail(fmt::format("No test named '{}'.", name));
  }
  std::vector<Value> out;
  for (const Value& item : in.iterate(v)) {
    in.charge(4);
    const Value value = attribute ? by_path(in, item, *attribute) : item;
    Args rest = args;
    if ((test == nullptr ? truth(value) : test(in, value, rest)) == kKeep) out.push_back(item);
  }
  return in.arena().seq(std::move(out), Seq::kGenerator);
}

constexpr FilterEntry kFilters[] = {
    {"batch", filter_batch},
    {"dictsort", filter_dictsort},
    {"first", filter_first},
    {"groupby", filter_groupby},
    {"items", filter_items},
    {"join", filter_join},
    {"last", filter_last},
    {"list", filter_list},
    {"map", filter_map_items},
    {"max", filter_extreme<true>},
    {"min", filter_extreme<false>},
    {"reject", filter_select<false, false>},
    {"rejectattr", filter_select<false, true>},
    {"reverse", filter_reverse},
    {"select", filter_select<true, false>},
    {"selectattr", filter_select<true, true>},
    {"slice", filter_slice},
    {"sort", filter_sort},
    {"sum", filter_sum},
    {"unique", filter_unique},
};

}  // namespace

Value filter_length(Interp& in, const Value& v, Args& args) {
  const Bound b("length", args, {});
  switch (v.type) {
    case Type::kUndefined:
      return Value::integer(0);
    case Type::kString:
      in.charge(v.size / 256);
      return Value::integer(static_cast<Int>(json::count_code_points(v.str())));
    case Type::kDict:
      return Value::integer(static_cast<Int>(v.dict().items.size()));
    case Type::kLoop:
      return Value::integer(static_cast<Int>(static_cast<Loop*>(v.obj)->items.size()));
    case Type::kSeq:
      if (v.seq().style != Seq::kGenerator) {
        return Value::integer(static_cast<Int>(v.seq().items.size()));
      }
      [[fallthrough]];
    default:
      fail(fmt::format("object of type '{}' has no len()", type_name(v)));
  }
}

FilterFn find_seq_filter(std::string_view name) {
  for (const FilterEntry& entry : kFilters) {
    if (entry.name == name) return entry.function;
  }
  return nullptr;
}

}  // namespace tandem::chat
