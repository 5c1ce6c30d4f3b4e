#include "common/core/request.h"

#include "common/base/random.h"

namespace tandem::core {

std::string to_string(RequestId id) {
  // Each request is named once; formatting by a pattern would cost twenty times as much.
  constexpr char kHex[] = "0123456789abcdef";
  std::string text(16, '0');
  std::uint64_t rest = id.value;
  for (auto digit = text.rbegin(); rest != 0; ++digit, rest >>= 4U)
    *digit = kHex[rest & 15U];
  return text;
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
