// EngineLoop: the engine thread. It alone touches the engine; everybody else posts tasks.
#pragma once

#include "common/core/request.h"
#include "common/engine/engine.h"
#include "common/worker/task_loop.h"

#include <atomic>
#include <cstdint>
#include <functional>
#include <mutex>

namespace tandem::worker {

class EngineLoop final : public TaskLoop {
 public:
  /// `engine` is borrowed. `model_progress` grows while a forward pass runs (layers done); may be
  /// empty; any thread. `spare_work` does a piece of work that can wait, some milliseconds,
  /// whenever the engine has none; true: there is more, false: ask again after the next step; may
  /// be empty.
  EngineLoop(engine::Engine* engine,
             std::function<std::uint64_t()> model_progress,
             std::function<bool()> spare_work = {});
  /// stop().
  ~EngineLoop() override;

  /// The last published load, with `progress` as of now. Any thread.
  [[nodiscard]] core::Load load() const;
  [[nodiscard]] std::uint64_t progress() const;

 private:
  void work(Time now) override;
  [[nodiscard]] Duration longest_wait() const override;
  void publish();

  engine::Engine* engine_;
  std::function<std::uint64_t()> model_progress_;
  std::atomic<std::uint64_t> turns_{0};
  std::function<bool()> spare_work_;
  bool worked_ = true;  // the last step; engine thread
  bool more_to_spare_ = false;
  // Guards load_: written once per turn by the engine thread, read by ticks and metrics at their
  // own times, and a channel would have to be drained by each of them.
  mutable std::mutex load_mutex_;
  core::Load load_;
};

}  // namespace tandem::worker
