#include "common/worker/engine_loop.h"

#include <utility>

namespace tandem::worker {
namespace {

/// Work that cannot start (no free pages) is looked at again this often, unless something comes in.
constexpr Duration kStarvedTurn = milliseconds(2);

}  // namespace

EngineLoop::EngineLoop(engine::Engine* engine,
                       std::function<std::uint64_t()> model_progress,
                       std::function<bool()> spare_work)
    : TaskLoop("engine"),
      engine_(engine),
      model_progress_(std::move(model_progress)),
      spare_work_(std::move(spare_work)),
      more_to_spare_(spare_work_ != nullptr) {
  publish();
}

EngineLoop::~EngineLoop() {
  stop();
}

void EngineLoop::publish() {
  core::Load load = engine_->load();
  for (const LoopClient* client : clients())
    load.waiting_requests += static_cast<std::int64_t>(client->waiting_count());
  const std::lock_guard lock(load_mutex_);
  load_ = load;
}

core::Load EngineLoop::load() const {
  core::Load load;
  {
    const std::lock_guard lock(load_mutex_);
    load = load_;
  }
  load.progress = progress();
  return load;
}

std::uint64_t EngineLoop::progress() const {
  const std::uint64_t layers = model_progress_ ? model_progress_() : 0;
  return turns_.load(std::memory_order_relaxed) + layers;
}

Duration EngineLoop::longest_wait() const {
  if (!engine_->has_work()) return more_to_spare_ ? Duration{0} : TaskLoop::longest_wait();
  return worked_ ? Duration{0} : kStarvedTurn;
}

void EngineLoop::work(Time now) {
  worked_ = engine_->step(now);
  publish();
  // What could not be done then may be possible after a step.
  more_to_spare_ |= worked_ && spare_work_ != nullptr;
  if (more_to_spare_ && !engine_->has_work()) more_to_spare_ = spare_work_();
  turns_.fetch_add(1, std::memory_order_relaxed);
}

}  // namespace tandem::worker
