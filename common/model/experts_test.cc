// Qwen3-MoE: which layers have experts, what is asked of the file for them, and what they weigh.
#include "common/model/architecture.h"
#include "common/model/config.h"
#include "common/model/decoder_weights.h"
#include "common/model/memory_plan.h"
#include "common/model/workspace.h"

#include <gtest/gtest.h>

#include <set>
#include <string>
#include <string_view>
#include <vector>

namespace tandem::model {
namespace {

constexpr std::string_view kBase = R"({
  "architectures": ["Qwen3MoeForCausalLM"], "vocab_size": 40, "hidden_size": 24,
  "intermediate_size": 36, "num_hidden_layers": 4, "num_attention_heads": 4,
  "num_key_value_heads": 2, "max_position_embeddings": 64, "torch_dtype": "bfloat16",
  "num_experts": 6, "num_experts_per_tok": 2, "moe_intermediate_size": 20})";

Result<ModelConfig> with(std::string_view overrides) {
  return parse_config(kBase, "", overrides);
}

TEST(Experts, ConfigReadsSizes) {
  const auto config = with(R"({"norm_topk_prob":true})");
  ASSERT_TRUE(config.ok()) << config.status().message();
  EXPECT_EQ(config->experts.count, 6);
  EXPECT_EQ(config->experts.per_token, 2);
  EXPECT_EQ(config->experts.intermediate_size, 20);
  EXPECT_TRUE(config->experts.normalize);
  EXPECT_TRUE(config->qk_norm);
  EXPECT_FALSE(config->qkv_bias);
  EXPECT_EQ(config->head_dim, 6) << "hidden_size / heads, unlike the dense Qwen3";
  EXPECT_FALSE(with("")->experts.normalize) << "the default of transformers";
  EXPECT_TRUE(with(R"({"attention_bias":true})")->output_bias);
  const auto renamed = with(R"({"num_experts":null,"num_local_experts":3})");
  ASSERT_TRUE(renamed.ok()) << renamed.status().message();
  EXPECT_EQ(renamed->experts.count, 3);
}

TEST(Experts, ConfigChoosesLayers) {
  struct Row {
    const char* overrides;
    std::vector<bool> layers;
  };

  const Row rows[] = {
      {"", {true, true, true, true}},
      {R"({"mlp_only_layers":null})", {true, true, true, true}},
      {R"({"mlp_only_layers":[0,2]})", {false, true, false, true}},
      // Counted from 1: the second, the fourth.
      {R"({"decoder_sparse_step":2})", {false, true, false, true}},
      {R"({"decoder_sparse_step":3})", {false, false, true, false}},
      {R"({"decoder_sparse_step":2,"mlp_only_layers":[3]})", {false, true, false, false}},
      {R"({"decoder_sparse_step":9})", {false, false, false, false}},
      {R"({"num_hidden_layers":2,"mlp_only_layers":[1,3]})", {true, false}},
      {R"({"num_experts":0})", {false, false, false, false}},
  };
  for (const Row& row : rows) {
    SCOPED_TRACE(row.overrides);
    const auto config = with(row.overrides);
    ASSERT_TRUE(config.ok()) << config.status().message();
    std::vector<bool> got;
    for (std::int64_t layer = 0; layer < config->layer_count; ++layer)
      got.push_back(config->has_experts(layer));
    EXPECT_EQ(got, row.layers);
    EXPECT_EQ(config->expert_layer_count(), std::count(got.begin(), got.end(), true));
  }
}

TEST(Experts, ConfigPutsAWindowOnEveryLayer) {
  const std::vector<std::int32_t> none(4, 0);
  EXPECT_EQ(with(R"({"sliding_window":7})")->window, none) << "needs use_sliding_window";
  EXPECT_EQ(with(R"({"sliding_window":null,"use_sliding_window":true})")->window, none);
  EXPECT_EQ(with(R"({"sliding_window":7,"use_sliding_window":true,"max_window_layers":2})")->window,
            std::vector<std::int32_t>(4, 7));
}

TEST(Experts, ConfigNamesFieldValueAndExpectation) {
  struct Row {
    const char* overrides;
    std::vector<const char*> words;
  };

  const Row rows[] = {
      {R"({"num_experts":null})", {"num_experts", "null"}},
      {R"({"num_experts":-1})", {"num_experts", "-1"}},
      {R"({"num_experts":"8"})", {"num_experts", "string \"8\""}},
      {R"({"num_experts":2000})", {"num_experts", "2000", "1024"}},
      {R"({"num_experts_per_tok":0})", {"num_experts_per_tok", "from 1", "0"}},
      {R"({"num_experts_per_tok":7})", {"num_experts_per_tok", "7", "num_experts = 6"}},
      {R"({"num_experts_per_tok":null})", {"num_experts_per_tok"}},
      {R"({"moe_intermediate_size":0})", {"moe_intermediate_size", "0"}},
      {R"({"moe_intermediate_size":1.5})", {"moe_intermediate_size", "1.5"}},
      {R"({"norm_topk_prob":"yes"})", {"norm_topk_prob", "\"yes\""}},
      {R"({"decoder_sparse_step":0})", {"decoder_sparse_step", "0"}},
      {R"({"mlp_only_layers":3})", {"mlp_only_layers", "3"}},
      {R"({"mlp_only_layers":[0,-1]})", {"mlp_only_layers[1]", "-1"}},
      {R"({"mlp_only_layers":["all"]})", {"mlp_only_layers[0]", "all"}},
  };
  for (const Row& row : rows) {
    SCOPED_TRACE(row.overrides);
    const auto config = with(row.overrides);
    ASSERT_FALSE(config.ok());
    const std::string message = config.status().message();
    EXPECT_EQ(message.rfind("config.json: ", 0), 0U) << message;
    for (const char* word : row.words)
      EXPECT_NE(message.find(word), std::string::npos) << "no \"" << word << "\" in: " << message;
  }
  std::string text(kBase);
  text.replace(text.find("num_experts\""), 3, "zzz");
  EXPECT_NE(parse_config(text, "", "").status().message().find("num_experts: missing"),
            std::string::npos)
      << parse_config(text, "", "").status().message();
}

TEST(Experts, CanonicalTextChangesWithWhatIsComputed) {
  const std::string base = with("")->canonical_text();
  for (const char* overrides : {R"({"num_experts":7})",
                                R"({"num_experts_per_tok":3})",
                                R"({"moe_intermediate_size":21})",
                                R"({"norm_topk_prob":true})",
                                R"({"mlp_only_layers":[1]})"})
    EXPECT_NE(base, with(overrides)->canonical_text()) << overrides;
  EXPECT_EQ(base, with(R"({"router_aux_loss_coef":0.5})")->canonical_text());
  EXPECT_EQ(with(R"({"num_experts":0})")->canonical_text().find("experts"), std::string::npos);
}

/// Random weights, and a note of what was asked for.
class NotingSource final : public WeightSource {
 public:
  Result<SourceMatrix> matrix(std::string_view name, MatrixShape shape) override {
    names.insert(std::string(name));
    if (name == fails) return not_found("tensor '" + fails + "': missing");
    return inner_.matrix(name, shape);
  }

  Result<std::vector<float>> vector(std::string_view name, std::int64_t size) override {
    return inner_.vector(name, size);
  }

  std::set<std::string> names;
  std::string fails;

 private:
  DummySource inner_{1, kernels::DType::kBf16};
};

/// What it takes at most: bf16 that is kept in less may turn out not to fit.
std::uint64_t bytes_of(const kernels::PackedWeight* weight, const kernels::Backend& backend) {
  if (weight == nullptr) return 0;
  if (weight->scheme() != kernels::WeightScheme::kShortBf16) return weight->bytes();
  const std::uint64_t bytes = kernels::stacked_bytes(
      weight->count(), backend.packed_bytes(weight->n(), weight->k(), kernels::DType::kBf16));
  return bytes;
}

std::uint64_t bytes_of(const std::vector<float>& floats) {
  return floats.size() * sizeof(float);
}

std::uint64_t bytes_of(const DecoderWeights& decoder, const kernels::Backend& backend) {
  std::uint64_t sum =
      bytes_of(decoder.final_norm) + bytes_of(decoder.lm_head.weight.get(), backend);
  for (const LayerWeights& layer : decoder.layers) {
    for (const Linear* linear : {&layer.qkv, &layer.output, &layer.gate_up, &layer.down})
      sum += bytes_of(linear->weight.get(), backend) + bytes_of(linear->bias);
    for (const auto* norm :
         {&layer.input_norm, &layer.query_norm, &layer.key_norm, &layer.post_attention_norm})
      sum += bytes_of(*norm);
    const ExpertWeights& experts = layer.experts;
    for (const auto* weight : {&experts.router, &experts.gate, &experts.up, &experts.down})
      sum += bytes_of(weight->get(), backend);
  }
  return sum;
}

TEST(Experts, PlanCountsToTheByteWhatIsLoaded) {
  kernels::ThreadPool pool(1);
  for (const char* overrides :
       {"", R"({"mlp_only_layers":[1]})", R"({"num_experts":0})", R"({"attention_bias":true})"}) {
    for (const kernels::Family family : kernels::available_families()) {
      for (const auto quantization : {Quantization::kNone,
                                      Quantization::kInt8WeightOnly,
                                      Quantization::kInt4WeightOnly128,
                                      Quantization::kW8A8Int8}) {
        SCOPED_TRACE(std::string(overrides) + " " + std::string(kernels::family_name(family)) +
                     " " + std::string(quantization_name(quantization)));
        const auto config = with(overrides);
        ASSERT_TRUE(config.ok());
        NotingSource source;
        const kernels::Backend* backend = kernels::select(family, nullptr);
        const auto decoder = load_decoder(*config,
                                          kQwen3Moe.weights,
                                          source,
                                          {.backend = backend,
                                           .pool = &pool,
                                           .dtype = kernels::DType::kBf16,
                                           .quantization = quantization});
        ASSERT_TRUE(decoder.ok()) << decoder.status().message();
        const MemoryPlan plan =
            plan_memory(*config, {.backend = backend, .quantization = quantization, .limits = {}});
        EXPECT_EQ(plan.weight_bytes, bytes_of(*decoder, *backend));
        EXPECT_EQ(plan.expert_bytes == 0, config->experts.count == 0);
        EXPECT_LT(plan.expert_bytes, plan.weight_bytes);
      }
    }
  }
}

TEST(Experts, LoadsTheTensorsOfEachExpertAndNamesTheMissingOne) {
  kernels::ThreadPool pool(1);
  const PackOptions options{.backend = kernels::select(kernels::Family::kReference, nullptr),
                            .pool = &pool,
                            .quantization = Quantization::kInt8WeightOnly};
  const auto config = with(R"({"mlp_only_layers":[1]})");
  NotingSource source;
  const auto decoder = load_decoder(*config, kQwen3Moe.weights, source, options);
  ASSERT_TRUE(decoder.ok()) << decoder.status().message();
  for (const char* name : {"model.layers.0.mlp.gate.weight",
                           "model.layers.0.mlp.experts.0.gate_proj.weight",
                           "model.layers.3.mlp.experts.5.up_proj.weight",
                           "model.layers.2.mlp.experts.3.down_proj.weight",
                           "model.layers.1.mlp.gate_proj.weight"})
    EXPECT_TRUE(source.names.contains(name)) << name;
  for (const char* name : {"model.layers.0.mlp.gate_proj.weight",
                           "model.layers.1.mlp.gate.weight",
                           "model.layers.1.mlp.experts.0.gate_proj.weight",
                           "model.layers.0.mlp.experts.6.gate_proj.weight"})
    EXPECT_FALSE(source.names.contains(name)) << name;
  const ExpertWeights& experts = decoder->layers[0].experts;
  EXPECT_EQ(experts.router->scheme(), kernels::WeightScheme::kFloat) << "never quantised";
  EXPECT_EQ(experts.router->dtype(), kernels::DType::kF32);
  EXPECT_EQ(experts.gate->scheme(), kernels::WeightScheme::kInt8);
  EXPECT_EQ(experts.gate->count(), 6U);

  source.fails = "model.layers.2.mlp.experts.4.down_proj.weight";
  const auto missing = load_decoder(*config, kQwen3Moe.weights, source, options);
  ASSERT_FALSE(missing.ok());
  EXPECT_NE(missing.status().message().find(source.fails), std::string::npos);
}

TEST(Experts, WorkspaceIsForTheWidestLayer) {
  // Two chosen experts of 20, gate and up, against a dense layer of 36, their product alone.
  EXPECT_EQ(mlp_floats_per_token(*with("")).inner, 2 * 2 * 20);
  EXPECT_EQ(mlp_floats_per_token(*with(R"({"num_experts_per_tok":1})")).inner, 2 * 20);
  EXPECT_EQ(mlp_floats_per_token(*with(R"({"num_experts_per_tok":1,"mlp_only_layers":[0]})")).inner,
            2 * 20);
  const auto narrow =
      R"({"num_experts_per_tok":1,"moe_intermediate_size":10,"mlp_only_layers":[0]})";
  EXPECT_EQ(mlp_floats_per_token(*with(narrow)).inner, 36);
  EXPECT_EQ(mlp_floats_per_token(*with("")).routing, 6 + 4 * 2);
  EXPECT_EQ(mlp_floats_per_token(*with(R"({"num_experts":0})")).routing, 0);
  EXPECT_EQ(activation_floats_per_token(*with("")), 24 + 24 + (24 + 24) + 24 + 80 + 14);
}

TEST(Experts, QuantizationNamesASizeThatItDoesNotTake) {
  const auto config = with(R"({"moe_intermediate_size":131073})");
  ASSERT_TRUE(config.ok());
  for (const Quantization bytes :
       {Quantization::kW8A8Int8, Quantization::kInt4WeightOnly128, Quantization::kInt8WeightOnly}) {
    const Status status = check_quantization(bytes, *config);
    EXPECT_EQ(status.message(),
              "moe_intermediate_size: is 131073, " + std::string(quantization_name(bytes)) +
                  " products take up to 131072");
  }
  EXPECT_TRUE(check_quantization(Quantization::kNone, *config).ok());
  const auto longer = with(R"({"moe_intermediate_size":245761})");
  ASSERT_TRUE(longer.ok());
  EXPECT_FALSE(check_quantization(Quantization::kNone, *longer).ok());
}

}  // namespace
}  // namespace tandem::model
