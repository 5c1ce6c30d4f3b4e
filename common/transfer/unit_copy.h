// Bytes of a unit between pages and one contiguous buffer, and what is counted about units.
#pragma once

#include "common/transfer/transport.h"

#include <span>

namespace tandem::transfer {

/// The unit's bytes of `pages`, one after another, into `out` (header.payload_bytes()).
void gather(const PageMemory& memory,
            const UnitHeader& header,
            std::span<const std::uint32_t> pages,
            std::byte* out);
/// The reverse, into the landing's pages.
void scatter(const PageMemory& memory, const Landing& landing, const std::byte* in);

/// The same two with the CRC of the payload, in one pass.
std::uint32_t gather_crc(const PageMemory& memory,
                         const UnitHeader& header,
                         std::span<const std::uint32_t> pages,
                         std::byte* out);
std::uint32_t scatter_crc(const PageMemory& memory, const Landing& landing, const std::byte* in);

/// CRC32C of the unit's bytes where they lie.
std::uint32_t crc_of_pages(const PageMemory& memory,
                           const UnitHeader& header,
                           std::span<const std::uint32_t> pages);

/// Runs of memory that the unit covers, in payload order; neighbours are merged.
struct MemoryRun {
  std::byte* begin = nullptr;
  std::uint64_t bytes = 0;
};

std::vector<MemoryRun> runs_of(const PageMemory& memory,
                               const UnitHeader& header,
                               std::span<const std::uint32_t> pages);

/// CRC32C of their bytes, one run after another; `demote` as in crc32c().
std::uint32_t crc_of_runs(std::span<const MemoryRun> runs, bool demote);

/// Memory of a peer.
struct SourceRun {
  const std::byte* begin = nullptr;
  std::uint64_t bytes = 0;
};

/// The parts of a unit that a message names (PoolRun, one after another) in a peer's memory. Empty
/// when one of them is empty or lies outside, or when they are not `bytes` in all.
std::vector<SourceRun> runs_in(std::span<const std::byte> pool,
                               std::span<const std::byte> message,
                               std::uint64_t bytes);

/// Copies the one to the other, of the same length in all, and returns the CRC32C of what it
/// copied, whoever writes to `from` meanwhile.
std::uint32_t copy_crc(std::span<const SourceRun> from, std::span<const MemoryRun> to);

void count_drop(TransportStats& stats, LandingVerdict verdict);
void count_landed(TransportStats& stats, const UnitHeader& header, bool crc_ok);

}  // namespace tandem::transfer
