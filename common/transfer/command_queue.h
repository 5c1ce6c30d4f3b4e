// CommandQueue: how other threads hand values to a progress thread that sleeps in poll().
#pragma once

#include "common/base/check.h"

#include <sys/eventfd.h>
#include <unistd.h>

#include <mutex>
#include <utility>
#include <vector>

namespace tandem::transfer {

template <class T>
class CommandQueue {
 public:
  CommandQueue() : fd_(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {
    TANDEM_CHECK(fd_ >= 0, "eventfd: no file descriptor left");
  }

  ~CommandQueue() { ::close(fd_); }

  CommandQueue(const CommandQueue&) = delete;
  CommandQueue& operator=(const CommandQueue&) = delete;

  /// Any thread.
  void push(T value) {
    bool was_empty = false;
    {
      const std::lock_guard lock(mutex_);
      was_empty = values_.empty();
      values_.push_back(std::move(value));
    }
    if (was_empty) wake();
  }

  /// Any thread: lets poll() return.
  void wake() const {
    const std::uint64_t one = 1;
    // A full counter (EAGAIN) is readable already.
    [[maybe_unused]] const auto written = ::write(fd_, &one, sizeof one);
  }

  /// The progress thread: everything pushed so far, in order.
  std::vector<T> take() {
    std::uint64_t count = 0;
    [[maybe_unused]] const auto read_bytes = ::read(fd_, &count, sizeof count);
    std::vector<T> values;
    const std::lock_guard lock(mutex_);
    values.swap(values_);
    return values;
  }

  /// Readable when there is something to take.
  [[nodiscard]] int fd() const { return fd_; }

 private:
  // The mutex guards values_ for the length of a push or a swap. A bounded channel would not do:
  // its consumer waits on a condition variable, this one waits in poll() for the network as well.
  // The sides bound what is in it (units in flight, transfers).
  std::mutex mutex_;
  std::vector<T> values_;
  int fd_;
};

}  // namespace tandem::transfer
