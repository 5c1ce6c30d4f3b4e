// The decode-status line: every --decode-log-interval steps, what runs, waits and how fast.
#pragma once

#include "common/engine/engine.h"
#include "common/worker/engine_loop.h"

#include <cstdint>
#include <memory>

namespace tandem::worker {

/// `engine` is borrowed; `interval` >= 1 steps that generated something.
std::unique_ptr<LoopClient> make_status_log(engine::Engine* engine, std::uint32_t interval);

}  // namespace tandem::worker
