// EngineLoop: the engine thread. It alone touches the engine, both halves of the hand-off and the
// links; everybody else posts tasks.
#pragma once

#include "common/async/channel.h"
#include "common/base/clock.h"
#include "common/core/request.h"
#include "common/engine/engine.h"

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <thread>
#include <vector>

namespace tandem::worker {

/// Something that wants a turn on the engine thread besides posted tasks.
class LoopClient {
 public:
  virtual ~LoopClient() = default;
  /// After the tasks, before the step. May call into the engine.
  virtual void before_step(Time now) = 0;
  /// After the step, also when there was none.
  virtual void after_step(Time now) = 0;

  /// Requests that it holds and the engine does not count as its own (waiting for links or room).
  [[nodiscard]] virtual std::size_t waiting_count() const { return 0; }

  /// When before_step wants to run at the latest though nothing else happens.
  [[nodiscard]] virtual std::optional<Time> next_deadline() const { return std::nullopt; }
};

class EngineLoop {
 public:
  using Task = std::function<void()>;
  using Inbox = async::Channel<Task>;

  /// `engine` is borrowed. `model_progress` grows while a forward pass runs (layers done); may be
  /// empty; any thread.
  EngineLoop(engine::Engine* engine, std::function<std::uint64_t()> model_progress);
  /// stop().
  ~EngineLoop();
  EngineLoop(const EngineLoop&) = delete;
  EngineLoop& operator=(const EngineLoop&) = delete;

  /// Before start() only.
  void add_client(LoopClient* client) { clients_.push_back(client); }

  void start();
  /// Runs what is queued, then ends the thread. Any thread but the engine's; may be called again.
  void stop();

  /// Runs `task` on the engine thread. False when the inbox is full or closed: tell the caller to
  /// try later.
  [[nodiscard]] bool try_post(Task task);
  /// For what must not be lost (aborts, messages of peers): waits for room; dropped only after
  /// stop().
  void post(Task task);

  /// For callbacks that may come after this object is gone: a closed inbox takes nothing.
  [[nodiscard]] std::shared_ptr<Inbox> inbox() const { return inbox_; }

  /// The last published load, with `progress` as of now. Any thread.
  [[nodiscard]] core::Load load() const;
  [[nodiscard]] std::uint64_t progress() const;

 private:
  void run();
  void publish();
  [[nodiscard]] Duration wait_time(Time now) const;

  engine::Engine* engine_;
  std::function<std::uint64_t()> model_progress_;
  std::shared_ptr<Inbox> inbox_;
  std::vector<LoopClient*> clients_;
  std::atomic<std::uint64_t> turns_{0};
  bool worked_ = true;  // the last step; engine thread
  // Guards load_: written once per turn by the engine thread, read by ticks and metrics at their
  // own times, and a channel would have to be drained by each of them.
  mutable std::mutex load_mutex_;
  core::Load load_;
  std::thread thread_;
};

}  // namespace tandem::worker
