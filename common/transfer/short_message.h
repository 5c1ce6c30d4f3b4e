// The short messages between peers on one machine (private to the room). Byte tables:
// docs/protocols/transfer.md.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace tandem::transfer {

// Active message ids.
constexpr unsigned kSlotUnitId = 2;
constexpr unsigned kDoneId = 3;
constexpr unsigned kOfferId = 4;
constexpr unsigned kAcceptId = 5;
constexpr unsigned kPoolUnitId = 6;

/// Where a unit is: a slot's index, or this.
constexpr std::uint32_t kInPool = 0xFFFFFFFF;

/// A unit in memory of its sender: follows the unit header, or stands alone (kDoneId).
struct LentUnit {
  std::uint32_t from = 0;  ///< CRC of the sender's address
  std::uint32_t place = 0;
  std::uint32_t serial = 0;  ///< of this use: an answer to an earlier one is not for this one
};

constexpr std::size_t kLentUnitBytes = 12;

/// Part of a unit, in the memory of the sender's pool.
struct PoolRun {
  std::uint64_t offset = 0;
  std::uint32_t bytes = 0;
};

constexpr std::size_t kPoolRunBytes = 12;

/// Little-endian.
template <class T>
void append(std::vector<std::byte>& out, T value) {
  for (std::size_t i = 0; i < sizeof(T); ++i)
    out.push_back(static_cast<std::byte>((value >> (8 * i)) & 0xFFU));
}

template <class T>
T number_at(const std::byte* in) {
  T value = 0;
  for (std::size_t i = 0; i < sizeof(T); ++i)
    value |= static_cast<T>(static_cast<T>(in[i]) << (8 * i));
  return value;
}

inline void append(std::vector<std::byte>& out, const LentUnit& unit) {
  append(out, unit.from);
  append(out, unit.place);
  append(out, unit.serial);
}

/// Of kLentUnitBytes.
inline LentUnit lent_unit_at(const std::byte* in) {
  return {.from = number_at<std::uint32_t>(in),
          .place = number_at<std::uint32_t>(in + 4),
          .serial = number_at<std::uint32_t>(in + 8)};
}

inline void append(std::vector<std::byte>& out, const PoolRun& run) {
  append(out, run.offset);
  append(out, run.bytes);
}

/// Of kPoolRunBytes.
inline PoolRun pool_run_at(const std::byte* in) {
  return {.offset = number_at<std::uint64_t>(in), .bytes = number_at<std::uint32_t>(in + 8)};
}

}  // namespace tandem::transfer
