// What is written back: the dump, the words for a spawned worker, and what the machine says.
#include "common/args/args.h"
#include "common/args/test_support.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace tandem::args {
namespace {

using namespace testing;  // NOLINT(google-build-using-namespace)
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;

constexpr Program kP = Program::kPrefill;
constexpr Program kR = Program::kRouter;

TEST(Dump, IsOneObjectWithoutSecrets) {
  const ParseOutcome outcome =
      run(kP, {"--model-path", "/m", "--api-key", "hush-hush", "--dump-config"});
  EXPECT_EQ(outcome.action, ParseOutcome::Action::kExit);
  EXPECT_EQ(outcome.exit_code, 0);
  const nlohmann::json dump = nlohmann::json::parse(outcome.out);
  EXPECT_EQ(dump.at("api_key"), "set");
  EXPECT_EQ(dump.at("context_length"), nullptr);
  EXPECT_EQ(dump.at("argument_sources").at("model_path"), "cli");
  EXPECT_THAT(outcome.out, Not(HasSubstr("hush")));
  EXPECT_TRUE(runs(run(kP, {"--model-path", "/m", "--dump-config", "--dry-run"})));
  EXPECT_EQ(run(kP, {"--dump-config"}).exit_code, 2);
}

TEST(Dump, TakesValuesKnownOnlyLater) {
  const ParseOutcome outcome = run(kP, {"--model-path", "/m", "--context-length", "8"});
  const nlohmann::json dump = nlohmann::json::parse(dump_json(
      outcome.args,
      {{"max_total_tokens", "8192"}, {"context_length", "8"}, {"dtype", "\"bfloat16\""}}));
  EXPECT_EQ(dump.at("max_total_tokens"), 8192);
  EXPECT_EQ(dump.at("argument_sources").at("max_total_tokens"), "computed");
  EXPECT_EQ(dump.at("argument_sources").at("context_length"), "cli");
  EXPECT_EQ(dump.at("dtype"), "bfloat16");
}

TEST(WorkerArgv, ForwardsExactlyTheGivenEngineFlags) {
  const ParseOutcome outcome = run(kR,
                                   {"--model-path",
                                    "/m m",
                                    "--dp",
                                    "2",
                                    "--pd-disaggregation",
                                    "--port",
                                    "1",
                                    "--api-key",
                                    "k",
                                    "--policy",
                                    "random",
                                    "--page-size",
                                    "16",
                                    "--disable-radix-cache",
                                    "--num-reserved-decode-tokens",
                                    "3",
                                    "--json-model-override-args",
                                    R"({"a": "b c"})",
                                    "--log-level",
                                    "debug",
                                    "--mem-fraction-static",
                                    "0.25",
                                    "--chunked-prefill-size",
                                    "-1",
                                    "--disaggregation-transfer-backend",
                                    "ucx"});
  ASSERT_TRUE(runs(outcome)) << outcome.err;
  const std::vector<std::string> prefill = worker_argv(outcome.args, DisaggregationMode::kPrefill);
  EXPECT_THAT(prefill,
              ElementsAre("--model-path=/m m",
                          R"(--json-model-override-args={"a":"b c"})",
                          "--chunked-prefill-size=-1",
                          "--mem-fraction-static=0.25",
                          "--page-size=16",
                          "--disable-radix-cache",
                          "--disaggregation-transfer-backend=ucx",
                          "--log-level=debug"));
  EXPECT_THAT(worker_argv(outcome.args, DisaggregationMode::kDecode),
              ::testing::Contains("--num-reserved-decode-tokens=3"));
  // What is forwarded means the same to the worker.
  const ParseOutcome worker = run(kP, with(prefill, {"--disaggregation-mode=prefill"}));
  ASSERT_TRUE(runs(worker)) << worker.err;
  EXPECT_EQ(worker.args.model.json_model_override_args,
            outcome.args.model.json_model_override_args);
  EXPECT_EQ(worker.args.kv_cache.mem_fraction_static, 0.25);
  EXPECT_EQ(worker.args.scheduling.chunked_prefill_size, -1);
  EXPECT_THAT(worker_argv(run(kR, {"--model-path", "/m"}).args, DisaggregationMode::kNull),
              ElementsAre("--model-path=/m"));
}

// Every engine argument that a worker takes survives the way through a router, whatever it is.
TEST(WorkerArgv, RoundTripsEveryEngineArgument) {
  const std::vector<std::string> words = {"--model-path=/m",
                                          "--tokenizer-path=/t",
                                          "--load-format=safetensors",
                                          "--context-length=64",
                                          "--dtype=half",
                                          "--chat-template=c",
                                          "--served-model-name=n",
                                          "--enable-cache-report",
                                          "--stream-interval=2",
                                          "--max-running-requests=3",
                                          "--max-prefill-tokens=4",
                                          "--schedule-policy=lpm",
                                          "--schedule-conservativeness=0.3",
                                          "--max-total-tokens=99",
                                          "--page-size=2",
                                          "--kv-cache-dtype=fp8_e5m2",
                                          "--device=cpu",
                                          "--attention-backend=torch_native",
                                          "--sampling-backend=pytorch",
                                          "--grammar-backend=none",
                                          "--random-seed=5",
                                          "--disable-overlap-schedule",
                                          "--compute-threads=2",
                                          "--kernel-family=reference",
                                          "--log-requests",
                                          "--enable-metrics",
                                          "--decode-log-interval=9",
                                          "--tp=1"};
  const ParseOutcome router = run(kR, words);
  ASSERT_TRUE(runs(router)) << router.err;
  const ParseOutcome direct = run(kP, words);
  ASSERT_TRUE(runs(direct)) << direct.err;
  const ParseOutcome spawned = run(kP, worker_argv(router.args, DisaggregationMode::kNull));
  ASSERT_TRUE(runs(spawned)) << spawned.err;
  EXPECT_EQ(dumped(spawned), dumped(direct));
}

TEST(Environment, OfThisMachineIsSane) {
  const Environment environment = Environment::system();
  EXPECT_GE(environment.cpu_count, 1U);
  EXPECT_LE(environment.cpu_count, 65536U);
  EXPECT_GT(environment.memory_bytes, 1U << 20U);
  EXPECT_FALSE(environment.variable("TANDEM_NOBODY_SETS_THIS").has_value());
}

}  // namespace
}  // namespace tandem::args
