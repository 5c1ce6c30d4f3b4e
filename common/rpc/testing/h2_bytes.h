// HTTP/2 byte by byte, for tests of either end.
#pragma once

#include <gtest/gtest.h>

#include <nghttp2/nghttp2.h>
#include <sys/socket.h>

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace tandem::rpc::testing {

// HTTP/2's numbers (RFC 9113, 6 and 7).
inline constexpr std::size_t kFrameHeader = 9;
inline constexpr std::size_t kFrameMax = 16'384;
inline constexpr std::uint32_t kStream = 1;
inline constexpr std::uint8_t kData = NGHTTP2_DATA;
inline constexpr std::uint8_t kHeaders = NGHTTP2_HEADERS;
inline constexpr std::uint8_t kResetStream = NGHTTP2_RST_STREAM;
inline constexpr std::uint8_t kSettings = NGHTTP2_SETTINGS;
inline constexpr std::uint8_t kPushPromise = NGHTTP2_PUSH_PROMISE;
inline constexpr std::uint8_t kPing = NGHTTP2_PING;
inline constexpr std::uint8_t kGoAway = NGHTTP2_GOAWAY;
inline constexpr std::uint8_t kWindowUpdate = NGHTTP2_WINDOW_UPDATE;
inline constexpr std::uint8_t kAck = NGHTTP2_FLAG_ACK;
inline constexpr std::uint8_t kEndStream = NGHTTP2_FLAG_END_STREAM;
inline constexpr std::uint8_t kEndHeaders = NGHTTP2_FLAG_END_HEADERS;
inline constexpr std::uint8_t kPadded = NGHTTP2_FLAG_PADDED;
inline constexpr std::uint16_t kInitialWindow = NGHTTP2_SETTINGS_INITIAL_WINDOW_SIZE;
inline constexpr std::uint32_t kRefusedStream = NGHTTP2_REFUSED_STREAM;
inline constexpr std::uint32_t kCancel = NGHTTP2_CANCEL;

using HeaderField = std::pair<std::string, std::string>;

/// The big-endian number in bytes[at, at + size); size <= 4.
inline std::uint32_t number_at(std::string_view bytes, std::size_t at, std::size_t size) {
  std::uint32_t value = 0;
  for (std::size_t i = 0; i < size; ++i)
    value = (value << 8U) | static_cast<std::uint8_t>(bytes[at + i]);
  return value;
}

inline void append_number(std::string& out, std::uint32_t value, unsigned size) {
  for (unsigned i = size; i-- > 0;)
    out.push_back(static_cast<char>(value >> (8 * i)));
}

inline std::string number_text(std::uint32_t value) {
  std::string out;
  append_number(out, value, 4);
  return out;
}

/// A literal field without indexing (RFC 7541, 6.2.2); both shorter than 127 bytes.
inline void append_header(std::string& block, std::string_view name, std::string_view value) {
  block.push_back('\0');
  for (const std::string_view text : {name, value}) {
    block.push_back(static_cast<char>(text.size()));
    block.append(text);
  }
}

inline std::vector<HeaderField> decode(std::string block) {
  std::vector<HeaderField> fields;
  nghttp2_hd_inflater* inflater = nullptr;
  EXPECT_EQ(nghttp2_hd_inflate_new(&inflater), 0);
  auto* at = reinterpret_cast<std::uint8_t*>(block.data());
  std::size_t left = block.size();
  for (int flags = 0; (flags & NGHTTP2_HD_INFLATE_FINAL) == 0;) {
    nghttp2_nv field;
    const ssize_t used = nghttp2_hd_inflate_hd2(inflater, &field, &flags, at, left, 1);
    if (used < 0) break;
    at += used;
    left -= static_cast<std::size_t>(used);
    if ((flags & NGHTTP2_HD_INFLATE_EMIT) == 0) continue;
    fields.emplace_back(std::string(reinterpret_cast<char*>(field.name), field.namelen),
                        std::string(reinterpret_cast<char*>(field.value), field.valuelen));
  }
  nghttp2_hd_inflate_del(inflater);
  return fields;
}

inline std::string frame(std::uint8_t type,
                         std::uint8_t flags,
                         std::uint32_t stream,
                         std::string_view payload) {
  std::string out;
  append_number(out, static_cast<std::uint32_t>(payload.size()), 3);
  out.push_back(static_cast<char>(type));
  out.push_back(static_cast<char>(flags));
  append_number(out, stream, 4);
  return out.append(payload);
}

inline std::string message(std::string_view text) {
  std::string out(1, '\0');
  append_number(out, static_cast<std::uint32_t>(text.size()), 4);
  return out.append(text);
}

inline std::string header_frame(const std::vector<HeaderField>& fields, bool last) {
  std::string block;
  for (const auto& [name, value] : fields)
    append_header(block, name, value);
  return frame(kHeaders, last ? kEndHeaders | kEndStream : kEndHeaders, kStream, block);
}

struct Seen {
  std::uint8_t type = 0;
  std::uint8_t flags = 0;
  std::uint32_t stream = 0;
  std::string payload = {};
};

/// `size` bytes of a blocking socket, or what came before it ended.
inline std::string read_bytes(int fd, std::size_t size) {
  std::string bytes(size, '\0');
  std::size_t have = 0;
  while (have < size) {
    const ssize_t got = ::recv(fd, bytes.data() + have, size - have, 0);
    if (got <= 0) break;
    have += static_cast<std::size_t>(got);
  }
  bytes.resize(have);
  return bytes;
}

/// The next frame of this type; those of other types are passed over. Type 0xFF: none came.
inline Seen next_frame(int fd, std::uint8_t type) {
  for (;;) {
    const std::string head = read_bytes(fd, kFrameHeader);
    if (head.size() < kFrameHeader) return {.type = 0xFF};
    Seen seen{.type = static_cast<std::uint8_t>(head[3]),
              .flags = static_cast<std::uint8_t>(head[4]),
              .stream = number_at(head, 5, 4),
              .payload = read_bytes(fd, number_at(head, 0, 3))};
    if (seen.type == type) return seen;
  }
}

}  // namespace tandem::rpc::testing
