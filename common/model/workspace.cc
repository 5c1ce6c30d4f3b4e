#include "common/model/workspace.h"

#include <algorithm>
#include <cmath>
#include <utility>

namespace tandem::model {

Result<FloatBuffer> FloatBuffer::allocate(std::uint64_t count, std::string_view purpose) {
  const std::uint64_t bytes = count * sizeof(float);
  FloatBuffer result;
  TANDEM_TRY(result.buffer_,
             tensor::HostBuffer::allocate(
                 {.bytes = bytes, .bytes_max = bytes, .purpose = purpose, .huge_pages = false}));
  result.data_ = reinterpret_cast<float*>(result.buffer_.data());
  return result;
}

Result<Workspace> Workspace::allocate(const ModelConfig& config, const PassLimits& limits) {
  Workspace space;

  struct Part {
    FloatBuffer* buffer;
    std::int64_t rows;
    std::int64_t cols;
    const char* what;
  };

  const std::int64_t tokens = limits.token_count_max;
  const std::int64_t rows = limits.logit_row_count_max;
  const MlpFloats mlp = mlp_floats_per_token(config);
  const Part parts[] = {
      {&space.hidden, tokens, config.hidden_size, "hidden states"},
      {&space.normed, tokens, config.hidden_size, "normed hidden states"},
      {&space.qkv, tokens, config.query_size() + 2 * config.kv_size(), "queries, keys and values"},
      {&space.attention, tokens, config.query_size(), "attention outputs"},
      {&space.gate_up, tokens, mlp.inner, "MLP activations"},
      {&space.routing, tokens, mlp.routing, "choices of experts"},
      {&space.rows, rows, config.hidden_size, "rows of the head"},
      {&space.rows_normed, rows, config.hidden_size, "normed rows of the head"},
      {&space.logits, rows, config.vocab_size, "logits"},
  };
  for (const Part& part : parts) {
    TANDEM_TRY(*part.buffer,
               FloatBuffer::allocate(
                   static_cast<std::uint64_t>(part.rows) * static_cast<std::uint64_t>(part.cols),
                   part.what));
  }
  return space;
}

Result<RopeTables> RopeTables::make(const ModelConfig& config,
                                    std::int64_t position_count,
                                    kernels::ThreadPool& pool) {
  const RopeTable rope = make_rope_table(config);
  const std::size_t half = rope.inverse_frequency.size();
  const auto count = static_cast<std::size_t>(position_count);
  RopeTables tables;
  TANDEM_TRY(tables.cos, FloatBuffer::allocate(count * half, "rotary tables"));
  TANDEM_TRY(tables.sin, FloatBuffer::allocate(count * half, "rotary tables"));
  constexpr std::size_t kRowsPerTask = 1024;
  pool.parallel_for((count + kRowsPerTask - 1) / kRowsPerTask, [&](std::size_t task, std::size_t) {
    const std::size_t end = std::min(count, (task + 1) * kRowsPerTask);
    for (std::size_t position = task * kRowsPerTask; position < end; ++position) {
      for (std::size_t pair = 0; pair < half; ++pair) {
        // The angle is rounded to f32 before cos and sin, as the reference implementations do:
        // at far positions that rounding is visible.
        const float angle = static_cast<float>(position) * rope.inverse_frequency[pair];
        const double magnitude = static_cast<double>(rope.magnitude);
        const auto exact = static_cast<double>(angle);
        tables.cos.data()[position * half + pair] = static_cast<float>(std::cos(exact) * magnitude);
        tables.sin.data()[position * half + pair] = static_cast<float>(std::sin(exact) * magnitude);
      }
    }
  });
  return tables;
}

}  // namespace tandem::model
