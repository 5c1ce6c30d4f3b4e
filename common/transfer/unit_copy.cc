#include "common/transfer/unit_copy.h"

#include "common/base/crc32c.h"
#include "common/transfer/short_message.h"

#include <algorithm>
#include <cstring>

namespace tandem::transfer {

void gather(const PageMemory& memory,
            const UnitHeader& header,
            std::span<const std::uint32_t> pages,
            std::byte* out) {
  for (const std::uint32_t page : pages) {
    std::memcpy(out, memory.page(page) + header.page_offset, header.page_length);
    out += header.page_length;
  }
}

void scatter(const PageMemory& memory, const Landing& landing, const std::byte* in) {
  for (const std::uint32_t page : landing.pages) {
    std::memcpy(memory.page(page) + landing.header.page_offset, in, landing.header.page_length);
    in += landing.header.page_length;
  }
}

std::uint32_t gather_crc(const PageMemory& memory,
                         const UnitHeader& header,
                         std::span<const std::uint32_t> pages,
                         std::byte* out) {
  std::uint32_t crc = 0;
  for (const std::uint32_t page : pages) {
    crc = crc32c_copy(out, memory.page(page) + header.page_offset, header.page_length, crc, true);
    out += header.page_length;
  }
  return crc;
}

std::uint32_t scatter_crc(const PageMemory& memory, const Landing& landing, const std::byte* in) {
  std::uint32_t crc = 0;
  for (const std::uint32_t page : landing.pages) {
    crc = crc32c_copy(
        memory.page(page) + landing.header.page_offset, in, landing.header.page_length, crc, false);
    in += landing.header.page_length;
  }
  return crc;
}

std::uint32_t crc_of_pages(const PageMemory& memory,
                           const UnitHeader& header,
                           std::span<const std::uint32_t> pages) {
  return crc_of_runs(runs_of(memory, header, pages), /*demote=*/false);
}

std::vector<MemoryRun> runs_of(const PageMemory& memory,
                               const UnitHeader& header,
                               std::span<const std::uint32_t> pages) {
  std::vector<MemoryRun> runs;
  for (const std::uint32_t page : pages) {
    std::byte* begin = memory.page(page) + header.page_offset;
    if (!runs.empty() && runs.back().begin + runs.back().bytes == begin) {
      runs.back().bytes += header.page_length;
    } else {
      runs.push_back({begin, header.page_length});
    }
  }
  return runs;
}

std::uint32_t crc_of_runs(std::span<const MemoryRun> runs, bool demote) {
  std::uint32_t crc = 0;
  for (const MemoryRun& run : runs)
    crc = crc32c(run.begin, run.bytes, crc, demote);
  return crc;
}

std::vector<SourceRun> runs_in(std::span<const std::byte> pool,
                               std::span<const std::byte> message,
                               std::uint64_t bytes) {
  std::vector<SourceRun> runs;
  runs.reserve(message.size() / kPoolRunBytes);
  std::uint64_t total = 0;
  for (; message.size() >= kPoolRunBytes; message = message.subspan(kPoolRunBytes)) {
    const PoolRun run = pool_run_at(message.data());
    if (run.bytes == 0 || run.bytes > pool.size() || run.offset > pool.size() - run.bytes)
      return {};
    runs.push_back({pool.data() + run.offset, run.bytes});
    total += run.bytes;
  }
  if (total != bytes) return {};
  return runs;
}

std::uint32_t copy_crc(std::span<const SourceRun> from, std::span<const MemoryRun> to) {
  std::uint32_t crc = 0;
  std::uint64_t from_at = 0;
  std::uint64_t to_at = 0;
  while (!from.empty() && !to.empty()) {
    const std::uint64_t bytes = std::min(from.front().bytes - from_at, to.front().bytes - to_at);
    crc = crc32c_copy(
        to.front().begin + to_at, from.front().begin + from_at, bytes, crc, /*read_soon=*/false);
    from_at += bytes;
    to_at += bytes;
    if (from_at == from.front().bytes) {
      from = from.subspan(1);
      from_at = 0;
    }
    if (to_at == to.front().bytes) {
      to = to.subspan(1);
      to_at = 0;
    }
  }
  return crc;
}

void count_drop(TransportStats& stats, LandingVerdict verdict) {
  switch (verdict) {
    case LandingVerdict::kStaleName:
      ++stats.dropped_stale;
      break;
    case LandingVerdict::kOutOfRange:
      ++stats.dropped_out_of_range;
      break;
    case LandingVerdict::kDuplicate:
      ++stats.dropped_duplicate;
      break;
    case LandingVerdict::kLand:
      break;
  }
}

void count_landed(TransportStats& stats, const UnitHeader& header, bool crc_ok) {
  if (crc_ok) {
    ++stats.landed_units;
    stats.landed_bytes += header.payload_bytes();
  } else {
    ++stats.bad_crc;
  }
}

}  // namespace tandem::transfer
