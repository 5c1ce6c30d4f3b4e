// What libnghttp2 asks of a stream and tells it: frames, header fields, messages.
#include "common/async/batch.h"
#include "common/rpc/internal/h2_stream.h"

#include <boost/asio/buffer.hpp>

#include <algorithm>
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

}  // namespace

/// Called by the session, so with mutex_ held. A result below 0 would end the session, which
/// nothing here wants.
struct H2Stream::Callbacks {
  static H2Stream& stream(void* user) { return *static_cast<H2Stream*>(user); }

  static ssize_t read(nghttp2_session* /*session*/,
                      std::int32_t /*stream*/,
                      std::uint8_t* to,
                      std::size_t room,
                      std::uint32_t* flags,
                      nghttp2_data_source* /*source*/,
                      void* user) {
    H2Stream& self = stream(user);
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
      if (self.finish_wanted_) self.on_last_data(flags);
    }
    return static_cast<ssize_t>(bytes);
  }

  static int data(nghttp2_session* /*session*/,
                  std::uint8_t /*flags*/,
                  std::int32_t /*stream*/,
                  const std::uint8_t* bytes,
                  std::size_t count,
                  void* user) {
    stream(user).arrived_.append(reinterpret_cast<const char*>(bytes), count);
    return 0;
  }

  static int header(nghttp2_session* /*session*/,
                    const nghttp2_frame* frame,
                    const std::uint8_t* name_bytes,
                    std::size_t name_size,
                    const std::uint8_t* value_bytes,
                    std::size_t value_size,
                    std::uint8_t /*flags*/,
                    void* user) {
    stream(user).on_header(
        frame->hd.stream_id,
        std::string_view(reinterpret_cast<const char*>(name_bytes), name_size),
        std::string_view(reinterpret_cast<const char*>(value_bytes), value_size));
    return 0;
  }

  static int frame(nghttp2_session* /*session*/, const nghttp2_frame* frame, void* user) {
    stream(user).on_frame(*frame);
    return 0;
  }

  static int sent(nghttp2_session* /*session*/, const nghttp2_frame* frame, void* user) {
    H2Stream& self = stream(user);
    // Of other frames the flag means something else.
    const bool may_end = frame->hd.type == NGHTTP2_HEADERS || frame->hd.type == NGHTTP2_DATA;
    const bool last = may_end && (frame->hd.flags & NGHTTP2_FLAG_END_STREAM) != 0;
    // The answering end has nothing to say after its call. The caller reads on.
    if (self.answers_ && last && frame->hd.stream_id == self.stream_) self.last_sent_ = true;
    return 0;
  }

  static int closed(nghttp2_session* /*session*/,
                    std::int32_t id,
                    std::uint32_t error,
                    void* user) {
    stream(user).on_stream_closed(id, error);
    return 0;
  }

  static int invalid(nghttp2_session* /*session*/,
                     const nghttp2_frame* /*frame*/,
                     int error,
                     void* user) {
    // Refused by the session: a call beyond those that it takes.
    if (error == NGHTTP2_ERR_REFUSED_STREAM) return 0;
    stream(user).wrong_ = nghttp2_strerror(error);
    return 0;
  }

  static int wrong(
      nghttp2_session* /*session*/, int error, const char* text, std::size_t size, void* user) {
    // Of a field that is left out; the rest of the header counts.
    if (error == NGHTTP2_ERR_HTTP_HEADER) return 0;
    stream(user).wrong_.assign(text, std::min<std::size_t>(size, 200));
    return 0;
  }
};

nghttp2_nv H2Stream::field(std::string_view name, std::string_view value) {
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

nghttp2_data_provider H2Stream::body() {
  return {.source = {}, .read_callback = &Callbacks::read};
}

Status H2Stream::make_session(bool answers, std::vector<nghttp2_settings_entry> settings) {
  answers_ = answers;
  nghttp2_session_callbacks* callbacks = nullptr;
  if (nghttp2_session_callbacks_new(&callbacks) != 0) return resource_exhausted("no memory");
  nghttp2_session_callbacks_set_on_data_chunk_recv_callback(callbacks, &Callbacks::data);
  nghttp2_session_callbacks_set_on_header_callback(callbacks, &Callbacks::header);
  nghttp2_session_callbacks_set_on_frame_recv_callback(callbacks, &Callbacks::frame);
  nghttp2_session_callbacks_set_on_frame_send_callback(callbacks, &Callbacks::sent);
  nghttp2_session_callbacks_set_on_stream_close_callback(callbacks, &Callbacks::closed);
  nghttp2_session_callbacks_set_on_invalid_frame_recv_callback(callbacks, &Callbacks::invalid);
  nghttp2_session_callbacks_set_error_callback2(callbacks, &Callbacks::wrong);
  nghttp2_session* session = nullptr;
  const int made = answers ? nghttp2_session_server_new(&session, callbacks, this)
                           : nghttp2_session_client_new(&session, callbacks, this);
  nghttp2_session_callbacks_del(callbacks);
  if (made != 0) return resource_exhausted("no memory");
  session_.reset(session);
  settings.push_back({NGHTTP2_SETTINGS_INITIAL_WINDOW_SIZE, kWindow});
  nghttp2_submit_settings(session, NGHTTP2_FLAG_NONE, settings.data(), settings.size());
  nghttp2_session_set_local_window_size(session, NGHTTP2_FLAG_NONE, 0, kWindow);
  return {};
}

void H2Stream::read() {
  socket_.async_read_some(boost::asio::buffer(*in_),
                          [self = shared_from_this()](const error_code& error, std::size_t bytes) {
                            if (self->stopped_) return;
                            if (error) {
                              return self->end(unavailable("the connection to " + self->where_ +
                                                           " was lost: " + error.message()));
                            }
                            self->on_read(bytes);
                          });
}

void H2Stream::on_read(std::size_t bytes) {
  silent_ticks_ = 0;
  Status status;
  std::optional<Status> remote;
  {
    const std::lock_guard lock(mutex_);
    status = take_bytes(bytes);
    remote = remote_;
  }
  if (!status.ok()) return cancel(status);
  {
    const async::Batch batch;
    before_messages();
    status = take_messages();
  }
  if (stopped_) return;
  if (!status.ok()) return on_wrong_message(status);
  if (remote) return end(*remote);
  after_messages();
  read();
}

Status H2Stream::take_bytes(std::size_t bytes) {
  const ssize_t taken = nghttp2_session_mem_recv(
      session_.get(), reinterpret_cast<const std::uint8_t*>(in_->data()), bytes);
  if (taken < 0) wrong_ = nghttp2_strerror(static_cast<int>(taken));
  // Acknowledgements and credit.
  write();
  const bool over = nghttp2_session_want_read(session_.get()) == 0;
  if (taken >= 0 && wrong_.empty() && (!over || remote_)) return {};
  return internal_error(peer_ + "'s HTTP/2 is wrong: " + wrong_);
}

Status H2Stream::take_messages() {
  std::string_view bytes = arrived_;
  while (bytes.size() >= kMessageHeader && !stopped_) {
    if (bytes[0] != 0) return unimplemented("session: a compressed message");
    std::size_t size = 0;
    for (std::size_t i = 1; i < kMessageHeader; ++i)
      size = (size << 8U) | static_cast<std::uint8_t>(bytes[i]);
    if (size > limits_.message_bytes_max) {
      return resource_exhausted("session: a message of " + std::to_string(size) +
                                " bytes, the limit is " +
                                std::to_string(limits_.message_bytes_max));
    }
    if (bytes.size() - kMessageHeader < size) break;
    greeted_ = true;
    TANDEM_TRY(on_message(bytes.substr(kMessageHeader, size)));
    bytes.remove_prefix(kMessageHeader + size);
  }
  arrived_.erase(0, arrived_.size() - bytes.size());
  // Nor is that of a giant answer, once there is little of what comes next.
  if (arrived_.capacity() > kRoomKept && arrived_.size() < kRoomKept / 2)
    std::string(arrived_).swap(arrived_);
  return {};
}

}  // namespace tandem::rpc::internal
