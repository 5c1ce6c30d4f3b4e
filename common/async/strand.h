// Strand: tasks that never run at the same time, in the order posted. Timer: one of them, later.
#pragma once

#include "common/async/io_pool.h"
#include "common/base/ids.h"

#include <functional>
#include <memory>

namespace tandem::async {

/// Value type; copies name the same strand. Any thread.
class Strand {
 public:
  explicit Strand(IoPool& pool);

  /// Runs `task` after the tasks posted before it. Never runs it inside the call.
  void post(std::function<void()> task) const;

  /// Whether the caller is running on this strand.
  [[nodiscard]] bool running_here() const;

 private:
  friend class Timer;
  struct State;
  std::shared_ptr<State> state_;
};

/// A one-shot timer whose task runs on a strand. Use it only on that strand (or before anything
/// runs there): then, after cancel() or a new start(), the old task does not run any more.
class Timer {
 public:
  explicit Timer(const Strand& strand);
  /// Cancels.
  ~Timer();
  Timer(const Timer&) = delete;
  Timer& operator=(const Timer&) = delete;

  void start(Duration delay, std::function<void()> task);
  void cancel();

 private:
  struct State;
  std::shared_ptr<State> state_;
};

}  // namespace tandem::async
