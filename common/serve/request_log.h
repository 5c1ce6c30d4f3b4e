// --log-requests: one line for each request that comes in and one for its end.
#pragma once

#include "common/core/generator.h"

#include <memory>

namespace tandem::serve {

/// `inner` with a log line (info) at each submit and each finishing event: names, numbers of
/// tokens, how it ended and after how long. Never the text. Threads: as `inner`.
std::shared_ptr<core::Generator> with_request_log(std::shared_ptr<core::Generator> inner);

}  // namespace tandem::serve
