// Numbers as Protocol Buffers packs them (one varint each, no tags between), for long lists of
// token ids. Pure. Private to room rpc.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace tandem::rpc::internal {

/// Returns where the next one goes.
std::uint8_t* write_varint(std::uint64_t value, std::uint8_t* at);
std::size_t varint_bytes(std::uint64_t value);

/// Bytes of an int32 list. Negative numbers take ten.
std::size_t packed_bytes(std::span<const std::int32_t> numbers);
/// Writes them: packed_bytes() bytes and none behind them. Returns where the next field goes.
std::uint8_t* write_packed(std::span<const std::int32_t> numbers, std::uint8_t* at);

/// The same on any machine. Apart for tests.
std::size_t packed_bytes_portable(std::span<const std::int32_t> numbers);

/// Ways to write the same.
enum class PackBy {
  kPlainCode,
  kShuffles,  ///< AVX2
  kCompress,  ///< AVX-512 VBMI2
};

/// Whether this machine has it.
bool can_pack_by(PackBy by);
/// write_packed() in a way that this machine has. Apart for tests.
std::uint8_t* write_packed_by(PackBy by, std::span<const std::int32_t> numbers, std::uint8_t* at);

}  // namespace tandem::rpc::internal
