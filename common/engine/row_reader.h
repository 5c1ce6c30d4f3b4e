// RowReader: from the logits of a forward call to tokens and logprobs, on all workers of the
// executor at once.
#pragma once

#include "common/base/status.h"
#include "common/engine/executor.h"
#include "common/engine/generation.h"
#include "common/sample/row_scan.h"
#include "common/sample/sampler.h"

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

namespace tandem::engine {

/// One row: what is wanted of it, and then what came out.
struct LogitRow {
  const Generation* generation = nullptr;  ///< only read
  std::span<const float> logits = {};
  /// The prompt's next token, when its logprob is wanted.
  std::optional<core::TokenId> prompt_token = std::nullopt;
  /// Position in the output of the token to be drawn, when one is.
  std::optional<std::int32_t> output_index = std::nullopt;

  /// Of this row alone. When not ok, nothing below holds.
  Status status = {};
  core::TokenLogprob prompt_logprob = {};
  core::TokenId token = 0;
  core::TokenLogprob logprob = {};  ///< when the request wants it
};

/// Keeps scratch for each worker, not for each row. Once warm, allocates for logprobs alone. One
/// thread, the engine's.
class RowReader {
 public:
  /// `executor` is borrowed.
  explicit RowReader(Executor* executor);

  /// Fills the results of all rows. They depend on each row alone, not on workers or other rows.
  void read(std::span<LogitRow> rows);

 private:
  struct Scratch {
    explicit Scratch(std::int32_t vocab_size) : sampler(vocab_size), scan(vocab_size) {}

    Status read(LogitRow& row);

    sample::Sampler sampler;
    sample::RowScan scan;
  };

  Executor* executor_;
  std::vector<Scratch> scratch_;  ///< by worker
};

}  // namespace tandem::engine
