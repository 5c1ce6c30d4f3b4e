// The header of a KV unit on the data path: 64 bytes, little-endian. Table and version rules:
// docs/protocols/transfer.md.
#pragma once

#include "common/base/status.h"
#include "common/base/transfer_name.h"

#include <array>
#include <cstddef>
#include <cstdint>

namespace tandem::transfer {

inline constexpr std::size_t kUnitHeaderBytes = 64;
inline constexpr std::uint8_t kUnitHeaderVersion = 1;
/// Of one unit: bounds every allocation that a header can cause.
inline constexpr std::uint32_t kUnitPagesMax = 4096;
inline constexpr std::uint64_t kUnitBytesMax = std::uint64_t{64} << 20U;

/// One data message: bytes [page_offset, page_offset + page_length) of each of page_count prompt
/// pages, in order, without gaps.
struct UnitHeader {
  TransferName name;
  std::uint32_t unit = 0;
  std::uint32_t first_page = 0;
  std::uint32_t page_count = 0;
  std::uint32_t page_offset = 0;
  std::uint32_t page_length = 0;
  std::uint16_t first_part = 0;
  std::uint16_t part_count = 0;
  std::uint32_t payload_crc = 0;  ///< CRC32C of the payload
  friend bool operator==(const UnitHeader&, const UnitHeader&) = default;

  [[nodiscard]] std::uint64_t payload_bytes() const {
    return std::uint64_t{page_count} * page_length;
  }
};

using UnitHeaderBytes = std::array<std::byte, kUnitHeaderBytes>;

UnitHeaderBytes encode(const UnitHeader& header);

/// The header in `size` bytes at `data`, or data_loss naming what is wrong: length, magic, version,
/// the header's own CRC, an empty or too large unit.
Result<UnitHeader> decode_unit_header(const void* data, std::size_t size);

}  // namespace tandem::transfer
