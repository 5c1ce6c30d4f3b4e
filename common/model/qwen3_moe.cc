// Qwen3, mixture of experts (transformers' modeling_qwen3_moe.py, configuration_qwen3_moe.py):
// Qwen3 with experts in place of the MLP on every decoder_sparse_step-th layer that is not in
// mlp_only_layers. Unlike the dense Qwen3 a sliding window is on all layers, and head_dim falls
// back to hidden_size / heads.
#include "common/model/architecture.h"
#include "kernels/api/ops.h"

#include <fmt/format.h>

#include <algorithm>

namespace tandem::model {
namespace {

static_assert(kExpertCountMax == static_cast<std::int64_t>(kernels::kMaxExperts));

constexpr std::int64_t kDefaultWindow = 4096;

/// num_experts, or num_local_experts as newer files spell it. 0: every layer is dense.
Result<std::int64_t> expert_count(const json::Field& root) {
  for (const char* name : {"num_experts", "num_local_experts"}) {
    TANDEM_TRY(const std::optional<std::int64_t> count,
               root.optional_int(name, 0, kExpertCountMax));
    if (count) return *count;
  }
  TANDEM_TRY(const json::Field missing, root.at("num_experts"));
  return missing.as_int(0, kExpertCountMax);
}

Status choose_layers(const json::Field& root, ModelConfig& config) {
  TANDEM_TRY(const std::optional<std::int64_t> step,
             root.optional_int("decoder_sparse_step", 1, kLayerCountMax));
  for (std::int64_t layer = 0; layer < config.layer_count; ++layer)
    config.experts.in_layer.push_back((layer + 1) % step.value_or(1) == 0);
  const std::optional<json::Field> dense = root.find("mlp_only_layers");
  if (!dense) return {};
  // Layers beyond the last one have no effect, so that an override may shorten a model.
  TANDEM_TRY(const std::vector<std::int64_t> layers, dense->as_ints(0, kLayerCountMax - 1));
  for (const std::int64_t layer : layers) {
    if (layer < config.layer_count)
      config.experts.in_layer[static_cast<std::size_t>(layer)] = false;
  }
  return {};
}

Status choose_experts(const json::Field& root, ModelConfig& config) {
  ExpertConfig& experts = config.experts;
  TANDEM_TRY(experts.count, expert_count(root));
  if (experts.count == 0) return {};
  TANDEM_TRY(const json::Field per_token, root.at("num_experts_per_tok"));
  TANDEM_TRY(experts.per_token, per_token.as_int(1, kExpertCountMax));
  if (experts.per_token > experts.count) {
    return per_token.error(
        fmt::format("is {}, more than num_experts = {}", experts.per_token, experts.count));
  }
  TANDEM_TRY(const json::Field size, root.at("moe_intermediate_size"));
  TANDEM_TRY(experts.intermediate_size, size.as_int(1, kIntermediateSizeMax));
  TANDEM_TRY(experts.normalize, bool_or(root, "norm_topk_prob", false));
  return choose_layers(root, config);
}

Status choose(const json::Field& root, ModelConfig& config) {
  config.qk_norm = true;
  TANDEM_TRY(config.qkv_bias, bool_or(root, "attention_bias", false));
  config.output_bias = config.qkv_bias;
  TANDEM_TRY(const bool windowed, bool_or(root, "use_sliding_window", false));
  TANDEM_TRY(const std::int64_t window, sliding_window_or(root, kDefaultWindow));
  if (windowed)
    std::fill(config.window.begin(), config.window.end(), static_cast<std::int32_t>(window));
  return choose_experts(root, config);
}

}  // namespace

constinit const Architecture kQwen3Moe{
    .name = "Qwen3MoeForCausalLM", .head_dim = 0, .weights = {}, .choose_blocks = choose};

}  // namespace tandem::model
