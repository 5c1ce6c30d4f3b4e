#include "common/rpc/internal/h2_call.h"

#include "common/base/clock.h"
#include "common/rpc/internal/channel.h"

#include <boost/asio/bind_executor.hpp>
#include <boost/asio/connect.hpp>
#include <boost/asio/defer.hpp>
#include <boost/asio/ip/address.hpp>
#include <boost/asio/post.hpp>
#include <google/protobuf/message_lite.h>

#include <nghttp2/nghttp2.h>
#include <sys/socket.h>

#include <cerrno>
#include <chrono>
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
// Silent for so many intervals of keepalive: dead.
constexpr int kSilentTicksMax = 3;

}  // namespace

Result<std::shared_ptr<H2Call>> H2Call::make(const ClientOptions& options,
                                             std::string path,
                                             async::IoPool& pool,
                                             std::shared_ptr<H2CallHandler> handler) {
  TANDEM_TRY(const std::string address, parse_address(options.address));
  auto call = std::make_shared<H2Call>(options, std::move(path), pool, std::move(handler));
  const std::size_t colon = address.rfind(':');
  call->authority_ = address;
  call->host_ = address.substr(0, colon);
  call->port_ = address.substr(colon + 1);
  if (call->host_.starts_with('[') && call->host_.ends_with(']'))
    call->host_ = call->host_.substr(1, call->host_.size() - 2);
  return call;
}

void H2Call::start() {
  boost::asio::post(strand_, [self = shared_from_this()] {
    self->wait_for_greeting();
    self->connect();
  });
}

H2Call::H2Call(const ClientOptions& options,
               std::string path,
               async::IoPool& pool,
               std::shared_ptr<H2CallHandler> handler)
    : options_(options),
      path_(std::move(path)),
      strand_(boost::asio::make_strand(pool.context())),
      resolver_(strand_),
      greeting_(strand_),
      keepalive_(strand_),
      handler_(std::move(handler)),
      socket_(strand_) {}

void H2Call::connect() {
  error_code error;
  const auto address = boost::asio::ip::make_address(host_, error);
  if (!error) {
    // parse_address has looked at it.
    const auto port = static_cast<std::uint16_t>(std::stoi(port_));
    return connect_to(Resolver::results_type::create(
        boost::asio::ip::tcp::endpoint(address, port), host_, port_));
  }
  resolver_.async_resolve(
      host_,
      port_,
      [self = shared_from_this()](const error_code& failed,
                                  const Resolver::results_type& endpoints) {
        if (failed)
          return self->end(unavailable("cannot find " + self->host_ + ": " + failed.message()));
        self->connect_to(endpoints);
      });
}

void H2Call::connect_to(const Resolver::results_type& endpoints) {
  if (stopped_) return;
  boost::asio::async_connect(
      socket_,
      endpoints,
      [self = shared_from_this()](const error_code& failed,
                                  const boost::asio::ip::tcp::endpoint& /*endpoint*/) {
        if (failed) {
          return self->end(
              unavailable("cannot connect to " + self->authority_ + ": " + failed.message()));
        }
        self->on_connected();
      });
}

void H2Call::on_connected() {
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

void H2Call::wait_for_greeting() {
  greeting_.expires_after(std::chrono::nanoseconds(options_.connect_timeout.ns));
  greeting_.async_wait([self = shared_from_this()](const error_code& error) {
    if (error || self->greeted_) return;
    self->cancel(deadline_exceeded("no first message from " + self->options_.address + " within " +
                                   std::to_string(self->options_.connect_timeout.milliseconds()) +
                                   " ms"));
  });
}

void H2Call::keep_alive() {
  keepalive_.expires_after(std::chrono::nanoseconds(options_.keepalive.ns));
  keepalive_.async_wait([self = shared_from_this()](const error_code& error) {
    if (error || self->stopped_) return;
    // Counted in intervals of ours and not by the clock: a process that was stopped itself finds
    // what it has not read yet before it counts on.
    if (++self->silent_ticks_ > kSilentTicksMax - 1) {
      return self->end(unavailable("no answer to pings from " + self->authority_));
    }
    {
      const std::lock_guard lock(self->mutex_);
      if (self->open_) nghttp2_submit_ping(self->session_.get(), NGHTTP2_FLAG_NONE, nullptr);
      self->write();
    }
    self->keep_alive();
  });
}

Status H2Call::send(const google::protobuf::MessageLite& message) {
  const std::size_t bytes = message.ByteSizeLong();
  const std::lock_guard lock(mutex_);
  TANDEM_TRY(char* const to, make_room(bytes));
  message.SerializeWithCachedSizesToArray(reinterpret_cast<std::uint8_t*>(to));
  on_queued();
  return {};
}

Status H2Call::send(std::string_view message) {
  const std::lock_guard lock(mutex_);
  TANDEM_TRY(char* const to, make_room(message.size()));
  std::memcpy(to, message.data(), message.size());
  on_queued();
  return {};
}

/// Where the next message goes, behind its header in the outbox.
Result<char*> H2Call::make_room(std::size_t bytes) {
  if (closing_) return unavailable("the stream is closed");
  const std::size_t held = outbox_.size() - outbox_done_ + out_.size() - out_done_;
  // One message goes whatever its size: the peer's limit decides about it.
  if (held > 0 && held + bytes > options_.queued_bytes_max) return refuse_slow_peer(held + bytes);
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

void H2Call::on_queued() {
  if (std::exchange(asleep_, false)) nghttp2_session_resume_data(session_.get(), stream_);
  write_soon();
}

Status H2Call::refuse_slow_peer(std::size_t bytes) {
  Status status = resource_exhausted("the peer reads too slowly: " + std::to_string(bytes) +
                                     " bytes would wait, the limit is " +
                                     std::to_string(options_.queued_bytes_max));
  if (!local_) local_ = status;
  closing_ = true;
  stopped_ = true;
  boost::asio::post(strand_, [self = shared_from_this()] { self->end({}); });
  return status;
}

void H2Call::finish() {
  const std::lock_guard lock(mutex_);
  if (ended_) return;
  closing_ = true;
  finish_wanted_ = true;
  if (std::exchange(asleep_, false)) nghttp2_session_resume_data(session_.get(), stream_);
  write();
}

void H2Call::cancel(const Status& why) {
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
bool H2Call::pull() {
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
void H2Call::write() {
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
}

/// After what this pool thread has to do already and what it finds then, together with what comes
/// until then: a system call and the peer's awakening cost more than all else about a request. At
/// once on other threads, when the thread that put a write off is long in coming back to it, and
/// when nothing came along lately: with one client at a time waiting only adds to its latency.
void H2Call::write_soon() {
  const auto pool = strand_.get_inner_executor();
  const bool here = pool.running_in_this_thread();
  if (!here || !open_ || waiting_) return write();
  const Time now = steady_clock().now();
  if (put_off_) {
    lone_writes_ = 0;
    if (now < write_by_ && outbox_.size() - outbox_done_ < kPutOffMax) return;
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

void H2Call::wait_to_write() {
  if (stopped_) return;
  socket_.async_wait(Socket::wait_write, [self = shared_from_this()](const error_code& error) {
    if (error) return;  // closed
    const std::lock_guard lock(self->mutex_);
    self->waiting_ = false;
    self->write();
  });
}

void H2Call::end(const Status& remote) {
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
  resolver_.cancel();
  greeting_.cancel();
  keepalive_.cancel();
  const std::shared_ptr<H2CallHandler> handler = std::move(handler_);
  handler->on_ended(status);
}

}  // namespace tandem::rpc::internal
