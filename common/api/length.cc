#include "common/api/length.h"

#include <fmt/format.h>

#include <algorithm>
#include <string>
#include <utility>

namespace tandem::api {

namespace {

Status too_long(std::string message) {
  return {Code::kOutOfRange, std::move(message)};
}

}  // namespace

Status settle_length(const core::ServedModel& model,
                     std::int64_t prompt_tokens,
                     const std::optional<std::int32_t>& wanted,
                     const std::optional<std::int32_t>& default_max,
                     core::SamplingParams* sampling) {
  const std::int64_t context = model.context_length;
  const std::int64_t pool = model.max_request_tokens > 0 ? model.max_request_tokens : context;
  if (prompt_tokens == 0)
    return invalid_argument("the prompt is empty, expected at least one token");
  const std::int64_t room = std::min(context, pool) - prompt_tokens;
  std::int64_t most = wanted.value_or(0);
  if (!wanted)
    most = default_max ? std::min<std::int64_t>(*default_max, std::max<std::int64_t>(room, 1))
                       : std::max<std::int64_t>(room, 1);
  if (prompt_tokens + most > context) {
    return too_long(fmt::format(
        "the request is longer than the context: {} input tokens + max_new_tokens {} = {} tokens, "
        "the maximum context length is {} tokens",
        prompt_tokens,
        most,
        prompt_tokens + most,
        context));
  }
  if (prompt_tokens > pool) {
    return too_long(fmt::format(
        "the request does not fit: {} input tokens (max_new_tokens {}), the KV pool holds {} "
        "tokens of the context length {}",
        prompt_tokens,
        most,
        pool,
        context));
  }
  sampling->max_new_tokens = static_cast<std::int32_t>(most);
  return {};
}

}  // namespace tandem::api
