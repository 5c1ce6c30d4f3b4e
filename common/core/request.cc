#include "common/core/request.h"

#include "common/base/random.h"

#include <fmt/format.h>

namespace tandem::core {

std::string to_string(RequestId id) {
  return fmt::format("{:016x}", id.value);
}

RequestId draw_request_id() {
  std::uint64_t value = 0;
  while (value == 0)
    value = system_random_ahead() >> 1U;
  return {value};
}

TokenEvent aborted_event(RequestId id, const Status& why) {
  TokenEvent event;
  event.request = id;
  event.finish = FinishReason{FinishKind::kAbort, std::nullopt, why};
  return event;
}

}  // namespace tandem::core
