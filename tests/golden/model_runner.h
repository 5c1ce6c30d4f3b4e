// Drives a Model over whole sequences, for tests: cut into chunks and mixed into batches as asked,
// with pages in scattered order.
#pragma once

#include "common/model/model.h"

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

namespace tandem::golden {

/// One sequence in the arena and the logits of every position so far.
struct Track {
  std::vector<std::int32_t> tokens;
  std::vector<std::int32_t> pages;
  std::size_t done = 0;       ///< Tokens whose K and V are in the pages.
  std::vector<float> logits;  ///< [done, vocab]
};

/// What one pass takes from one sequence.
struct Slice {
  Track* track = nullptr;
  std::size_t token_count = 0;
};

class ModelRunner {
 public:
  struct Options {
    std::size_t page_size = 16;
    std::size_t page_count = 256;
  };

  ModelRunner(model::Model& model, const Options& options);

  /// A sequence with pages for all of `tokens` (which may grow up to `token_count_max`).
  Track start(std::vector<std::int32_t> tokens, std::size_t token_count_max);

  /// Hands the pages back.
  void finish(Track& track);

  /// One pass over the next tokens of each slice; appends the logits of all their rows.
  Status step(std::span<const Slice> slices);

  /// All tokens of one sequence, in chunks of at most `chunk` (0: whole).
  Status run(Track& track, std::size_t chunk);

  /// [layer_count + 1, tokens, hidden] of the next step go here; null to stop.
  void capture(float* hidden_states) { hidden_states_ = hidden_states; }

 private:
  model::Model& model_;
  Options options_;
  std::vector<std::byte> arena_;
  std::vector<std::int32_t> free_pages_;
  float* hidden_states_ = nullptr;
};

}  // namespace tandem::golden
