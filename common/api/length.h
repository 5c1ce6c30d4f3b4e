// How many tokens a request may still make: one rule for HTTP and gRPC.
#pragma once

#include "common/base/status.h"
#include "common/core/generator.h"
#include "common/core/sampling_params.h"

#include <cstdint>
#include <optional>

namespace tandem::api {

/// Settles max_new_tokens and checks the whole against the context and the KV pool. What a client
/// asks for must fit; a default shrinks to what there is room for, and without a default all the
/// room is taken. Errors: Code::kOutOfRange names the lengths; an empty prompt is invalid.
Status settle_length(const core::ServedModel& model,
                     std::int64_t prompt_tokens,
                     const std::optional<std::int32_t>& wanted,
                     const std::optional<std::int32_t>& default_max,
                     core::SamplingParams* sampling);

}  // namespace tandem::api
