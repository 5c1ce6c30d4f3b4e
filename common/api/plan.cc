#include "common/api/plan.h"

#include "common/api/length.h"
#include "common/base/clock.h"
#include "common/base/random.h"

#include <fmt/format.h>

#include <algorithm>
#include <span>
#include <utility>

namespace tandem::api {

namespace {

Status too_long(std::string message) {
  return {Code::kOutOfRange, std::move(message)};
}

std::size_t array_size(const json::Value& value) {
  if (const json::Integers* integers = value.if_integers()) return integers->size();
  const json::Array* array = value.if_array();
  return array == nullptr ? 0 : array->size();
}

std::uint64_t choice_seed(std::uint64_t seed, std::int32_t choice) {
  if (choice == 0) return seed;
  Random random(seed ^ (static_cast<std::uint64_t>(choice) << 32U));
  return random.next();
}

}  // namespace

Result<TokenizedPrompt> tokenize_prompt(const Context& context,
                                        std::string_view text,
                                        bool add_special_tokens,
                                        std::string_view field) {
  const ApiLimits& limits = context.options.limits;
  const std::size_t most =
      std::min(limits.prompt_bytes,
               static_cast<std::size_t>(std::max(context.options.model.context_length, 1)) *
                   limits.bytes_per_token_max);
  if (text.size() > most) {
    return too_long(fmt::format(
        "{} has {} bytes, which cannot be the input tokens of a context length of {} tokens (at "
        "most {} bytes are looked at, whatever max_new_tokens)",
        field,
        text.size(),
        context.options.model.context_length,
        most));
  }
  const Time began = steady_clock().now();
  TokenizedPrompt out{.ids = context.tokenizer->encode(text, add_special_tokens), .time = {}};
  out.time = steady_clock().now() - began;
  return out;
}

Result<std::vector<core::TokenId>> read_prompt_ids(const Context& context,
                                                   const json::Field& field) {
  const core::ServedModel& model = context.options.model;
  if (array_size(field.value()) > static_cast<std::size_t>(std::max(model.context_length, 0))) {
    return too_long(fmt::format(
        "the request is longer than the context: {} input tokens + max_new_tokens, the maximum "
        "context length is {} tokens",
        array_size(field.value()),
        model.context_length));
  }
  return field.as_small_ints(0, std::max(model.vocab_size - 1, 0));
}

Status add_prompt(const Context& context, PromptPlan&& prompt, Plan* plan) {
  const core::ServedModel& model = context.options.model;
  core::SamplingParams& sampling = prompt.fields.sampling;
  TANDEM_TRY(settle_length(model,
                           static_cast<std::int64_t>(prompt.ids.size()),
                           prompt.fields.max_new_tokens,
                           prompt.default_max_new_tokens,
                           &sampling));
  TANDEM_TRY(sampling.validate(model.vocab_size));
  if (prompt.logprob_start_len < -1 ||
      prompt.logprob_start_len > static_cast<std::int64_t>(prompt.ids.size())) {
    return invalid_argument(
        fmt::format("logprob_start_len: {} is out of range, expected -1 to the {} input tokens",
                    prompt.logprob_start_len,
                    prompt.ids.size()));
  }
  const std::size_t n = static_cast<std::size_t>(prompt.fields.n);
  if (plan->sequences.size() + n > context.options.limits.sequences) {
    return invalid_argument(fmt::format("the request asks for more than {} sequences (prompts x n)",
                                        context.options.limits.sequences));
  }
  // Drawn once per prompt, so that a second attempt of the same sequence draws the same noise.
  const std::uint64_t seed = prompt.fields.seed ? *prompt.fields.seed : context.options.draw_seed();
  const std::size_t at = plan->sequences.size();
  SequencePlan& first = plan->sequences.emplace_back();
  first.request.input_ids = std::move(prompt.ids);
  first.request.sampling = std::move(sampling);
  first.request.return_logprob = prompt.return_logprob;
  first.request.logprob_start_len = prompt.logprob_start_len;
  first.request.top_logprobs_num = prompt.top_logprobs_num;
  first.text = std::move(prompt.fields.text);
  first.prompt_index = at == 0 ? 0 : plan->sequences[at - 1].prompt_index + 1;
  first.tokenize = prompt.tokenize;
  for (std::size_t choice = 1; choice < n; ++choice) {
    SequencePlan more = plan->sequences[at];
    more.choice_index = static_cast<std::int32_t>(choice);
    plan->sequences.push_back(std::move(more));
  }
  for (SequencePlan& sequence : std::span(plan->sequences).subspan(at)) {
    sequence.request.id = core::draw_request_id();
    sequence.name = prompt.name.empty() ? core::to_string(sequence.request.id) : prompt.name;
    if (n > 1 && !prompt.name.empty()) sequence.name += "_" + std::to_string(sequence.choice_index);
    sequence.request.client_id = sequence.name;
    sequence.request.sampling.seed = choice_seed(seed, sequence.choice_index);
  }
  return {};
}

ApiError plan_error(const Status& status) {
  ApiError error = to_api_error(status);
  if (status.code() == Code::kOutOfRange) error.code = "context_length_exceeded";
  return error;
}

}  // namespace tandem::api
