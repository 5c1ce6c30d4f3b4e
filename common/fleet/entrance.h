// Entrance: how threads come to a state that has one user at a time. Who finds nobody waiting works
// on it, on its own thread, as soon as whoever is inside has left: a hand-over would cost two
// thread switches for every request and every step. Everybody else leaves a task, and the owner's
// thread does it.
#pragma once

#include "common/async/channel.h"
#include "common/base/ids.h"

#include <atomic>
#include <cstddef>
#include <functional>
#include <mutex>
#include <utility>
#include <vector>

namespace tandem::fleet {

/// Tasks run one at a time, and those of one thread in the order in which it brought them. The
/// mutex guards the state behind it (a channel alone would need the hand-over).
class Entrance {
 public:
  explicit Entrance(std::size_t capacity) : inbox_(capacity) {}

  /// Runs `task` now, on this thread, when no task waits; else false, and nothing has happened.
  /// Waits for whoever is inside. A task must not wait for anything.
  template <class Task>
  bool try_now(Task&& task) {
    // Whoever is inside already must not lock again; what it brings waits for its turn.
    if (inside_ == this) return false;
    // Already with a task waiting the lock may be held for long.
    if (waiting_.load(std::memory_order_acquire) != 0) return false;
    const std::lock_guard lock(mutex_);
    if (ended_ || waiting_.load(std::memory_order_acquire) != 0) return false;
    inside_ = this;
    std::forward<Task>(task)();
    inside_ = nullptr;
    return true;
  }

  /// Leaves a task for the owner; waits for room. False: closed.
  bool leave(std::function<void()> task) {
    waiting_.fetch_add(1, std::memory_order_acq_rel);
    if (inbox_.push(std::move(task))) return true;
    waiting_.fetch_sub(1, std::memory_order_acq_rel);
    return false;
  }

  /// The same without waiting. False: full or closed.
  bool try_leave(std::function<void()> task) {
    waiting_.fetch_add(1, std::memory_order_acq_rel);
    if (inbox_.try_push(std::move(task))) return true;
    waiting_.fetch_sub(1, std::memory_order_acq_rel);
    return false;
  }

  /// Owner: waits for tasks, at most so long, then does them all and `after` while nobody else is
  /// inside.
  template <class After>
  void do_turn(Duration wait, After&& after) {
    inbox_.wait(wait);
    const std::lock_guard lock(mutex_);
    inside_ = this;
    const std::vector<std::function<void()>> tasks = inbox_.pop_all(Duration{0});
    for (const auto& task : tasks)
      task();
    // Only now may others pass: what these threads bring next comes after it.
    waiting_.fetch_sub(tasks.size(), std::memory_order_acq_rel);
    std::forward<After>(after)();
    inside_ = nullptr;
  }

  /// Ends the owner's wait early.
  void wake() { inbox_.wake(); }

  void close() { inbox_.close(); }

  [[nodiscard]] bool closed() const { return inbox_.closed(); }

  /// From here on nothing runs inside, on any thread. The state may go.
  void end() {
    const std::lock_guard lock(mutex_);
    ended_ = true;
  }

 private:
  // The entrance that this thread is inside of.
  static inline thread_local const Entrance* inside_ = nullptr;  // NOLINT: as a member

  std::mutex mutex_;
  bool ended_ = false;
  // Tasks left and not yet done: nobody may pass them.
  std::atomic<std::size_t> waiting_{0};
  async::Channel<std::function<void()>> inbox_;
};

}  // namespace tandem::fleet
