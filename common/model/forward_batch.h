// One forward pass: a ragged batch of tokens in, logits of chosen rows out.
#pragma once

#include "common/model/kv_layout.h"
#include "kernels/api/ops.h"

#include <cstddef>
#include <cstdint>
#include <span>

namespace tandem::model {

using SequencePages = kernels::SequencePages;

/// The page arena. Borrowed.
struct KvArena {
  std::byte* base = nullptr;  ///< page_count pages of layout.page_bytes(), 64-byte aligned.
  std::size_t page_count = 0;
  std::size_t page_size = 0;  ///< Tokens in a page.
};

/// Told on the forward thread when a layer's K and V of this batch are in the arena.
class LayerObserver {
 public:
  virtual ~LayerObserver() = default;
  /// `layer` counts from 0; called once per layer, in order. Must not block for long: the pass
  /// waits.
  virtual void on_layer_done(std::int64_t layer) = 0;
};

/// Everything is borrowed for the length of the call. A batch may mix any number of sequences and
/// chunks of any length. Tokens of one sequence must come in order of position, and every position
/// before the first one must be in its pages already (or lie outside of every window).
struct ForwardBatch {
  std::span<const std::int32_t> token_ids;  ///< [tokens], each in [0, vocab_size)
  std::span<const std::int32_t> positions;  ///< [tokens], each in [0, context_length)
  std::span<const std::int32_t> sequence;   ///< [tokens], index into `sequences`
  std::span<const SequencePages> sequences;
  KvArena kv;
  /// Rows of the batch, for which logits are wanted; any order, repeats allowed. Only these go
  /// through the head and, where each is behind the one before, through what the last layer does
  /// after its keys and values.
  std::span<const std::int32_t> logit_rows;
  /// For tests: all rows go through the last layer, and Model::logits() may be asked for any.
  bool keep_rows = false;
  /// May be null.
  LayerObserver* observer = nullptr;
  /// Null, or [layer_count + 1, tokens, hidden_size] for tests: the embeddings, then each layer's
  /// output, the last one after the final norm. All rows go through the last layer.
  float* hidden_states = nullptr;
};

/// Points into the model's workspace: valid until its next call.
struct ForwardOutput {
  const float* logits = nullptr;  ///< [rows, vocab_size], dense
  std::size_t rows = 0;
  std::size_t vocab_size = 0;

  [[nodiscard]] std::span<const float> row(std::size_t index) const {
    return {logits + index * vocab_size, vocab_size};
  }
};

}  // namespace tandem::model
