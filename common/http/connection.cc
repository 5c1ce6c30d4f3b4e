#include "common/http/connection.h"

#include "common/async/batch.h"
#include "common/obs/log.h"

#include <boost/asio/bind_executor.hpp>
#include <boost/asio/buffer.hpp>
#include <boost/asio/dispatch.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/write.hpp>
#include <boost/container/small_vector.hpp>

#include <fcntl.h>
#include <linux/sockios.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/ioctl.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <iterator>
#include <utility>

namespace tandem::http {

namespace {

using boost::system::error_code;

constexpr std::string_view kHttp2Preface = "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
// Requests that a client may send ahead while one is being answered.
constexpr std::size_t kPipelineBytesMax = 64 * 1024;
// After a refusal the rest of the request is read and dropped, so that the answer is not lost in a
// reset; up to here.
constexpr std::size_t kLingerBytesMax = 64 * 1024 * 1024;
constexpr Duration kLingerTimeout = seconds(2);
constexpr Duration kPeekRetry = milliseconds(5);
// Connections that one pool thread serves before others may help.
constexpr std::size_t kReadyMax = 32;
// Of Connection::post().
constexpr std::size_t kTasksKept = 16;

}  // namespace

Connection::Connection(std::shared_ptr<ServerCore> core, Socket socket, std::string remote_address)
    : core_(std::move(core)),
      ready_(core_->ready),
      socket_(std::move(socket)),
      remote_address_(std::move(remote_address)),
      deadline_(socket_.get_executor()),
      write_deadline_(socket_.get_executor()) {}

Connection::~Connection() {
  const std::lock_guard lock(core_->mutex);
  core_->connections.erase(this);
  if (core_->connections.empty()) core_->empty.notify_all();
}

void Connection::start() {
  boost::asio::post(socket_.get_executor(), [self = shared_from_this()] { self->begin(); });
}

void Connection::drain() {
  boost::asio::post(socket_.get_executor(), [self = shared_from_this()] {
    if (self->phase_ == Phase::kPeek || (self->phase_ == Phase::kHead && self->in_.empty()))
      self->close();
  });
}

void Connection::close_now() {
  boost::asio::post(socket_.get_executor(), [self = shared_from_this()] { self->disconnected(); });
}

void Connection::discard_tasks() {
  std::vector<std::function<void()>> dropped;
  const std::lock_guard lock(out_mutex_);
  tasks_dropped_ = true;
  dropped.swap(tasks_);
}

// On the strand. What the tasks write leaves in one system call.
void Connection::run_tasks() {
  std::vector<std::function<void()>> tasks;
  {
    const std::lock_guard lock(out_mutex_);
    tasks.swap(tasks_);
    tasks_scheduled_ = false;
    running_tasks_ = true;
  }
  for (auto& task : tasks) {
    task();
    task = nullptr;
  }
  bool flushes = false;
  {
    const std::lock_guard lock(out_mutex_);
    running_tasks_ = false;
    flushes = flush_scheduled_;
    // Mostly it is one token at a time: the room for its task stays.
    if (tasks_.capacity() == 0 && tasks.capacity() <= kTasksKept) {
      tasks.clear();
      tasks_.swap(tasks);
    }
  }
  if (flushes) flush();
}

void ReadyQueue::add(std::shared_ptr<Connection>&& connection) {
  const std::lock_guard lock(mutex_);
  waiting_.push_back(std::move(connection));
  if (std::exchange(posted_, true)) return;
  if (async::Batch::add([self = shared_from_this()] { self->run(); })) return;
  boost::asio::post(executor_, [self = shared_from_this()] { self->run(); });
}

void ReadyQueue::run() {
  boost::container::small_vector<std::shared_ptr<Connection>, kReadyMax> mine;
  {
    const std::lock_guard lock(mutex_);
    const auto count = static_cast<std::ptrdiff_t>(std::min(waiting_.size(), kReadyMax));
    const auto end = waiting_.begin() + count;
    mine.assign(std::make_move_iterator(waiting_.begin()), std::make_move_iterator(end));
    waiting_.erase(waiting_.begin(), end);
    posted_ = !waiting_.empty();
    // The rest is for whichever thread is free.
    if (posted_) boost::asio::post(executor_, [self = shared_from_this()] { self->run(); });
  }
  for (const auto& connection : mine) {
    boost::asio::dispatch(connection->socket_.get_executor(),
                          [connection] { connection->run_tasks(); });
  }
}

void ReadyQueue::clear() {
  std::vector<std::shared_ptr<Connection>> dropped;
  const std::lock_guard lock(mutex_);
  dropped.swap(waiting_);
}

void Connection::begin() {
  error_code error;
  socket_.set_option(boost::asio::ip::tcp::no_delay(true), error);
  if (!error) socket_.non_blocking(true, error);
  if (error) return close();
  arm(core_->options.header_timeout);
  peek();
}

// Looks at the first bytes without taking them: they tell HTTP/1 from HTTP/2, and gRPC must find
// its preface still in the socket.
void Connection::peek() {
  socket_.async_wait(Socket::wait_read, [self = shared_from_this()](error_code error) {
    if (self->phase_ != Phase::kPeek) return;
    if (error) return self->close();
    std::array<char, kHttp2Preface.size()> bytes{};
    const ssize_t size =
        ::recv(self->socket_.native_handle(), bytes.data(), bytes.size(), MSG_PEEK | MSG_DONTWAIT);
    if (size < 0 && (errno == EAGAIN || errno == EINTR)) return self->peek();
    if (size <= 0) return self->close();
    const std::string_view seen(bytes.data(), static_cast<std::size_t>(size));
    if (seen == kHttp2Preface) return self->hand_over();
    if (kHttp2Preface.starts_with(seen)) {
      // Part of the preface: the rest is on its way, and the socket stays readable meanwhile.
      self->write_deadline_.expires_after(std::chrono::nanoseconds(kPeekRetry.ns));
      self->write_deadline_.async_wait([self](error_code timer_error) {
        if (!timer_error && self->phase_ == Phase::kPeek) self->peek();
      });
      return;
    }
    self->phase_ = Phase::kHead;
    self->read();
  });
}

void Connection::hand_over() {
  if (!core_->options.on_http2) {
    phase_ = Phase::kHead;
    refuse(505, "HTTP/2 is not served on this port");
    return;
  }
  error_code error;
  const int fd = socket_.release(error);
  phase_ = Phase::kClosed;
  disarm();
  deadline_.cancel();
  if (error) return;
  const int flags = ::fcntl(fd, F_GETFL, 0);
  ::fcntl(fd, F_SETFL, flags | O_NONBLOCK);
  core_->options.on_http2(fd);
}

void Connection::read() {
  if (reading_ || peer_closed_ || phase_ == Phase::kClosed) return;
  if (phase_ == Phase::kHandling && in_.size() >= kPipelineBytesMax) return;
  reading_ = true;
  socket_.async_read_some(boost::asio::buffer(chunk_),
                          [self = shared_from_this()](error_code error, std::size_t bytes) {
                            self->reading_ = false;
                            if (self->phase_ == Phase::kClosed) return;
                            if (error) {
                              // End of input counts as going away, also when the peer only
                              // half-closed: a client that
                              // is gone looks just the same, and what it asked for must stop at
                              // once. Only an answer that is complete already is still sent.
                              self->peer_closed_ = true;
                              if (self->answer_is_complete()) return;
                              return self->disconnected();
                            }
                            self->on_read(bytes);
                          });
}

void Connection::on_read(std::size_t bytes) {
  if (phase_ == Phase::kLinger) {
    lingered_bytes_ += bytes;
    if (lingered_bytes_ > kLingerBytesMax) return close();
    return read();
  }
  const bool first = phase_ == Phase::kHead && in_.empty();
  in_.append(chunk_.data(), bytes);
  if (phase_ != Phase::kHandling) process();
  // Mostly a request comes whole, and has no deadline.
  if (first && phase_ == Phase::kHead && !in_.empty()) arm(core_->options.header_timeout);
  read();
}

// Takes as many bytes of in_ as make progress; ends when more are needed or a request is handed on.
void Connection::process() {
  const bool in_body = phase_ == Phase::kBody;
  while (true) {
    bool progress = false;
    if (phase_ == Phase::kHead) {
      progress = process_head();
    } else if (phase_ == Phase::kBody) {
      progress = process_body();
    }
    if (!progress) break;
  }
  if (phase_ == Phase::kBody && !in_body) arm(core_->options.body_timeout);
}

bool Connection::process_head() {
  // Robustness that RFC 9112, 2.2 asks for: an empty line before a request is skipped.
  if (head_scanned_ == 0 && in_.starts_with("\r\n")) in_.erase(0, 2);
  if (in_.empty() || in_ == "\r") return false;
  HeadScan scan = scan_head(in_, core_->options.limits, &head_scanned_);
  if (scan.state == HeadScan::State::kIncomplete) return false;
  if (scan.state == HeadScan::State::kFailed) {
    refuse(scan.error.status, scan.error.message);
    return false;
  }
  request_.remote_address = remote_address_;
  framing_ = Framing();
  const ParseError error = parse_head(std::string_view(in_).substr(0, scan.head_bytes),
                                      core_->options.limits,
                                      &request_,
                                      &framing_);
  in_.erase(0, scan.head_bytes);
  head_scanned_ = 0;
  if (error.failed()) {
    refuse(error.status, error.message);
    return false;
  }
  if (core_->options.admit) {
    if (auto refusal = core_->options.admit(request_)) {
      // With no body to come the connection can stay; else what follows must not be read as a
      // request.
      const bool bare = !framing_.chunked && framing_.content_length == 0;
      if (!bare) framing_.keep_alive = false;
      respond(std::move(*refusal));
      return false;
    }
  }
  chunked_ = framing_.chunked ? std::make_unique<ChunkedDecoder>(core_->options.limits.body_bytes)
                              : nullptr;
  if (framing_.expects_continue && in_.empty() &&
      (framing_.chunked || framing_.content_length > 0)) {
    const std::lock_guard lock(out_mutex_);
    pending_.append("HTTP/1.1 100 Continue\r\n\r\n");
    schedule_flush();
  }
  phase_ = Phase::kBody;
  return true;
}

bool Connection::process_body() {
  if (chunked_) {
    const std::size_t taken = chunked_->feed(in_, &request_.body);
    in_.erase(0, taken);
    if (chunked_->error().failed()) {
      refuse(chunked_->error().status, chunked_->error().message);
      return false;
    }
    if (!chunked_->done()) return false;
  } else {
    const std::size_t wanted = static_cast<std::size_t>(framing_.content_length);
    const std::size_t taken = std::min(wanted - request_.body.size(), in_.size());
    request_.body.append(in_, 0, taken);
    in_.erase(0, taken);
    if (request_.body.size() < wanted) return false;
  }
  dispatch();
  return false;
}

bool ServerCore::run_large(std::function<void()>&& task) {
  const std::lock_guard lock(mutex);
  if (draining.load()) return false;
  if (!large) large = std::make_unique<async::IoPool>(options.large_threads, "large");
  large->post(std::move(task));
  return true;
}

void Connection::dispatch() {
  phase_ = Phase::kHandling;
  disarm();
  auto exchange = std::make_shared<Exchange>(shared_from_this(),
                                             request_.method == "HEAD",
                                             request_.version_minor >= 1,
                                             framing_.keep_alive);
  exchange_ = exchange;
  if (request_.body.size() > core_->options.large_body_bytes) {
    const auto request = std::make_shared<Request>(std::move(request_));
    request_ = Request();
    auto task = [core = core_, request, exchange] { core->handler(std::move(*request), exchange); };
    if (!core_->run_large(task)) task();
    return;
  }
  core_->handler(std::move(request_), std::move(exchange));
  request_ = Request();
}

// Answers a message that is not understood; nothing that follows it can be trusted.
void Connection::refuse(int status, std::string_view message) {
  framing_.keep_alive = false;
  request_.method.clear();
  respond({.status = status,
           .headers = {{"content-type", "application/json"}},
           .body = core_->error_body(status, message)});
}

void Connection::respond(Response response) {
  const auto exchange = std::make_shared<Exchange>(
      shared_from_this(), request_.method == "HEAD", true, framing_.keep_alive);
  exchange_ = exchange;
  phase_ = Phase::kHandling;
  disarm();
  request_ = Request();
  exchange->send(response.status, std::move(response.headers), std::move(response.body));
}

void Connection::flush() {
  bool overflow = false;
  {
    const std::lock_guard lock(out_mutex_);
    flush_scheduled_ = false;
    if (phase_ == Phase::kClosed || abandon_) return;
    overflow = overflow_;
    if (!overflow) {
      if (writing_) return;
      inflight_.clear();
      inflight_.swap(pending_);
      inflight_bytes_ = inflight_.size();
    }
  }
  if (overflow) return cut_off("too many bytes wait for the reader");
  if (inflight_.empty()) return on_written();
  // Mostly the socket takes it all, and there is nothing to wait for.
  error_code error;
  written_ = socket_.write_some(boost::asio::buffer(inflight_), error);
  if (error && error != boost::asio::error::would_block) return disconnected();
  if (written_ == inflight_.size()) return on_written();
  writing_ = true;
  wait_to_write();
}

void Connection::wait_to_write() {
  arm_write();  // There was progress: the deadline is for a reader that takes nothing.
  socket_.async_write_some(
      boost::asio::buffer(inflight_.data() + written_, inflight_.size() - written_),
      [self = shared_from_this()](error_code error, std::size_t n) { self->write_more(error, n); });
}

void Connection::write_more(const error_code& error, std::size_t bytes) {
  if (phase_ == Phase::kClosed) return;
  if (error) {
    writing_ = false;
    return disconnected();
  }
  written_ += bytes;
  if (written_ < inflight_.size()) return wait_to_write();
  writing_ = false;
  on_written();
}

void Connection::on_written() {
  bool done = false;
  bool closes = false;
  std::function<void()> drained;
  {
    const std::lock_guard lock(out_mutex_);
    inflight_.clear();
    inflight_bytes_ = 0;
    written_ = 0;
    if (!pending_.empty()) {
      schedule_flush();
      return;
    }
    done = response_complete_ && phase_ == Phase::kHandling;
    if (done) response_complete_ = false;
    closes = close_after_;
    drained.swap(on_drained_);
  }
  if (drained) boost::asio::post(socket_.get_executor(), std::move(drained));
  if (done) on_response_done(closes);
}

void Connection::on_response_done(bool closes) {
  exchange_.reset();
  if (closes || core_->draining.load()) return linger();
  if (peer_closed_) return close();
  phase_ = Phase::kHead;
  arm(in_.empty() ? core_->options.idle_timeout : core_->options.header_timeout);
  process();
  read();
}

// Says goodbye first and reads what is still coming: closing over unread data would reset the
// connection and may destroy the answer on its way.
void Connection::linger() {
  phase_ = Phase::kLinger;
  in_.clear();
  error_code error;
  socket_.shutdown(Socket::shutdown_send, error);
  if (error || peer_closed_) return close();
  arm(kLingerTimeout);
  read();
}

bool Connection::answer_is_complete() {
  const std::lock_guard lock(out_mutex_);
  return phase_ == Phase::kHandling && response_complete_ && !overflow_;
}

void Connection::cut_off(std::string_view why) {
  obs::warn("connection_cut_off", {{"peer", remote_address_}, {"reason", why}});
  disconnected();
}

void Connection::disconnected() {
  if (phase_ == Phase::kClosed) return;
  const auto exchange = exchange_.lock();
  close();
  if (exchange) exchange->client_gone();
}

void Connection::close() {
  if (phase_ == Phase::kClosed) return;
  phase_ = Phase::kClosed;
  std::function<void()> drained;
  {
    const std::lock_guard lock(out_mutex_);
    abandon_ = true;
    pending_.clear();
    drained.swap(on_drained_);
  }
  disarm();
  deadline_.cancel();
  write_deadline_.cancel();
  error_code error;
  socket_.close(error);
}

void Connection::arm(Duration timeout) {
  deadline_at_ = std::chrono::steady_clock::now() + std::chrono::nanoseconds(timeout.ns);
  if (deadline_pending_ && deadline_.expiry() <= *deadline_at_) return;
  wait_for_deadline();
}

void Connection::wait_for_deadline() {
  deadline_pending_ = true;
  deadline_.expires_at(*deadline_at_);
  deadline_.async_wait([self = shared_from_this()](error_code error) {
    if (error) return;  // moved to an earlier time, or closed
    self->deadline_pending_ = false;
    if (!self->deadline_at_ || self->phase_ == Phase::kClosed) return;
    if (std::chrono::steady_clock::now() < *self->deadline_at_) return self->wait_for_deadline();
    self->on_deadline();
  });
}

std::size_t Connection::bytes_in_socket() {
  int bytes = 0;
  return ::ioctl(socket_.native_handle(), SIOCOUTQ, &bytes) == 0 ? static_cast<std::size_t>(bytes)
                                                                 : 0;
}

void Connection::arm_write() {
  bytes_in_socket_ = bytes_in_socket();
  write_deadline_at_ =
      std::chrono::steady_clock::now() + std::chrono::nanoseconds(core_->options.write_timeout.ns);
  if (!write_deadline_pending_) wait_for_write_deadline();
}

void Connection::wait_for_write_deadline() {
  write_deadline_pending_ = true;
  write_deadline_.expires_at(write_deadline_at_);
  write_deadline_.async_wait([self = shared_from_this()](error_code error) {
    if (error) return;
    self->write_deadline_pending_ = false;
    if (!self->writing_ || self->phase_ == Phase::kClosed) return;
    if (std::chrono::steady_clock::now() < self->write_deadline_at_)
      return self->wait_for_write_deadline();
    // The socket takes more when a third of what it holds is gone: MiB, of which a slow reader may
    // have taken some.
    if (self->bytes_in_socket() < self->bytes_in_socket_) return self->arm_write();
    self->cut_off("the reader takes nothing");
  });
}

void Connection::on_deadline() {
  const bool in_message = (phase_ == Phase::kHead && !in_.empty()) || phase_ == Phase::kBody;
  if (!in_message) return close();
  refuse(408, "the request did not arrive in time");
}

}  // namespace tandem::http
