#include "common/base/take_memory.h"

#include "common/base/check.h"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>

// Of Linux 5.14; the C library's headers may be older.
#ifndef MADV_POPULATE_WRITE
#define MADV_POPULATE_WRITE 23
#endif

namespace tandem {

bool take_memory_block(std::uintptr_t begin, std::uintptr_t end, std::uintptr_t index) {
  const auto small_page = static_cast<std::uintptr_t>(::sysconf(_SC_PAGESIZE));
  const std::uintptr_t block = index * kMemoryBlockBytes;
  const std::uintptr_t from = std::max(block, begin / small_page * small_page);
  const std::uintptr_t to = std::min(block + kMemoryBlockBytes, end);
  TANDEM_CHECK(from < to, "a block outside of the memory");
  // NOLINTNEXTLINE(performance-no-int-to-ptr): memory is cut at addresses, not at what lies there
  return ::madvise(reinterpret_cast<void*>(from), to - from, MADV_POPULATE_WRITE) == 0 ||
         errno != EINVAL;
}

}  // namespace tandem
