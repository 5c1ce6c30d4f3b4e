// Executor: what the engine needs of a model. ModelExecutor adapts room model; tests have their
// own.
#pragma once

#include "common/base/status.h"
#include "common/core/request.h"
#include "common/kv/block_pool.h"

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace tandem::engine {

/// Some consecutive tokens of one sequence, and where its KV lies. Spans are borrowed for the call.
struct ForwardSlice {
  std::span<const core::TokenId> tokens;
  /// Position of tokens.front() in its sequence. KV of all earlier positions is in `pages`.
  std::int32_t first_position = 0;
  /// Page table from position 0 to at least the last of `tokens`: position p is slot p % page_size
  /// of pages[p / page_size].
  std::span<const kv::PageId> pages;
  /// Logits are wanted for this many tokens at the end of `tokens`; 0 is allowed.
  std::int32_t logit_count = 0;
};

/// What a model is, as far as the engine cares.
struct ExecutorInfo {
  std::int32_t vocab_size = 0;
  /// Longest prompt plus output.
  std::int32_t context_length = 0;
  std::vector<core::TokenId> eos_token_ids;
  /// Bytes of one page of KV at the engine's page size.
  std::size_t page_bytes = 0;
  /// Limits of one forward call: tokens of all slices, rows of logits, slices.
  std::int32_t max_batch_tokens = 0;
  std::int32_t max_logit_rows = 0;
  std::int32_t max_slices = 0;
};

class Executor {
 public:
  virtual ~Executor() = default;

  /// Constant after construction.
  [[nodiscard]] virtual const ExecutorInfo& info() const = 0;

  /// Called once, before forward(): page p lies at base + p * page_bytes. The memory is zeroed and
  /// outlives the calls.
  virtual Status bind_kv(std::byte* base, std::int64_t page_count) = 0;

  /// Computes the tokens of all slices (each of another sequence) and writes their KV. Returns the
  /// wanted logits, [sum of logit_count, vocab_size], rows in the order of the slices; they stay
  /// valid until the next call. Bits of a row depend on its sequence only, never on the batch.
  virtual Result<std::span<const float>> forward(std::span<const ForwardSlice> slices) = 0;

  /// What follows a forward call for each row: its results, written to places of the task's own.
  using Task = void (*)(void* context, std::size_t task, std::size_t worker);

  /// Workers that run_tasks() may name; constant.
  [[nodiscard]] virtual std::size_t worker_count() const { return 1; }

  /// Calls task(context, i, worker) once for each i below `count`, and returns when all are done.
  /// Calls of one worker come one after the other, those of several beside each other.
  virtual void run_tasks(std::size_t count, Task task, void* context) {
    for (std::size_t i = 0; i < count; ++i)
      task(context, i, 0);
  }
};

}  // namespace tandem::engine
