// JSON Schema (2020-12) of a program's config file, from the same entries as the reader of that
// file: what one accepts, the other accepts. What a schema cannot say (two spellings of one
// argument, conflicts between arguments) stays with the reader.
#include "common/args/args.h"
#include "common/args/render.h"
#include "common/args/text.h"

#include <nlohmann/json.hpp>

#include <cmath>

namespace tandem::args {
namespace {

using Json = nlohmann::ordered_json;

std::string_view unit_pattern(Unit unit) {
  switch (unit) {
    case Unit::kBytes:
      return "(B|[KMGT]B?|[KMGT]iB?)?";
    case Unit::kSeconds:
    case Unit::kMilliseconds:
      return "(ms|s|m|h)?";
    case Unit::kNone:
      break;
  }
  return "";
}

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
Json number_schema(const Entry& entry) {
  Range range = entry.spec.range;
  // Only what changes nothing is built, which is the default.
  if (entry.spec.trivial_only) range.max = std::stod(std::string(entry.default_json));
  // Quoted numbers have no bounds in a schema, but may lack a sign.
  const std::string sign = range.min >= 0 && !(range.also_allowed < 0) ? "^[+]?" : "^[+-]?";
  Json any = Json::array();
  if (entry.type == "float") {
    any.push_back(bounded("number", range));
    any.push_back({{"type", "string"},
                   {"pattern", sign + "([0-9]+[.]?[0-9]*|[.][0-9]+)([eE][+-]?[0-9]+)?$"}});
  } else {
    any.push_back(bounded("integer", range));
    any.push_back(
        {{"type", "string"},
         {"pattern",
          sign + (entry.spec.unit == Unit::kNone
                      ? std::string("[0-9]+$")
                      : "[0-9]+([.][0-9]+)?" + std::string(unit_pattern(entry.spec.unit)) + "$")}});
  }
  if (!std::isnan(range.also_allowed)) any.push_back({{"const", range.also_allowed}});
  return {{"anyOf", any}};
}

/// Every word that the field takes, found by giving it each one.
Json enum_schema(const Entry& entry) {
  Json words = Json::array();
  std::string pattern;
  // "" is a word too, of those whose default it is.
  const std::string candidates = "," + std::string(entry.spec.choices) + "," + entry.ops->names();
  for (std::string_view word : split_list(candidates)) {
    const Words one = {std::string(word)};
    if (!entry.ops->set(entry.field, {&one, 1}, entry.spec).ok()) continue;
    if (std::find(words.begin(), words.end(), word) != words.end()) continue;
    words.push_back(word);
    std::string letters;
    for (const char c : word) {
      const bool letter = c >= 'a' && c <= 'z';
      letters +=
          letter ? std::string{'[', static_cast<char>(c - 'a' + 'A'), c, ']'} : std::string{c};
    }
    pattern += (pattern.empty() ? "" : "|") + letters;
  }
  if (!entry.spec.ignore_case) return {{"enum", words}};
  return {{"type", "string"}, {"pattern", "^(" + pattern + ")$"}, {"examples", words}};
}

Json list_schema(const Entry& entry) {
  Json item = {{"type", "string"}, {"pattern", "^(http|grpc)://"}};
  if (entry.arity == "1..2") {
    const Json pair = {{"type", "array"},
                       {"items", {{"type", {"string", "integer", "null"}}}},
                       {"minItems", 1},
                       {"maxItems", 2}};
    item = {{"anyOf", {item, pair}}};
  }
  return {{"anyOf", {item, {{"type", "array"}, {"items", item}}}}};
}

Json value_schema(const Entry& entry) {
  const bool refused = !entry.spec.needs.empty() && !entry.spec.ignored_without;
  if (!entry.built() || refused) {
    if (entry.type == "bool" && refused)
      return {{"anyOf",
               {{{"enum", {false, 0}}},
                {{"pattern", "^([Ff]|0|[Ff][Aa][Ll][Ss][Ee]|[Nn][Oo]|[Oo][Ff][Ff])$"},
                 {"type", "string"}}}}};
    // A switch that stays off is no use of it.
    if (entry.is_switch()) return {{"enum", {false, "false"}}};
    // Nor is a list of nothing.
    if (entry.type.starts_with("list")) return {{"type", "array"}, {"maxItems", 0}};
    return {{"not", Json::object()}};
  }
  if (entry.type == "bool")
    return {{"anyOf",
             {{{"type", "boolean"}},
              {{"enum", {0, 1}}},
              {{"pattern",
                "^([Tt]|[Ff]|0|1|[Tt][Rr][Uu][Ee]|[Ff][Aa][Ll][Ss][Ee]|[Yy][Ee][Ss]|[Nn][Oo]|[Oo]["
                "Nn]|[Oo][Ff][Ff])$"},
               {"type", "string"}}}}};
  if (entry.is_switch())
    return {{"anyOf",
             {{{"type", "boolean"}},
              {{"pattern", "^([Tt]rue|[Ff]alse|TRUE|FALSE)$"}, {"type", "string"}}}}};
  if (entry.type == "int" || entry.type == "float") return number_schema(entry);
  if (!entry.spec.choices.empty()) return enum_schema(entry);
  if (entry.type.starts_with("list")) return list_schema(entry);
  if (entry.type == "json")
    return {{"anyOf", {{{"type", "object"}}, {{"type", "string"}, {"pattern", "^\\s*[{]"}}}}};
  return {{"type", {"string", "number", "boolean"}}};
}

/// The schema of one key, with what an editor shows beside it.
Json key_schema(const Entry& entry, bool taken) {
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
  const Json value = value_schema(entry);
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

}  // namespace

std::string json_schema(Program program) {
  Arguments args;  // also the scratch that words are tried on
  const Registry registry(args);
  Json defs = Json::object();
  Json properties = Json::object();
  Json patterns = Json::object();
  for (const Entry& entry : registry.entries()) {
    if (entry.spec.command) continue;
    const std::string name(entry.spec.name);
    const bool mine = (entry.spec.services & services_of(program)) != 0;
    const bool forwarded =
        program == Program::kRouter && !entry.spec.keep && (entry.spec.services & kEngine) != 0;
    const Json reference = {{"$ref", "#/$defs/" + name}};
    defs[name] = key_schema(entry, mine || forwarded);
    properties[name] = reference;
    patterns[key_pattern(entry)] = reference;
  }
  const std::string title(program_name(program));
  const Json schema = {
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
  return schema.dump(1) + "\n";
}

}  // namespace tandem::args
