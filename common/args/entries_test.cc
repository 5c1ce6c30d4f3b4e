// One row per argument with a field: default, flag, '=' form, '_' spelling, YAML, alias, and a bad
// value.
#include "common/args/args.h"
#include "common/args/entries_rows.h"
#include "common/args/spec.h"
#include "common/args/test_support.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <set>
#include <string>
#include <utility>
#include <vector>

namespace tandem::args {
namespace {

using namespace testing;  // NOLINT(google-build-using-namespace)

constexpr Program kP = Program::kPrefill;
constexpr Program kD = Program::kDecode;
constexpr Program kR = Program::kRouter;

std::string dest_of(const std::string& name) {
  Arguments args;
  const Registry registry(args);
  const Entry* entry = registry.find(name);
  return entry == nullptr ? "?" : std::string(entry->dest);
}

std::vector<std::string> aliases_of(const std::string& name) {
  Arguments args;
  const Registry registry(args);
  std::vector<std::string> names;
  for (std::string_view alias : split_list(registry.find(name)->spec.aliases))
    names.emplace_back(alias);
  return names;
}

void expect_value(const Row& row, const ParseOutcome& outcome, const char* origin) {
  ASSERT_TRUE(runs(outcome)) << outcome.err;
  const nlohmann::json dump = dumped(outcome);
  const std::string dest = dest_of(row.name);
  EXPECT_EQ(dump.at(dest), nlohmann::json::parse(row.good_json)) << dump.at(dest);
  EXPECT_EQ(dump.at("argument_sources").at(dest), origin);
}

TEST(Entries, DefaultsAreWhatTheDumpSays) {
  for (const Row& row : rows()) {
    SCOPED_TRACE(row.name);
    const ParseOutcome outcome = run(row.program, minimum(row.program));
    ASSERT_TRUE(runs(outcome)) << outcome.err;
    EXPECT_EQ(dumped(outcome).at(dest_of(row.name)), nlohmann::json::parse(row.default_json));
  }
}

TEST(Entries, FlagsInEverySpelling) {
  for (const Row& row : rows()) {
    const bool is_switch = std::string(row.good).empty();
    std::vector<std::string> spellings = {"--" + std::string(row.name)};
    for (const std::string& alias : aliases_of(row.name))
      spellings.push_back("--" + alias);
    std::string underscored = spellings.front();
    std::replace(underscored.begin() + 2, underscored.end(), '-', '_');
    spellings.push_back(underscored);
    for (const std::string& spelling : spellings) {
      SCOPED_TRACE(spelling);
      const auto words = with(minimum(row.program), row.extra);
      if (is_switch) {
        expect_value(row, run(row.program, with(words, {spelling})), "cli");
        const ParseOutcome valued = run(row.program, with(words, {spelling + "=true"}));
        EXPECT_EQ(valued.exit_code, 2);
        EXPECT_NE(
            valued.err.find("argument --" + std::string(row.name) + ": takes no value, got 'true'"),
            std::string::npos)
            << valued.err;
      } else {
        expect_value(row, run(row.program, with(words, {spelling, row.good})), "cli");
        expect_value(row, run(row.program, with(words, {spelling + "=" + row.good})), "cli");
      }
    }
  }
}

TEST(Entries, YamlKeys) {
  for (const Row& row : rows()) {
    SCOPED_TRACE(row.name);
    const std::string good = std::string(row.good).empty() ? "true" : row.good;
    for (const std::string& key : {std::string(row.name), dest_of(row.name)}) {
      const std::string yaml = key + ": '" + good + "'\n";
      expect_value(row, run_yaml(row.program, yaml, with(minimum(row.program), row.extra)), "file");
    }
  }
}

TEST(Entries, BadValuesNameFlagValueAndRemedy) {
  for (const Row& row : rows()) {
    SCOPED_TRACE(row.name);
    const std::string message(row.message);
    if (message.empty()) continue;
    const std::string flag = "--" + std::string(row.name);
    const std::string want =
        std::string(program_name(row.program)) + ": error: argument " + flag + ": " + message;
    const auto words = with(minimum(row.program), row.extra);
    const ParseOutcome outcome = run(row.program, with(words, {flag + "=" + row.bad}));
    EXPECT_EQ(outcome.err, want + "\n");
    EXPECT_EQ(outcome.exit_code, 2);
    EXPECT_TRUE(outcome.out.empty());
    const ParseOutcome missing = run(row.program, with(words, {flag}));
    EXPECT_NE(missing.err.find("argument " + flag + ": expected "), std::string::npos)
        << missing.err;
    // The same in a file tells the place, unless the check is made after all sources are merged.
    const ParseOutcome file =
        run_yaml(row.program, "\n" + std::string(row.name) + ": '" + row.bad + "'\n", words);
    EXPECT_EQ(file.err.rfind(want, 0), 0U) << file.err;
    EXPECT_EQ(file.exit_code, 2);
  }
}

TEST(Entries, OtherProgramsSayWhoTakesAFlag) {
  Arguments args;
  const Registry registry(args);
  int refusals = 0;
  for (const Row& row : rows()) {
    const Entry& entry = *registry.find(row.name);
    for (const Program program : kAllPrograms) {
      const Services spawned = program == kR && !entry.spec.keep ? kUnified : Services{0};
      if ((entry.spec.services & (services_of(program) | spawned)) != 0) continue;
      SCOPED_TRACE(entry.flag() + " on " + std::string(program_name(program)));
      std::vector<std::string> words = with(minimum(program), {entry.flag()});
      if (!entry.is_switch()) words.emplace_back(row.good);
      const ParseOutcome outcome = run(program, words);
      EXPECT_EQ(outcome.exit_code, 2);
      const std::string want = std::string(program_name(program)) + ": error: " + entry.flag() +
                               " is an argument of " + programs_text(entry.spec.services) +
                               ", not of " + std::string(program_name(program));
      EXPECT_EQ(outcome.err.rfind(want, 0), 0U) << outcome.err;
      ++refusals;
    }
  }
  EXPECT_GT(refusals, 80);
}

TEST(Entries, ModelPath) {
  for (const char* spelling : {"--model-path", "--model", "--model_path"}) {
    EXPECT_EQ(run(kP, {spelling, "/m"}).args.model.model_path, "/m");
  }
  EXPECT_EQ(run_yaml(kP, "model: /y\n").args.model.model_path, "/y");
  EXPECT_EQ(run(kD, {}).err, "decode-server: error: the argument --model-path is required\n");
  EXPECT_EQ(run(kD, {"--model-path"}).err,
            "decode-server: error: argument --model-path: expected one argument\n");
  EXPECT_EQ(run(kD, {"--model-path="}).err,
            "decode-server: error: argument --model-path: empty value\n");
}

/// A program that takes the entry, and the words without which it would refuse it.
std::pair<Program, std::vector<std::string>> home_of(const Entry& entry) {
  for (const Program program : kAllPrograms) {
    if ((entry.spec.services & services_of(program) & ~kUnified) == 0) continue;
    std::vector<std::string> words = minimum(program);
    if (program == kP) words.insert(words.end(), {"--disaggregation-mode", "prefill"});
    if (program == kD) words.insert(words.end(), {"--disaggregation-mode", "decode"});
    return {program, words};
  }
  return {kP, minimum(kP)};
}

/// What the description alone says is wrong; "" when it refuses nothing.
std::string bad_value_of(const Entry& entry) {
  if (!entry.spec.choices.empty()) return "no-such-choice";
  if (entry.type == "json") return "[]";
  if (entry.type == "int" || entry.type == "float") return "1x";
  return "";
}

// An argument needs no row above to be tested: what its description says is held against what it
// does. Rows add a chosen value and the exact sentence.
TEST(Entries, DescriptionsHoldWithoutARow) {
  Arguments args;
  const Registry registry(args);
  for (const Entry& entry : registry.entries()) {
    if (!entry.built() || entry.spec.command) continue;
    SCOPED_TRACE(entry.spec.name);
    const auto [program, words] = home_of(entry);
    const std::string bad = bad_value_of(entry);
    if (!bad.empty()) {
      const ParseOutcome outcome = run(program, with(words, {entry.flag() + "=" + bad}));
      EXPECT_NE(outcome.err.find("argument " + entry.flag() + ": "), std::string::npos)
          << outcome.err;
      EXPECT_EQ(outcome.exit_code, 2);
    }
    for (const double outside : {entry.spec.range.min - 1, entry.spec.range.max + 1}) {
      if (!std::isfinite(outside) || outside == entry.spec.range.also_allowed) continue;
      const ParseOutcome outcome =
          run(program, with(words, {entry.flag() + "=" + number_text(outside)}));
      EXPECT_NE(outcome.err.find("argument " + entry.flag() + ": " + number_text(outside)),
                std::string::npos)
          << outcome.err;
    }
    // A choice is usable or refused in a sentence; at least one is usable.
    const std::string usable = entry.ops->usable(entry.spec);
    EXPECT_EQ(usable.empty(), entry.spec.choices.empty());
  }
}

TEST(Entries, NamesAreUniqueAndHelpFits) {
  Arguments args;
  const Registry registry(args);
  std::set<std::string> names;
  std::set<std::string> dests;
  for (const Entry& entry : registry.entries()) {
    SCOPED_TRACE(entry.spec.name);
    EXPECT_TRUE(names.insert(normalized(entry.spec.name)).second);
    for (std::string_view alias : split_list(entry.spec.aliases)) {
      const std::string key = normalized(alias);
      if (key == normalized(entry.spec.name)) continue;  // eplb_mode and eplb-mode are one spelling
      EXPECT_TRUE(names.insert(key).second) << alias;
    }
    EXPECT_TRUE(dests.emplace(entry.dest).second);
    EXPECT_NE(entry.spec.services, 0);
    EXPECT_FALSE(entry.spec.help.empty());
    EXPECT_TRUE(nlohmann::json::accept(entry.default_json)) << entry.default_json;
  }
  for (const Program program : kAllPrograms) {
    for (const bool all : {false, true}) {
      std::istringstream lines(help_text(program, all));
      for (std::string line; std::getline(lines, line);)
        EXPECT_LE(line.size(), 100U) << line;
    }
  }
}

}  // namespace
}  // namespace tandem::args
