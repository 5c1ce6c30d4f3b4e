#include "common/rpc/internal/h2_answer.h"

#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <utility>
#include <vector>

namespace tandem::rpc::internal {

namespace {

using boost::system::error_code;

// From the connection to the first message, as gRPC's server waits for its handshake.
constexpr Duration kGreetingWithin = seconds(10);
// For the caller to read the end and to close.
constexpr Duration kClosedWithin = seconds(1);
// Beyond this a pool whose threads have ended is not waited for.
constexpr Duration kEndedWithin = seconds(5);
constexpr std::size_t kMessageTextMax = 4096;

constexpr std::string_view kPreface = NGHTTP2_CLIENT_MAGIC;
constexpr std::size_t kFrameHeader = 9;
constexpr std::size_t kSettingBytes = 6;

/// As grpc-message wants it ("gRPC over HTTP2", Percent-Encoded).
std::string encode_message(std::string_view text) {
  constexpr char kDigits[] = "0123456789ABCDEF";
  std::string out;
  for (const char c : text.substr(0, kMessageTextMax)) {
    const auto byte = static_cast<unsigned char>(c);
    if (byte >= 0x20 && byte <= 0x7E && c != '%') {
      out.push_back(c);
    } else {
      out += {'%', kDigits[byte >> 4U], kDigits[byte & 15U]};
    }
  }
  return out;
}

/// The values of grpc-status and grpc-message.
std::pair<std::string, std::string> values_of(const Status& status) {
  return {std::to_string(static_cast<int>(status.code())), encode_message(status.message())};
}

/// AF_INET and so on; -1: not a socket.
int domain_of(int fd) {
  int domain = -1;
  socklen_t size = sizeof domain;
  return ::getsockopt(fd, SOL_SOCKET, SO_DOMAIN, &domain, &size) == 0 ? domain : -1;
}

}  // namespace

bool is_tcp(int fd) {
  const int domain = domain_of(fd);
  return domain == AF_INET || domain == AF_INET6;
}

bool begins_with_session_mark(int fd) {
  std::array<char, kPreface.size() + kFrameHeader + kSettingBytes> head{};
  if (::recv(fd, head.data(), head.size(), MSG_PEEK | MSG_DONTWAIT) !=
      static_cast<ssize_t>(head.size()))
    return false;
  const std::string_view bytes(head.data(), head.size());
  if (!bytes.starts_with(kPreface)) return false;
  const auto at = [&](std::size_t i) { return static_cast<std::uint8_t>(bytes[i]); };
  // Behind the frame's length.
  const std::size_t type = kPreface.size() + 3;
  const std::size_t setting = kPreface.size() + kFrameHeader;
  std::uint32_t value = 0;
  for (std::size_t i = 2; i < kSettingBytes; ++i)
    value = (value << 8U) | at(setting + i);
  return at(type) == NGHTTP2_SETTINGS && at(type + 1) == NGHTTP2_FLAG_NONE &&
         ((at(setting) << 8U) | at(setting + 1)) == kSessionMark.settings_id &&
         value == kSessionMark.value;
}

bool AnswerSet::add(const std::shared_ptr<H2Answer>& answer) {
  const std::lock_guard lock(mutex_);
  if (ended_ || answers_.size() >= count_max_) return false;
  answers_.insert(answer);
  return true;
}

void AnswerSet::remove(const std::shared_ptr<H2Answer>& answer) {
  {
    const std::lock_guard lock(mutex_);
    answers_.erase(answer);
  }
  removed_.notify_all();
}

void AnswerSet::end_all(Duration grace) {
  std::unique_lock lock(mutex_);
  ended_ = true;
  for (const std::shared_ptr<H2Answer>& answer : answers_)
    answer->leave_if_idle();
  const auto gone = [this] { return answers_.empty(); };
  if (removed_.wait_for(lock, std::chrono::nanoseconds(grace.ns), gone)) return;
  const std::vector<std::shared_ptr<H2Answer>> left(answers_.begin(), answers_.end());
  lock.unlock();
  for (const std::shared_ptr<H2Answer>& answer : left)
    answer->cancel(unavailable("the server is shutting down"));
  lock.lock();
  removed_.wait_for(lock, std::chrono::nanoseconds(kEndedWithin.ns), gone);
}

H2Answer::H2Answer(const Limits& limits, std::string path, async::IoPool& pool)
    : H2Stream(limits, "the router", pool), path_(std::move(path)), patience_(strand_) {}

void H2Answer::start(int fd) {
  boost::asio::post(strand_, [self = share(this), fd] {
    error_code error;
    {
      const std::lock_guard lock(self->mutex_);
      self->socket_.assign(
          domain_of(fd) == AF_INET6 ? boost::asio::ip::tcp::v6() : boost::asio::ip::tcp::v4(),
          fd,
          error);
    }
    if (error) {
      ::close(fd);
      return self->end(unavailable("cannot use the connection: " + error.message()));
    }
    self->end_within(kGreetingWithin);
    self->run();
  });
}

void H2Answer::leave_if_idle() {
  boost::asio::post(strand_, [self = share(this)] {
    if (!self->called_) self->end(unavailable("the server is shutting down"));
  });
}

void H2Answer::end_within(Duration time) {
  patience_.expires_after(std::chrono::nanoseconds(time.ns));
  patience_.async_wait([self = share(this)](const error_code& error) {
    if (!error && (!self->greeted_ || self->hurried_))
      self->end(deadline_exceeded("the router is silent"));
  });
}

Status H2Answer::begin() {
  return make_session(/*answers=*/true, {{NGHTTP2_SETTINGS_MAX_CONCURRENT_STREAMS, 1}});
}

void H2Answer::on_header(std::int32_t stream, std::string_view name, std::string_view value) {
  // Trailers say nothing, nor do calls beyond the first.
  if (called_ || (stream_ != 0 && stream != stream_)) return;
  stream_ = stream;
  if (name == ":method") method_ = value;
  if (name == ":path") called_path_ = value;
  if (name == "content-type") content_type_ = value;
  if (name == "authorization") authorization_ = value;
}

void H2Answer::on_frame(const nghttp2_frame& frame) {
  if (stream_ == 0 || frame.hd.stream_id != stream_) return;
  if (frame.hd.type == NGHTTP2_HEADERS) called_ = true;
  const bool carries_end = frame.hd.type == NGHTTP2_HEADERS || frame.hd.type == NGHTTP2_DATA;
  if (carries_end && (frame.hd.flags & NGHTTP2_FLAG_END_STREAM) != 0) half_closed_ = true;
}

void H2Answer::on_stream_closed(std::int32_t stream, std::uint32_t error) {
  // With whatever code the caller ends it: before our end of it, it is the caller who does.
  if (stream != stream_ || last_sent_ || remote_) return;
  remote_ =
      cancelled("the router reset the stream (" + std::string(nghttp2_http2_strerror(error)) + ")");
}

Status H2Answer::check_call() const {
  if (method_ != "POST" || !content_type_.starts_with("application/grpc"))
    return internal_error("not a gRPC call");
  if (called_path_ != path_) return unimplemented("this connection serves " + path_ + " alone");
  return {};
}

void H2Answer::before_messages() {
  if (called_ && !std::exchange(answered_, true)) answer();
}

void H2Answer::answer() {
  Status status = check_call();
  if (status.ok()) status = on_call(authorization_);
  if (!status.ok()) return finish(status, /*for_long=*/true);
  const std::lock_guard lock(mutex_);
  if (closing_) return;
  const nghttp2_nv fields[] = {field(":status", "200"), field("content-type", "application/grpc")};
  const nghttp2_data_provider provider = body();
  begun_ =
      nghttp2_submit_response(session_.get(), stream_, fields, std::size(fields), &provider) == 0;
  write();
}

void H2Answer::after_messages() {
  if (half_closed_ && !std::exchange(half_close_told_, true)) on_half_close();
}

void H2Answer::finish(const Status& status, bool for_long) {
  const std::lock_guard lock(mutex_);
  if (ended_ || final_) return;
  final_ = status;
  if (!for_long) {
    boost::asio::post(strand_, [self = share(this)] {
      self->hurried_ = true;
      self->end_within(kClosedWithin);
    });
  }
  if (begun_) return finish_sending();
  closing_ = true;
  const auto [code, text] = values_of(status);
  const nghttp2_nv fields[] = {field(":status", "200"),
                               field("content-type", "application/grpc"),
                               field("grpc-status", code),
                               field("grpc-message", text)};
  nghttp2_submit_response(session_.get(), stream_, fields, std::size(fields), nullptr);
  write();
}

void H2Answer::on_last_data(std::uint32_t* flags) {
  *flags |= NGHTTP2_DATA_FLAG_EOF | NGHTTP2_DATA_FLAG_NO_END_STREAM;
  const auto [code, text] = values_of(*final_);
  const nghttp2_nv fields[] = {field("grpc-status", code), field("grpc-message", text)};
  nghttp2_submit_trailer(session_.get(), stream_, fields, std::size(fields));
}

void H2Answer::on_all_sent() {
  all_sent_ = hurried_ = true;
  end_within(kClosedWithin);
}

void H2Answer::on_end(const Status& /*status*/) {
  patience_.cancel();
}

}  // namespace tandem::rpc::internal
