// Derived values, conflicts between arguments, roles, the router's ways to get workers, and what is
// written back.
#include "common/args/args.h"
#include "common/args/test_support.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace tandem::args {
namespace {

using namespace testing;  // NOLINT(google-build-using-namespace)

constexpr Program kP = Program::kPrefill;
constexpr Program kD = Program::kDecode;
constexpr Program kR = Program::kRouter;
constexpr Program kB = Program::kBootstrap;

TEST(Resolve, DerivedValuesSayComputed) {
  const ParseOutcome outcome = run(kP, {"--model-path", "/m"});
  ASSERT_TRUE(runs(outcome));
  const nlohmann::json dump = dumped(outcome);
  for (const char* dest : {"tokenizer_path",
                           "served_model_name",
                           "device",
                           "attention_backend",
                           "sampling_backend",
                           "grammar_backend",
                           "random_seed",
                           "compute_threads",
                           "mem_fraction_static",
                           "chunked_prefill_size"}) {
    EXPECT_EQ(dump.at("argument_sources").at(dest), "computed") << dest;
    EXPECT_FALSE(dump.at(dest).is_null()) << dest;
  }
  EXPECT_EQ(outcome.args.model.tokenizer_path, "/m");
  EXPECT_EQ(outcome.args.server.served_model_name, "/m");
  EXPECT_TRUE(outcome.args.notes.empty());
}

TEST(Resolve, ThreadsForSocketsFollowCores) {
  struct Row {
    std::uint32_t cores;
    std::uint32_t want;
  };

  for (const Row& row : {Row{1, 1}, Row{2, 1}, Row{4, 2}, Row{7, 3}, Row{64, 4}}) {
    Environment environment = machine();
    environment.cpu_count = row.cores;
    EXPECT_EQ(run(kP, {"--model-path", "/m"}, environment).args.server.http_threads, row.want);
    EXPECT_EQ(run(Program::kBootstrap, {}, environment).args.server.http_threads, row.want);
  }
}

TEST(Resolve, ChunkFollowsMemoryAndPages) {
  struct Row {
    std::uint64_t memory_gb;
    const char* page;
    std::int64_t want;
  };

  const Row rows[] = {{0, "1", 4096},
                      {16, "1", 2048},
                      {40, "1", 4096},
                      {100, "1", 8192},
                      {500, "1", 16384},
                      {16, "100", 2000},
                      {16, "4096", 4096}};
  for (const Row& row : rows) {
    Environment environment = machine();
    environment.memory_bytes = row.memory_gb * 1000 * 1000 * 1000;
    const ParseOutcome outcome =
        run(kP, {"--model-path", "/m", "--page-size", row.page}, environment);
    EXPECT_EQ(outcome.args.scheduling.chunked_prefill_size, row.want)
        << row.memory_gb << " " << row.page;
  }
}

TEST(Resolve, AttentionFollowsTheCpu) {
  Environment amx = machine();
  amx.has_amx = true;
  EXPECT_EQ(run(kP, {"--model-path", "/m"}, amx).args.runtime.attention_backend,
            AttentionBackend::kIntelAmx);
  const std::vector<std::string> asked = {"--model-path", "/m", "--attention-backend", "intel_amx"};
  EXPECT_TRUE(run(kP, asked, amx).args.notes.empty());
  const ParseOutcome without = run(kP, asked);
  ASSERT_TRUE(runs(without));
  EXPECT_EQ(without.args.runtime.attention_backend, AttentionBackend::kTorchNative);
  ASSERT_EQ(without.args.notes.size(), 1U);
  EXPECT_EQ(without.args.notes[0].level, NoteLevel::kWarning);
}

TEST(Resolve, AnOldNameAndWhatItMeansMustAgree) {
  const std::vector<std::string> ep = {"--model-path", "/m", "--enable-ep-moe"};
  const ParseOutcome same = run(kP, with(ep, {"--ep-size", "1"}));
  EXPECT_TRUE(runs(same)) << same.err;
  EXPECT_EQ(
      run(kP, with(ep, {"--ep", "3"})).err,
      "prefill-server: warning: --enable-ep-moe is deprecated; use --ep-size set to the value "
      "of --tp-size\n"
      "prefill-server: error: argument --enable-ep-moe: means --expert-parallel-size 1, which "
      "contradicts --expert-parallel-size 3\n"
      "prefill-server: error: argument --expert-parallel-size: 3 is not built yet; a worker of "
      "this build runs 1 rank\n");
  EXPECT_EQ(run(kP, {"--model-path", "/m", "--enable-deepep-moe", "--moe-a2a-backend", "none"}).err,
            "prefill-server: warning: --enable-deepep-moe is deprecated; use --moe-a2a-backend "
            "deepep\n"
            "prefill-server: error: argument --enable-deepep-moe: means --moe-a2a-backend deepep, "
            "which contradicts --moe-a2a-backend none\n");
  EXPECT_TRUE(
      run_yaml(kP, "enable-deepep-moe: false\n", {"--model-path", "/m"}).args.notes.empty());
}

TEST(Resolve, WhatIsForOtherHardwareIsRefusedOrIgnoredByName) {
  const auto model = [](const std::vector<std::string>& words) {
    return with({"--model-path", "/m"}, words);
  };
  EXPECT_EQ(
      run(kP, model({"--enable-lmcache", "--enable-3fs", "yes"})).err,
      "prefill-server: error: argument --enable-lmcache: needs LMCache, which is not available "
      "on this machine or in this build; the built-in counterpart is "
      "--enable-hierarchical-cache\n"
      "prefill-server: error: argument --enable-3fs: needs 3FS, which is not available on this "
      "machine or in this build; the built-in counterpart is --hicache-storage-backend file\n");
  EXPECT_EQ(run(kP, model({"--mooncake-ib-device", "a,,b"})).err,
            "prefill-server: error: argument --mooncake-ib-device: 'a,,b' is not a list of names "
            "with commas between them\n");
  EXPECT_EQ(run(kP, model({"--arm-gemm-use-kai", "maybe"})).err,
            "prefill-server: error: argument --arm-gemm-use-kai: expected true or false, got "
            "'maybe'\n");
  for (const char* word : {"false", "0", "No", "OFF", "f"})
    EXPECT_TRUE(
        run(kP, model({"--arm-gemm-use-kai", word, "--enable-3fs", word})).args.notes.empty());
  for (const char* word : {"true", "1", "Yes", "ON", "t"})
    EXPECT_EQ(run(kP, model({"--arm-gemm-use-kai", word})).args.notes.size(), 1U) << word;
}

struct NoteRow {
  const char* name;
  Program program;
  std::vector<std::string> words;
  const char* want;
};

TEST(Resolve, NoOpsAndFallbacksAreReportedByName) {
  const NoteRow rows[] = {
      {"overlap",
       kP,
       {"--disable-overlap-schedule"},
       "--disable-overlap-schedule has no effect: this engine always runs its steps one after "
       "another"},
      {"no experts",
       kP,
       {"--moe-runner-backend", "auto"},
       "--moe-runner-backend has no effect: the models of this build have no experts"},
      {"balance",
       kD,
       {"--load-balance-method", "shortest_queue"},
       "--load-balance-method has no effect: there is one copy of the model"},
      {"round robin",
       kD,
       {"--prefill-round-robin-balance"},
       "--prefill-round-robin-balance has no effect: there is one copy of the model"},
      {"round robin on the router",
       kR,
       {"--prefill-round-robin-balance"},
       "--prefill-round-robin-balance has no effect: the router itself tells decode which prefill "
       "worker has a "
       "request"},
      {"PD flag in unified mode",
       kD,
       {"--num-reserved-decode-tokens", "9"},
       "--num-reserved-decode-tokens has no effect: --disaggregation-mode is null"},
      {"queue without a limit",
       kR,
       {"--queue-size", "7"},
       "--queue-size has no effect: --max-concurrent-requests sets no limit, so nobody waits"},
      {"sampler of a GPU",
       kP,
       {"--sampling-backend", "flashinfer"},
       "--sampling-backend flashinfer not available here, using pytorch"},
  };
  for (const NoteRow& row : rows) {
    SCOPED_TRACE(row.name);
    const ParseOutcome outcome = run(row.program, with(minimum(row.program), row.words));
    ASSERT_TRUE(runs(outcome)) << outcome.err;
    ASSERT_EQ(outcome.args.notes.size(), 1U);
    EXPECT_EQ(outcome.args.notes[0].text, row.want);
    EXPECT_EQ(outcome.args.notes[0].level, NoteLevel::kInfo);
  }
}

struct ConflictRow {
  const char* name;
  Program program;
  std::vector<std::string> words;
  const char* want;  ///< "": runs
};

void expect_conflicts(const std::vector<ConflictRow>& rows) {
  for (const ConflictRow& row : rows) {
    SCOPED_TRACE(row.name);
    const ParseOutcome outcome = run(row.program, row.words);
    if (std::string(row.want).empty()) {
      EXPECT_TRUE(runs(outcome)) << outcome.err;
    } else {
      EXPECT_EQ(outcome.err,
                std::string(program_name(row.program)) + ": error: " + row.want + "\n");
      EXPECT_EQ(outcome.exit_code, 2);
    }
  }
}

TEST(Resolve, WorkerConflicts) {
  expect_conflicts({
      {"decode role on prefill-server",
       kP,
       {"--model", "/m", "--disaggregation-mode", "decode"},
       "argument --disaggregation-mode: decode contradicts the executable (prefill-server: prefill "
       "or null, "
       "decode-server: decode or null)"},
      {"prefill role on decode-server",
       kD,
       {"--model", "/m", "--disaggregation-mode", "prefill"},
       "argument --disaggregation-mode: prefill contradicts the executable (prefill-server: "
       "prefill or null, "
       "decode-server: decode or null)"},
      {"roles", kD, {"--model", "/m", "--disaggregation-mode", "decode"}, ""},
      {"replicas in a worker",
       kP,
       {"--model", "/m", "--dp", "2"},
       "argument --data-parallel-size: 2 is not built yet inside one worker; router --dp 2 starts "
       "2 workers"},
      {"chunk and page",
       kP,
       {"--model", "/m", "--chunked-prefill-size", "100", "--page-size", "16"},
       "argument --chunked-prefill-size: 100 is not -1 and not a multiple of the page size 16"},
      {"chunk and page, decode role",
       kD,
       {"--model",
        "/m",
        "--chunked-prefill-size",
        "100",
        "--page-size",
        "16",
        "--disaggregation-mode",
        "decode"},
       ""},
      {"pool below a page",
       kP,
       {"--model", "/m", "--max-total-tokens", "15", "--page-size", "16"},
       "argument --max-total-tokens: 15 is smaller than one page (--page-size 16)"},
      {"one port twice",
       kP,
       {"--model", "/m", "--grpc-port", "30000"},
       "argument --grpc-port: is the same as --port; leave it out to serve both on one port"},
      {"bootstrap on the HTTP port",
       kP,
       {"--model", "/m", "--disaggregation-mode", "prefill", "--port", "8998"},
       "argument --disaggregation-bootstrap-port: 8998 is also --port"},
      {"two bootstraps",
       kP,
       {"--model",
        "/m",
        "--disaggregation-mode",
        "prefill",
        "--disaggregation-bootstrap-port",
        "9",
        "--disaggregation-bootstrap-address",
        "h:1"},
       "argument --disaggregation-bootstrap-port: excludes --disaggregation-bootstrap-address: "
       "with an outside service "
       "the embedded one does not run"},
      {"kernels of that attention",
       kP,
       {"--model", "/m", "--kernel-family", "avx2", "--attention-backend", "torch_native"},
       ""},
      {"bootstrap-server has one port",
       kB,
       {"--port", "1", "--disaggregation-bootstrap-port", "2"},
       "argument --disaggregation-bootstrap-port: 2 contradicts --port 1; bootstrap-server listens "
       "on one port"},
      {"a failed value is reported once",
       kP,
       {"--model", "/m", "--page-size", "x", "--chunked-prefill-size", "7"},
       "argument --page-size: invalid int value: 'x' (expected an integer >= 1 and <= 65536)"},
  });
}

TEST(Resolve, RouterConflicts) {
  expect_conflicts({
      {"nothing to serve",
       kR,
       {"--dp", "4"},
       "the argument --model-path is required, or the addresses of running workers (--worker-urls, "
       "or "
       "--pd-disaggregation with --prefill and --decode)"},
      {"own workers", kR, {"--model", "/m", "--dp", "4", "--page-size", "16"}, ""},
      {"own pair",
       kR,
       {"--model", "/m", "--pd-disaggregation", "--num-reserved-decode-tokens", "1"},
       ""},
      {"running workers", kR, {"--worker-urls", "http://a:1"}, ""},
      {"running workers, engine flag",
       kR,
       {"--worker-urls", "http://a:1", "--page-size", "16"},
       "--page-size is an argument of prefill-server and decode-server, not of router that drives "
       "running workers"},
      {"running workers, replica count",
       kR,
       {"--worker-urls", "http://a:1", "--dp", "2"},
       "argument --data-parallel-size: applies to workers that the router starts, and this one "
       "drives running workers"},
      {"urls and pair",
       kR,
       {"--worker-urls", "http://a:1", "--pd-disaggregation"},
       "argument --worker-urls: excludes --pd-disaggregation; give --prefill and --decode instead"},
      {"a worker twice",
       kR,
       {"--worker-urls", "http://a:1", "http://b:1", "http://a:1"},
       "argument --worker-urls: http://a:1 is given twice"},
      {"two ports of one host", kR, {"--worker-urls", "http://a:1", "http://a:2"}, ""},
      {"a prefill worker twice",
       kR,
       {"--pd-disaggregation",
        "--prefill",
        "http://a:1",
        "9",
        "--prefill",
        "http://a:1",
        "--decode",
        "http://b:1"},
       "argument --prefill: http://a:1 is given twice"},
      {"a decode worker twice",
       kR,
       {"--pd-disaggregation",
        "--prefill",
        "http://a:1",
        "--decode",
        "http://b:1",
        "--decode",
        "http://b:1"},
       "argument --decode: http://b:1 is given twice"},
      {"prefill without pd",
       kR,
       {"--prefill", "http://a:1", "--model", "/m"},
       "argument --prefill: needs --pd-disaggregation"},
      {"prefill alone",
       kR,
       {"--pd-disaggregation", "--prefill", "http://a:1"},
       "argument --prefill: needs at least one --decode beside it"},
      {"decode alone",
       kR,
       {"--pd-disaggregation", "--decode", "http://a:1"},
       "argument --decode: needs at least one --prefill beside it"},
      {"prefill workers without pd",
       kR,
       {"--model", "/m", "--prefill-workers", "2"},
       "argument --prefill-workers: needs --pd-disaggregation"},
      {"prefill policy without pd",
       kR,
       {"--model", "/m", "--prefill-policy", "random"},
       "argument --prefill-policy: needs --pd-disaggregation"},
      {"two policies",
       kR,
       {"--model", "/m", "--policy", "random", "--load-balance-method", "round_robin"},
       "argument --policy: random contradicts --load-balance-method; give one of the two"},
      {"the same policy twice",
       kR,
       {"--model", "/m", "--policy", "round_robin", "--load-balance-method", "round_robin"},
       ""},
      {"engine conflict before any worker starts",
       kR,
       {"--model", "/m", "--chunked-prefill-size", "7", "--page-size", "2"},
       "argument --chunked-prefill-size: 7 is not -1 and not a multiple of the page size 2"},
  });
}

// Two arguments for one thing: the one that was given more directly rules, and the other is named.
TEST(Resolve, TheMoreDirectOfTwoArgumentsRules) {
  const std::vector<std::string> model = {"--model-path", "/m"};
  const ParseOutcome method =
      run_yaml(kR, "policy: random\n", with(model, {"--load-balance-method", "round_robin"}));
  ASSERT_TRUE(runs(method)) << method.err;
  EXPECT_EQ(method.args.router.policy, RoutingPolicy::kRoundRobin);
  ASSERT_EQ(method.args.notes.size(), 1U);
  EXPECT_EQ(method.args.notes[0].text, "--load-balance-method counts, not the weaker --policy");
  const ParseOutcome policy =
      run_yaml(kR, "load-balance-method: round_robin\n", with(model, {"--policy", "random"}));
  ASSERT_TRUE(runs(policy)) << policy.err;
  EXPECT_EQ(policy.args.router.policy, RoutingPolicy::kRandom);
  ASSERT_EQ(policy.args.notes.size(), 1U);
  const std::vector<std::string> role = with(model, {"--disaggregation-mode", "prefill"});
  const ParseOutcome both = run_yaml(kP,
                                     "disaggregation-bootstrap-port: 9\n"
                                     "disaggregation-bootstrap-address: h:1\n",
                                     role);
  EXPECT_EQ(both.exit_code, 2);
  const ParseOutcome address = run_yaml(kP,
                                        "disaggregation-bootstrap-port: 9\n",
                                        with(role, {"--disaggregation-bootstrap-address", "h:1"}));
  ASSERT_TRUE(runs(address)) << address.err;
  ASSERT_EQ(address.args.notes.size(), 1U);
  EXPECT_EQ(address.args.notes[0].text,
            "--disaggregation-bootstrap-port has no effect: --disaggregation-bootstrap-address "
            "names an outside service");
}

TEST(Resolve, RouterPolicies) {
  struct Row {
    std::vector<std::string> words;
    RoutingPolicy policy;
    RoutingPolicy prefill;
  };

  const Row rows[] = {
      {{}, RoutingPolicy::kCacheAware, RoutingPolicy::kCacheAware},
      {{"--load-balance-method", "round_robin"},
       RoutingPolicy::kRoundRobin,
       RoutingPolicy::kRoundRobin},
      {{"--load-balance-method", "shortest_queue"},
       RoutingPolicy::kLeastLoad,
       RoutingPolicy::kLeastLoad},
      {{"--policy", "random"}, RoutingPolicy::kRandom, RoutingPolicy::kRandom},
      {{"--policy", "random", "--pd-disaggregation", "--prefill-policy", "round_robin"},
       RoutingPolicy::kRandom,
       RoutingPolicy::kRoundRobin},
  };
  for (const Row& row : rows) {
    const ParseOutcome outcome = run(kR, with({"--model-path", "/m"}, row.words));
    ASSERT_TRUE(runs(outcome)) << outcome.err;
    EXPECT_EQ(outcome.args.router.policy, row.policy);
    EXPECT_EQ(outcome.args.router.prefill_policy, row.prefill);
  }
}

TEST(Resolve, PortZeroAsksTheSystemForAllPorts) {
  const std::vector<std::string> role = {
      "--model-path", "/m", "--disaggregation-mode", "prefill", "--port", "0"};
  EXPECT_EQ(run(kP, role).args.disaggregation.bootstrap_port, 0);
  EXPECT_EQ(run(kP, with(role, {"--disaggregation-bootstrap-port", "9"}))
                .args.disaggregation.bootstrap_port,
            9);
  EXPECT_EQ(run(kB, {"--port", "0"}).args.disaggregation.bootstrap_port, 0);
  EXPECT_EQ(run(kB, {}).args.server.port, 8998);
}

}  // namespace
}  // namespace tandem::args
