#include "common/model/workspace.h"

#include <algorithm>
#include <cmath>
#include <utility>

namespace tandem::model {
namespace {

// Positions whose rows are computed together.
constexpr std::size_t kRopeBlock = 256;

}  // namespace

Result<FloatBuffer> FloatBuffer::allocate(std::uint64_t count, std::string_view purpose) {
  const std::uint64_t bytes = count * sizeof(float);
  FloatBuffer result;
  TANDEM_TRY(result.buffer_,
             tensor::HostBuffer::allocate(
                 {.bytes = bytes, .bytes_max = bytes, .purpose = purpose, .huge_pages = true}));
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
      {&space.inner, tokens, mlp.inner, "MLP activations"},
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
  space.row_positions.resize(static_cast<std::size_t>(rows));
  space.row_sequences.resize(static_cast<std::size_t>(rows));
  return space;
}

Result<RopeTables> RopeTables::make(const ModelConfig& config, std::int64_t position_count) {
  RopeTables tables;
  tables.rope_ = make_rope_table(config);
  tables.count_ = static_cast<std::size_t>(position_count);
  const std::size_t floats = tables.count_ * tables.rope_.inverse_frequency.size();
  TANDEM_TRY(tables.cos_, FloatBuffer::allocate(floats, "rotary tables"));
  TANDEM_TRY(tables.sin_, FloatBuffer::allocate(floats, "rotary tables"));
  tables.computed_.resize((tables.count_ + kRopeBlock - 1) / kRopeBlock);
  return tables;
}

void RopeTables::reach(std::span<const std::int32_t> positions, kernels::ThreadPool& pool) {
  for (const std::int32_t position : positions) {
    const std::size_t block = static_cast<std::size_t>(position) / kRopeBlock;
    if (computed_[block]) continue;
    computed_[block] = true;
    const std::size_t begin = block * kRopeBlock;
    const std::size_t end = std::min(count_, begin + kRopeBlock);
    constexpr std::size_t kRowsPerTask = 32;
    pool.parallel_for((end - begin + kRowsPerTask - 1) / kRowsPerTask,
                      [&](std::size_t task, std::size_t) {
                        const std::size_t first = begin + task * kRowsPerTask;
                        compute(first, std::min(end, first + kRowsPerTask));
                      });
  }
}

void RopeTables::compute(std::size_t begin, std::size_t end) {
  const std::size_t half = rope_.inverse_frequency.size();
  const double magnitude = static_cast<double>(rope_.magnitude);
  for (std::size_t position = begin; position < end; ++position) {
    for (std::size_t pair = 0; pair < half; ++pair) {
      // The angle is rounded to f32 before cos and sin, as the reference implementations do:
      // at far positions that rounding is visible.
      const float angle = static_cast<float>(position) * rope_.inverse_frequency[pair];
      const auto exact = static_cast<double>(angle);
      cos_.data()[position * half + pair] = static_cast<float>(std::cos(exact) * magnitude);
      sin_.data()[position * half + pair] = static_cast<float>(std::sin(exact) * magnitude);
    }
  }
}

}  // namespace tandem::model
