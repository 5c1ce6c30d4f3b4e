#include "common/engine/kv_arena.h"

#include <sys/mman.h>

#include <fstream>
#include <string>
#include <utility>

namespace tandem::engine {
namespace {

constexpr std::size_t kArenaBytesMax = std::size_t{1} << 46U;

/// vm.overcommit_memory = 2: shared pages are charged when they are touched, which would be a
/// SIGBUS in service; anonymous memory is charged, or refused, at the start.
bool commits_strictly() {
  std::ifstream file("/proc/sys/vm/overcommit_memory");
  int mode = 0;
  return file >> mode && mode == 2;
}

}  // namespace

Result<KvArena> KvArena::allocate(std::size_t page_bytes, std::int64_t page_count, bool shared) {
  const auto pages = static_cast<std::size_t>(page_count);
  if (page_bytes == 0 || page_count < 1 || pages > kArenaBytesMax / page_bytes) {
    return resource_exhausted("KV pool: " + std::to_string(page_count) + " pages of " +
                              std::to_string(page_bytes) + " bytes, expected 1 byte to 64 TiB");
  }
  const std::size_t bytes = page_bytes * pages;
  if (shared && !commits_strictly()) {
    if (auto made = SharedMemory::create(kKvPoolName, bytes); made.ok()) {
      (void)madvise(made->base(), bytes, MADV_HUGEPAGE);
      return KvArena(std::move(made).value());
    }
  }
  void* base = mmap(
      nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (base == MAP_FAILED) {
    return resource_exhausted("KV pool: the system refuses " + std::to_string(bytes) +
                              " bytes (--max-total-tokens, --mem-fraction-static)");
  }
  // Only advice: without huge pages everything works, slower.
  (void)madvise(base, bytes, MADV_HUGEPAGE);
  return KvArena(static_cast<std::byte*>(base), bytes);
}

KvArena::KvArena(KvArena&& other) noexcept
    : base_(std::exchange(other.base_, nullptr)),
      bytes_(std::exchange(other.bytes_, 0)),
      shared_(std::exchange(other.shared_, std::nullopt)) {}

KvArena& KvArena::operator=(KvArena&& other) noexcept {
  std::swap(base_, other.base_);
  std::swap(bytes_, other.bytes_);
  std::swap(shared_, other.shared_);
  return *this;
}

KvArena::~KvArena() {
  if (base_ != nullptr && !shared_) munmap(base_, bytes_);
}

}  // namespace tandem::engine
