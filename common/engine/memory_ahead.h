// MemoryAhead: keeps memory ready for pages of the KV arena that nobody has had yet.
#pragma once

#include "common/kv/block_pool.h"

#include <cstddef>
#include <cstdint>

namespace tandem::engine {

/// A pool begins as memory that the system has not given. The pass that writes to a page first
/// waits while the system clears it, 4 KiB at a time where memory is shared, and where a hypervisor
/// takes free memory back it waits for that too: in all that may be a quarter of a prompt's time.
/// So memory is taken before, when nobody waits: for as many pages as were used since some was last
/// taken, within a limit. A worker that has served nothing takes nothing, and one whose pages come
/// back needs no more.
///
/// Owner: the engine thread.
class MemoryAhead {
 public:
  /// The arena is `page_count` pages from `base` on and outlives this. At most `bytes_max` are
  /// ready at a time; 0: none.
  MemoryAhead(const std::byte* base,
              std::size_t page_bytes,
              std::int64_t page_count,
              std::size_t bytes_max);

  /// Whether take_block() has anything to do. `pool` is the arena's, always the same one.
  [[nodiscard]] bool waiting(const kv::BlockPool& pool) const;

  /// Takes the memory of one block, 2 MiB. Where the system cannot do that nothing waits any more.
  void take_block(const kv::BlockPool& pool);

 private:
  /// How many of the pages that nobody has had are to be ready.
  [[nodiscard]] std::int64_t wanted(const kv::BlockPool& pool) const;
  /// Where the page lies; behind the last one the end of the arena.
  [[nodiscard]] std::uintptr_t address_of(std::int64_t page) const;

  std::uintptr_t begin_;
  std::size_t page_bytes_;
  std::int64_t page_count_;
  std::int64_t pages_max_;
  std::int64_t used_before_ = 0;  ///< pages that somebody had had when all was ready last
  std::uintptr_t ready_end_;
};

}  // namespace tandem::engine
