#include "common/worker/ready_memory.h"

#include <utility>

namespace tandem::worker {

ReadyMemory::ReadyMemory(engine::Engine* engine, const EngineLoop* loop, std::string stat_path)
    : engine_(engine), loop_(loop), idle_cpu_(std::move(stat_path)) {}

void ReadyMemory::after_step(Time now) {
  next_.reset();
  if (engine_->has_work() || !engine_->wants_memory()) return;
  const core::Load load = loop_->load();
  if (load.waiting_requests > 0 || load.transferring_pages > 0) return;
  if (idle_cpu_.spare(now)) {
    engine_->take_memory();
    next_ = now;
  } else {
    next_ = now + transfer::IdleCpu::kLook;
  }
}

}  // namespace tandem::worker
