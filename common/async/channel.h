// Channel<T>: the bounded queue at which threads meet. Many producers, one consumer.
#pragma once

#include "common/base/check.h"
#include "common/base/ids.h"

#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <deque>
#include <mutex>
#include <optional>
#include <utility>
#include <vector>

namespace tandem::async {

/// Carries values. Any thread may push; one thread pops. close() wakes everybody: pushes then fail,
/// pops give what is left and then nothing.
template <class T>
class Channel {
 public:
  explicit Channel(std::size_t capacity) : capacity_(capacity) {
    TANDEM_CHECK(capacity > 0, "Channel of capacity 0");
  }

  Channel(const Channel&) = delete;
  Channel& operator=(const Channel&) = delete;

  /// False when full or closed; `value` is untouched then. Never waits.
  [[nodiscard]] bool try_push(T&& value) {
    {
      const std::lock_guard lock(mutex_);
      if (closed_ || items_.size() >= capacity_) return false;
      items_.push_back(std::move(value));
    }
    not_empty_.notify_one();
    return true;
  }

  /// Waits up to `timeout` for room. False when none came or the channel is closed.
  [[nodiscard]] bool push(T&& value, Duration timeout) {
    {
      std::unique_lock lock(mutex_);
      const bool room = not_full_.wait_for(lock, std::chrono::nanoseconds(timeout.ns), [this] {
        return closed_ || items_.size() < capacity_;
      });
      if (!room || closed_) return false;
      items_.push_back(std::move(value));
    }
    not_empty_.notify_one();
    return true;
  }

  /// Waits for room as long as it takes. False: closed, and `value` is dropped.
  bool push(T&& value) {
    while (!push(std::move(value), seconds(1))) {  // NOLINT: moved from only when it was taken
      if (closed()) return false;
    }
    return true;
  }

  /// The oldest value, or nothing when none came within `timeout` (0: do not wait).
  std::optional<T> pop(Duration timeout) {
    std::optional<T> value;
    {
      std::unique_lock lock(mutex_);
      wait_for_items(lock, timeout);
      if (items_.empty()) return std::nullopt;
      value.emplace(std::move(items_.front()));
      items_.pop_front();
    }
    not_full_.notify_one();
    return value;
  }

  /// Everything queued, after waiting up to `timeout` for a first value. One lock for the lot.
  std::vector<T> pop_all(Duration timeout) {
    std::vector<T> values;
    {
      std::unique_lock lock(mutex_);
      wait_for_items(lock, timeout);
      values.reserve(items_.size());
      for (T& item : items_)
        values.push_back(std::move(item));
      items_.clear();
      woken_ = false;
    }
    not_full_.notify_all();
    return values;
  }

  /// Waits up to `timeout` for a first value and leaves it where it is. Consumer only.
  void wait(Duration timeout) {
    std::unique_lock lock(mutex_);
    wait_for_items(lock, timeout);
  }

  /// Ends a current (or else the next) wait of the consumer early, without a value.
  void wake() {
    {
      const std::lock_guard lock(mutex_);
      woken_ = true;
    }
    not_empty_.notify_one();
  }

  void close() {
    {
      const std::lock_guard lock(mutex_);
      closed_ = true;
    }
    not_empty_.notify_all();
    not_full_.notify_all();
  }

  [[nodiscard]] bool closed() const {
    const std::lock_guard lock(mutex_);
    return closed_;
  }

  [[nodiscard]] std::size_t size() const {
    const std::lock_guard lock(mutex_);
    return items_.size();
  }

 private:
  void wait_for_items(std::unique_lock<std::mutex>& lock, Duration timeout) {
    if (timeout.ns > 0 && items_.empty() && !closed_ && !woken_) {
      not_empty_.wait_for(lock, std::chrono::nanoseconds(timeout.ns), [this] {
        return closed_ || woken_ || !items_.empty();
      });
    }
    woken_ = false;
  }

  const std::size_t capacity_;
  mutable std::mutex mutex_;
  std::condition_variable not_empty_;
  std::condition_variable not_full_;
  std::deque<T> items_;
  bool closed_ = false;
  bool woken_ = false;
};

}  // namespace tandem::async
