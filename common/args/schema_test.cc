// The description against the shared argument schema, field by field, and the documents' own
// commands. The schema is not part of the project; without it these tests are skipped. The page
// docs/arguments.md is compared always.
#include "common/args/args.h"
#include "common/args/spec.h"
#include "common/args/test_support.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <yaml-cpp/yaml.h>

#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <map>
#include <set>
#include <sstream>
#include <string>
#include <vector>

namespace tandem::args {
namespace {

using namespace testing;  // NOLINT(google-build-using-namespace)
using ::testing::HasSubstr;

std::string shared(const std::string& name) {
  const char* folder = std::getenv("TANDEM_SHARED_DIR");
  return (folder != nullptr ? std::string(folder) : std::string(TANDEM_SOURCE_DIR) + "/../shared") +
         "/arguments/" + name;
}

#define TANDEM_REQUIRE_SHARED(name) \
  if (!std::filesystem::exists(shared(name))) GTEST_SKIP() << "skipped: ../shared is not here"

/// A scalar of the schema as JSON: quoted ones are text, plain ones numbers, booleans or null where
/// they look so.
nlohmann::json value_of(const YAML::Node& node) {
  if (node.IsNull()) return nullptr;
  const auto text = node.as<std::string>();
  if (node.Tag() != "?") return text;
  nlohmann::json value = nlohmann::json::parse(text, nullptr, false);
  return value.is_discarded() ? nlohmann::json(text) : value;
}

std::vector<std::string> list_of(const YAML::Node& node) {
  std::vector<std::string> words;
  for (const YAML::Node& each : node)
    words.push_back(each.as<std::string>());
  return words;
}

std::string joined_words(const std::vector<std::string>& words) {
  std::string text;
  for (const std::string& word : words)
    text += (text.empty() ? "" : ",") + word;
  return text;
}

std::vector<std::string> words_of(std::string_view list) {
  std::vector<std::string> words;
  for (std::string_view each : split_list(list))
    words.emplace_back(each);
  return words;
}

std::set<std::string> services_text(Services services) {
  std::set<std::string> names;
  for (const auto& [bit, name] : std::map<Services, std::string>{{kRouter, "router"},
                                                                 {kPrefill, "prefill"},
                                                                 {kDecode, "decode"},
                                                                 {kBootstrap, "bootstrap"},
                                                                 {kUnified, "unified"}}) {
    if ((services & bit) != 0) names.insert(name);
  }
  return names;
}

std::string range_of(const YAML::Node& node) {
  std::string text;
  for (const char* key : {"min", "max", "exclusive_min", "exclusive_max"}) {
    if (node.IsMap() && node[key])
      text += std::string(key) + "=" + number_text(node[key].as<double>()) + " ";
  }
  if (node.IsMap() && node["also_allowed"])
    text += "also=" + number_text(node["also_allowed"][0].as<double>());
  return text;
}

std::string range_of(const Range& range) {
  std::string text;
  if (std::isfinite(range.min) && !range.exclusive_min)
    text += "min=" + number_text(range.min) + " ";
  if (std::isfinite(range.max) && !range.exclusive_max)
    text += "max=" + number_text(range.max) + " ";
  if (range.exclusive_min) text += "exclusive_min=" + number_text(range.min) + " ";
  if (range.exclusive_max) text += "exclusive_max=" + number_text(range.max) + " ";
  if (!std::isnan(range.also_allowed)) text += "also=" + number_text(range.also_allowed);
  return text;
}

/// Where the description differs on purpose: "name field" -> why.
const std::map<std::string, std::string>& reviewed_differences() {
  static const std::map<std::string, std::string> kDifferences = {
      {"--disaggregation-transfer-backend choices",
       "ucx is the plain name of what mooncake and nixl select here"},
      {"--page-size range",
       "a page above 65536 tokens is a typing error, refused before memory is planned"},
      {"--torchao-config choices", "the recipes, so that an unknown one is refused with the list"},
      {"--tensor-parallel-size range", "bounded, so that products of sizes cannot overflow"},
      {"--data-parallel-size range", "bounded: the router starts one process for each"},
      {"--num-reserved-decode-tokens range", "bounded, so that sums over requests cannot overflow"},
  };
  return kDifferences;
}

/// Which choices wait for which hardware, and whether a default is computed.
void compare_devices(const Entry& entry,
                     const YAML::Node& arg,
                     std::map<std::string, std::string>& found) {
  std::map<std::string, std::set<std::string>> theirs = {
      {"cuda", {}}, {"rdma", {}}, {"vendor", {}}};
  for (const YAML::Node& detail : arg["choice_details"]) {
    const auto device = detail["device"].as<std::string>();
    if (theirs.count(device) > 0) theirs[device].insert(detail["choice"].as<std::string>());
  }
  for (const auto& [device, list] : {std::pair{"cuda", entry.spec.needs_cuda},
                                     std::pair{"rdma", entry.spec.needs_rdma},
                                     std::pair{"vendor", entry.spec.needs_vendor}}) {
    const auto ours = words_of(list);
    if (std::set<std::string>(ours.begin(), ours.end()) != theirs[device])
      found["choices that need " + std::string(device)] = std::string(list);
  }
  const auto without = arg["without_hardware"].as<std::string>();
  const std::string fallback = without.starts_with("fallback: ") ? without.substr(10) : "";
  if (entry.spec.falls_back_to != fallback) found["without_hardware"] = without;
  if (entry.spec.ignored_without != (without == "warn-ignore")) found["without_hardware"] = without;
  const bool computed = arg["default"].IsNull() && !arg["default_note"].IsNull() &&
                        arg["default_note"].as<std::string>().starts_with("computed");
  if (computed && entry.spec.default_note.empty()) found["default_note"] = "computed, untold";
}

/// The fields of one entry that differ, as "field: ours / schema's".
std::map<std::string, std::string> differences(const Entry& entry, const YAML::Node& arg) {
  std::map<std::string, std::string> found;
  const auto compare =
      [&found](const std::string& field, std::string_view ours, const std::string& theirs) {
        if (ours != theirs) found[field] = "'" + std::string(ours) + "' / '" + theirs + "'";
      };
  std::vector<std::string> aliases;
  for (const std::string& alias : list_of(arg["aliases"]))
    aliases.push_back(alias.substr(alias.find_first_not_of('-')));
  compare("name", entry.flag(), arg["name"].as<std::string>());
  compare("aliases", std::string(entry.spec.aliases), joined_words(aliases));
  compare("dest", entry.dest, arg["dest"].as<std::string>());
  compare("type", entry.type, arg["type"].as<std::string>());
  compare("arity", entry.arity, arg["arity"].as<std::string>());
  // One section's title names the document it comes from; ours does not.
  const auto section = arg["section"].as<std::string>();
  compare("section", std::string(entry.spec.section), section.substr(0, section.find(" (--help")));
  compare("scope", entry.spec.scope, arg["scope"].as<std::string>());
  compare("tier", std::to_string(entry.spec.tier), arg["tier"].as<std::string>());
  compare("env",
          std::string(entry.spec.env),
          arg["env"] && !arg["env"].IsNull() ? arg["env"].as<std::string>() : "");
  compare("range", range_of(entry.spec.range), range_of(arg["range"]));
  if (words_of(entry.spec.choices) != list_of(arg["choices"])) {
    found["choices"] =
        std::string(entry.spec.choices) + " / " + joined_words(list_of(arg["choices"]));
  }
  const std::vector<std::string> services = list_of(arg["services"]);
  if (services_text(entry.spec.services) !=
      std::set<std::string>(services.begin(), services.end())) {
    found["services"] = joined_words(services);
  }
  compare("default_applies",
          entry.spec.explicit_only ? "explicit-only" : "always",
          arg["default_applies"].as<std::string>());
  compare("deprecated",
          std::string(entry.spec.deprecated_for),
          arg["deprecated"].IsMap() ? arg["deprecated"]["replacement"].as<std::string>() : "");
  if (entry.built()) compare_devices(entry, arg, found);
  const nlohmann::json ours = nlohmann::json::parse(entry.default_json);
  if (ours != value_of(arg["default"]))
    found["default"] = ours.dump() + " / " + value_of(arg["default"]).dump();
  return found;
}

TEST(Schema, DescriptionIsTheSchemaFieldByField) {
  TANDEM_REQUIRE_SHARED("schema.yaml");
  const YAML::Node schema = YAML::LoadFile(shared("schema.yaml"));
  Arguments args;
  const Registry registry(args);
  std::set<std::string, std::less<>> known;
  std::set<std::string> used;
  for (const YAML::Node& arg : schema["arguments"]) {
    const auto name = arg["name"].as<std::string>();
    SCOPED_TRACE(name);
    const Entry* entry = registry.find(name.substr(2));
    ASSERT_NE(entry, nullptr);
    known.emplace(entry->dest);
    for (const auto& [field, text] : differences(*entry, arg)) {
      const std::string key = name + " " + field;
      EXPECT_EQ(reviewed_differences().count(key), 1U) << key << ": " << text;
      used.insert(key);
    }
  }
  EXPECT_EQ(known.size(), 362U);
  EXPECT_EQ(used.size(), reviewed_differences().size())
      << "a reviewed difference is gone: take it off the list";
  for (const Entry& entry : registry.entries()) {
    EXPECT_EQ(known.count(entry.dest) == 1, !entry.ours())
        << entry.spec.name << ": tier 0 is for our own arguments";
  }
}

TEST(Schema, EveryTierOneArgumentHasAField) {
  Arguments args;
  const Registry registry(args);
  for (const Entry& entry : registry.entries()) {
    if (entry.spec.tier != 1) continue;
    EXPECT_TRUE(entry.built()) << entry.spec.name;
  }
}

/// A word that the argument's own type would take, so that only "not built yet" can be wrong with
/// it.
std::vector<std::string> sample_words(const Entry& entry) {
  if (entry.is_switch()) return {};
  if (!entry.spec.choices.empty()) return {words_of(entry.spec.choices).back()};
  return {entry.type == "bool" ? "true" : "1"};
}

TEST(Schema, UnbuiltArgumentsAreRefusedByNameOnExactlyTheirServices) {
  Arguments args;
  const Registry registry(args);
  for (const Entry& entry : registry.entries()) {
    if (entry.built()) continue;
    for (const Program program : kAllPrograms) {
      SCOPED_TRACE(entry.flag() + " on " + std::string(program_name(program)));
      const auto words = with(with(minimum(program), {entry.flag()}), sample_words(entry));
      const ParseOutcome outcome = run(program, words);
      EXPECT_EQ(outcome.exit_code, 2);
      EXPECT_EQ(std::count(outcome.err.begin(), outcome.err.end(), '\n'), 1) << outcome.err;
      // A router with a model starts unified workers and takes their flags.
      const Services extra = program == Program::kRouter ? kUnified : Services{0};
      const bool taken = (entry.spec.services & (services_of(program) | extra)) != 0;
      EXPECT_THAT(outcome.err,
                  HasSubstr(taken ? entry.flag() + " is known, but not built yet"
                                  : entry.flag() + " is an argument of "));
    }
  }
}

TEST(Schema, HelpListsEveryName) {
  TANDEM_REQUIRE_SHARED("schema.yaml");
  const YAML::Node schema = YAML::LoadFile(shared("schema.yaml"));
  const std::map<Program, std::set<std::string>> services = {
      {Program::kRouter, {"router"}},
      {Program::kPrefill, {"prefill", "unified"}},
      {Program::kDecode, {"decode", "unified"}},
      {Program::kBootstrap, {"bootstrap"}}};
  for (const Program program : kAllPrograms) {
    std::set<std::string> words;
    std::istringstream text(run(program, {"--help"}).out);
    for (std::string word; text >> word;)
      words.insert(word.ends_with(',') ? word.substr(0, word.size() - 1) : word);
    for (const YAML::Node& arg : schema["arguments"]) {
      bool mine = false;
      for (const std::string& service : list_of(arg["services"]))
        mine |= services.at(program).count(service) > 0;
      EXPECT_EQ(words.count(arg["name"].as<std::string>()) > 0, mine)
          << arg["name"] << program_name(program);
    }
  }
}

TEST(Schema, ExampleCommands) {
  TANDEM_REQUIRE_SHARED("example_commands.yaml");
  const YAML::Node examples = YAML::LoadFile(shared("example_commands.yaml"));
  // What each command of the documents does in this build; "" runs.
  const std::string tp = "argument --tensor-parallel-size: ";
  const std::map<std::string, std::vector<std::string>> wanted = {
      {"help", {}},
      {"config-file", {tp + "2 is not built yet"}},
      {"tp2", {tp + "2 is not built yet"}},
      {"router-dp2-tp2", {tp + "2 is not built yet"}},
      {"mem-fraction", {}},
      {"chunked-prefill", {}},
      {"multi-node-rank0",
       {tp + "4", "--dist-init-addr is known", "--nnodes is known", "--node-rank is known"}},
      {"multi-node-rank1",
       {tp + "4", "--dist-init-addr is known", "--nnodes is known", "--node-rank is known"}},
  };
  const std::map<std::string, std::vector<Program>> programs = {
      {"unified", {Program::kPrefill, Program::kDecode}}, {"router", {Program::kRouter}}};
  std::size_t commands = 0;
  for (const YAML::Node& command : examples["commands"]) {
    const auto id = command["id"].as<std::string>();
    SCOPED_TRACE(id);
    ASSERT_EQ(wanted.count(id), 1U) << "a new example: say here what it does";
    const TempFolder folder;
    for (const auto& file : command["files"]) {
      YAML::Emitter text;
      text << file.second;
      static_cast<void>(folder.write(file.first.as<std::string>(), text.c_str()));
    }
    for (const YAML::Node& argv : command["project_argv"]) {
      std::vector<std::string> words = list_of(argv);
      const std::vector<Program> runs_on = programs.at(words.front());
      words.erase(words.begin());
      for (std::string& word : words) {
        if (std::filesystem::exists(folder.path(word))) word = folder.path(word);
      }
      for (const Program program : runs_on) {
        const ParseOutcome outcome = run(program, words);
        EXPECT_EQ(outcome.exit_code, wanted.at(id).empty() ? 0 : 2) << outcome.err;
        for (const std::string& part : wanted.at(id))
          EXPECT_THAT(outcome.err, HasSubstr(part));
        EXPECT_EQ(std::count(outcome.err.begin(), outcome.err.end(), '\n'),
                  static_cast<std::ptrdiff_t>(wanted.at(id).size()));
        ++commands;
      }
    }
  }
  EXPECT_GE(commands, 15U);
}

TEST(Schema, ExampleFragments) {
  TANDEM_REQUIRE_SHARED("example_commands.yaml");
  const YAML::Node examples = YAML::LoadFile(shared("example_commands.yaml"));
  std::size_t fragments = 0;
  for (const YAML::Node& fragment : examples["fragments"]) {
    const std::vector<std::string> words = list_of(fragment["argv"]);
    SCOPED_TRACE(joined_words(words));
    const ParseOutcome outcome = run(Program::kPrefill, with({"--model-path", "/m"}, words));
    EXPECT_EQ(outcome.err.find("unrecognized"), std::string::npos) << outcome.err;
    EXPECT_EQ(outcome.err.find("unexpected"), std::string::npos) << outcome.err;
    EXPECT_TRUE(runs(outcome) || outcome.err.find("not built yet") != std::string::npos)
        << outcome.err;
    ++fragments;
  }
  EXPECT_GE(fragments, 20U);
}

TEST(Docs, ArgumentsPageIsUpToDate) {
  std::ifstream file(std::string(TANDEM_SOURCE_DIR) + "/docs/arguments.md", std::ios::binary);
  ASSERT_TRUE(file) << "docs/arguments.md is missing";
  std::ostringstream text;
  text << file.rdbuf();
  EXPECT_TRUE(text.str() == docs_markdown())
      << "out of date; run: tandem-args-doc > docs/arguments.md";
}

std::string text_of(const std::string& path) {
  std::ifstream file(std::string(TANDEM_SOURCE_DIR) + "/" + path, std::ios::binary);
  EXPECT_TRUE(file) << path;
  std::ostringstream text;
  text << file.rdbuf();
  return text.str();
}

// The example of how to add an argument is one that was added: each of its lines is in the file
// that the comment above it names.
TEST(Docs, TheExampleOfANewArgumentIsReal) {
  std::istringstream page(text_of("docs/contributing.md"));
  std::string source;
  bool inside = false;
  std::size_t lines = 0;
  for (std::string each; std::getline(page, each);) {
    if (each.starts_with("```")) {
      inside = each == "```cpp";
      continue;
    }
    if (!inside) continue;
    if (each.starts_with("// common/")) {
      source = text_of(each.substr(3, each.find(',') - 3));
      continue;
    }
    ++lines;
    EXPECT_NE(source.find(each + "\n"), std::string::npos) << each;
  }
  EXPECT_GE(lines, 7U);
  EXPECT_LE(lines, 12U);
}

TEST(Docs, TotalsAddUp) {
  const nlohmann::json totals = nlohmann::json::parse(totals_json());
  EXPECT_EQ(totals.at("total"), 362);
  EXPECT_EQ(totals.at("works").get<int>() + totals.at("not_built").get<int>() +
                totals.at("deprecated").get<int>() + totals.at("needs_hardware").get<int>(),
            362);
  EXPECT_EQ(totals.at("tiers").at("1").at("works"), 37);
  EXPECT_EQ(totals.at("tiers").at("1").at("needs_hardware"), 2);
  for (const char* part : {"scopes", "tiers"}) {
    for (const char* status : {"total", "works", "needs_hardware", "not_built", "deprecated"}) {
      int sum = 0;
      for (const nlohmann::json& each : totals.at(part))
        sum += each.at(status).get<int>();
      EXPECT_EQ(totals.at(status), sum) << part << " " << status;
    }
  }
  EXPECT_EQ(totals.at("scopes").size(), 26U);
  EXPECT_EQ(totals.at("scopes").at("pd-disaggregation").at("total"), 12);
}

}  // namespace
}  // namespace tandem::args
