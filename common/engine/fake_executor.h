// FakeExecutor: a deterministic "model" for tests. Its logits are a function of all KV that it
// finds in the pages, so that a wrong page, position or order changes every token that follows.
#pragma once

#include "common/engine/executor.h"

#include <algorithm>
#include <cstring>
#include <limits>
#include <string>
#include <thread>
#include <vector>

namespace tandem::engine {

class FakeExecutor final : public Executor {
 public:
  struct Options {
    std::int32_t page_size = 1;
    std::int32_t vocab_size = 64;
    std::int32_t context_length = 512;
    std::vector<core::TokenId> eos_token_ids = {2};
    std::int32_t max_batch_tokens = 4096;
    std::int32_t max_logit_rows = 64;
    std::int32_t max_slices = 64;
    /// Logits behind this token are NaN.
    core::TokenId poison = -1;
    /// All logits are equal.
    bool flat = false;
    /// Threads of run_tasks().
    std::size_t workers = 1;
  };

  explicit FakeExecutor(const Options& options)
      : options_(options),
        info_{.vocab_size = options.vocab_size,
              .context_length = options.context_length,
              .eos_token_ids = options.eos_token_ids,
              .page_bytes = static_cast<std::size_t>(options.page_size) * sizeof(std::uint64_t),
              .max_batch_tokens = options.max_batch_tokens,
              .max_logit_rows = options.max_logit_rows,
              .max_slices = options.max_slices} {}

  [[nodiscard]] const ExecutorInfo& info() const override { return info_; }

  Status bind_kv(std::byte* base, std::int64_t page_count) override {
    base_ = base;
    page_count_ = page_count;
    return {};
  }

  [[nodiscard]] std::size_t worker_count() const override { return options_.workers; }

  /// Every worker gets its share, whoever is faster, so that ThreadSanitizer sees what they touch.
  void run_tasks(std::size_t count, Task task, void* context) override {
    const auto work = [=, this](std::size_t worker) {
      for (std::size_t i = worker; i < count; i += options_.workers)
        task(context, i, worker);
    };
    std::vector<std::thread> others;
    for (std::size_t worker = 1; worker < std::min(options_.workers, count); ++worker)
      others.emplace_back(work, worker);
    work(0);
    for (std::thread& other : others)
      other.join();
  }

  /// The next forward() fails with this.
  void fail_next(Status status) { failure_ = std::move(status); }

  [[nodiscard]] std::int64_t forward_count() const { return forward_count_; }

  [[nodiscard]] std::int64_t token_count() const { return token_count_; }

  Result<std::span<const float>> forward(std::span<const ForwardSlice> slices) override {
    ++forward_count_;
    if (!failure_.ok()) return std::exchange(failure_, Status());
    TANDEM_TRY(check(slices));
    logits_.clear();
    for (const ForwardSlice& slice : slices) {
      token_count_ += static_cast<std::int64_t>(slice.tokens.size());
      write(slice);
      const auto end = slice.first_position + static_cast<std::int32_t>(slice.tokens.size());
      for (std::int32_t p = end - slice.logit_count; p < end; ++p)
        add_row(slice, p);
    }
    return std::span<const float>(logits_);
  }

 private:
  static std::uint64_t mix(std::uint64_t a, std::uint64_t b) {
    std::uint64_t z = (a ^ (b + 0x9E3779B97F4A7C15ULL + (a << 6U))) * 0xBF58476D1CE4E5B9ULL;
    z = (z ^ (z >> 27U)) * 0x94D049BB133111EBULL;
    return z ^ (z >> 31U);
  }

  [[nodiscard]] std::byte* slot(const ForwardSlice& slice, std::int32_t position) const {
    const auto page = slice.pages[static_cast<std::size_t>(position / options_.page_size)].value;
    return base_ + page * info_.page_bytes +
           static_cast<std::size_t>(position % options_.page_size) * sizeof(std::uint64_t);
  }

  [[nodiscard]] Status check(std::span<const ForwardSlice> slices) const {
    std::int64_t tokens = 0;
    std::int64_t rows = 0;
    for (const ForwardSlice& slice : slices) {
      const auto count = static_cast<std::int64_t>(slice.tokens.size());
      tokens += count;
      rows += slice.logit_count;
      if (count == 0 || slice.logit_count > count ||
          slice.first_position + count >
              static_cast<std::int64_t>(slice.pages.size()) * options_.page_size ||
          slice.first_position + count > options_.context_length) {
        return internal_error("fake model: a slice of " + std::to_string(count) + " tokens at " +
                              std::to_string(slice.first_position) + " with " +
                              std::to_string(slice.pages.size()) + " pages");
      }
      for (const kv::PageId page : slice.pages) {
        if (page.value >= static_cast<std::uint64_t>(page_count_)) {
          return internal_error("fake model: page " + std::to_string(page.value));
        }
      }
    }
    if (tokens > options_.max_batch_tokens || rows > options_.max_logit_rows ||
        static_cast<std::int64_t>(slices.size()) > options_.max_slices) {
      return internal_error("fake model: a batch of " + std::to_string(tokens) + " tokens, " +
                            std::to_string(rows) + " rows");
    }
    return {};
  }

  void write(const ForwardSlice& slice) {
    for (std::size_t i = 0; i < slice.tokens.size(); ++i) {
      const auto position = slice.first_position + static_cast<std::int32_t>(i);
      const auto token = static_cast<std::uint64_t>(slice.tokens[i]);
      const std::uint64_t value = slice.tokens[i] == options_.poison
                                      ? kPoison
                                      : mix(static_cast<std::uint64_t>(position), token);
      std::memcpy(slot(slice, position), &value, sizeof value);
    }
  }

  void add_row(const ForwardSlice& slice, std::int32_t position) {
    std::uint64_t state = 1;
    bool poisoned = false;
    for (std::int32_t p = 0; p <= position; ++p) {
      std::uint64_t value = 0;
      std::memcpy(&value, slot(slice, p), sizeof value);
      poisoned |= value == kPoison;
      state = mix(state, value);
    }
    for (std::int32_t i = 0; i < options_.vocab_size; ++i) {
      const auto bits = options_.flat ? 0 : mix(state, static_cast<std::uint64_t>(i)) >> 40U;
      logits_.push_back(poisoned ? std::numeric_limits<float>::quiet_NaN()
                                 : static_cast<float>(bits) * 0x1p-24F * 8.0F);
    }
  }

  static constexpr std::uint64_t kPoison = 0xDEADDEADDEADDEADULL;

  Options options_;
  ExecutorInfo info_;
  std::byte* base_ = nullptr;
  std::int64_t page_count_ = 0;
  std::vector<float> logits_;
  Status failure_;
  std::int64_t forward_count_ = 0;
  std::int64_t token_count_ = 0;
};

}  // namespace tandem::engine
