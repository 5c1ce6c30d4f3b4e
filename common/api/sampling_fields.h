// Sampling parameters of a request body, for the OpenAI and the native spelling.
#pragma once

#include "common/api/api_server.h"
#include "common/api/body.h"
#include "common/core/sampling_params.h"

#include <cstdint>
#include <optional>

namespace tandem::api {

struct SamplingFields {
  core::SamplingParams sampling;
  core::TextParams text;
  std::int32_t n = 1;
  /// Absent: the endpoint's default applies.
  std::optional<std::int32_t> max_new_tokens;
  /// Absent: one is drawn per prompt.
  std::optional<std::uint64_t> seed;
};

/// The fields that both spellings share, and n, on top of the model's defaults. `defaults` are
/// those of generation_config.json.
Status read_shared_sampling(RequestBody& body, const ApiLimits& limits, SamplingFields* out);

/// max_tokens, max_completion_tokens (wins), min_tokens, seed.
Result<SamplingFields> read_openai_sampling(RequestBody& body,
                                            const core::ServedModel& model,
                                            const ApiLimits& limits);

/// The members of `sampling_params`: max_new_tokens, min_new_tokens, sampling_seed.
Result<SamplingFields> read_native_sampling(RequestBody& body,
                                            const core::ServedModel& model,
                                            const ApiLimits& limits);

}  // namespace tandem::api
