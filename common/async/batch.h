// Batch: what a thread puts off until it is done with what it is at. A message that brings tokens
// for many streams is read to its end first; then each stream is served once, on the same thread,
// without waking another.
#pragma once

#include <boost/container/small_vector.hpp>

#include <functional>
#include <utility>

namespace tandem::async {

/// Opened on the stack around some work; its end runs what was added, in order, including what is
/// added meanwhile. Nothing is held or locked then. One per thread and depth: the innermost counts.
class Batch {
 public:
  Batch() : outer_(std::exchange(current_, this)) {}

  ~Batch() {
    // What these tasks put off comes here too, so that their depth does not grow.
    for (std::size_t i = 0; i < tasks_.size(); ++i) {
      const std::function<void()> task = std::move(tasks_[i]);
      task();
    }
    current_ = outer_;
  }

  Batch(const Batch&) = delete;
  Batch& operator=(const Batch&) = delete;

  /// Puts `task` off to the end of this thread's batch. False: there is none, and `task` is
  /// untouched.
  static bool add(std::function<void()>&& task) {
    if (current_ == nullptr) return false;
    current_->tasks_.push_back(std::move(task));
    return true;
  }

 private:
  static inline thread_local Batch* current_ = nullptr;  // NOLINT: as a member

  Batch* outer_;
  boost::container::small_vector<std::function<void()>, 2> tasks_;  ///< mostly one
};

}  // namespace tandem::async
