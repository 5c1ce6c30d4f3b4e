// Outbox: the sending half of one stream. One write is in flight; the rest waits, within a bound.
//
// gRPC's rules that this class keeps: one write at a time, the finishing operation once and with no
// write in flight, no operation after it. A reactor dies only after its finishing operation, so
// whoever was told to start an operation may use it without the lock.
#pragma once

#include "common/base/status.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <mutex>
#include <optional>
#include <string>
#include <utility>

namespace tandem::rpc::internal {

/// What an outbox asks of the reactor behind it.
template <class Out>
class StreamOps {
 public:
  virtual ~StreamOps() = default;
  /// `message` stays as it is until Outbox::write_done.
  virtual void start_write(const Out* message) = 0;
  /// Server: Finish(status). Client: half-close, or nothing when the stream is broken.
  virtual void start_finish(const Status& status, bool broken) = 0;
  /// Makes pending operations fail; `writing`: a write is one of them. Called under the outbox's
  /// lock: must not call back.
  virtual void cancel_now(bool writing) = 0;
};

/// Threads: any. The mutex guards the queue between the engine's threads and gRPC's; a channel
/// would need a third thread to pump it.
template <class Out>
class Outbox {
 public:
  using Merge = void (*)(Out& into, Out&& more);

  explicit Outbox(std::size_t bytes_max, Merge merge = nullptr)
      : bytes_max_(bytes_max), merge_(merge) {}

  void attach(StreamOps<Out>* ops) {
    const std::lock_guard lock(mutex_);
    ops_ = ops;
    if (broken_) ops_->cancel_now(writing_);
  }

  /// In order, before anything mergeable that waits.
  Status send(Out&& message) { return push(std::move(message), false); }

  /// Joins what waits already. Held back while the window is used up.
  Status send_mergeable(Out&& message) { return push(std::move(message), true); }

  /// Only when nothing waits or is in flight.
  void send_if_idle(Out&& message) {
    {
      const std::lock_guard lock(mutex_);
      if (writing_ || !queue_.empty()) return;
    }
    (void)push(std::move(message), false);
  }

  /// Mergeable messages that may be unacknowledged; 0 lifts the bound.
  void set_window(std::uint32_t window) {
    const std::lock_guard lock(mutex_);
    window_ = window;
  }

  void credit(std::uint32_t count) {
    Next next;
    {
      const std::lock_guard lock(mutex_);
      unacknowledged_ -= std::min<std::uint64_t>(unacknowledged_, count);
      next = next_locked();
    }
    perform(std::move(next));
  }

  /// Ends the stream after what waits. The first status given is the one that counts.
  void close(const Status& status) { end(status, false, false); }

  /// Ends the stream now; what waits is dropped.
  void cancel(const Status& status) { end(status, true, true); }

  /// The peer is gone: no write can succeed any more.
  void broken() { end(std::nullopt, true, false); }

  /// From the reactor's OnWriteDone.
  void write_done(bool ok) {
    Next next;
    {
      const std::lock_guard lock(mutex_);
      if (!ok) broken_ = closing_ = true;
      if (starting_) {
        done_early_ = true;
        return;
      }
      writing_ = false;
      next = next_locked();
    }
    perform(std::move(next));
  }

  /// From the reactor's OnDone: nothing is started from here on. Gives the status of close or
  /// cancel, if there was one.
  std::optional<Status> detach() {
    const std::lock_guard lock(mutex_);
    ops_ = nullptr;
    closing_ = true;
    return status_;
  }

  [[nodiscard]] bool closed() const {
    const std::lock_guard lock(mutex_);
    return closing_;
  }

 private:
  struct Next {
    StreamOps<Out>* ops = nullptr;
    bool finish = false;
    bool broken = false;
    Status status;
  };

  Status push(Out&& message, bool mergeable) {
    Next next;
    Status result;
    {
      const std::lock_guard lock(mutex_);
      if (closing_) return unavailable("the stream is closed");
      const std::size_t bytes = message.ByteSizeLong();
      // One message goes whatever its size: gRPC's own limit decides about it.
      if (bytes_ > 0 && bytes_ + bytes > bytes_max_) {
        result =
            resource_exhausted("the peer reads too slowly: " + std::to_string(bytes_ + bytes) +
                               " bytes would wait, the limit is " + std::to_string(bytes_max_));
        status_ = result;
        closing_ = broken_ = true;
        if (ops_ != nullptr) ops_->cancel_now(writing_);
      } else {
        bytes_ += bytes;
        store(std::move(message), bytes, mergeable);
      }
      next = next_locked();
    }
    perform(std::move(next));
    return result;
  }

  void store(Out&& message, std::size_t bytes, bool mergeable) {
    if (!mergeable) {
      queue_.emplace_back(std::move(message), bytes);
    } else if (merged_) {
      merge_(merged_->first, std::move(message));
      merged_->second += bytes;
    } else {
      merged_.emplace(std::move(message), bytes);
    }
  }

  void end(const std::optional<Status>& status, bool broken, bool cancel) {
    Next next;
    {
      const std::lock_guard lock(mutex_);
      if (status && !status_) status_ = *status;
      closing_ = true;
      broken_ = broken_ || broken;
      if (cancel && ops_ != nullptr) ops_->cancel_now(writing_);
      next = next_locked();
    }
    perform(std::move(next));
  }

  Next next_locked() {
    if (ops_ == nullptr || writing_ || finishing_) return {};
    if (!broken_) {
      if (!queue_.empty()) {
        current_ = std::move(queue_.front().first);
        bytes_ -= queue_.front().second;
        queue_.pop_front();
        writing_ = starting_ = true;
        return {.ops = ops_, .finish = false, .broken = false, .status = {}};
      }
      if (merged_ && (closing_ || window_ == 0 || unacknowledged_ < window_)) {
        current_ = std::move(merged_->first);
        bytes_ -= merged_->second;
        merged_.reset();
        ++unacknowledged_;
        writing_ = starting_ = true;
        return {.ops = ops_, .finish = false, .broken = false, .status = {}};
      }
    }
    if (!closing_) return {};
    finishing_ = true;
    return {.ops = ops_, .finish = true, .broken = broken_, .status = status_.value_or(Status())};
  }

  // A write is over when start_write has returned *and* write_done was called, whichever comes
  // last. start_write reads current_ without the lock, so without this the order of that read and
  // of the next sender's write to current_ would rest on how gRPC synchronises inside.
  void perform(Next next) {
    while (next.ops != nullptr) {
      if (next.finish) return next.ops->start_finish(next.status, next.broken);
      next.ops->start_write(&current_);
      const std::lock_guard lock(mutex_);
      starting_ = false;
      if (!done_early_) return;
      done_early_ = false;
      writing_ = false;
      next = next_locked();
    }
  }

  const std::size_t bytes_max_;
  const Merge merge_;
  mutable std::mutex mutex_;
  StreamOps<Out>* ops_ = nullptr;
  std::deque<std::pair<Out, std::size_t>> queue_;
  std::optional<std::pair<Out, std::size_t>> merged_;
  std::size_t bytes_ = 0;
  std::uint32_t window_ = 0;
  std::uint64_t unacknowledged_ = 0;
  Out current_;
  bool writing_ = false;
  bool starting_ = false;    // inside start_write
  bool done_early_ = false;  // write_done came before start_write returned
  bool closing_ = false;
  bool broken_ = false;
  bool finishing_ = false;
  std::optional<Status> status_;
};

}  // namespace tandem::rpc::internal
