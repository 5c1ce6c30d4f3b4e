// ReadyMemory: the spare time of an engine thread, spent on memory for pages to come.
#pragma once

#include "common/engine/engine.h"
#include "common/transfer/idle_cpu.h"
#include "common/worker/engine_loop.h"

#include <optional>
#include <string>

namespace tandem::worker {

/// Takes what Engine::wants_memory() asks for while neither engine nor hand-off has a request, no
/// page is on its way, and half a processor is idle: on machines where workers share processors the
/// time would be missed by the request that another one computes.
class ReadyMemory final : public LoopClient {
 public:
  /// Borrowed, both. `stat_path`: "/proc/stat".
  ReadyMemory(engine::Engine* engine, const EngineLoop* loop, std::string stat_path);

  void before_step(Time /*now*/) override {}

  void after_step(Time now) override;

  [[nodiscard]] std::optional<Time> next_deadline() const override { return next_; }

 private:
  engine::Engine* engine_;
  const EngineLoop* loop_;
  transfer::IdleCpu idle_cpu_;
  std::optional<Time> next_;
};

}  // namespace tandem::worker
