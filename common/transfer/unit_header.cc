#include "common/transfer/unit_header.h"

#include "common/base/crc32c.h"
#include "common/transfer/short_message.h"

#include <string>
#include <type_traits>

namespace tandem::transfer {

namespace {

constexpr std::uint16_t kMagic = 0x4B54;  // "TK"
constexpr std::size_t kHeaderCrcAt = 4;

template <class T>
void put(UnitHeaderBytes& bytes, std::size_t at, T value) {
  for (std::size_t i = 0; i < sizeof(T); ++i)
    bytes[at + i] = static_cast<std::byte>((value >> (8 * i)) & 0xFFU);
}

/// Over the whole header, its own field read as zero.
std::uint32_t header_crc(UnitHeaderBytes bytes) {
  put<std::uint32_t>(bytes, kHeaderCrcAt, 0);
  return crc32c(bytes.data(), bytes.size());
}

}  // namespace

UnitHeaderBytes encode(const UnitHeader& h) {
  UnitHeaderBytes b{};
  put<std::uint16_t>(b, 0, kMagic);
  put<std::uint8_t>(b, 2, kUnitHeaderVersion);
  put<std::uint64_t>(b, 8, h.name.request_id);
  put<std::uint64_t>(b, 16, h.name.decode_incarnation);
  put<std::uint32_t>(b, 24, h.name.attempt);
  put<std::uint32_t>(b, 28, h.name.slot);
  put<std::uint32_t>(b, 32, h.name.generation);
  put<std::uint32_t>(b, 36, h.unit);
  put<std::uint32_t>(b, 40, h.first_page);
  put<std::uint32_t>(b, 44, h.page_count);
  put<std::uint32_t>(b, 48, h.page_offset);
  put<std::uint32_t>(b, 52, h.page_length);
  put<std::uint16_t>(b, 56, h.first_part);
  put<std::uint16_t>(b, 58, h.part_count);
  put<std::uint32_t>(b, 60, h.payload_crc);
  put<std::uint32_t>(b, kHeaderCrcAt, header_crc(b));
  return b;
}

Result<UnitHeader> decode_unit_header(const void* data, std::size_t size) {
  if (size != kUnitHeaderBytes) {
    return data_loss("unit header: " + std::to_string(size) + " bytes, expected " +
                     std::to_string(kUnitHeaderBytes));
  }
  const auto* b = static_cast<const std::byte*>(data);
  if (number_at<std::uint16_t>(b) != kMagic) {
    return data_loss("unit header: magic " + std::to_string(number_at<std::uint16_t>(b)) +
                     ", expected " + std::to_string(kMagic));
  }
  if (number_at<std::uint8_t>(b + 2) != kUnitHeaderVersion) {
    return data_loss("unit header: version " + std::to_string(number_at<std::uint8_t>(b + 2)) +
                     ", expected " + std::to_string(kUnitHeaderVersion));
  }
  UnitHeaderBytes copy;
  for (std::size_t i = 0; i < kUnitHeaderBytes; ++i)
    copy[i] = b[i];
  if (number_at<std::uint32_t>(b + kHeaderCrcAt) != header_crc(copy)) {
    return data_loss("unit header: its own CRC is wrong");
  }
  const UnitHeader h{.name = {.request_id = number_at<std::uint64_t>(b + 8),
                              .attempt = number_at<std::uint32_t>(b + 24),
                              .decode_incarnation = number_at<std::uint64_t>(b + 16),
                              .slot = number_at<std::uint32_t>(b + 28),
                              .generation = number_at<std::uint32_t>(b + 32)},
                     .unit = number_at<std::uint32_t>(b + 36),
                     .first_page = number_at<std::uint32_t>(b + 40),
                     .page_count = number_at<std::uint32_t>(b + 44),
                     .page_offset = number_at<std::uint32_t>(b + 48),
                     .page_length = number_at<std::uint32_t>(b + 52),
                     .first_part = number_at<std::uint16_t>(b + 56),
                     .part_count = number_at<std::uint16_t>(b + 58),
                     .payload_crc = number_at<std::uint32_t>(b + 60)};
  if (h.page_count == 0 || h.page_count > kUnitPagesMax || h.page_length == 0 ||
      h.payload_bytes() > kUnitBytesMax) {
    return data_loss("unit header: " + std::to_string(h.page_count) + " pages of " +
                     std::to_string(h.page_length) + " bytes, expected 1 to " +
                     std::to_string(kUnitPagesMax) + " pages and at most " +
                     std::to_string(kUnitBytesMax) + " bytes");
  }
  return h;
}

}  // namespace tandem::transfer
