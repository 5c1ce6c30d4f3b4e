// --log-requests: one line for each request that comes in and one for its end.
#pragma once

#include "common/core/generator.h"

#include <functional>
#include <memory>

namespace tandem::serve {

/// `inner` with a log line (info) at each submit and each finishing event: names, numbers of
/// tokens, how it ended and after how long. Never the text. Threads: as `inner`.
std::shared_ptr<core::Generator> with_request_log(std::shared_ptr<core::Generator> inner);

/// The same around one submission that is no Generator's: hands `submit` a sink that logs. A sink
/// that is dropped without a finishing event counts as handed on (prefill to decode).
Status submit_logged(const core::Request& request,
                     core::EventSink sink,
                     const std::function<Status(core::EventSink)>& submit);

}  // namespace tandem::serve
