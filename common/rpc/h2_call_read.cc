// What libnghttp2 asks of a call and tells it: frames, header fields, messages.
#include "common/async/batch.h"
#include "common/rpc/internal/h2_call.h"

#include <boost/asio/buffer.hpp>

#include <nghttp2/nghttp2.h>

#include <algorithm>
#include <charconv>
#include <cstring>
#include <utility>

namespace tandem::rpc::internal {

namespace {

using boost::system::error_code;

/// gRPC's: compressed or not, size.
constexpr std::size_t kMessageHeader = 5;
/// Room for messages that a call keeps in each direction while there are none.
constexpr std::size_t kRoomKept = std::size_t{256} << 10;
/// What we may be sent ahead.
constexpr std::uint32_t kWindow = 4U << 20U;

Code code_of_reset(std::uint32_t error) {
  switch (error) {
    case NGHTTP2_REFUSED_STREAM:
      return Code::kUnavailable;
    case NGHTTP2_CANCEL:
      return Code::kCancelled;
    case NGHTTP2_ENHANCE_YOUR_CALM:
      return Code::kResourceExhausted;
    case NGHTTP2_INADEQUATE_SECURITY:
      return Code::kPermissionDenied;
    default:
      return Code::kInternal;
  }
}

/// gRPC's table for answers that are not gRPC's ("http-grpc-status-mapping").
Code code_of_http(int status) {
  switch (status) {
    case 400:
      return Code::kInternal;
    case 401:
      return Code::kUnauthenticated;
    case 403:
      return Code::kPermissionDenied;
    case 404:
      return Code::kUnimplemented;
    case 429:
    case 502:
    case 503:
    case 504:
      return Code::kUnavailable;
    default:
      return Code::kUnknown;
  }
}

int hex_digit(char c) {
  if (c >= '0' && c <= '9') return c - '0';
  if (c >= 'a' && c <= 'f') return c - 'a' + 10;
  if (c >= 'A' && c <= 'F') return c - 'A' + 10;
  return -1;
}

/// Undoes the percent encoding of grpc-message; what is no code stays as it is.
std::string decode_message(std::string_view text) {
  std::string out;
  for (std::size_t i = 0; i < text.size(); ++i) {
    const int high = text[i] == '%' && i + 2 < text.size() ? hex_digit(text[i + 1]) : -1;
    const int low = high >= 0 ? hex_digit(text[i + 2]) : -1;
    if (low >= 0) {
      out.push_back(static_cast<char>(high * 16 + low));
      i += 2;
    } else {
      out.push_back(text[i]);
    }
  }
  return out;
}

std::optional<int> parse_number(std::string_view text) {
  int value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size()) return std::nullopt;
  return value;
}

nghttp2_nv field(std::string_view name, std::string_view value) {
  // The session copies both, and changes neither.
  const auto bytes = [](std::string_view text) {
    return reinterpret_cast<std::uint8_t*>(const_cast<char*>(text.data()));
  };
  return {.name = bytes(name),
          .value = bytes(value),
          .namelen = name.size(),
          .valuelen = value.size(),
          .flags = NGHTTP2_NV_FLAG_NONE};
}

}  // namespace

void H2Call::FreeSession::operator()(nghttp2_session* session) const {
  nghttp2_session_del(session);
}

/// Called by the session, so with mutex_ held. A result below 0 would end the session, which
/// nothing here wants.
struct H2Call::Callbacks {
  static H2Call& call(void* user) { return *static_cast<H2Call*>(user); }

  static ssize_t read(nghttp2_session* /*session*/,
                      std::int32_t /*stream*/,
                      std::uint8_t* to,
                      std::size_t room,
                      std::uint32_t* flags,
                      nghttp2_data_source* /*source*/,
                      void* user) {
    H2Call& self = call(user);
    const std::size_t bytes = std::min(room, self.outbox_.size() - self.outbox_done_);
    if (bytes == 0 && !self.finish_wanted_) {
      self.asleep_ = true;
      return NGHTTP2_ERR_DEFERRED;
    }
    std::memcpy(to, self.outbox_.data() + self.outbox_done_, bytes);
    self.outbox_done_ += bytes;
    if (self.outbox_done_ == self.outbox_.size()) {
      self.outbox_.clear();
      // The room of a giant prompt is not kept for the life of the session.
      if (self.outbox_.capacity() > kRoomKept) std::string().swap(self.outbox_);
      self.outbox_done_ = 0;
      if (self.finish_wanted_) *flags |= NGHTTP2_DATA_FLAG_EOF;
    }
    return static_cast<ssize_t>(bytes);
  }

  static int data(nghttp2_session* /*session*/,
                  std::uint8_t /*flags*/,
                  std::int32_t /*stream*/,
                  const std::uint8_t* bytes,
                  std::size_t count,
                  void* user) {
    call(user).arrived_.append(reinterpret_cast<const char*>(bytes), count);
    return 0;
  }

  static int header(nghttp2_session* /*session*/,
                    const nghttp2_frame* /*frame*/,
                    const std::uint8_t* name_bytes,
                    std::size_t name_size,
                    const std::uint8_t* value_bytes,
                    std::size_t value_size,
                    std::uint8_t /*flags*/,
                    void* user) {
    H2Call& self = call(user);
    const std::string_view name(reinterpret_cast<const char*>(name_bytes), name_size);
    const std::string_view value(reinterpret_cast<const char*>(value_bytes), value_size);
    if (name == ":status") self.http_status_ = parse_number(value);
    if (name == "grpc-status") self.grpc_status_ = parse_number(value).value_or(-1);
    if (name == "grpc-message") self.grpc_message_ = decode_message(value);
    return 0;
  }

  static int frame(nghttp2_session* /*session*/, const nghttp2_frame* frame, void* user) {
    H2Call& self = call(user);
    const bool last = (frame->hd.flags & NGHTTP2_FLAG_END_STREAM) != 0;
    if (frame->hd.type == NGHTTP2_HEADERS) {
      const bool refused = self.http_status_ && *self.http_status_ != 200;
      if (last || refused) self.remote_ = self.status_of_headers();
    } else if (frame->hd.type == NGHTTP2_DATA && last) {
      self.remote_ = Status(Code::kUnknown, "the worker ended the stream without a status");
    } else if (frame->hd.type == NGHTTP2_GOAWAY) {
      // It may serve to the end what it has begun.
      const nghttp2_goaway& goaway = frame->goaway;
      if (goaway.last_stream_id < self.stream_ || goaway.error_code != NGHTTP2_NO_ERROR) {
        const std::string_view text(reinterpret_cast<const char*>(goaway.opaque_data),
                                    std::min<std::size_t>(goaway.opaque_data_len, 200));
        self.remote_ = unavailable("the worker ends the connection: " + std::string(text));
      }
    }
    return 0;
  }

  static int closed(nghttp2_session* /*session*/,
                    std::int32_t /*stream*/,
                    std::uint32_t error,
                    void* user) {
    H2Call& self = call(user);
    if (self.remote_ || !self.wrong_.empty()) return 0;
    self.remote_ =
        Status(code_of_reset(error),
               "the worker reset the stream (" + std::string(nghttp2_http2_strerror(error)) + ")");
    return 0;
  }

  static int invalid(nghttp2_session* /*session*/,
                     const nghttp2_frame* /*frame*/,
                     int error,
                     void* user) {
    call(user).wrong_ = nghttp2_strerror(error);
    return 0;
  }

  static int wrong(
      nghttp2_session* /*session*/, int error, const char* text, std::size_t size, void* user) {
    // Of a field that is left out; the rest of the header counts.
    if (error == NGHTTP2_ERR_HTTP_HEADER) return 0;
    call(user).wrong_.assign(text, std::min<std::size_t>(size, 200));
    return 0;
  }
};

/// The session, with what opens the connection and the call waiting to be written.
Status H2Call::begin() {
  nghttp2_session_callbacks* callbacks = nullptr;
  if (nghttp2_session_callbacks_new(&callbacks) != 0) return resource_exhausted("no memory");
  nghttp2_session_callbacks_set_on_data_chunk_recv_callback(callbacks, &Callbacks::data);
  nghttp2_session_callbacks_set_on_header_callback(callbacks, &Callbacks::header);
  nghttp2_session_callbacks_set_on_frame_recv_callback(callbacks, &Callbacks::frame);
  nghttp2_session_callbacks_set_on_stream_close_callback(callbacks, &Callbacks::closed);
  nghttp2_session_callbacks_set_on_invalid_frame_recv_callback(callbacks, &Callbacks::invalid);
  nghttp2_session_callbacks_set_error_callback2(callbacks, &Callbacks::wrong);
  nghttp2_session* session = nullptr;
  const int made = nghttp2_session_client_new(&session, callbacks, this);
  nghttp2_session_callbacks_del(callbacks);
  if (made != 0) return resource_exhausted("no memory");
  session_.reset(session);
  const nghttp2_settings_entry settings[] = {{NGHTTP2_SETTINGS_ENABLE_PUSH, 0},
                                             {NGHTTP2_SETTINGS_INITIAL_WINDOW_SIZE, kWindow}};
  nghttp2_submit_settings(session, NGHTTP2_FLAG_NONE, settings, std::size(settings));
  nghttp2_session_set_local_window_size(session, NGHTTP2_FLAG_NONE, 0, kWindow);
  const nghttp2_nv fields[] = {field(":method", "POST"),
                               field(":scheme", "http"),
                               field(":path", path_),
                               field(":authority", authority_),
                               field("te", "trailers"),
                               field("content-type", "application/grpc"),
                               field("user-agent", "tandem"),
                               field("authorization", options_.authorization)};
  const std::size_t count = std::size(fields) - (options_.authorization.empty() ? 1 : 0);
  const nghttp2_data_provider provider = {.source = {}, .read_callback = &Callbacks::read};
  stream_ = nghttp2_submit_request(session, nullptr, fields, count, &provider, nullptr);
  if (stream_ > 0) return {};
  return internal_error("HTTP/2: " + std::string(nghttp2_strerror(stream_)));
}

void H2Call::read() {
  socket_.async_read_some(boost::asio::buffer(*in_),
                          [self = shared_from_this()](const error_code& error, std::size_t bytes) {
                            if (self->stopped_) return;
                            if (error) {
                              return self->end(unavailable("the connection to " + self->authority_ +
                                                           " was lost: " + error.message()));
                            }
                            self->on_read(bytes);
                          });
}

void H2Call::on_read(std::size_t bytes) {
  silent_ticks_ = 0;
  Status status;
  std::optional<Status> remote;
  {
    const std::lock_guard lock(mutex_);
    status = take_bytes(bytes);
    remote = remote_;
  }
  if (status.ok()) {
    const async::Batch batch;
    status = take_messages();
  }
  if (stopped_) return;
  if (!status.ok()) return cancel(status);
  if (remote) return end(*remote);
  read();
}

Status H2Call::take_bytes(std::size_t bytes) {
  const ssize_t taken = nghttp2_session_mem_recv(
      session_.get(), reinterpret_cast<const std::uint8_t*>(in_->data()), bytes);
  if (taken < 0) wrong_ = nghttp2_strerror(static_cast<int>(taken));
  // Acknowledgements and credit.
  write();
  const bool over = nghttp2_session_want_read(session_.get()) == 0;
  if (taken >= 0 && wrong_.empty() && (!over || remote_)) return {};
  return internal_error("the worker's HTTP/2 is wrong: " + wrong_);
}

Status H2Call::take_messages() {
  std::string_view bytes = arrived_;
  while (bytes.size() >= kMessageHeader && !stopped_) {
    if (bytes[0] != 0) return unimplemented("session: a compressed message");
    std::size_t size = 0;
    for (std::size_t i = 1; i < kMessageHeader; ++i)
      size = (size << 8U) | static_cast<std::uint8_t>(bytes[i]);
    if (size > options_.message_bytes_max) {
      return resource_exhausted("session: a message of " + std::to_string(size) +
                                " bytes, the limit is " +
                                std::to_string(options_.message_bytes_max));
    }
    if (bytes.size() - kMessageHeader < size) break;
    greeted_ = true;
    TANDEM_TRY(handler_->on_message(*this, bytes.substr(kMessageHeader, size)));
    bytes.remove_prefix(kMessageHeader + size);
  }
  arrived_.erase(0, arrived_.size() - bytes.size());
  // Nor is that of a giant answer, once there is little of what comes next.
  if (arrived_.capacity() > kRoomKept && arrived_.size() < kRoomKept / 2)
    std::string(arrived_).swap(arrived_);
  return {};
}

Status H2Call::status_of_headers() const {
  if (!grpc_status_ && http_status_ && *http_status_ != 200) {
    return Status(code_of_http(*http_status_),
                  "the worker answered with HTTP " + std::to_string(*http_status_));
  }
  if (!grpc_status_) return Status(Code::kUnknown, "the worker ended the stream without a status");
  if (*grpc_status_ == 0) return {};
  const bool known = *grpc_status_ > 0 && *grpc_status_ <= static_cast<int>(Code::kUnauthenticated);
  return Status(known ? static_cast<Code>(*grpc_status_) : Code::kUnknown, grpc_message_);
}

}  // namespace tandem::rpc::internal
