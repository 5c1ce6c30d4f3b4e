#include "common/engine/generation.h"

#include <algorithm>
#include <string>
#include <utility>

namespace tandem::engine {
namespace {

Status check_tokens(const char* field,
                    std::span<const core::TokenId> ids,
                    std::int32_t vocab_size) {
  for (std::size_t i = 0; i < ids.size(); ++i) {
    if (ids[i] >= 0 && ids[i] < vocab_size) continue;
    return invalid_argument(std::string(field) + "[" + std::to_string(i) + "]: token id " +
                            std::to_string(ids[i]) + " is outside the vocabulary, expected 0 to " +
                            std::to_string(vocab_size - 1));
  }
  return {};
}

}  // namespace

Status check_request(const core::Request& request, std::int32_t vocab_size) {
  if (request.input_ids.empty()) return invalid_argument("input_ids is empty");
  TANDEM_TRY(check_tokens("input_ids", request.input_ids, vocab_size));
  TANDEM_TRY(check_tokens("resumed_output_ids", request.resumed_output_ids, vocab_size));
  TANDEM_TRY(request.sampling.validate(vocab_size));
  const auto prompt = static_cast<std::int64_t>(request.input_ids.size());
  if (request.logprob_start_len < -1 || request.logprob_start_len > prompt) {
    return invalid_argument("logprob_start_len: " + std::to_string(request.logprob_start_len) +
                            " is out of range, expected -1 to the prompt's " +
                            std::to_string(prompt) + " tokens");
  }
  if (request.top_logprobs_num < 0 || request.top_logprobs_num > vocab_size) {
    return invalid_argument("top_logprobs_num: " + std::to_string(request.top_logprobs_num) +
                            " is out of range, expected 0 to " + std::to_string(vocab_size));
  }
  return {};
}

core::FinishReason finish_reason(core::FinishKind kind,
                                 std::optional<core::TokenId> matched_token,
                                 Status status) {
  return {kind, matched_token, std::move(status)};
}

Generation::Generation(core::Request request_in,
                       const OutputLimits& limits,
                       sched::NewSequence* spec)
    : request(std::move(request_in)) {
  prompt_count = static_cast<std::int32_t>(request.input_ids.size());
  resumed_count = static_cast<std::int32_t>(request.resumed_output_ids.size());
  const core::SamplingParams& params = request.sampling;
  if (!params.ignore_eos) {
    end_ids.assign(limits.eos_token_ids.begin(), limits.eos_token_ids.end());
  }
  end_ids.insert(end_ids.end(), params.stop_token_ids.begin(), params.stop_token_ids.end());
  keeps_counts = sample::needs_counts(params);
  for (const core::TokenId token : request.resumed_output_ids) {
    if (keeps_counts) ++counts[token];
  }
  if (resumed_count > 0) {
    ended_before = finish_after(request.resumed_output_ids.back(), resumed_count);
    outgrown = !ended_before && prompt_count + resumed_count >= limits.token_limit;
  } else if (params.max_new_tokens == 0) {
    ended_before = finish_reason(core::FinishKind::kLength);
  }
  if (request.return_logprob && request.logprob_start_len >= 0 &&
      request.logprob_start_len < prompt_count) {
    next_prompt_row = std::max(request.logprob_start_len - 1, 0);
    if (request.logprob_start_len == 0) {
      prompt_logprobs.emplace_back().token = request.input_ids.front();
    }
    if (next_prompt_row >= prompt_count - 1) next_prompt_row = kNoMatchLimit;
  }
  pending.request = request.id;
  pending.first_index = resumed_count;
  *spec = {.id = request.id,
           .prompt = std::move(request.input_ids),
           .resumed = std::move(request.resumed_output_ids),
           .max_new_tokens = ended_before ? resumed_count : params.max_new_tokens,
           .match_limit = next_prompt_row};
}

std::optional<core::FinishReason> Generation::finish_after(core::TokenId token,
                                                           std::int32_t output_count) const {
  // An end id that a resumed output holds before min_new_tokens was masked then, so it is none.
  if (output_count > request.sampling.min_new_tokens &&
      std::ranges::find(end_ids, token) != end_ids.end()) {
    return finish_reason(core::FinishKind::kStop, token);
  }
  if (is_last(output_count)) return finish_reason(core::FinishKind::kLength);
  return std::nullopt;
}

std::int32_t Generation::logit_count(std::int32_t first, std::int32_t end, bool samples) const {
  std::int32_t from = samples ? end - 1 : end;
  if (next_prompt_row < prompt_count - 1) from = std::min(from, std::max(first, next_prompt_row));
  return end - from;
}

void Generation::start(Time now) {
  started = now;
  if (keeps_counts) counts.reserve(static_cast<std::size_t>(sequence->token_limit - prompt_count));
}

core::TokenEvent Generation::take_event() {
  core::TokenEvent event = std::move(pending);
  pending = {};
  pending.request = request.id;
  pending.first_index = event.first_index + static_cast<std::int32_t>(event.tokens.size());
  if (!sent_any) event.prompt_logprobs = std::move(prompt_logprobs);
  sent_any = true;
  event.prompt_tokens = prompt_count;
  event.cached_tokens = cached_tokens;
  event.retraction_count = sequence != nullptr ? sequence->retraction_count : 0;
  event.timings = timings;
  return event;
}

}  // namespace tandem::engine
