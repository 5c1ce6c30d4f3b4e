#include "common/engine/memory_ahead.h"

#include "common/base/take_memory.h"

#include <algorithm>

namespace tandem::engine {

MemoryAhead::MemoryAhead(const std::byte* base,
                         std::size_t page_bytes,
                         std::int64_t page_count,
                         std::size_t bytes_max)
    : begin_(reinterpret_cast<std::uintptr_t>(base)),
      page_bytes_(page_bytes),
      page_count_(page_count),
      pages_max_(static_cast<std::int64_t>(bytes_max / page_bytes)),
      ready_end_(begin_) {}

std::int64_t MemoryAhead::wanted(const kv::BlockPool& pool) const {
  const std::int64_t fresh = pool.fresh_count();
  const std::int64_t lately = page_count_ - fresh - used_before_;
  // Those that were given back have their memory, and are given first.
  const std::int64_t returned = pool.free_count() - fresh;
  return std::min(std::min(lately, pages_max_) - returned, fresh);
}

std::uintptr_t MemoryAhead::address_of(std::int64_t page) const {
  return begin_ + static_cast<std::size_t>(page) * page_bytes_;
}

bool MemoryAhead::waiting(const kv::BlockPool& pool) const {
  const std::int64_t pages = wanted(pool);
  return pages > 0 && address_of(page_count_ - pool.fresh_count() + pages) > ready_end_;
}

void MemoryAhead::take_block(const kv::BlockPool& pool) {
  const std::int64_t used = page_count_ - pool.fresh_count();
  const std::uintptr_t block = std::max(ready_end_, address_of(used)) / kMemoryBlockBytes;
  if (!take_memory_block(begin_, address_of(page_count_), block)) pages_max_ = 0;
  ready_end_ = (block + 1) * kMemoryBlockBytes;
  if (!waiting(pool)) used_before_ = used;
}

}  // namespace tandem::engine
