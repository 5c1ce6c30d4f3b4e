// The statements of the documents that are not single arguments: each that is about arguments is a
// test here, is held by the named test elsewhere, or waits for an argument that is refused by name.
#include "common/args/args.h"
#include "common/args/spec.h"
#include "common/args/test_support.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <yaml-cpp/yaml.h>

#include <cstdlib>
#include <filesystem>
#include <functional>
#include <map>
#include <set>
#include <string>
#include <tuple>
#include <vector>

namespace tandem::args {
namespace {

using namespace testing;  // NOLINT(google-build-using-namespace)
using ::testing::HasSubstr;

constexpr Program kP = Program::kPrefill;
constexpr Program kD = Program::kDecode;
constexpr Program kR = Program::kRouter;
constexpr Program kB = Program::kBootstrap;

std::string behaviours_path() {
  const char* folder = std::getenv("TANDEM_SHARED_DIR");
  return (folder != nullptr ? std::string(folder) : std::string(TANDEM_SOURCE_DIR) + "/../shared") +
         "/arguments/behaviours.yaml";
}

const std::vector<std::string> kModel = {"--model-path", "/m"};

void expect_error(const ParseOutcome& outcome, const std::string& text) {
  EXPECT_EQ(outcome.exit_code, 2);
  EXPECT_THAT(outcome.err, HasSubstr(text));
}

void config_cli_wins() {
  const auto outcome = run_yaml(kP, "port: 30000\n", with(kModel, {"--port", "31000"}));
  ASSERT_TRUE(runs(outcome)) << outcome.err;
  EXPECT_EQ(outcome.args.server.port, 31000);
  EXPECT_EQ(dumped(outcome).at("argument_sources").at("port"), "cli");
}

void config_example_file() {
  // Two ranks are what this build does not have; all else takes effect as the flags would.
  const std::string rest =
      "model-path: /m\nhost: 0.0.0.0\nport: 30000\nenable-metrics: true\nlog-requests: true\n";
  for (const Program program : {kR, kP, kD}) {
    expect_error(run_yaml(program, rest + "tensor-parallel-size: 2\n"),
                 "--tensor-parallel-size: 2 is not built yet");
    auto file = dumped(run_yaml(program, rest + "tensor-parallel-size: 1\n"));
    auto flags = dumped(run(program,
                            with(kModel,
                                 {"--host",
                                  "0.0.0.0",
                                  "--port",
                                  "30000",
                                  "--tensor-parallel-size",
                                  "1",
                                  "--enable-metrics",
                                  "--log-requests"})));
    for (auto* dump : {&file, &flags}) {
      dump->erase("argument_sources");
      dump->erase("config");
    }
    EXPECT_EQ(file, flags);
  }
}

void config_boolean_false() {
  const auto outcome = run_yaml(kP, "enable-metrics: false\n", kModel);
  ASSERT_TRUE(runs(outcome)) << outcome.err;
  EXPECT_FALSE(outcome.args.observability.enable_metrics);
}

void config_lists() {
  const auto two = run_yaml(kR, "worker-urls: [http://a:1, http://b:2]\n");
  ASSERT_TRUE(runs(two)) << two.err;
  EXPECT_EQ(two.args.router.worker_urls, (std::vector<std::string>{"http://a:1", "http://b:2"}));
  const auto none = run_yaml(kR, "worker-urls: []\n", kModel);
  ASSERT_TRUE(runs(none)) << none.err;
  EXPECT_FALSE(none.args.is_explicit("worker_urls"));
  expect_error(run_yaml(kP, "cuda-graph-bs: [1, 2, 4]\n", kModel),
               "--cuda-graph-bs is known, but not built yet");
}

void config_nested_json() {
  const auto outcome = run_yaml(kP, "json-model-override-args: {num_hidden_layers: 2}\n", kModel);
  ASSERT_TRUE(runs(outcome)) << outcome.err;
  EXPECT_EQ(nlohmann::json::parse(outcome.args.model.json_model_override_args),
            nlohmann::json({{"num_hidden_layers", 2}}));
}

void config_errors() {
  const TempFolder folder;
  const std::string good = folder.write("a.yaml", "port: 1\n");
  const std::string text = folder.write("a.txt", "port: 1\n");
  const std::string list = folder.write("list.yaml", "[1, 2]\n");
  for (const Program program : kAllPrograms) {
    expect_error(run(program, with(minimum(program), {"--config", folder.path("none.yaml")})),
                 "not found");
    expect_error(run(program, with(minimum(program), {"--config", text})), ".yaml");
    expect_error(run(program, with(minimum(program), {"--config", list})), "mapping");
    expect_error(run(program, with(minimum(program), {"--config", good, "--config", good})),
                 "more than once");
    expect_error(run(program, with(minimum(program), {"--config"})), "expected one argument");
  }
}

void config_empty() {
  for (const Program program : kAllPrograms)
    EXPECT_TRUE(runs(run_yaml(program, "", minimum(program))));
}

void config_shared_by_services() {
  const std::string yaml =
      "model-path: /m\npage-size: 16\nnum-reserved-decode-tokens: 7\npolicy: random\n";
  EXPECT_EQ(run_yaml(kR, yaml).args.router.policy, RoutingPolicy::kRandom);
  EXPECT_EQ(run_yaml(kP, yaml).args.kv_cache.page_size, 16U);
  EXPECT_EQ(run_yaml(kD, yaml).args.disaggregation.num_reserved_decode_tokens, 7U);
  EXPECT_TRUE(runs(run_yaml(kB, yaml)));
  for (const Program program : kAllPrograms)
    expect_error(run_yaml(program, yaml + "page-sise: 1\n"), "page-sise");
}

void required_model_path() {
  for (const Program program : {kR, kP, kD})
    expect_error(run(program, {}), "the argument --model-path is required");
}

void short_forms() {
  EXPECT_EQ(run(kR, with(kModel, {"--dp", "2"})).args.parallel.dp_size, 2U);
  EXPECT_EQ(run(kR, with(kModel, {"--data-parallel-size", "2"})).args.parallel.dp_size, 2U);
  EXPECT_EQ(run(kP, with(kModel, {"--tp", "2"})).err,
            run(kP, with(kModel, {"--tensor-parallel-size", "2"})).err);
}

void dp_with_tp() {
  expect_error(run(kR, with(kModel, {"--dp", "2", "--tp", "2"})),
               "--tensor-parallel-size: 2 is not built yet");
  EXPECT_EQ(run(kR, with(kModel, {"--dp", "2", "--tp", "1"})).args.parallel.dp_size, 2U);
}

void mem_fraction_default() {
  const auto outcome = run(kP, kModel);
  EXPECT_EQ(outcome.args.kv_cache.mem_fraction_static, 0.9);
  EXPECT_EQ(dumped(outcome).at("argument_sources").at("mem_fraction_static"), "computed");
}

void fp8_kv_example() {
  const auto outcome = run(kP, with(kModel, {"--kv-cache-dtype", "fp8_e5m2"}));
  EXPECT_EQ(outcome.args.kv_cache.kv_cache_dtype, KvCacheDType::kFp8E5m2);
}

void load_format_fallback() {
  expect_error(run(kP, with(kModel, {"--load-format", "pt"})),
               "argument --load-format: pt is known, but not built yet");
}

/// Nothing of FP8 happens silently: the choice is refused by name.
void fp8_is_refused() {
  expect_error(run(kP, {"--model-path", "/m", "--quantization", "fp8"}),
               "argument --quantization: fp8 is known, but not built yet");
}

void min_tokens_needs_dp_attention() {
  expect_error(run(kR, with(kModel, {"--load-balance-method", "minimum_tokens"})),
               "minimum_tokens needs --enable-dp-attention");
}

void deprecated_moe_switches() {
  const ParseOutcome mapped = run(kP, with(kModel, {"--enable-ep-moe"}));
  ASSERT_TRUE(runs(mapped)) << mapped.err;
  EXPECT_EQ(mapped.args.notes.at(0).text,
            "--enable-ep-moe is deprecated; use --ep-size set to the value of --tp-size");
  EXPECT_EQ(dumped(mapped)["argument_sources"]["ep_size"], "cli");
  for (const auto& [old, flag, value] :
       {std::tuple{"deepep", "--moe-a2a-backend ", "deepep"},
        {"flashinfer-cutlass", "--moe-runner-backend ", "flashinfer_cutlass"},
        {"flashinfer-cutedsl", "--moe-runner-backend ", "flashinfer_cutedsl"},
        {"flashinfer-trtllm", "--moe-runner-backend ", "flashinfer_trtllm"},
        {"triton-kernel", "--moe-runner-backend ", "triton_kernel"},
        {"flashinfer-mxfp4", "--moe-runner-backend ", "flashinfer_mxfp4"}}) {
    const std::string name = "enable-" + std::string(old) + "-moe";
    const std::string want =
        "argument --" + name + ": means " + flag + value + ": " + value + " needs a CUDA device";
    expect_error(run(kP, with(kModel, {"--" + name})), want);
    const ParseOutcome file = run_yaml(kP, name + ": true\n", kModel);
    expect_error(file, want);
    EXPECT_NE(file.err.find("(c.yaml:1:"), std::string::npos) << file.err;
  }
}

/// Both spellings of everything, whatever its dialect; the name in the message shows that it was
/// found.
void rtp_spelling() {
  Arguments args;
  const Registry registry(args);
  for (const Entry& entry : registry.entries()) {
    std::vector<std::string> names = {std::string(entry.spec.name)};
    for (std::string_view alias : split_list(entry.spec.aliases))
      names.emplace_back(alias);
    for (std::string name : names) {
      for (const auto& [from, to] : {std::pair{'-', '_'}, std::pair{'_', '-'}}) {
        std::replace(name.begin(), name.end(), from, to);
        EXPECT_EQ(registry.find(name), &entry) << name;
      }
    }
  }
  expect_error(run(kP, with(kModel, {"--eplb-mode", "1"})), "--eplb_mode is known, but not built");
  expect_error(run(kP, with(kModel, {"--eplb_mode", "1"})), "--eplb_mode is known, but not built");
}

void rtp_defaults_explicit_only() {
  Arguments args;
  const Registry registry(args);
  for (const Entry& entry : registry.entries()) {
    if (!entry.spec.explicit_only) continue;
    EXPECT_FALSE(run(kP, kModel).args.is_explicit(entry.dest)) << entry.spec.name;
  }
  // Prefix cache on and no limit of 32 at the front.
  EXPECT_FALSE(run(kP, kModel).args.kv_cache.disable_radix_cache);
  EXPECT_EQ(run(kR, kModel).args.router.max_concurrent_requests, -1);
}

/// A variable of an argument that is not built has no effect and says so; the built ones work.
void env_rtp_flags() {
  Arguments args;
  const Registry registry(args);
  std::size_t told = 0;
  for (const Entry& entry : registry.entries()) {
    if (entry.spec.env.empty() || entry.built() || (entry.spec.services & kUnified) == 0) continue;
    const auto outcome = run(kP, kModel, machine({{std::string(entry.spec.env), "1"}}));
    ASSERT_TRUE(runs(outcome)) << outcome.err;
    ASSERT_EQ(outcome.args.notes.size(), 1U) << entry.spec.name;
    EXPECT_THAT(outcome.args.notes[0].text, HasSubstr(entry.flag() + ", which is known"));
    EXPECT_THAT(outcome.args.notes[0].text, HasSubstr(std::string(entry.spec.env)));
    ++told;
  }
  EXPECT_GT(told, 50U);
  const auto level = run(kP, kModel, machine({{"LOG_LEVEL", "error"}}));
  EXPECT_EQ(level.args.observability.log_level, LogLevel::kError);
}

/// What holds a statement: a function here, or the name of a test elsewhere.
struct Holder {
  std::function<void()> here;
  std::string elsewhere = {};
};

const std::map<std::string, Holder>& holders() {
  static const std::map<std::string, Holder> kHolders = {
      {"config-cli-wins", {config_cli_wins}},
      {"config-example-file", {config_example_file}},
      {"config-boolean-false", {config_boolean_false}},
      {"config-lists", {config_lists}},
      {"config-nested-json", {config_nested_json}},
      {"config-errors", {config_errors}},
      {"config-empty", {config_empty}},
      {"config-shared-by-services", {config_shared_by_services}},
      {"help-lists-everything", {{}, "common/args/schema_test.cc: Schema.HelpListsEveryName"}},
      {"required-model-path", {required_model_path}},
      {"short-forms", {short_forms}},
      {"dp-with-tp", {dp_with_tp}},
      {"router-preferred-for-dp",
       {{}, "tests/arguments/test_effects_router.py: test_data_parallel_size"}},
      {"oom-hint-mem-fraction",
       {{}, "tests/arguments/test_effects_engine.py: test_mem_fraction_static"}},
      {"oom-hint-chunked-prefill",
       {{},
        "nothing to hint at: the buffers of a chunk are in the plan and allocated before serving, "
        "so memory cannot run out in the prefill of a long prompt (common/worker/plan.cc)"}},
      {"mem-fraction-default", {mem_fraction_default}},
      {"fp8-kv-example", {fp8_kv_example}},
      {"custom-chat-template", {{}, "tests/arguments/test_effects_model.py: test_chat_template"}},
      {"rtp-spelling", {rtp_spelling}},
      {"rtp-defaults-explicit-only", {rtp_defaults_explicit_only}},
      {"env-rtp-flags", {env_rtp_flags}},
      {"load-format-fallback", {load_format_fallback}},
      {"max-prefill-bound",
       {{}, "tests/arguments/test_effects_engine.py: test_max_prefill_tokens"}},
      {"min-tokens-needs-dp-attention", {min_tokens_needs_dp_attention}},
      {"deprecated-moe-switches", {deprecated_moe_switches}},
      {"torchao-example",
       {{}, "tests/arguments/test_effects_quantization.py: test_torchao_config"}},
      {"fp8-from-fp16", {fp8_is_refused}},
      {"fp8-checkpoint-auto", {fp8_is_refused}},
  };
  return kHolders;
}

/// The program that takes an argument first of the engine's, then of the others.
Program taker(Services services) {
  if ((services & (kPrefill | kUnified)) != 0) return kP;
  if ((services & kDecode) != 0) return kD;
  return (services & kRouter) != 0 ? kR : kB;
}

/// The statement cannot be broken as long as the arguments that it is about are refused.
void expect_waiting(const YAML::Node& statement) {
  Arguments args;
  const Registry registry(args);
  std::size_t refused = 0;
  for (const YAML::Node& flag : statement["flags"]) {
    const Entry* entry = registry.find(flag.as<std::string>().substr(2));
    ASSERT_NE(entry, nullptr) << flag;
    if (entry->built()) continue;
    ++refused;
    const Program program = taker(entry->spec.services);
    auto words = with(minimum(program), {entry->flag()});
    if (!entry->is_switch()) {
      words.emplace_back(entry->spec.choices.empty()
                             ? std::string(entry->type == "bool" ? "true" : "1")
                             : std::string(split_list(entry->spec.choices).back()));
    }
    expect_error(run(program, words), entry->flag() + " is known, but not built yet");
  }
  EXPECT_GT(refused, 0U) << "every argument of this statement is built: say here what holds it";
}

TEST(Behaviours, EachStatementAboutArgumentsIsHeldOrWaitsForAnArgument) {
  if (!std::filesystem::exists(behaviours_path())) GTEST_SKIP() << "skipped: ../shared is not here";
  const std::set<std::string> kinds = {
      "config-file", "cli", "launch-note", "environment", "row-rule"};
  const YAML::Node file = YAML::LoadFile(behaviours_path());
  std::set<std::string> used;
  std::size_t statements = 0;
  for (const YAML::Node& statement : file["behaviours"]) {
    if (kinds.count(statement["kind"].as<std::string>()) == 0) continue;
    const auto id = statement["id"].as<std::string>();
    SCOPED_TRACE(id);
    ++statements;
    const auto found = holders().find(id);
    if (found == holders().end()) {
      expect_waiting(statement);
      continue;
    }
    used.insert(id);
    if (found->second.here) found->second.here();
  }
  EXPECT_GE(statements, 70U);
  EXPECT_EQ(used.size(), holders().size()) << "a statement is gone: take it off the list";
}

/// A test that is named must be there.
TEST(Behaviours, TestsElsewhereExist) {
  for (const auto& [id, holder] : holders()) {
    const std::size_t colon = holder.elsewhere.find(": ");
    if (holder.elsewhere.find('/') == std::string::npos || colon == std::string::npos ||
        holder.elsewhere.find(' ') < colon)
      continue;
    const std::string path =
        std::string(TANDEM_SOURCE_DIR) + "/" + holder.elsewhere.substr(0, colon);
    std::string name = holder.elsewhere.substr(colon + 2);
    name = name.substr(name.find('.') == std::string::npos ? 0 : name.find('.') + 1);
    std::ifstream text(path);
    ASSERT_TRUE(text) << path;
    const std::string all((std::istreambuf_iterator<char>(text)), std::istreambuf_iterator<char>());
    EXPECT_THAT(all, HasSubstr(name)) << id;
  }
}

}  // namespace
}  // namespace tandem::args
