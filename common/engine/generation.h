// Generation: one request inside the engine, beside its sched::Sequence: what to sample and whom to
// tell.
#pragma once

#include "common/core/generator.h"
#include "common/core/request.h"
#include "common/engine/engine.h"
#include "common/sample/sampler.h"
#include "common/sched/sequence.h"

#include <cstdint>
#include <limits>
#include <optional>
#include <span>
#include <vector>

namespace tandem::engine {

inline constexpr std::int32_t kNoMatchLimit = std::numeric_limits<std::int32_t>::max();

/// Whose output it is and how much of it can be. Constant facts of one engine.
struct OutputLimits {
  std::span<const core::TokenId> eos_token_ids;
  /// Longest prompt plus output: context, and what the pool can hold.
  std::int64_t token_limit = 0;
};

class Generation {
 public:
  /// `request` is valid (see check_request). Its input_ids are moved into `*spec`, what the
  /// scheduler needs to know.
  Generation(core::Request request, const OutputLimits& limits, sched::NewSequence* spec);

  [[nodiscard]] core::RequestId id() const { return request.id; }

  /// Whether the output ends with its output_count-th token, whichever that is.
  [[nodiscard]] bool is_last(std::int32_t output_count) const {
    return output_count >= request.sampling.max_new_tokens;
  }

  /// How the output ends if `token` is its output_count-th token; none when it goes on.
  [[nodiscard]] std::optional<core::FinishReason> finish_after(core::TokenId token,
                                                               std::int32_t output_count) const;

  /// Whether prompt position `row` predicts a token whose logprob is wanted and missing, when
  /// `next` is the next such row.
  [[nodiscard]] bool wants_prompt_row(std::int32_t row, std::int32_t next) const {
    return row == next && row < prompt_count - 1;
  }

  /// The next such row, once `row` is there.
  [[nodiscard]] std::int32_t prompt_row_after(std::int32_t row) const {
    return row + 1 >= prompt_count - 1 ? kNoMatchLimit : row + 1;
  }

  /// Logit rows wanted of tokens [first, end) of the sequence: a count from the end.
  [[nodiscard]] std::int32_t logit_count(std::int32_t first, std::int32_t end, bool samples) const;

  /// It is computed from now on. Asks for what its steps need to count tokens.
  void start(Time now);

  /// Takes the event that holds what was not sent yet, with all counts filled in.
  core::TokenEvent take_event();

  core::Request request;
  core::EventSink sink;                 ///< unified and adopted requests
  PrefillObserver* observer = nullptr;  ///< prefill role
  bool prefill_role = false;
  /// Null while none: before reserve() has succeeded, or when nothing must be computed.
  sched::Sequence* sequence = nullptr;

  std::int32_t prompt_count = 0;
  std::int32_t resumed_count = 0;
  /// Ended before anything is sampled: what was resumed is a whole output, or none is wanted.
  std::optional<core::FinishReason> ended_before;
  /// What was resumed goes on and has no room here: it comes from an engine that has more.
  bool outgrown = false;
  /// The finishing call was made; only its pages are still here (prefill role).
  bool reported = false;
  /// The KV of this request is not to be trusted.
  bool discard = false;

  std::vector<core::TokenId> end_ids;
  sample::TokenCounts counts;
  bool keeps_counts = false;

  /// Prompt logprobs: the next row that is wanted (kNoMatchLimit: none), and what is there.
  std::int32_t next_prompt_row = kNoMatchLimit;
  std::vector<core::TokenLogprob> prompt_logprobs;

  /// Tokens that were sampled and not sent.
  core::TokenEvent pending;
  bool sent_any = false;
  std::int32_t cached_tokens = 0;
  /// Prefill role: pages told to the observer.
  std::int32_t pages_told = 0;

  Time submitted;
  std::optional<Time> started;
  core::Timings timings;
};

core::FinishReason finish_reason(core::FinishKind kind,
                                 std::optional<core::TokenId> matched_token = std::nullopt,
                                 Status status = {});

/// What submit, submit_prefill and reserve refuse before anything is queued. Names the field.
Status check_request(const core::Request& request, std::int32_t vocab_size);

}  // namespace tandem::engine
