// HTTP/2's numbers (RFC 9113), as far as H2Call uses them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace tandem::rpc::internal {

constexpr std::size_t kFrameHeader = 9;
constexpr std::size_t kMessageHeader = 5;  // gRPC's: compressed or not, size
/// What we may be sent in one frame: the least that the protocol allows, which nobody has to ask
/// for.
constexpr std::size_t kFrameMax = 16'384;
/// What we may be sent ahead.
constexpr std::uint32_t kWindow = 4U << 20U;
constexpr std::int64_t kWindowMax = 0x7FFF'FFFF;

// Frames, 6.
constexpr std::uint8_t kData = 0;
constexpr std::uint8_t kHeaders = 1;
constexpr std::uint8_t kResetStream = 3;
constexpr std::uint8_t kSettings = 4;
constexpr std::uint8_t kPushPromise = 5;
constexpr std::uint8_t kPing = 6;
constexpr std::uint8_t kGoAway = 7;
constexpr std::uint8_t kWindowUpdate = 8;
constexpr std::uint8_t kContinuation = 9;
constexpr std::uint8_t kEndStream = 1;
constexpr std::uint8_t kAck = 1;
constexpr std::uint8_t kEndHeaders = 4;
constexpr std::uint8_t kPadded = 8;
constexpr std::uint8_t kPriority = 0x20;
// Settings, 6.5.2.
constexpr std::uint16_t kEnablePush = 2;
constexpr std::uint16_t kInitialWindow = 4;
constexpr std::uint16_t kMaxFrame = 5;
// Errors, 7.
constexpr std::uint32_t kRefusedStream = 7;
constexpr std::uint32_t kCancel = 8;
constexpr std::uint32_t kEnhanceYourCalm = 11;
constexpr std::uint32_t kInadequateSecurity = 12;

constexpr std::uint32_t kStream = 1;  // the only one

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

}  // namespace tandem::rpc::internal
