// No argument is silent: what is not built is refused by name wherever it is written, what cannot
// apply is said, and two explicit arguments that exclude each other are an error that names both.
#include "common/args/args.h"
#include "common/args/spec.h"
#include "common/args/test_support.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

namespace tandem::args {
namespace {

using namespace testing;  // NOLINT(google-build-using-namespace)
using ::testing::HasSubstr;

/// Words that the argument's own type takes, so that only "not built yet" can be wrong with it.
std::vector<std::string> sample_words(const Entry& entry) {
  if (entry.is_switch()) return {};
  if (!entry.spec.choices.empty()) return {std::string(split_list(entry.spec.choices).back())};
  return {entry.type == "bool" ? "true" : "1"};
}

std::string yaml_line(const Entry& entry) {
  const auto words = sample_words(entry);
  return std::string(entry.spec.name) + ": " + (words.empty() ? "true" : words[0]) + "\n";
}

/// The roles that a program can be told to have, with the words for it, and what it then takes.
struct Setting {
  Program program;
  std::vector<std::string> words;
  Services taken;
};

std::vector<Setting> settings() {
  const std::vector<std::string> model = {"--model-path", "/m"};
  return {
      {Program::kRouter, model, kRouter | kUnified},
      {Program::kRouter, with(model, {"--pd-disaggregation"}), kRouter | kPrefill | kDecode},
      {Program::kRouter, {"--worker-urls", "http://a:1"}, kRouter},
      {Program::kPrefill, model, kPrefill | kUnified},
      {Program::kPrefill, with(model, {"--disaggregation-mode", "prefill"}), kPrefill | kUnified},
      {Program::kDecode, model, kDecode | kUnified},
      {Program::kDecode, with(model, {"--disaggregation-mode", "decode"}), kDecode | kUnified},
      {Program::kBootstrap, {}, kBootstrap},
  };
}

std::string shown_words(const std::vector<std::string>& words) {
  std::string text;
  for (const std::string& word : words)
    text += " " + word;
  return text;
}

TEST(Honesty, NotBuiltOnTheCommandLineStopsEverySettingThatTakesIt) {
  Arguments args;
  const Registry registry(args);
  std::size_t stopped = 0;
  for (const Setting& setting : settings()) {
    for (const Entry& entry : registry.entries()) {
      if (entry.built()) continue;
      SCOPED_TRACE(std::string(program_name(setting.program)) + shown_words(setting.words) + " " +
                   entry.flag());
      const auto words = with(with(setting.words, {entry.flag()}), sample_words(entry));
      const ParseOutcome outcome = run(setting.program, words);
      ASSERT_EQ(outcome.exit_code, 2);
      ASSERT_EQ(std::count(outcome.err.begin(), outcome.err.end(), '\n'), 1) << outcome.err;
      const bool taken = (entry.spec.services & setting.taken) != 0;
      stopped += taken ? 1 : 0;
      ASSERT_THAT(outcome.err,
                  HasSubstr(taken ? entry.flag() + " is known, but not built yet"
                                  : entry.flag() + " is an argument of " +
                                        programs_text(entry.spec.services)));
    }
  }
  EXPECT_GT(stopped, 1000U);
}

TEST(Honesty, NotBuiltInAFileStopsEverySettingThatTakesItAndTheOthersSaySo) {
  Arguments args;
  const Registry registry(args);
  const TempFolder folder;
  for (const Setting& setting : settings()) {
    for (const Entry& entry : registry.entries()) {
      if (entry.built()) continue;
      SCOPED_TRACE(std::string(program_name(setting.program)) + shown_words(setting.words) + " " +
                   entry.flag());
      const std::string file = folder.write("c.yaml", yaml_line(entry));
      const ParseOutcome outcome = run(setting.program, with(setting.words, {"--config", file}));
      if ((entry.spec.services & setting.taken) != 0) {
        ASSERT_EQ(outcome.exit_code, 2);
        ASSERT_THAT(outcome.err, HasSubstr(entry.flag() + " is known, but not built yet"));
        ASSERT_THAT(outcome.err, HasSubstr(file + ":1"));
        continue;
      }
      // One file may serve all programs: a key of another one is left alone, with a debug line.
      ASSERT_TRUE(runs(outcome)) << outcome.err;
      ASSERT_TRUE(
          std::any_of(outcome.args.notes.begin(), outcome.args.notes.end(), [&](auto& note) {
            return note.level == NoteLevel::kDebug &&
                   note.text.starts_with(entry.flag() + " is an argument of ");
          }));
    }
  }
}

TEST(Honesty, ASwitchThatIsOffInAFileIsNoError) {
  Arguments args;
  const Registry registry(args);
  std::string yaml;
  for (const Entry& entry : registry.entries()) {
    if (!entry.built() && entry.is_switch()) yaml += std::string(entry.spec.name) + ": false\n";
  }
  for (const Program program : kAllPrograms)
    EXPECT_TRUE(runs(run_yaml(program, yaml, minimum(program))));
}

struct Row {
  Program program;
  std::vector<std::string> words;
  std::string says;
};

TEST(Honesty, TwoExplicitArgumentsThatExcludeEachOtherAreAnErrorNamingBoth) {
  Environment amx = machine();
  amx.has_amx = true;
  const std::vector<std::string> m = {"--model-path", "/m"};
  const std::vector<std::string> p = with(m, {"--disaggregation-mode", "prefill"});
  const Row rows[] = {
      {Program::kBootstrap,
       {"--port", "1", "--disaggregation-bootstrap-port", "2"},
       "argument --disaggregation-bootstrap-port: 2 contradicts --port 1"},
      {Program::kRouter,
       with(m, {"--policy", "random", "--load-balance-method", "round_robin"}),
       "argument --policy: random contradicts --load-balance-method"},
      {Program::kRouter,
       {"--worker-urls", "http://a:1", "--pd-disaggregation"},
       "argument --worker-urls: excludes --pd-disaggregation"},
      {Program::kRouter,
       {"--worker-urls", "http://a:1", "--prefill", "http://b:1"},
       "argument --prefill: needs --pd-disaggregation"},
      {Program::kPrefill,
       with(p,
            {"--disaggregation-bootstrap-address", "a:1", "--disaggregation-bootstrap-port", "2"}),
       "argument --disaggregation-bootstrap-port: excludes --disaggregation-bootstrap-address"},
      {Program::kPrefill,
       with(p, {"--port", "7", "--disaggregation-bootstrap-port", "7"}),
       "argument --disaggregation-bootstrap-port: 7 is also --port"},
      {Program::kPrefill,
       with(m, {"--port", "7", "--grpc-port", "7"}),
       "argument --grpc-port: is the same as --port"},
      {Program::kPrefill,
       with(m, {"--page-size", "16", "--chunked-prefill-size", "100"}),
       "argument --chunked-prefill-size: 100 is not -1 and not a multiple of the page size 16"},
      {Program::kPrefill,
       with(m, {"--page-size", "16", "--max-total-tokens", "8"}),
       "argument --max-total-tokens: 8 is smaller than one page (--page-size 16)"},
      {Program::kPrefill,
       with(m, {"--attention-backend", "torch_native", "--kernel-family", "amx"}),
       "argument --attention-backend: torch_native contradicts --kernel-family amx"},
      {Program::kPrefill,
       with(m, {"--attention-backend", "intel_amx", "--kernel-family", "avx2"}),
       "argument --attention-backend: intel_amx contradicts --kernel-family avx2"},
      {Program::kDecode,
       with(m, {"--disaggregation-mode", "prefill"}),
       "argument --disaggregation-mode: prefill contradicts the executable"},
      {Program::kPrefill,
       with(m, {"--schedule-policy", "lpm", "--disable-radix-cache"}),
       "argument --schedule-policy: lpm orders by cached prefix, and --disable-radix-cache leaves "
       "none"},
  };
  for (const Row& row : rows) {
    SCOPED_TRACE(row.says);
    const ParseOutcome outcome = run(row.program, row.words, amx);
    EXPECT_EQ(outcome.exit_code, 2);
    EXPECT_THAT(outcome.err, HasSubstr(row.says));
    EXPECT_EQ(std::count(outcome.err.begin(), outcome.err.end(), '\n'), 1) << outcome.err;
  }
}

TEST(Honesty, WhatCannotApplyIsReportedByName) {
  const std::vector<std::string> m = {"--model-path", "/m"};
  const std::vector<std::string> d = with(m, {"--disaggregation-mode", "decode"});
  const std::vector<std::string> r = {"--worker-urls", "http://a:1"};
  const Row rows[] = {
      {Program::kRouter, with(r, {"--queue-size", "5"}), "--queue-size has no effect"},
      {Program::kRouter,
       with(r, {"--disaggregation-bootstrap-port", "5"}),
       "--disaggregation-bootstrap-port has no effect"},
      {Program::kDecode,
       with(d, {"--disaggregation-bootstrap-port", "5"}),
       "--disaggregation-bootstrap-port has no effect"},
      {Program::kDecode,
       with(m, {"--num-reserved-decode-tokens", "5"}),
       "--num-reserved-decode-tokens has no effect"},
      {Program::kPrefill,
       with(m, {"--disaggregation-transfer-backend", "nixl"}),
       "--disaggregation-transfer-backend has no effect"},
      {Program::kPrefill, with(m, {"--load-balance-method", "round_robin"}), "has no effect"},
      {Program::kPrefill, with(m, {"--prefill-round-robin-balance"}), "has no effect"},
      {Program::kPrefill, with(m, {"--disable-overlap-schedule"}), "has no effect"},
  };
  for (const Row& row : rows) {
    SCOPED_TRACE(shown_words(row.words));
    const ParseOutcome outcome = run(row.program, row.words);
    ASSERT_TRUE(runs(outcome)) << outcome.err;
    EXPECT_EQ(std::count_if(outcome.args.notes.begin(),
                            outcome.args.notes.end(),
                            [&](const Note& note) {
                              return note.level != NoteLevel::kDebug &&
                                     note.text.find(row.says) != std::string::npos;
                            }),
              1);
  }
}

TEST(Honesty, OfTwoNamesForThePolicyTheStrongerPlaceCounts) {
  const std::vector<std::string> m = {"--model-path", "/m"};
  const auto file_policy = run_yaml(
      Program::kRouter, "policy: random\n", with(m, {"--load-balance-method", "round_robin"}));
  ASSERT_TRUE(runs(file_policy)) << file_policy.err;
  EXPECT_EQ(file_policy.args.router.policy, RoutingPolicy::kRoundRobin);
  EXPECT_EQ(file_policy.args.notes.size(), 1U);
  const auto file_method = run_yaml(
      Program::kRouter, "load-balance-method: round_robin\n", with(m, {"--policy", "random"}));
  ASSERT_TRUE(runs(file_method)) << file_method.err;
  EXPECT_EQ(file_method.args.router.policy, RoutingPolicy::kRandom);
  EXPECT_EQ(file_method.args.notes.size(), 1U);
}

TEST(Honesty, TheRoutersBootstrapPortIsThatOfAddressesWithoutOne) {
  const auto outcome = run(Program::kRouter,
                           {"--pd-disaggregation",
                            "--prefill",
                            "http://a:1",
                            "--prefill",
                            "http://b:1",
                            "7",
                            "--prefill",
                            "http://c:1",
                            "none",
                            "--decode",
                            "http://d:1",
                            "--disaggregation-bootstrap-port",
                            "9"});
  ASSERT_TRUE(runs(outcome)) << outcome.err;
  const auto& prefill = outcome.args.router.prefill;
  ASSERT_EQ(prefill.size(), 3U);
  EXPECT_EQ(prefill[0].bootstrap_port, 9);
  EXPECT_EQ(prefill[1].bootstrap_port, 7);
  EXPECT_EQ(prefill[2].bootstrap_port, std::nullopt);
}

TEST(Honesty, StatusFollowsFromTheDescription) {
  Arguments args;
  const Registry registry(args);
  const auto is = [&](std::string_view name) { return readiness(*registry.find(name)); };
  EXPECT_EQ(is("page-size"), Readiness::kWorks);
  EXPECT_EQ(is("quantization"), Readiness::kWorks) << "one choice works, and not by itself";
  EXPECT_EQ(is("load-format"), Readiness::kWorks) << "several choices work";
  EXPECT_EQ(is("device"), Readiness::kNeedsHardware) << "all but cpu";
  EXPECT_EQ(is("sampling-backend"), Readiness::kNeedsHardware);
  EXPECT_EQ(is("kv-cache-dtype"), Readiness::kWorks);
  EXPECT_EQ(is("grammar-backend"), Readiness::kNotBuilt);
  EXPECT_EQ(is("tensor-parallel-size"), Readiness::kNotBuilt) << "1 alone changes nothing";
  EXPECT_EQ(is("enable-lora"), Readiness::kNotBuilt);
  Entry entry = *registry.find("page-size");
  entry.spec.deprecated_for = "--other";
  EXPECT_EQ(readiness(entry), Readiness::kDeprecated);
  EXPECT_EQ(effect_test(*registry.find("page-size")), "test_page_size");
  EXPECT_EQ(effect_test(*registry.find("enable-lora")), "");
}

}  // namespace
}  // namespace tandem::args
