// Random requests, and everything that a client can see of what became of them.
#pragma once

#include "common/base/random.h"
#include "common/core/generator.h"
#include "common/core/request.h"

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace tandem::properties {

/// The whole output of one request, however it came: bits, not values, are compared.
class Outcome {
 public:
  /// Takes events in order; checks that they are (indices follow, nothing after the end).
  core::EventSink sink();
  void take(core::TokenEvent&& event);
  /// Output that a client had before (failover): events go on after it.
  void start_after(const Outcome& earlier, std::size_t token_count);

  [[nodiscard]] bool finished() const { return finish_.has_value(); }

  [[nodiscard]] const std::vector<core::TokenId>& tokens() const { return tokens_; }

  [[nodiscard]] const std::optional<core::FinishReason>& finish() const { return finish_; }

  /// Prompt tokens that came from a prefix cache; no part of the comparison.
  [[nodiscard]] std::int32_t cached_tokens() const { return cached_tokens_; }

  /// "" when equal to the bit; else what differs.
  [[nodiscard]] std::string difference(const Outcome& other) const;

 private:
  std::vector<core::TokenId> tokens_;
  std::vector<core::TokenLogprob> logprobs_;
  std::vector<core::TokenLogprob> prompt_logprobs_;
  std::optional<core::FinishReason> finish_;
  std::string disorder_;
  std::int32_t cached_tokens_ = 0;
};

/// Prompts of 1 to 60 tokens, some of 200, most with a prefix shared with others; every sampling
/// parameter in use; outputs of 1 to 16 tokens; logprobs always, of the prompt sometimes.
std::vector<core::Request> random_requests(std::uint64_t seed,
                                           std::size_t count,
                                           std::int32_t vocab_size);

}  // namespace tandem::properties
