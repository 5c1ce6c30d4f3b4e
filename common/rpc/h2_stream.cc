#include "common/rpc/internal/h2_stream.h"

#include <boost/asio/defer.hpp>
#include <boost/asio/post.hpp>
#include <google/protobuf/message_lite.h>

#include <sys/socket.h>

#include <cerrno>
#include <cstring>
#include <utility>

namespace tandem::rpc::internal {

namespace {

using boost::system::error_code;

// More than this does not wait for more, nor anything for longer.
constexpr std::size_t kPutOffMax = 16U << 10U;
constexpr Duration kPutOffFor = milliseconds(1);
// After so many writes that were put off for nothing the next message does not wait.
constexpr int kLoneWrites = 32;
// A message of an answer that follows another one's write as soon as this goes with those behind
// it.
constexpr Duration kNextSoon = microseconds(50);
// Silent for so many intervals of keepalive: dead.
constexpr int kSilentTicksMax = 3;

}  // namespace

H2Stream::H2Stream(const Limits& limits, std::string peer, async::IoPool& pool)
    : limits_(limits),
      peer_(std::move(peer)),
      strand_(boost::asio::make_strand(pool.context())),
      where_(peer_),
      keepalive_(strand_),
      socket_(strand_) {}

void H2Stream::run() {
  error_code error;
  socket_.set_option(boost::asio::ip::tcp::no_delay(true), error);
  if (!error) socket_.non_blocking(true, error);
  if (error) return end(unavailable("cannot use the connection: " + error.message()));
  in_ = std::make_unique<std::array<char, 64 << 10>>();
  Status status;
  {
    const std::lock_guard lock(mutex_);
    if (ended_) return;
    status = begin();
    open_ = status.ok();
    write();
  }
  if (!status.ok()) return end(status);
  keep_alive();
  read();
}

void H2Stream::keep_alive() {
  keepalive_.expires_after(std::chrono::nanoseconds(limits_.keepalive.ns));
  keepalive_.async_wait([self = shared_from_this()](const error_code& error) {
    if (error || self->stopped_) return;
    // Counted in intervals of ours and not by the clock: a process that was stopped itself finds
    // what it has not read yet before it counts on.
    if (++self->silent_ticks_ > kSilentTicksMax - 1) {
      return self->end(unavailable("no answer to pings from " + self->where_));
    }
    {
      const std::lock_guard lock(self->mutex_);
      if (self->open_) nghttp2_submit_ping(self->session_.get(), NGHTTP2_FLAG_NONE, nullptr);
      self->write();
    }
    self->keep_alive();
  });
}

Status H2Stream::send(const google::protobuf::MessageLite& message) {
  const std::size_t bytes = message.ByteSizeLong();
  const std::lock_guard lock(mutex_);
  TANDEM_TRY(char* const to, make_room(bytes));
  message.SerializeWithCachedSizesToArray(reinterpret_cast<std::uint8_t*>(to));
  on_queued();
  return {};
}

Status H2Stream::send(std::string_view message) {
  const std::lock_guard lock(mutex_);
  TANDEM_TRY(char* const to, make_room(message.size()));
  std::memcpy(to, message.data(), message.size());
  on_queued();
  return {};
}

/// Where the next message goes, behind its header in the outbox.
Result<char*> H2Stream::make_room(std::size_t bytes) {
  if (closing_) return unavailable("the stream is closed");
  // One message goes whatever its size: the peer's limit decides about it.
  if (held_bytes() > 0 && held_bytes() + bytes > limits_.queued_bytes_max)
    return refuse_slow_peer(held_bytes() + bytes);
  // A backlog that never quite goes must not keep what is gone.
  if (outbox_done_ > kPutOffMax && outbox_done_ > outbox_.size() / 2) {
    outbox_.erase(0, outbox_done_);
    outbox_done_ = 0;
  }
  outbox_.push_back('\0');  // not compressed
  for (int shift = 24; shift >= 0; shift -= 8)
    outbox_.push_back(static_cast<char>(bytes >> shift));
  const std::size_t at = outbox_.size();
  outbox_.resize(at + bytes);
  return outbox_.data() + at;
}

void H2Stream::on_queued() {
  if (std::exchange(asleep_, false)) nghttp2_session_resume_data(session_.get(), stream_);
  write_soon();
}

Status H2Stream::refuse_slow_peer(std::size_t bytes) {
  Status status = resource_exhausted("the peer reads too slowly: " + std::to_string(bytes) +
                                     " bytes would wait, the limit is " +
                                     std::to_string(limits_.queued_bytes_max));
  if (!local_) local_ = status;
  closing_ = true;
  stopped_ = true;
  boost::asio::post(strand_, [self = shared_from_this()] { self->end({}); });
  return status;
}

void H2Stream::finish_sending() {
  if (ended_) return;
  closing_ = true;
  finish_wanted_ = true;
  if (std::exchange(asleep_, false)) nghttp2_session_resume_data(session_.get(), stream_);
  write();
}

bool H2Stream::has_room() {
  const std::lock_guard lock(mutex_);
  room_wanted_ = held_bytes() > kAheadMax;
  return !room_wanted_;
}

void H2Stream::cancel(const Status& why) {
  {
    const std::lock_guard lock(mutex_);
    if (ended_) return;
    if (!local_) local_ = why;
    closing_ = true;
    if (!stopped_.exchange(true) && open_) {
      nghttp2_submit_rst_stream(session_.get(), NGHTTP2_FLAG_NONE, stream_, NGHTTP2_CANCEL);
      write();
    }
  }
  boost::asio::post(
      strand_, [self = shared_from_this()] { self->end(cancelled("the call was cancelled")); });
}

/// The session's next frames to out_; false: there are none.
bool H2Stream::pull() {
  out_.clear();
  out_done_ = 0;
  while (out_.size() < kPutOffMax) {
    const std::uint8_t* frames = nullptr;
    const ssize_t bytes = nghttp2_session_mem_send(session_.get(), &frames);
    if (bytes <= 0) break;  // below 0: no memory; the peer will miss what was not sent
    out_.append(reinterpret_cast<const char*>(frames), static_cast<std::size_t>(bytes));
  }
  return !out_.empty();
}

/// As much as the socket takes now; the rest when it has room again.
void H2Stream::write() {
  while (open_ && !waiting_ && (out_done_ < out_.size() || pull())) {
    const ssize_t sent = ::send(socket_.native_handle(),
                                out_.data() + out_done_,
                                out_.size() - out_done_,
                                MSG_DONTWAIT | MSG_NOSIGNAL);
    if (sent > 0) {
      out_done_ += static_cast<std::size_t>(sent);
    } else if (errno == EAGAIN) {
      waiting_ = true;
      boost::asio::post(strand_, [self = shared_from_this()] { self->wait_to_write(); });
    } else if (errno != EINTR) {
      // Reading finds the end too, and what the peer said before it; also after an error of ours,
      // which is not the connection's.
      open_ = false;
      ::shutdown(socket_.native_handle(), SHUT_RDWR);
    }
  }
  if (room_wanted_ && held_bytes() <= kAheadMax) {
    room_wanted_ = false;
    boost::asio::post(strand_, [self = shared_from_this()] { self->on_room(); });
  }
  if (last_sent_ && open_ && !waiting_) {
    // The peer reads to the end, and closes; what it has sent meanwhile must not cut that off.
    open_ = false;
    ::shutdown(socket_.native_handle(), SHUT_WR);
    boost::asio::post(strand_, [self = shared_from_this()] { self->on_all_sent(); });
  }
}

/// After what this pool thread has to do already and what it finds then, together with what comes
/// until then: a system call and the peer's awakening cost more than all else about a request. At
/// once on other threads (but see write_by_pool), when the thread that put a write off is long in
/// coming back to it, and when nothing came along lately: with one client at a time waiting only
/// adds to its latency.
void H2Stream::write_soon() {
  const auto pool = strand_.get_inner_executor();
  const bool here = pool.running_in_this_thread();
  if (!open_ || waiting_) return write();
  const Time now = steady_clock().now();
  if (!here && now - wrote_at_ < kNextSoon && answers_) return write_by_pool(now);
  wrote_at_ = now;
  if (!here) return write();
  if (put_off_) {
    lone_writes_ = 0;
    if (may_wait(now)) return;
    write_by_ = now + kPutOffFor;
    return write();
  }
  put_off_ = true;
  write_by_ = now + kPutOffFor;
  // Also then, whatever comes along waits, and tells that waiting pays.
  if (lone_writes_ < kLoneWrites)
    ++lone_writes_;
  else
    write();
  boost::asio::defer(pool, [self = shared_from_this()] {
    // Sockets were looked at before this; what was found is dealt with first.
    boost::asio::defer(self->strand_.get_inner_executor(), [self] {
      const std::lock_guard lock(self->mutex_);
      self->put_off_ = false;
      self->write();
    });
  });
}

/// Where steps come faster than a peer reads one by one. It would be woken for each of them; a pool
/// thread takes a moment to wake, and what came until then goes together.
void H2Stream::write_by_pool(Time now) {
  if (pool_writes_) {
    if (may_wait(now)) return;
    wrote_at_ = now;
    return write();
  }
  pool_writes_ = true;
  write_by_ = now + kPutOffFor;
  boost::asio::post(strand_, [self = shared_from_this()] {
    const std::lock_guard lock(self->mutex_);
    self->pool_writes_ = false;
    self->wrote_at_ = steady_clock().now();
    self->write();
  });
}

/// Whether what waits may go on waiting for the pool, which may have other things to do for long.
bool H2Stream::may_wait(Time now) const {
  return now < write_by_ && outbox_.size() - outbox_done_ < kPutOffMax;
}

void H2Stream::wait_to_write() {
  if (stopped_) return;
  socket_.async_wait(Socket::wait_write, [self = shared_from_this()](const error_code& error) {
    if (error) return;  // closed
    const std::lock_guard lock(self->mutex_);
    self->waiting_ = false;
    self->write();
  });
}

void H2Stream::end(const Status& remote) {
  Status status = remote;
  {
    const std::lock_guard lock(mutex_);
    if (std::exchange(ended_, true)) return;
    closing_ = true;
    open_ = false;
    stopped_ = true;
    if (local_ && !local_->ok()) status = *local_;
    error_code error;
    socket_.close(error);
  }
  keepalive_.cancel();
  on_end(status);
}

}  // namespace tandem::rpc::internal
