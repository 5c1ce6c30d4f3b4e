// Sequence: one request as the scheduler sees it: tokens, pages and how far it is.
#pragma once

#include "common/core/request.h"
#include "common/kv/page_cache.h"

#include <cstdint>
#include <vector>

namespace tandem::sched {

enum class Phase : std::uint8_t {
  kWaiting,   ///< queued; holds no pages
  kPrefill,   ///< holds pages for all its tokens; some of them are not computed yet
  kDecode,    ///< all tokens but the last are computed
  kHeld,      ///< prefill role: computed, its pages stay for the transfer
  kReserved,  ///< decode role: pages are held, the KV comes from elsewhere
};

/// Owned by the Scheduler; read-only for others, except match_limit.
struct Sequence {
  core::RequestId id;
  /// Prompt, then output.
  std::vector<core::TokenId> tokens;
  std::int32_t prompt_count = 0;
  /// tokens never grows beyond this: max_new_tokens, the context, or what the pool can hold.
  std::int32_t token_limit = 0;
  /// At most this many tokens may come from the prefix cache (prompt logprobs need the others
  /// computed). Whoever wants logprobs keeps it up to date.
  std::int32_t match_limit = 0;
  /// Ends as kHeld instead of kDecode.
  bool prefill_only = false;
  /// Came by adopt().
  bool adopted = false;

  Phase phase = Phase::kWaiting;
  /// Tokens whose KV is in `pages`.
  std::int32_t computed = 0;
  kv::PageTable pages;
  /// Tokens served by the prefix cache at the first admission; -1 before it.
  std::int32_t cached_tokens = -1;
  std::int32_t retraction_count = 0;
  /// Landing pages already given out (kReserved).
  std::int32_t pages_taken = 0;
  /// Admissions of later arrivals while this one waited.
  std::int32_t passed_over = 0;
  /// Cached pages found when the queue was last ordered.
  std::int64_t queue_match = 0;

  [[nodiscard]] std::int32_t token_count() const {
    return static_cast<std::int32_t>(tokens.size());
  }

  [[nodiscard]] std::int32_t output_count() const { return token_count() - prompt_count; }

  [[nodiscard]] std::int32_t remaining_tokens() const { return token_limit - token_count(); }
};

/// What a caller says of a new sequence.
struct NewSequence {
  core::RequestId id;
  std::vector<core::TokenId> prompt;
  /// Output of an earlier attempt.
  std::vector<core::TokenId> resumed;
  std::int32_t max_new_tokens = 0;
  std::int32_t match_limit = 0;
  bool prefill_only = false;
};

}  // namespace tandem::sched
