// An executor whose streams do not go on with the tokens that were sampled, but with random ones.
#pragma once

#include "common/base/random.h"
#include "common/engine/executor.h"

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace tandem::bench {

/// A model with random weights soon repeats one token, and then takes the same experts in each
/// step. So a sequence's only token of a call, the one that was sampled last, is replaced by one of
/// a seeded series over the vocabulary. The engine samples all the same and never sees these.
class RandomTokens final : public engine::Executor {
 public:
  /// Borrows `inner`.
  RandomTokens(engine::Executor* inner, std::uint64_t seed) : inner_(inner), random_(seed) {}

  [[nodiscard]] const engine::ExecutorInfo& info() const override { return inner_->info(); }

  Status bind_kv(std::byte* base, std::int64_t page_count) override {
    return inner_->bind_kv(base, page_count);
  }

  Result<std::span<const float>> forward(std::span<const engine::ForwardSlice> slices) override {
    slices_.assign(slices.begin(), slices.end());
    tokens_.assign(slices.size(), 0);
    for (std::size_t i = 0; i < slices.size(); ++i) {
      token_count_ += slices[i].tokens.size();
      context_ += static_cast<double>(slices[i].first_position) +
                  static_cast<double>(slices[i].tokens.size());
      if (slices[i].tokens.size() != 1) continue;
      const auto vocabulary = static_cast<std::uint64_t>(info().vocab_size);
      tokens_[i] = static_cast<core::TokenId>(random_.below(vocabulary));
      slices_[i].tokens = {&tokens_[i], 1};
      ++decoded_count_;
    }
    slice_count_ += slices.size();
    return inner_->forward(slices_);
  }

  [[nodiscard]] std::size_t worker_count() const override { return inner_->worker_count(); }

  void run_tasks(std::size_t count, Task task, void* context) override {
    inner_->run_tasks(count, task, context);
  }

  /// Begins a step: what follows is of the calls since then.
  void begin() {
    slice_count_ = decoded_count_ = token_count_ = 0;
    context_ = 0;
  }

  /// Whether that were `streams` sequences with a token each, and nothing else.
  [[nodiscard]] bool decoded(std::size_t streams) const {
    return decoded_count_ == streams && slice_count_ == streams && token_count_ == streams;
  }

  /// Positions that the last token of a sequence saw, itself included: the mean.
  [[nodiscard]] double context() const {
    return slice_count_ == 0 ? 0 : context_ / static_cast<double>(slice_count_);
  }

 private:
  engine::Executor* inner_;
  Random random_;
  std::vector<engine::ForwardSlice> slices_;
  std::vector<core::TokenId> tokens_;
  std::size_t slice_count_ = 0;
  std::size_t decoded_count_ = 0;
  std::size_t token_count_ = 0;
  double context_ = 0;
};

}  // namespace tandem::bench
