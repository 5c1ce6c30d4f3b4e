// Request and what comes back for it: the nouns that every room speaks. Values; no behaviour.
#pragma once

#include "common/base/ids.h"
#include "common/base/status.h"
#include "common/core/sampling_params.h"

#include <boost/container/small_vector.hpp>

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace tandem::core {

/// Names one generation in one process (or one router and its workers). Drawn at random by the
/// front door; also the bootstrap room, so 63 bits are used.
using RequestId = Id<struct RequestTag>;

/// One sequence to generate. A client's request with n > 1 or several prompts becomes several of
/// these.
struct Request {
  RequestId id;
  /// The client's own name for it (rid / x-request-id), for logs and /abort_request. May be empty.
  std::string client_id;
  /// Prompt. Never empty when it reaches an engine.
  std::vector<TokenId> input_ids;
  /// Output tokens that a client already has from an earlier attempt. They count as output:
  /// positions, penalties, max_new_tokens and the sampling noise go on from there.
  std::vector<TokenId> resumed_output_ids;
  SamplingParams sampling;
  bool return_logprob = false;
  /// First prompt position whose logprob is wanted; -1: none of the prompt.
  std::int32_t logprob_start_len = -1;
  std::int32_t top_logprobs_num = 0;
  /// Absolute, on this process's clock; nothing is computed for a request after it.
  std::optional<Time> deadline;
};

/// Log-probability of one token, with the best alternatives at its position.
struct TokenLogprob {
  TokenId token = 0;
  /// Absent for the first prompt position, which nothing predicts.
  std::optional<float> logprob;
  /// (token, logprob), best first; top_logprobs_num entries.
  std::vector<std::pair<TokenId, float>> top;
};

enum class FinishKind : std::uint8_t {
  kStop,    ///< an end-of-sequence or stop id, or (set by room api) a stop string
  kLength,  ///< max_new_tokens or the context length
  kAbort,   ///< cancelled, failed, refused: see status
};

struct FinishReason {
  FinishKind kind = FinishKind::kStop;
  /// The id that ended the output (kStop). The token itself is part of the output ids.
  std::optional<TokenId> matched_token;
  /// Why (kAbort).
  Status status;
};

/// Where the time of a request went, filled by whoever knows; absent parts are negative.
struct Timings {
  Duration queue{-1};
  Duration prefill{-1};
  Duration kv_transfer{-1};
  std::int64_t kv_transfer_bytes = -1;
};

/// Ids of an event, which mostly has one: as many as a few lie in the event itself, so that neither
/// making nor moving one allocates.
using EventTokens = boost::container::small_vector<TokenId, 4>;

/// Some output of one request, in order. The first event may carry prompt logprobs and no token;
/// the last one, and only the last, carries `finish`.
struct TokenEvent {
  RequestId request;
  /// Index in the output of tokens.front() (resumed tokens included in the count).
  std::int32_t first_index = 0;
  EventTokens tokens;
  /// One per token when return_logprob.
  std::vector<TokenLogprob> logprobs;
  /// From logprob_start_len on, in the first event of a request that asked for them.
  std::vector<TokenLogprob> prompt_logprobs;
  std::int32_t prompt_tokens = 0;
  /// Prompt tokens that were served from a prefix cache.
  std::int32_t cached_tokens = 0;
  std::int32_t retraction_count = 0;
  std::optional<FinishReason> finish;
  Timings timings;
};

/// A finishing event that says why `id` was given up.
TokenEvent aborted_event(RequestId id, const Status& why);

/// What a worker or a whole deployment holds right now; for balancing, health and metrics.
struct Load {
  std::int64_t running_requests = 0;
  std::int64_t waiting_requests = 0;
  std::int64_t used_tokens = 0;    ///< tokens whose KV is held by requests
  std::int64_t cached_tokens = 0;  ///< tokens held by the prefix cache alone (evictable)
  std::int64_t total_tokens = 0;   ///< capacity of the pool
  std::int64_t free_pages = 0;
  std::int64_t used_pages = 0;          ///< held by requests
  std::int64_t cached_pages = 0;        ///< held by the prefix cache alone
  std::int64_t transferring_pages = 0;  ///< promised to or held for a transfer
  std::int64_t total_pages = 0;
  std::uint64_t progress =
      0;  ///< grows while the engine is alive: steps and layers done, idle ticks
  double generation_throughput = 0;  ///< tokens/s over the last interval
};

/// Text form of an id in logs and protocols: 16 hex digits.
std::string to_string(RequestId id);

/// A fresh random id (63 bits, not 0).
RequestId draw_request_id();

}  // namespace tandem::core
