#include "common/model/memory_plan.h"

#include <algorithm>
#include <cstddef>

namespace tandem::model {
namespace {

std::uint64_t packed(const PlanOptions& options,
                     kernels::WeightFormat format,
                     std::int64_t rows,
                     std::int64_t cols) {
  return options.backend->packed_bytes(
      static_cast<std::size_t>(rows), static_cast<std::size_t>(cols), format);
}

std::uint64_t mlp_weight_bytes(const ModelConfig& config, const PlanOptions& options) {
  const kernels::WeightFormat format = weight_format(options.quantization, options.weight_dtype);
  const std::int64_t floats =
      config.mlp_bias ? 2 * config.intermediate_size + config.hidden_size : 0;
  return packed(options, format, 2 * config.intermediate_size, config.hidden_size) +
         packed(options, format, config.hidden_size, config.intermediate_size) +
         static_cast<std::uint64_t>(floats) * sizeof(float);
}

std::uint64_t expert_weight_bytes(const ModelConfig& config, const PlanOptions& options) {
  const ExpertConfig& experts = config.experts;
  const kernels::WeightFormat format = weight_format(options.quantization, options.weight_dtype);
  const auto count = static_cast<std::size_t>(experts.count);
  const auto stack = [&](std::int64_t rows, std::int64_t cols) {
    return kernels::stacked_bytes(count, packed(options, format, rows, cols));
  };
  return packed(options, kRouterFormat, experts.count, config.hidden_size) +
         2 * stack(experts.intermediate_size, config.hidden_size) +
         stack(config.hidden_size, experts.intermediate_size);
}

/// What every layer has: attention and norms.
std::uint64_t layer_weight_bytes(const ModelConfig& config, const PlanOptions& options) {
  const std::int64_t hidden = config.hidden_size;
  const std::int64_t qkv = config.query_size() + 2 * config.kv_size();
  std::int64_t floats = 2 * hidden;
  if (config.qkv_bias) floats += qkv;
  if (config.output_bias) floats += hidden;
  if (config.qk_norm) floats += 2 * config.head_dim;
  const kernels::WeightFormat format = weight_format(options.quantization, options.weight_dtype);
  return packed(options, format, qkv, hidden) +
         packed(options, format, hidden, config.query_size()) +
         static_cast<std::uint64_t>(floats) * sizeof(float);
}

}  // namespace

KvLayout make_kv_layout(const ModelConfig& config,
                        kernels::DType kv_dtype,
                        std::int64_t page_size) {
  return {.page_size = static_cast<std::size_t>(page_size),
          .layer_count = static_cast<std::size_t>(config.layer_count),
          .kv_head_count = static_cast<std::size_t>(config.kv_head_count),
          .head_dim = static_cast<std::size_t>(config.head_dim),
          .dtype = kv_dtype};
}

MlpFloats mlp_floats_per_token(const ModelConfig& config) {
  const ExpertConfig& experts = config.experts;
  MlpFloats floats;
  if (config.expert_layer_count() < config.layer_count) floats.inner = config.intermediate_size;
  if (config.expert_layer_count() > 0) {
    floats.inner = std::max(floats.inner, 2 * experts.per_token * experts.intermediate_size);
    floats.routing = experts.count + 4 * experts.per_token;
  }
  return floats;
}

std::int64_t activation_floats_per_token(const ModelConfig& config) {
  const MlpFloats mlp = mlp_floats_per_token(config);
  return 2 * config.hidden_size + config.query_size() + 2 * config.kv_size() + config.query_size() +
         mlp.inner + mlp.routing;
}

MemoryPlan plan_memory(const ModelConfig& config, const PlanOptions& options) {
  const PassLimits& limits = options.limits;
  const std::int64_t context =
      limits.context_length != 0 ? limits.context_length : config.context_length();
  const auto floats = [](std::int64_t count) {
    return static_cast<std::uint64_t>(count) * sizeof(float);
  };
  MemoryPlan plan;
  const std::int64_t with_experts = config.expert_layer_count();
  if (with_experts > 0) {
    plan.expert_bytes =
        static_cast<std::uint64_t>(with_experts) * expert_weight_bytes(config, options);
  }
  plan.weight_bytes =
      static_cast<std::uint64_t>(config.layer_count) * layer_weight_bytes(config, options) +
      static_cast<std::uint64_t>(config.layer_count - with_experts) *
          mlp_weight_bytes(config, options) +
      plan.expert_bytes +
      packed(options,
             weight_format(options.quantization, options.weight_dtype),
             config.vocab_size,
             config.hidden_size) +
      floats(config.hidden_size);
  plan.embedding_bytes = static_cast<std::uint64_t>(config.vocab_size) *
                         static_cast<std::uint64_t>(config.hidden_size) *
                         kernels::dtype_bytes(config.dtype.value_or(options.weight_dtype));
  plan.rope_bytes = floats(context * config.head_dim);
  plan.activation_bytes = floats(limits.token_count_max * activation_floats_per_token(config));
  plan.logit_bytes =
      floats(limits.logit_row_count_max * (config.vocab_size + 2 * config.hidden_size));
  plan.page_bytes = make_kv_layout(config, options.kv_dtype, options.page_size).page_bytes();
  return plan;
}

}  // namespace tandem::model
