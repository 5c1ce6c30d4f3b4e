// Functions that every template sees.
#include "common/chat/builtins.h"

#include <fmt/format.h>

#include <array>
#include <ctime>

namespace tandem::chat {
namespace {

constexpr std::int64_t kRangeMax = 100000;

Value global_range(Interp& in, Args& args) {
  const Bound b("range", args, {"start", "stop", "step"});
  std::int64_t start = 0;
  std::int64_t stop = to_index(b.need(0), "range");
  if (b[1] != nullptr) {
    start = stop;
    stop = to_index(*b[1], "range");
  }
  const std::int64_t step = b[2] == nullptr ? 1 : to_index(*b[2], "range");
  if (step == 0) fail("range() arg 3 must not be zero");
  const std::int64_t span = step > 0 ? stop - start : start - stop;
  const std::int64_t stride = step > 0 ? step : -step;
  const std::int64_t count = span <= 0 ? 0 : (span + stride - 1) / stride;
  if (count > kRangeMax) {
    fail(fmt::format("Range too big. The sandbox blocks ranges larger than {}.", kRangeMax));
  }
  std::vector<Value> items;
  for (std::int64_t i = 0; i < count; ++i) {
    items.push_back(Value::integer(start + i * step));
  }
  in.charge(items.size() / 8);
  return in.arena().seq(std::move(items), Seq::kRange);
}

/// Entries of dict(mapping or pairs, key=value, ...).
std::vector<std::pair<Value, Value>> dict_entries(Interp& in,
                                                  const Args& args,
                                                  std::string_view name) {
  if (args.positional.size() > 1)
    fail(fmt::format("{}() takes at most one positional argument", name));
  std::vector<std::pair<Value, Value>> entries;
  for (const Value& source : args.positional) {
    if (source.is(Type::kDict)) {
      entries = source.dict().items;
      continue;
    }
    for (const Value& pair : in.iterate(source)) {
      const std::vector<Value> parts = in.iterate(pair);
      if (parts.size() != 2) fail(fmt::format("{}(): expected pairs", name));
      entries.emplace_back(parts[0], parts[1]);
    }
  }
  for (const auto& [key, value] : args.named) {
    entries.emplace_back(Value::string(key), value);
  }
  in.charge(entries.size());
  return entries;
}

Value global_dict(Interp& in, Args& args) {
  const Value result = in.arena().dict();
  for (const auto& [key, value] : dict_entries(in, args, "dict")) {
    in.charge(1 + result.dict().items.size() / 16);
    result.dict().set(key, value);
  }
  return result;
}

Value global_namespace(Interp& in, Args& args) {
  Namespace* ns = in.arena().make<Namespace>();
  for (const auto& [key, value] : dict_entries(in, args, "namespace")) {
    if (!key.is(Type::kString)) fail("namespace(): expected strings as names");
    ns->attrs.emplace_back(key.str(), value);
  }
  return Value::object(Type::kNamespace, ns);
}

Value global_cycler(Interp& in, Args& args) {
  if (args.positional.empty()) fail("at least one item has to be provided");
  Cycler* cycler = in.arena().make<Cycler>();
  cycler->items = args.positional;
  return Value::object(Type::kCycler, cycler);
}

Value global_joiner(Interp& in, Args& args) {
  const Bound b("joiner", args, {"sep"});
  Joiner* joiner = in.arena().make<Joiner>();
  joiner->separator = b.get(0, Value::string(", "));
  return Value::object(Type::kJoiner, joiner);
}

Value global_raise(Interp&, Args& args) {
  const Bound b("raise_exception", args, {"message"});
  throw RenderError{to_str(b.need(0)), Code::kInvalidArgument, true};
}

WallTime local_time() {
  const std::time_t seconds = std::time(nullptr);
  std::tm parts{};
  localtime_r(&seconds, &parts);
  return {parts.tm_year + 1900,
          parts.tm_mon + 1,
          parts.tm_mday,
          parts.tm_hour,
          parts.tm_min,
          parts.tm_sec};
}

Value global_strftime(Interp& in, Args& args) {
  const Bound b("strftime_now", args, {"format"});
  if (!b.need(0).is(Type::kString)) fail("strftime_now(): expected a string");
  std::string format(b.need(0).str());
  if (format.size() > 1000) fail("strftime_now(): the format is too long");
  if (format.empty()) return Value::string("");
  for (std::size_t at = format.find("%f"); at != std::string::npos; at = format.find("%f")) {
    format.replace(at, 2, "000000");
  }
  const WallTime now = in.options().now.value_or(local_time());
  std::tm parts{};
  parts.tm_year = now.year - 1900;
  parts.tm_mon = now.month - 1;
  parts.tm_mday = now.day;
  parts.tm_hour = now.hour;
  parts.tm_min = now.minute;
  parts.tm_sec = now.second;
  parts.tm_isdst = -1;
  // Fills in the day of the week and of the year.
  std::mktime(&parts);
  std::string text(16 * format.size() + 64, '\0');
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wformat-nonliteral"
  text.resize(std::strftime(text.data(), text.size(), format.c_str(), &parts));
#pragma GCC diagnostic pop
  return in.make_string(std::move(text));
}

Value global_lipsum(Interp&, Args&) {
  fail("lipsum() is not supported: its text is random");
}

GlobalFunction entry(std::string_view name, GlobalFn function) {
  GlobalFunction f;
  f.name = name;
  f.function = function;
  return f;
}

}  // namespace

std::optional<Value> find_global(std::string_view name) {
  static std::array<GlobalFunction, 8> functions = {
      entry("range", global_range),
      entry("dict", global_dict),
      entry("namespace", global_namespace),
      entry("cycler", global_cycler),
      entry("joiner", global_joiner),
      entry("raise_exception", global_raise),
      entry("strftime_now", global_strftime),
      entry("lipsum", global_lipsum),
  };
  for (GlobalFunction& f : functions) {
    if (f.name == name) return Value::object(Type::kFunction, &f);
  }
  return std::nullopt;
}

}  // namespace tandem::chat
