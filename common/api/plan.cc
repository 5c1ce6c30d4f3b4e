#include "common/api/plan.h"

#include "common/api/length.h"
#include "common/base/clock.h"
#include "common/base/random.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>
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

Status add_prompt(const Context& context, PromptPlan prompt, Plan* plan) {
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
  const std::int32_t prompt_index =
      plan->sequences.empty() ? 0 : plan->sequences.back().prompt_index + 1;
  for (std::int32_t choice = 0; choice < prompt.fields.n; ++choice) {
    SequencePlan sequence;
    sequence.request.id = core::draw_request_id();
    sequence.name = prompt.name;
    if (sequence.name.empty()) {
      sequence.name = core::to_string(sequence.request.id);
    } else if (prompt.fields.n > 1) {
      sequence.name += "_" + std::to_string(choice);
    }
    sequence.request.client_id = sequence.name;
    const bool last = choice + 1 == prompt.fields.n;
    sequence.request.input_ids = last ? std::move(prompt.ids) : prompt.ids;
    sequence.request.sampling = sampling;
    sequence.request.sampling.seed = choice_seed(seed, choice);
    sequence.request.return_logprob = prompt.return_logprob;
    sequence.request.logprob_start_len = prompt.logprob_start_len;
    sequence.request.top_logprobs_num = prompt.top_logprobs_num;
    sequence.text = prompt.fields.text;
    sequence.prompt_index = prompt_index;
    sequence.choice_index = choice;
    sequence.tokenize = prompt.tokenize;
    plan->sequences.push_back(std::move(sequence));
  }
  return {};
}

ApiError plan_error(const Status& status) {
  ApiError error = to_api_error(status);
  if (status.code() == Code::kOutOfRange) error.code = "context_length_exceeded";
  return error;
}

}  // namespace tandem::api
