// What goes out again: the JSON of the resolved arguments, and the words for a spawned worker.
#include "common/args/args.h"
#include "common/args/spec.h"
#include "common/args/text.h"

#include <nlohmann/json.hpp>

namespace tandem::args {
namespace {

/// JSON text of an entry's resolved value.
std::string value_json(const Arguments& args, const Entry& entry) {
  const bool untouched = args.origin(entry.dest) == Origin::kDefault;
  if (!entry.built()) {
    // A default that is not in force is no value (the RTP-LLM dialect's, and whatever is on by
    // default there).
    return entry.spec.explicit_only || entry.default_json == "true"
               ? "null"
               : std::string(entry.default_json);
  }
  if (untouched && entry.default_json == "null") return "null";
  const std::string json = entry.ops->json(entry.field);
  return entry.spec.secret && json != "null" ? "\"set\"" : json;
}

bool is_dumped(const Arguments& args, const Entry& entry) {
  if (entry.spec.command && entry.dest != "config") return false;
  if ((entry.spec.services & services_of(args.program)) != 0) return true;
  // What a router forwards to its workers was given to the router.
  return args.program == Program::kRouter && args.origin(entry.dest) != Origin::kDefault;
}

}  // namespace

std::string dump_json(const Arguments& args, const std::map<std::string, std::string>& computed) {
  Arguments copy = args;
  const Registry registry(copy);
  std::string values;
  std::string sources;
  for (const Entry& entry : registry.entries()) {
    if (!is_dumped(args, entry)) continue;
    const auto known = computed.find(std::string(entry.dest));
    const bool filled = known != computed.end();
    Origin origin = args.origin(entry.dest);
    if (filled && !args.is_explicit(entry.dest)) origin = Origin::kComputed;
    const std::string key = json_string(entry.dest) + ": ";
    values += "  " + key + (filled ? known->second : value_json(args, entry)) + ",\n";
    sources += (sources.empty() ? "    " : ",\n    ") + key + json_string(origin_name(origin));
  }
  return "{\n" + values + "  \"argument_sources\": {\n" + sources + "\n  }\n}";
}

std::vector<std::string> worker_argv(const Arguments& args, DisaggregationMode mode) {
  Services role = kUnified;
  if (mode == DisaggregationMode::kPrefill) role = kPrefill;
  if (mode == DisaggregationMode::kDecode) role = kDecode;
  Arguments copy = args;
  const Registry registry(copy);
  std::vector<std::string> words;
  for (const Entry& entry : registry.entries()) {
    // What a deprecated one stands for is forwarded under its own name.
    const bool forwarded = entry.built() && !entry.spec.keep && !entry.spec.command &&
                           entry.spec.deprecated_for.empty() && (entry.spec.services & role) != 0 &&
                           args.is_explicit(entry.dest);
    if (!forwarded) continue;
    if (mode == DisaggregationMode::kNull && entry.spec.pd_only) continue;
    const nlohmann::json value =
        nlohmann::json::parse(entry.ops->json(entry.field), nullptr, false);
    if (value.is_null() || value == false) continue;
    if (entry.is_switch()) {
      words.push_back(entry.flag());
    } else {
      words.push_back(entry.flag() + "=" +
                      (value.is_string() ? value.get<std::string>() : value.dump()));
    }
  }
  return words;
}

}  // namespace tandem::args
