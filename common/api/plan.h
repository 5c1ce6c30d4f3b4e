// Plan: what a request asks for, checked and tokenized: one core::Request per sequence.
#pragma once

#include "common/api/context.h"
#include "common/api/sampling_fields.h"
#include "common/core/request.h"

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace tandem::api {

struct SequencePlan {
  core::Request request;
  core::TextParams text;
  /// The client's name for it, or the id in hex.
  std::string name;
  std::int32_t prompt_index = 0;
  std::int32_t choice_index = 0;
  Duration tokenize{-1};
};

struct Plan {
  std::vector<SequencePlan> sequences;
  bool stream = false;
  std::vector<std::string> ignored;
};

/// One prompt with everything that applies to it.
struct PromptPlan {
  std::vector<core::TokenId> ids;
  /// What it took to get the ids from the text; negative when ids were sent.
  Duration tokenize{-1};
  SamplingFields fields;
  /// The endpoint's default of max_new_tokens; absent: whatever the context has room for.
  std::optional<std::int32_t> default_max_new_tokens;
  bool return_logprob = false;
  std::int32_t logprob_start_len = -1;
  std::int32_t top_logprobs_num = 0;
  /// Empty: the ids become the names.
  std::string name;
};

/// A prompt's ids and what it took to make them (see PromptPlan).
struct TokenizedPrompt {
  std::vector<core::TokenId> ids;
  Duration time{-1};
};

/// Ids of a text, after a check of its size against what the context can hold. `field` names it.
Result<TokenizedPrompt> tokenize_prompt(const Context& context,
                                        std::string_view text,
                                        bool add_special_tokens,
                                        std::string_view field);

/// Ids as given by the client: each within the vocabulary, at most what the context can hold.
Result<std::vector<core::TokenId>> read_prompt_ids(const Context& context,
                                                   const json::Field& field);

/// Adds the n sequences of a prompt. Checks lengths (Code::kOutOfRange when they exceed the
/// context) and parameters, draws ids and seeds.
Status add_prompt(const Context& context, PromptPlan&& prompt, Plan* plan);

/// to_api_error with the code that OpenAI uses for prompts that are too long.
[[gnu::cold]] ApiError plan_error(const Status& status);

}  // namespace tandem::api
