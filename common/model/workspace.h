// Memory that forward() works in: allocated once, when the model is loaded.
#pragma once

#include "common/base/status.h"
#include "common/model/memory_plan.h"
#include "common/model/rope.h"
#include "common/tensor/host_buffer.h"
#include "kernels/api/thread_pool.h"

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

namespace tandem::model {

/// Floats in a HostBuffer on huge pages: rows of activations lie KiB apart, and each would want a
/// small page's address of its own. Pages that no batch is large enough to reach are never
/// resident.
class FloatBuffer {
 public:
  FloatBuffer() = default;
  /// `purpose` is for the message when there is no memory.
  static Result<FloatBuffer> allocate(std::uint64_t count, std::string_view purpose);

  [[nodiscard]] float* data() const { return data_; }

 private:
  tensor::HostBuffer buffer_;
  float* data_ = nullptr;  ///< Start of buffer_, which stays in place when moved.
};

struct Workspace {
  FloatBuffer hidden;     ///< [tokens, hidden]: the residual stream
  FloatBuffer normed;     ///< [tokens, hidden]
  FloatBuffer qkv;        ///< [tokens, query_size + 2 * kv_size]
  FloatBuffer attention;  ///< [tokens, query_size]
  FloatBuffer inner;      ///< [tokens, MlpFloats::inner]
  FloatBuffer routing;    ///< [tokens, MlpFloats::routing]
  FloatBuffer rows;       ///< [rows, hidden]: residual stream of the rows for the head
  FloatBuffer rows_normed;
  FloatBuffer logits;                       ///< [rows, vocab]
  std::vector<std::int32_t> row_positions;  ///< [rows]: of the rows for the head
  std::vector<std::int32_t> row_sequences;  ///< likewise

  static Result<Workspace> allocate(const ModelConfig& config, const PassLimits& limits);
};

/// cos and sin of positions, times the magnitude: [positions, head_dim / 2] each. Rows are computed
/// when a batch first reaches them, since few requests go near the end of a long context, and a
/// start that computes them all is half as long again. Owned and used by one thread.
class RopeTables {
 public:
  /// Room for `position_count` rows, none of them computed.
  static Result<RopeTables> make(const ModelConfig& config, std::int64_t position_count);

  /// Computes what is missing of the rows of these positions, each in [0, position_count).
  void reach(std::span<const std::int32_t> positions, kernels::ThreadPool& pool);

  [[nodiscard]] const float* cos() const { return cos_.data(); }

  [[nodiscard]] const float* sin() const { return sin_.data(); }

 private:
  void compute(std::size_t begin, std::size_t end);

  RopeTable rope_;
  FloatBuffer cos_;
  FloatBuffer sin_;
  std::size_t count_ = 0;
  std::vector<bool> computed_;  ///< by block of positions
};

}  // namespace tandem::model
