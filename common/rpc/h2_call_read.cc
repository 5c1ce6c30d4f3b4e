// What a worker sends on a call: frames, header blocks, messages.
#include "common/async/batch.h"
#include "common/rpc/internal/h2_call.h"
#include "common/rpc/internal/h2_wire.h"

#include <boost/asio/buffer.hpp>

#include <algorithm>
#include <charconv>
#include <cstring>
#include <utility>

namespace tandem::rpc::internal {

namespace {

using boost::system::error_code;

constexpr std::size_t kHeaderBlockMax = 64U << 10U;

Status wrong(std::string_view what) {
  return internal_error("the worker's HTTP/2 is wrong: " + std::string(what));
}

Code code_of_reset(std::uint32_t error) {
  switch (error) {
    case kRefusedStream:
      return Code::kUnavailable;
    case kCancel:
      return Code::kCancelled;
    case kEnhanceYourCalm:
      return Code::kResourceExhausted;
    case kInadequateSecurity:
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

/// The part of a frame's payload between padding length and padding.
Result<std::string_view> without_padding(std::uint8_t flags, std::string_view payload) {
  if ((flags & kPadded) == 0) return payload;
  const std::size_t padding = payload.empty() ? 0 : static_cast<std::uint8_t>(payload[0]);
  if (payload.size() < padding + 1) return wrong("more padding than there is");
  return payload.substr(1, payload.size() - 1 - padding);
}

std::optional<int> parse_number(std::string_view text) {
  int value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size()) return std::nullopt;
  return value;
}

}  // namespace

void H2Call::read() {
  socket_.async_read_some(boost::asio::buffer(in_->data() + in_bytes_, in_->size() - in_bytes_),
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
  in_bytes_ += bytes;
  Status status;
  {
    const async::Batch batch;
    status = take_frames();
  }
  if (stopped_) return;
  if (!status.ok()) return cancel(status);
  if (remote_) return end(*remote_);
  read();
}

Status H2Call::take_frames() {
  std::string_view bytes(in_->data(), in_bytes_);
  while (bytes.size() >= kFrameHeader && !stopped_ && !remote_) {
    const std::size_t size = number_at(bytes, 0, 3);
    if (size > kFrameMax) return wrong("a frame of " + std::to_string(size) + " bytes");
    if (bytes.size() < kFrameHeader + size) break;
    const Frame frame{.type = static_cast<std::uint8_t>(bytes[3]),
                      .flags = static_cast<std::uint8_t>(bytes[4]),
                      .stream = number_at(bytes, 5, 4) & 0x7FFF'FFFFU,
                      .payload = bytes.substr(kFrameHeader, size)};
    TANDEM_TRY(take(frame));
    bytes.remove_prefix(kFrameHeader + size);
  }
  if (!bytes.empty()) std::memmove(in_->data(), bytes.data(), bytes.size());
  in_bytes_ = bytes.size();
  if (consumed_ >= kWindow / 2) give_credit();
  return {};
}

void H2Call::give_credit() {
  const std::lock_guard lock(mutex_);
  append_frame(kWindowUpdate, 0, 0, number_text(consumed_));
  append_frame(kWindowUpdate, 0, kStream, number_text(consumed_));
  consumed_ = 0;
  write();
}

Status H2Call::take(const Frame& frame) {
  if (in_header_block_ && frame.type != kContinuation)
    return wrong("a header block is interrupted");
  switch (frame.type) {
    case kData:
      return take_data(frame);
    case kHeaders:
    case kContinuation:
      return take_headers(frame);
    case kSettings:
      return take_settings(frame);
    case kWindowUpdate:
      return take_window_update(frame);
    case kPushPromise:
      return wrong("a push that was forbidden");
    case kPing: {
      if (frame.payload.size() != 8) return wrong("a ping that has not 8 bytes");
      if ((frame.flags & kAck) != 0) return {};
      const std::lock_guard lock(mutex_);
      append_frame(kPing, kAck, 0, frame.payload);
      write();
      return {};
    }
    case kResetStream:
      if (frame.payload.size() != 4) return wrong("a reset that has not 4 bytes");
      if (frame.stream == kStream) {
        const std::uint32_t error = number_at(frame.payload, 0, 4);
        remote_ =
            Status(code_of_reset(error),
                   "the worker reset the stream (HTTP/2 error " + std::to_string(error) + ")");
      }
      return {};
    case kGoAway: {
      if (frame.payload.size() < 8) return wrong("a goodbye of less than 8 bytes");
      // It may serve to the end what it has begun.
      const std::uint32_t last = number_at(frame.payload, 0, 4) & 0x7FFF'FFFFU;
      const bool error = number_at(frame.payload, 4, 4) != 0;
      if (last < kStream || error) {
        remote_ = unavailable("the worker ends the connection: " +
                              std::string(frame.payload.substr(8, 200)));
      }
      return {};
    }
    default:
      return {};  // priorities, and what is not known: to be ignored
  }
}

Status H2Call::take_data(const Frame& frame) {
  consumed_ += static_cast<std::uint32_t>(frame.payload.size());
  if (frame.stream != kStream) return wrong("data of a stream that is not there");
  TANDEM_TRY(const std::string_view bytes, without_padding(frame.flags, frame.payload));
  TANDEM_TRY(take_messages(bytes));
  if ((frame.flags & kEndStream) != 0)
    remote_ = Status(Code::kUnknown, "the worker ended the stream without a status");
  return {};
}

Status H2Call::take_messages(std::string_view bytes) {
  // A message has 5 bytes in front: whether it is compressed, and its size.
  const auto size_of = [this](std::string_view message) -> Result<std::size_t> {
    if (message[0] != 0) return unimplemented("session: a compressed message");
    const std::size_t size = number_at(message, 1, 4);
    if (size > options_.message_bytes_max) {
      return resource_exhausted("session: a message of " + std::to_string(size) +
                                " bytes, the limit is " +
                                std::to_string(options_.message_bytes_max));
    }
    return kMessageHeader + size;
  };
  while (!bytes.empty() && !stopped_) {
    if (partial_.empty() && bytes.size() >= kMessageHeader) {
      TANDEM_TRY(const std::size_t whole, size_of(bytes));
      if (bytes.size() >= whole) {
        TANDEM_TRY(take_message(bytes.substr(kMessageHeader, whole - kMessageHeader)));
        bytes.remove_prefix(whole);
        continue;
      }
    }
    std::size_t wanted = kMessageHeader;
    if (partial_.size() >= kMessageHeader) {
      TANDEM_TRY(wanted, size_of(partial_));
    }
    const std::size_t taken = std::min(wanted - partial_.size(), bytes.size());
    partial_.append(bytes.substr(0, taken));
    bytes.remove_prefix(taken);
    if (partial_.size() < kMessageHeader) continue;
    TANDEM_TRY(const std::size_t whole, size_of(partial_));
    if (partial_.size() < whole) continue;
    TANDEM_TRY(take_message(std::string_view(partial_).substr(kMessageHeader)));
    partial_.clear();
  }
  return {};
}

Status H2Call::take_message(std::string_view bytes) {
  greeted_ = true;
  return handler_->on_message(*this, bytes);
}

Status H2Call::take_headers(const Frame& frame) {
  if (frame.stream != kStream) return wrong("a header of a stream that is not there");
  std::string_view block = frame.payload;
  if (frame.type == kHeaders) {
    TANDEM_TRY(block, without_padding(frame.flags, block));
    if ((frame.flags & kPriority) != 0) {
      if (block.size() < 5) return wrong("a priority of less than 5 bytes");
      block.remove_prefix(5);
    }
    in_header_block_ = true;
    block_ends_stream_ = (frame.flags & kEndStream) != 0;
    header_block_.clear();
  } else if (!in_header_block_) {
    return wrong("a header block is continued that has not begun");
  }
  if (header_block_.size() + block.size() > kHeaderBlockMax)
    return wrong("a header block of more than 64 KiB");
  header_block_.append(block);
  if ((frame.flags & kEndHeaders) == 0) return {};
  in_header_block_ = false;
  return take_header_block();
}

Status H2Call::take_header_block() {
  TANDEM_TRY(const std::vector<HeaderField> fields, hpack_.decode(header_block_));
  std::optional<int> http;
  std::optional<int> code;
  std::string message;
  for (const auto& [name, value] : fields) {
    if (name == ":status") http = parse_number(value);
    if (name == "grpc-status") code = parse_number(value).value_or(-1);
    if (name == "grpc-message") message = decode_message(value);
  }
  if (!block_ends_stream_ && (!http || *http == 200)) return {};
  if (!code && http && *http != 200) {
    remote_ = Status(code_of_http(*http), "the worker answered with HTTP " + std::to_string(*http));
  } else if (!code) {
    remote_ = Status(Code::kUnknown, "the worker ended the stream without a status");
  } else {
    const bool known = *code >= 0 && *code <= static_cast<int>(Code::kUnauthenticated);
    if (*code == 0) {
      remote_ = Status();
    } else {
      remote_ = Status(known ? static_cast<Code>(*code) : Code::kUnknown, message);
    }
  }
  return {};
}

Status H2Call::take_settings(const Frame& frame) {
  if ((frame.flags & kAck) != 0) return {};
  if (frame.payload.size() % 6 != 0) return wrong("settings that are not pairs");
  const std::lock_guard lock(mutex_);
  for (std::size_t at = 0; at < frame.payload.size(); at += 6) {
    const std::uint32_t id = number_at(frame.payload, at, 2);
    const std::uint32_t value = number_at(frame.payload, at + 2, 4);
    if (id == kInitialWindow) {
      if (value > kWindowMax) return wrong("a window of more than 2 GiB");
      stream_window_ += std::int64_t{value} - initial_window_;
      initial_window_ = value;
      if (stream_window_ > kWindowMax) return wrong("a window of more than 2 GiB");
    } else if (id == kMaxFrame) {
      if (value < kFrameMax || value > 0xFF'FFFF) return wrong("a frame size out of range");
      frame_max_ = value;
    }
  }
  append_frame(kSettings, kAck, 0, {});
  pump();
  write();
  return {};
}

Status H2Call::take_window_update(const Frame& frame) {
  if (frame.payload.size() != 4) return wrong("a window update that has not 4 bytes");
  const std::uint32_t more = number_at(frame.payload, 0, 4) & 0x7FFF'FFFFU;
  if (more == 0) return wrong("a window update of nothing");
  const std::lock_guard lock(mutex_);
  std::int64_t& window = frame.stream == 0 ? connection_window_ : stream_window_;
  window += more;
  if (window > kWindowMax) return wrong("a window of more than 2 GiB");
  pump();
  write();
  return {};
}

}  // namespace tandem::rpc::internal
