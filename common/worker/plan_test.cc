// The memory plan of the shipped model: what is counted, what fits, and what is named when nothing
// does.
#include "common/worker/plan.h"

#include "common/args/args.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <regex>
#include <string>
#include <vector>

namespace tandem::worker {
namespace {

using ::testing::HasSubstr;

const std::string kModel = std::string(TANDEM_SOURCE_DIR) + "/assets/demo-model";
constexpr std::uint64_t kMemory = 1U << 30U;

// One kernel family, so that packed sizes are the same on every CPU.
args::Arguments arguments(const std::vector<std::string>& words, const char* family = "reference") {
  std::vector<const char*> argv = {
      "prefill-server", "--model-path", kModel.c_str(), "--kernel-family", family};
  for (const std::string& word : words)
    argv.push_back(word.c_str());
  args::ParseOutcome outcome = args::parse(
      args::Program::kPrefill, static_cast<int>(argv.size()), argv.data(), args::Environment{});
  EXPECT_EQ(outcome.action, args::ParseOutcome::Action::kRun) << outcome.err;
  return outcome.args;
}

// --attention-backend intel_amx is taken where the arguments find AMX, and must mean the family
// then.
TEST(Plan, ArgumentsAndKernelsFindAmxAlike) {
  EXPECT_EQ(args::Environment::system().has_amx,
            kernels::select(kernels::Family::kAmx, nullptr) != nullptr);
}

TEST(Plan, EveryPartHasBytesAndTheyAddUp) {
  const auto plan = make_plan(arguments({"--page-size", "16"}), kMemory);
  ASSERT_TRUE(plan.ok()) << plan.status().message();
  const auto facts = read_checkpoint_facts(kModel, kernels::DType::kBf16);
  ASSERT_TRUE(facts.ok()) << facts.status().message();
  EXPECT_EQ(facts->tensor_count, 57U);
  const std::string text = plan_text(*plan, &*facts);
  std::uint64_t sum = 0;
  std::uint64_t total = 0;
  const std::regex row(R"(  ([a-zA-Z ]+?) +(\d+) bytes  \S.*)");
  for (auto it = std::sregex_iterator(text.begin(), text.end(), row); it != std::sregex_iterator();
       ++it) {
    const std::uint64_t bytes = std::stoull((*it)[2]);
    if ((*it)[1] == "total") {
      total = bytes;
    } else if ((*it)[1] != "checkpoint") {
      sum += bytes;
    }
  }
  EXPECT_EQ(sum, total) << text;
  EXPECT_EQ(total, plan->total_bytes());
  EXPECT_THAT(text, HasSubstr(std::to_string(facts->byte_count) + " bytes  57 tensors"));
  EXPECT_THAT(plan_text(*plan, nullptr), HasSubstr("no weight files"));
}

struct ChunkRow {
  std::vector<std::string> words;
  std::int32_t want;
};

void expect_chunks(const char* family, const std::vector<ChunkRow>& rows) {
  for (const ChunkRow& row : rows) {
    const auto plan = make_plan(arguments(row.words, family), kMemory);
    ASSERT_TRUE(plan.ok()) << plan.status().message();
    EXPECT_EQ(plan->chunk_beside_decodes, row.want);
  }
}

TEST(Plan, AChunkThatNobodyAskedForIsShortBesideDecodes) {
  expect_chunks("reference",
                {{{}, 128},
                 {{"--page-size", "48"}, 96},
                 {{"--page-size", "512"}, 512},
                 {{"--chunked-prefill-size", "1024"}, 0},
                 {{"--chunked-prefill-size", "-1"}, 0}});
}

TEST(Plan, SuchAChunkIsLongerOnTiles) {
  std::string why;
  if (kernels::select(kernels::Family::kAmx, &why) == nullptr) GTEST_SKIP() << why;
  expect_chunks("amx",
                {{{}, 256},
                 {{"--page-size", "48"}, 240},
                 {{"--page-size", "512"}, 512},
                 {{"--chunked-prefill-size", "1024"}, 0},
                 {{"--chunked-prefill-size", "-1"}, 0}});
}

// The shipped model's sizes with experts in all layers but the first.
TEST(Plan, ExpertsAreCounted) {
  const auto plan_with = [](int experts) {
    return make_plan(
        arguments({"--json-model-override-args",
                   R"({"architectures": ["Qwen3MoeForCausalLM"], "num_experts_per_tok": 2,
                       "moe_intermediate_size": 100, "mlp_only_layers": [0], "num_experts": )" +
                       std::to_string(experts) + "}"}),
        kMemory);
  };
  const auto four = plan_with(4);
  ASSERT_TRUE(four.ok()) << four.status().message();
  const auto six = plan_with(6);
  ASSERT_TRUE(six.ok()) << six.status().message();
  const model::ModelConfig& config = four->config;
  const auto hidden = static_cast<std::uint64_t>(config.hidden_size);
  const auto layers = static_cast<std::uint64_t>(config.layer_count) - 1;
  // Three bf16 matrices, of whole cache lines here, and a row of the f32 router.
  EXPECT_EQ(six->memory.weight_bytes - four->memory.weight_bytes,
            2 * layers * (3 * 100 * hidden * 2 + hidden * 4));
  const std::string text = plan_text(*four, nullptr);
  EXPECT_THAT(text, HasSubstr(" + 1 x (gate, up "));
  EXPECT_THAT(text,
              HasSubstr(" + 4 experts x " + std::to_string(layers) + " x (gate, up 200 x " +
                        std::to_string(hidden) + " + down " + std::to_string(hidden) + " x 100)"));
}

TEST(Plan, LargestContextAndBatchFitAndOneMoreDoesNot) {
  const std::vector<std::string> words = {"--page-size", "16", "--mem-fraction-static", "0.1"};
  const auto plan = make_plan(arguments(words), kMemory);
  ASSERT_TRUE(plan.ok()) << plan.status().message();
  // All pages of this pool, which nobody capped.
  EXPECT_EQ(plan->largest_batch, plan->max_total_tokens / plan->context_length);
  EXPECT_GT(plan->largest_context, plan->context_length / 2);
  EXPECT_LT(plan->largest_context, plan->max_total_tokens + plan->context_length);
  const auto pool_for = [&words](std::int64_t context) {
    std::vector<std::string> longer = words;
    const std::string override = R"({"max_position_embeddings": )" + std::to_string(context) + "}";
    longer.insert(longer.end(), {"--json-model-override-args", override});
    const auto other = make_plan(arguments(longer), kMemory);
    return other.ok() ? other->max_total_tokens : 0;
  };
  EXPECT_GE(pool_for(plan->largest_context), plan->largest_context);
  EXPECT_LT(pool_for(plan->largest_context + 1), plan->largest_context + 1);
}

struct Remedy {
  std::string flag;
  std::string value;
};

/// The values that a refusal names.
std::vector<Remedy> remedies_of(const std::string& text) {
  std::vector<Remedy> found;
  const std::string tail = text.substr(text.find("nothing is left"));
  const std::regex pattern(R"((--[a-z-]+) (?:above )?([0-9.]+))");
  for (auto it = std::sregex_iterator(tail.begin(), tail.end(), pattern);
       it != std::sregex_iterator();
       ++it)
    found.push_back({(*it)[1], (*it)[2]});
  return found;
}

// Each value that is named makes the plan fit, and for whole numbers it is the nearest that does.
TEST(Plan, WhatDoesNotFitNamesTheNearestValuesThatDo) {
  const std::vector<std::string> words = {"--max-running-requests",
                                          "1024",
                                          "--chunked-prefill-size",
                                          "4096",
                                          "--mem-fraction-static",
                                          "0.025"};
  const auto refused = make_plan(arguments(words), kMemory);
  ASSERT_FALSE(refused.ok());
  EXPECT_EQ(refused.status().code(), Code::kInvalidArgument);
  const std::string text = refused.status().message();
  EXPECT_EQ(text.find('\n'), std::string::npos);
  const std::vector<Remedy> remedies = remedies_of(text);
  ASSERT_GE(remedies.size(), 3U) << text;
  for (const Remedy& remedy : remedies) {
    SCOPED_TRACE(remedy.flag + " " + remedy.value + " of: " + text);
    const auto with = [&words, &remedy](const std::string& value) {
      std::vector<std::string> changed = {remedy.flag, value};
      for (std::size_t i = 0; i < words.size(); i += 2) {
        if (words[i] != remedy.flag) changed.insert(changed.end(), {words[i], words[i + 1]});
      }
      return make_plan(arguments(changed), kMemory).ok();
    };
    EXPECT_TRUE(with(remedy.value));
    const bool whole = remedy.value.find('.') == std::string::npos;
    EXPECT_FALSE(with(whole ? std::to_string(std::stoll(remedy.value) + 1)
                            : std::to_string(std::stod(remedy.value) - 0.0002)));
  }
}

TEST(Plan, NoRemedyWhereTheWeightsAloneAreTooLarge) {
  const auto refused = make_plan(arguments({}), 1U << 20U);
  ASSERT_FALSE(refused.ok());
  EXPECT_THAT(refused.status().message(), HasSubstr("use a smaller model"));
}

TEST(Plan, AFolderWithoutWeightsIsTold) {
  EXPECT_EQ(read_checkpoint_facts("/nowhere", kernels::DType::kBf16).status().code(),
            Code::kNotFound);
}

}  // namespace
}  // namespace tandem::worker
