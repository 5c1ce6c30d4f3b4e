// The weights of a decoder, packed for one kernel family.
#pragma once

#include "common/base/status.h"
#include "common/model/architecture.h"
#include "common/model/config.h"
#include "common/model/quantization.h"
#include "common/model/weight_source.h"
#include "kernels/api/backend.h"

#include <atomic>
#include <cstddef>
#include <memory>
#include <vector>

namespace tandem::model {

/// A linear layer: one packed matrix, which may stack several of the file ([q; k; v], [gate; up]),
/// and its bias (empty: none).
struct Linear {
  std::unique_ptr<kernels::PackedWeight> weight;
  std::vector<float> bias;
  /// Where the rows of `weight` that are not filled yet come from (LateWeights); empty: all are.
  std::vector<kernels::MatrixView> late;
  std::size_t filled = 0;  ///< Rows; of use only while `late` is not empty.
};

/// A mixture of experts: a router and stacks of one matrix per expert. No biases.
struct ExpertWeights {
  std::unique_ptr<kernels::PackedWeight> router;  ///< [experts, hidden], f32
  std::unique_ptr<kernels::PackedWeight> gate;    ///< [expert intermediate, hidden] each
  std::unique_ptr<kernels::PackedWeight> up;      ///< as gate
  std::unique_ptr<kernels::PackedWeight> down;    ///< [hidden, expert intermediate] each
};

struct LayerWeights {
  std::vector<float> input_norm;
  Linear qkv;                     ///< [query_size + 2 * kv_size, hidden]
  std::vector<float> query_norm;  ///< [head_dim], or empty
  std::vector<float> key_norm;    ///< [head_dim], or empty
  Linear output;                  ///< [hidden, query_size]
  std::vector<float> post_attention_norm;
  Linear gate_up;         ///< [2 * intermediate, hidden]; without weight in a layer with experts
  Linear down;            ///< [hidden, intermediate]; likewise
  ExpertWeights experts;  ///< Without weights in a dense layer.
};

struct DecoderWeights {
  /// [vocab, hidden] in the compute dtype, or narrower where widening is exact. Its bytes lie in
  /// `embedding_storage` or in the checkpoint.
  kernels::MatrixView embedding;
  std::vector<std::byte> embedding_storage;
  std::vector<LayerWeights> layers;
  std::vector<float> final_norm;
  Linear lm_head;  ///< [vocab, hidden]
};

struct PackOptions {
  const kernels::Backend* backend = nullptr;
  kernels::ThreadPool* pool = nullptr;
  kernels::DType dtype = kernels::DType::kBf16;  ///< Kept type of what is not quantised.
  Quantization quantization = Quantization::kNone;
  const std::atomic<bool>* stop = nullptr;  ///< As LoadOptions has it.
  /// Leaves the linear layers for LateWeights to fill whose rows are kept as the file has them.
  bool late = false;
};

/// Asks `source` for every tensor that the config's blocks need.
Result<DecoderWeights> load_decoder(const ModelConfig& config,
                                    const WeightNames& names,
                                    WeightSource& source,
                                    const PackOptions& options);

/// Copies the embedding table out of the checkpoint, unless it is owned already.
Status own_embedding(DecoderWeights& decoder);

}  // namespace tandem::model
