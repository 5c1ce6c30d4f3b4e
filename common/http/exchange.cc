#include "common/base/clock.h"
#include "common/http/connection.h"

#include <boost/asio/post.hpp>

#include <charconv>
#include <ctime>
#include <utility>

namespace tandem::http {

namespace {

// "Sun, 06 Nov 1994 08:49:37 GMT" (RFC 9110, 5.6.7). The view lives until the thread's next call.
std::string_view http_date() {
  thread_local std::time_t second = -1;
  thread_local std::array<char, 40> text{};
  thread_local std::size_t size = 0;
  const std::time_t now = unix_seconds();
  if (now != second) {
    std::tm parts{};
    gmtime_r(&now, &parts);
    size = std::strftime(text.data(), text.size(), "%a, %d %b %Y %H:%M:%S GMT", &parts);
    second = now;
  }
  return {text.data(), size};
}

// Whatever a caller puts into a field, it stays one field.
void append_field_value(std::string& out, std::string_view value) {
  out.append(value);
  char* const at = out.data() + out.size() - value.size();
  for (std::size_t i = 0; i < value.size(); ++i) {
    const auto byte = static_cast<unsigned char>(at[i]);
    at[i] = (byte < 0x20U && byte != '\t') || byte == 0x7FU ? ' ' : at[i];
  }
}

}  // namespace

std::string ServerCore::error_body(int status, std::string_view message) const {
  return options.error_body ? options.error_body(status, message) : error_json(status, message);
}

void Connection::schedule_flush() {
  if (flush_scheduled_) return;
  flush_scheduled_ = true;
  if (running_tasks_) return;
  boost::asio::post(socket_.get_executor(), [self = shared_from_this()] { self->flush(); });
}

Exchange::Exchange(std::shared_ptr<Connection> connection,
                   bool head_only,
                   bool chunked,
                   bool keep_alive)
    : connection_(std::move(connection)),
      head_only_(head_only),
      chunked_(chunked),
      keep_alive_(keep_alive) {}

Exchange::~Exchange() {
  State state = State::kDone;
  {
    const std::lock_guard lock(connection_->out_mutex_);
    state = state_;
  }
  if (state == State::kFresh) {
    send(500,
         {{"content-type", "application/json"}},
         connection_->core_->error_body(500, "the request was dropped without an answer"));
  } else if (state == State::kStreaming) {
    fail({});
  }
}

void Exchange::append_head(int status, const Headers& headers, std::optional<std::size_t> length) {
  std::string& out = connection_->pending_;
  out.append("HTTP/1.1 ").append(std::to_string(status)).append(" ");
  out.append(reason_phrase(status)).append("\r\n");
  for (const auto& [name, value] : headers.items()) {
    out.append(name).append(": ");
    append_field_value(out, value);
    out.append("\r\n");
  }
  out.append("date: ").append(http_date()).append("\r\n");
  if (length) {
    if (status != 204)
      out.append("content-length: ").append(std::to_string(*length)).append("\r\n");
  } else if (chunked_) {
    out.append("transfer-encoding: chunked\r\n");
  }
  const bool closes = !keep_alive_ || connection_->core_->draining.load() || (!length && !chunked_);
  if (closes) connection_->close_after_ = true;
  out.append(closes ? "connection: close\r\n\r\n" : "connection: keep-alive\r\n\r\n");
}

void Exchange::append_chunk(std::string_view bytes) {
  if (bytes.empty() || head_only_) return;
  std::string& out = connection_->pending_;
  if (!chunked_) {
    out.append(bytes);
    return;
  }
  std::array<char, 20> size{};
  const auto end = std::to_chars(size.data(), size.data() + size.size(), bytes.size(), 16).ptr;
  out.append(size.data(), end).append("\r\n").append(bytes).append("\r\n");
}

void Exchange::finish() {
  state_ = State::kDone;
  connection_->response_complete_ = true;
  connection_->schedule_flush();
}

void Exchange::send(int status, Headers headers, std::string body) {
  std::function<void()> dropped;  // Destroyed after the lock: it may own this writer's request.
  const std::lock_guard lock(connection_->out_mutex_);
  if (state_ != State::kFresh || gone_) return;
  append_head(status, headers, body.size());
  if (!head_only_) connection_->pending_.append(body);
  dropped.swap(on_disconnect_);
  finish();
}

void Exchange::start_stream(int status, Headers headers) {
  const std::lock_guard lock(connection_->out_mutex_);
  if (state_ != State::kFresh || gone_) return;
  append_head(status, headers, std::nullopt);
  state_ = State::kStreaming;
  connection_->schedule_flush();
}

bool Exchange::write(std::string_view bytes) {
  const std::lock_guard lock(connection_->out_mutex_);
  if (state_ != State::kStreaming || gone_) return true;
  const ServerOptions& options = connection_->core_->options;
  const std::size_t waited = connection_->pending_.size() + connection_->inflight_bytes_;
  append_chunk(bytes);
  if (waited > options.write_buffer_bytes) connection_->overflow_ = true;
  connection_->schedule_flush();
  return connection_->pending_.size() + connection_->inflight_bytes_ <= options.write_ahead_bytes;
}

void Exchange::on_drained(std::function<void()> callback) {
  const std::lock_guard lock(connection_->out_mutex_);
  if (state_ != State::kStreaming || gone_) return;
  // A replaced callback is destroyed after the lock.
  callback.swap(connection_->on_drained_);
  if (connection_->pending_.empty() && connection_->inflight_bytes_ == 0) {
    connection_->schedule_flush();
  }
}

void Exchange::end(std::string_view last) {
  std::function<void()> dropped;
  std::function<void()> drained;
  const std::lock_guard lock(connection_->out_mutex_);
  if (state_ != State::kStreaming || gone_) return;
  append_chunk(last);
  if (chunked_ && !head_only_) connection_->pending_.append("0\r\n\r\n");
  dropped.swap(on_disconnect_);
  drained.swap(connection_->on_drained_);
  finish();
}

void Exchange::fail(std::string_view last) {
  std::function<void()> dropped;
  std::function<void()> drained;
  const std::lock_guard lock(connection_->out_mutex_);
  if (state_ != State::kStreaming || gone_) return;
  append_chunk(last);
  connection_->close_after_ = true;
  dropped.swap(on_disconnect_);
  drained.swap(connection_->on_drained_);
  finish();
}

void Exchange::on_disconnect(std::function<void()> callback) {
  const std::lock_guard lock(connection_->out_mutex_);
  if (state_ == State::kDone) return;
  if (gone_) {
    boost::asio::post(connection_->socket_.get_executor(), std::move(callback));
    return;
  }
  on_disconnect_ = std::move(callback);
}

void Exchange::post(std::function<void()> task) {
  // As soon as the task can be reached by others it may run and destroy this exchange, the
  // connection and the server; nothing of them may be left in the hands of this thread.
  const std::shared_ptr<ReadyQueue> ready = connection_->ready_;
  std::shared_ptr<Connection> connection;
  {
    const std::lock_guard lock(connection_->out_mutex_);
    if (connection_->tasks_dropped_) return;
    connection_->tasks_.push_back(std::move(task));
    if (connection_->tasks_scheduled_) return;
    // Nobody runs the tasks before the connection is in the queue.
    connection_->tasks_scheduled_ = true;
    connection = connection_;
  }
  ready->add(std::move(connection));
}

bool Exchange::is_on_strand() const {
  return connection_->socket_.get_executor().running_in_this_thread();
}

void Exchange::client_gone() {
  std::function<void()> callback;
  {
    const std::lock_guard lock(connection_->out_mutex_);
    if (state_ == State::kDone || gone_) return;
    gone_ = true;
    callback.swap(on_disconnect_);
  }
  if (callback) callback();
}

}  // namespace tandem::http
