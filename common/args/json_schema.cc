// JSON Schema (2020-12) of a program's config file, from the same entries as the reader of that
// file: what one accepts, the other accepts. README.md lists what a schema cannot say; that stays
// with the reader.
#include "common/args/args.h"
#include "common/args/render.h"
#include "common/args/schema_patterns.h"
#include "common/args/text.h"

#include <nlohmann/json.hpp>

#include <algorithm>
#include <cmath>
#include <initializer_list>
#include <map>

namespace tandem::args {
namespace {

using Json = nlohmann::ordered_json;

/// Bounds as JSON Schema, without the value that is allowed beside them.
Json bounded(const char* type, const Range& range) {
  Json schema = {{"type", type}};
  const auto bound = [&schema](const char* name, double value) {
    if (std::abs(value) < 1e15 && value == std::floor(value)) {
      schema[name] = static_cast<std::int64_t>(value);
    } else {
      schema[name] = value;
    }
  };
  if (std::isfinite(range.min))
    bound(range.exclusive_min ? "exclusiveMinimum" : "minimum", range.min);
  if (std::isfinite(range.max))
    bound(range.exclusive_max ? "exclusiveMaximum" : "maximum", range.max);
  return schema;
}

/// A number may also be quoted text, with a suffix of its unit.
Json number_schema(const Entry& entry, Program program) {
  Range range = entry.spec.range;
  if (only_default(entry, program)) range.max = std::stod(std::string(entry.default_json));
  Json any = Json::array();
  if (entry.type == "float") {
    any.push_back(bounded("number", range));
    any.push_back({{"type", "string"}, {"pattern", float_pattern(range)}});
  } else {
    // What has no bound of its own is bounded by the field. 2^63 is no double's neighbour, so the
    // field's bounds stay integers.
    const Bounds field = entry.ops->bounds;
    const bool low = range.min > static_cast<double>(field.least);
    const bool high = range.max < static_cast<double>(field.most);
    const std::int64_t least = low ? static_cast<std::int64_t>(range.min) : field.least;
    const std::int64_t most = high ? static_cast<std::int64_t>(range.max) : field.most;
    any.push_back({{"type", "integer"}, {"minimum", least}, {"maximum", most}});
    any.push_back({{"type", "string"}, {"pattern", integer_pattern(least, most, entry.spec)}});
  }
  if (!std::isnan(range.also_allowed))
    any.push_back({{"const", static_cast<std::int64_t>(range.also_allowed)}});
  return {{"anyOf", any}};
}

/// What set() takes is not all: a worker program has one of the two roles.
bool other_role(const Entry& entry, Program program, std::string_view word) {
  return entry.dest == "disaggregation_mode" &&
         ((program == Program::kPrefill && word == "decode") ||
          (program == Program::kDecode && word == "prefill"));
}

/// Every word that the field takes, found by giving it each one.
Json enum_schema(const Entry& entry, Program program) {
  Json words = Json::array();
  std::string pattern;
  // "" is a word too, of those whose default it is.
  const std::string candidates = "," + std::string(entry.spec.choices) + "," + entry.ops->names();
  for (std::string_view word : split_list(candidates)) {
    const Words one = {std::string(word)};
    if (!entry.ops->set(entry.field, {&one, 1}, entry.spec).ok()) continue;
    if (std::find(words.begin(), words.end(), word) != words.end()) continue;
    if (other_role(entry, program, word)) continue;
    words.push_back(word);
    pattern += (pattern.empty() ? "" : "|") + any_case(word);
  }
  if (!entry.spec.ignore_case) return {{"enum", words}};
  return {{"type", "string"}, {"pattern", "^(" + pattern + ")$"}, {"examples", words}};
}

Json matching(const std::string& pattern) {
  return {{"type", "string"}, {"pattern", pattern}};
}

Json list_of(const Json& item) {
  return {{"type", "array"}, {"items", item}, {"uniqueItems", true}};
}

/// One address, or a list of them. Beside an address may stand a port: "URL PORT", or [URL, PORT].
Json list_schema(const Entry& entry) {
  if (entry.arity != "1..2") {
    const Json item = matching("^" + url_pattern() + "$");
    return {{"anyOf", {item, list_of(item)}}};
  }
  const std::string port = "(" + port_pattern() + "|" + any_case("none") + ")";
  const Json text = matching("^" + url_pattern() + "( *| +" + port + ")$");
  const Json url = matching("^" + url_pattern() + "$");
  const Json second = {{"anyOf",
                        {matching("^" + port + "$"),
                         {{"type", "integer"}, {"minimum", 1}, {"maximum", 65535}},
                         {{"type", "null"}}}}};
  const Json pair = {
      {"type", "array"}, {"prefixItems", {url, second}}, {"items", false}, {"minItems", 1}};
  const Json item = {{"anyOf", {text, pair}}};
  return {{"anyOf", {text, list_of(item)}}};
}

/// Numbers and booleans are taken as the text that they are written as.
Json text_schema(const Entry& entry) {
  Json text = matching(form_pattern(entry.spec.form));
  const bool structured =
      entry.spec.form == Form::kHostPort || entry.spec.form == Form::kFailurePoints;
  if (structured) return text;
  return {{"anyOf", {text, {{"type", {"number", "boolean"}}}}}};
}

Json switch_words(std::initializer_list<std::string_view> words) {
  std::string pattern;
  for (const std::string_view word : words)
    pattern += (pattern.empty() ? "^(" : "|") + any_case(word);
  return matching(pattern + ")$");
}

/// What stays off is no use of it, and so is a list of nothing.
Json refused_schema(const Entry& entry) {
  if (entry.built() && entry.type == "bool") {
    const Json words = switch_words({"false", "no", "off", "f", "0"});
    return {{"anyOf", {{{"enum", {false, 0}}}, words}}};
  }
  if (entry.is_switch()) return {{"anyOf", {{{"const", false}}, switch_words({"false"})}}};
  if (entry.type.starts_with("list")) return {{"type", "array"}, {"maxItems", 0}};
  return {{"not", Json::object()}};
}

/// False: what a deprecated one stands for is refused, whatever else is given.
bool replacement_works(const Registry& registry, const Entry& old) {
  const std::string_view text = old.spec.deprecated_for;
  const std::size_t space = text.find(' ');
  // "--flag set to the value of --other" is as good as the other.
  if (text.empty() || text.find(' ', space + 1) != std::string_view::npos) return true;
  const Entry& target = *registry.find(text.substr(2, space - 2));
  const Words words = {std::string(text.substr(space + 1))};
  return target.built() && target.ops->set(target.field, {&words, 1}, target.spec).ok();
}

Json value_schema(const Entry& entry, Program program) {
  const bool refused = !entry.spec.needs.empty() && !entry.spec.ignored_without;
  if (!entry.built() || refused) return refused_schema(entry);
  const Json boolean = {{"type", "boolean"}};
  if (entry.type == "bool") {
    const Json words =
        switch_words({"true", "false", "yes", "no", "on", "off", "t", "f", "1", "0"});
    return {{"anyOf", {boolean, {{"enum", {0, 1}}}, words}}};
  }
  if (entry.is_switch()) return {{"anyOf", {boolean, switch_words({"true", "false"})}}};
  if (entry.type == "int" || entry.type == "float") return number_schema(entry, program);
  if (!entry.spec.choices.empty()) return enum_schema(entry, program);
  if (entry.type.starts_with("list")) return list_schema(entry);
  if (entry.type == "json")
    return {{"anyOf", {{{"type", "object"}}, matching("^[ \\t\\r\\n]*[{]")}}};
  return text_schema(entry);
}

/// The schema of one key, with what an editor shows beside it.
Json key_schema(const Registry& registry, const Entry& entry, Program program, bool taken) {
  Json schema = {{"description", std::string(entry.spec.help)}};
  if (!taken) {
    schema["description"] = "Ignored here; an argument of " + programs_text(entry.spec.services) +
                            ". " + std::string(entry.spec.help);
    return schema;
  }
  if (!entry.built()) {
    schema["description"] = "Known, but not built yet. " + std::string(entry.spec.help);
    schema["deprecated"] = true;
  } else if (!entry.spec.deprecated_for.empty()) {
    schema["description"] = "Deprecated: use " + std::string(entry.spec.deprecated_for) + ".";
    schema["deprecated"] = true;
  }
  const Json fallback = Json::parse(entry.default_json, nullptr, false);
  if (entry.built() && !fallback.is_null() && !fallback.is_discarded())
    schema["default"] = fallback;
  // Null, or nothing behind the colon, leaves a key unset.
  const Json null = {{"type", "null"}};
  const Json value =
      replacement_works(registry, entry) ? value_schema(entry, program) : refused_schema(entry);
  schema["anyOf"] = Json::array({value, null});
  // A list of one is that one.
  if (!entry.type.starts_with("list") && !entry.type.starts_with("json"))
    schema["anyOf"].push_back(
        {{"type", "array"}, {"items", value}, {"minItems", 1}, {"maxItems", 1}});
  return schema;
}

/// Every spelling of an entry as a regular expression, when there is more than its name.
std::string key_pattern(const Entry& entry) {
  std::vector<std::string> names = {normalized(entry.spec.name)};
  for (std::string_view alias : split_list(entry.spec.aliases)) {
    const std::string name = normalized(alias);
    if (name.size() > 1 && std::find(names.begin(), names.end(), name) == names.end())
      names.push_back(name);
  }
  std::string pattern;
  for (const std::string& name : names) {
    if (!pattern.empty()) pattern += '|';
    for (const char c : name)
      pattern += c == '-' ? std::string("[-_]") : std::string{c};
  }
  return "^(" + pattern + ")$";
}

/// When a file's key of this entry means something to a program, and so must be right.
enum class Taken : std::uint8_t {
  kNever,
  kAlways,
  kSpawning,         ///< when the router starts workers
  kSpawningUnified,  ///< when it starts workers of one kind
  kSpawningPd        ///< when it starts prefill and decode workers
};

Taken taken_by(Program program, const Entry& entry) {
  const bool mine = (entry.spec.services & services_of(program)) != 0;
  if (program != Program::kRouter) return mine ? Taken::kAlways : Taken::kNever;
  if (mine) return entry.spec.spawn_only ? Taken::kSpawning : Taken::kAlways;
  if (entry.spec.keep || (entry.spec.services & kEngine) == 0) return Taken::kNever;
  if ((entry.spec.services & kUnified) == 0) return Taken::kSpawningPd;
  return (entry.spec.services & (kPrefill | kDecode)) != 0 ? Taken::kSpawning
                                                           : Taken::kSpawningUnified;
}

/// One of these keys is there, and its value is no `unset`.
Json given(std::initializer_list<const char*> keys, const Json& unset) {
  Json any = Json::array();
  for (const char* key : keys)
    any.push_back({{"required", {key}}, {"properties", {{key, {{"not", unset}}}}}});
  return {{"anyOf", any}};
}

/// A router that drives running workers ignores the keys of workers; one that starts them does not.
void add_spawning(Json& schema, const std::map<Taken, Json>& keys) {
  const Json nobody = {{"anyOf", {{{"type", "null"}}, {{"type", "array"}, {"maxItems", 0}}}}};
  Json off = {{"anyOf", {{{"enum", {false, nullptr, {false}}}}, switch_words({"false"})}}};
  off["anyOf"].push_back({{"type", "array"}, {"items", switch_words({"false"})}});
  schema["if"] = given({"worker-urls", "worker_urls", "prefill", "decode"}, nobody);
  schema["then"] = true;
  schema["else"] = {{"patternProperties", keys.at(Taken::kSpawning)},
                    {"if", given({"pd-disaggregation", "pd_disaggregation"}, off)},
                    {"then", {{"patternProperties", keys.at(Taken::kSpawningPd)}}},
                    {"else", {{"patternProperties", keys.at(Taken::kSpawningUnified)}}}};
}

}  // namespace

std::string json_schema(Program program) {
  Arguments args;  // also the scratch that words are tried on
  const Registry registry(args);
  Json defs = Json::object();
  Json properties = Json::object();
  Json patterns = Json::object();
  std::map<Taken, Json> sometimes = {{Taken::kSpawning, Json::object()},
                                     {Taken::kSpawningUnified, Json::object()},
                                     {Taken::kSpawningPd, Json::object()}};
  for (const Entry& entry : registry.entries()) {
    if (entry.spec.command) continue;
    const std::string name(entry.spec.name);
    const std::string pattern = key_pattern(entry);
    const Taken taken = taken_by(program, entry);
    const Json reference = {{"$ref", "#/$defs/" + name}};
    defs[name] = key_schema(registry, entry, program, taken != Taken::kNever);
    const auto group = sometimes.find(taken);
    const bool always = group == sometimes.end();
    properties[name] = always ? reference : Json{{"description", std::string(entry.spec.help)}};
    patterns[pattern] = always ? reference : Json(true);
    if (!always) group->second[pattern] = reference;
  }
  const std::string title(program_name(program));
  Json schema = {
      {"$schema", "https://json-schema.org/draft/2020-12/schema"},
      {"title", title + " --config"},
      {"description",
       "The YAML file of " + title +
           ": one flat mapping of long argument names. '-' and '_' are the same in a name. Keys "
           "of other programs are ignored, so that one file can serve all of them."},
      {"type", {"object", "null"}},
      {"additionalProperties", false},
      {"properties", properties},
      {"patternProperties", patterns},
      {"$defs", defs}};
  if (program == Program::kRouter) add_spawning(schema, sometimes);
  return schema.dump(1) + "\n";
}

}  // namespace tandem::args
