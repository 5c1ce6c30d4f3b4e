// How much memory a model will hold, from its config alone: nothing is loaded.
#pragma once

#include "common/model/config.h"
#include "common/model/kv_layout.h"
#include "common/model/quantization.h"
#include "kernels/api/backend.h"

#include <cstdint>
#include <string>

namespace tandem::model {

/// What a pass may be asked for at most; sizes the workspace.
struct PassLimits {
  std::int64_t token_count_max = 8192;     ///< Tokens in one forward pass.
  std::int64_t logit_row_count_max = 256;  ///< Rows through the head at once.
  std::int64_t sequence_count_max = 4096;
  std::int64_t context_length = 0;  ///< Positions; 0: the config's.
};

struct MemoryPlan {
  /// Packed matrices, norms, biases. At most: bf16 may be kept in less (Backend::kept_format).
  std::uint64_t weight_bytes = 0;
  std::uint64_t expert_bytes = 0;      ///< The part of weight_bytes that is experts and routers.
  std::uint64_t embedding_bytes = 0;   ///< The lookup table (file-backed when mapped unchanged).
  std::uint64_t rope_bytes = 0;        ///< Tables of cos and sin.
  std::uint64_t activation_bytes = 0;  ///< Workspace of a pass of token_count_max.
  std::uint64_t logit_bytes = 0;       ///< Rows and logits of logit_row_count_max.
  std::uint64_t page_bytes = 0;        ///< One KV page, all layers.

  /// All but pages.
  [[nodiscard]] std::uint64_t fixed_bytes() const {
    return weight_bytes + embedding_bytes + rope_bytes + activation_bytes + logit_bytes;
  }
};

struct PlanOptions {
  const kernels::Backend* backend = nullptr;
  kernels::DType weight_dtype = kernels::DType::kBf16;
  Quantization quantization = Quantization::kNone;
  kernels::DType kv_dtype = kernels::DType::kBf16;
  PassLimits limits;
  std::int64_t page_size = 16;
};

/// Pure. The config's limits keep every product below 2^63.
MemoryPlan plan_memory(const ModelConfig& config, const PlanOptions& options);

KvLayout make_kv_layout(const ModelConfig& config, kernels::DType kv_dtype, std::int64_t page_size);

/// Floats (or int32) per token that the MLP of any layer works in.
struct MlpFloats {
  std::int64_t inner = 0;    ///< silu(gate) * up, or gate|up of each chosen expert
  std::int64_t routing = 0;  ///< router logits; ids and weights of the chosen, twice (as chosen,
                             ///< and sorted by expert)
};

MlpFloats mlp_floats_per_token(const ModelConfig& config);

/// Floats per token of the forward workspace: hidden, normed, q|k|v, attention output, inner,
/// routing.
std::int64_t activation_floats_per_token(const ModelConfig& config);

}  // namespace tandem::model
