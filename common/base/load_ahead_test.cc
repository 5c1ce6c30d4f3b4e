#include "common/base/load_ahead.h"

#include <gtest/gtest.h>

#include <sys/mman.h>
#include <unistd.h>

#include <array>
#include <new>

namespace tandem {
namespace {

/// A page between two that nobody may read.
class GuardedPage {
 public:
  GuardedPage() {
    memory_ = static_cast<std::byte*>(
        ::mmap(nullptr, 3 * size_, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0));
    EXPECT_EQ(::mprotect(begin(), size_, PROT_READ | PROT_WRITE), 0);
  }

  GuardedPage(const GuardedPage&) = delete;
  GuardedPage& operator=(const GuardedPage&) = delete;

  ~GuardedPage() { ::munmap(memory_, 3 * size_); }

  [[nodiscard]] std::byte* begin() const { return memory_ + size_; }

  [[nodiscard]] std::byte* end() const { return begin() + size_; }

 private:
  std::size_t size_ = static_cast<std::size_t>(::sysconf(_SC_PAGESIZE));
  std::byte* memory_ = nullptr;
};

TEST(LoadAhead, ReadsNoOtherPage) {
  const GuardedPage page;
  for (const std::size_t size : {1, 8, 63, 64, 65, 200, 4096}) {
    SCOPED_TRACE(size);
    load_ahead_bytes(page.begin(), size);
    load_ahead_bytes(page.end() - size, size);
  }
  load_ahead_bytes(page.end(), 0);
}

TEST(LoadAhead, ReadsEveryLineOfAnObject) {
  // Two lines and a half, from the middle of a line on: it lies in three.
  using Object = std::array<std::byte, 2 * kCacheLineBytes + kCacheLineBytes / 2>;
  EXPECT_DEATH(
      {
        const GuardedPage page;
        auto* object = new (page.end() - 2 * kCacheLineBytes - kCacheLineBytes / 4) Object;
        load_ahead(*object);
      },
      "");
}

/// As an object with virtual functions begins.
struct ObjectWithTable {
  const std::byte* table;
};

TEST(LoadAhead, ReadsTheTableOfVirtualFunctions) {
  const GuardedPage page;
  load_virtual_functions_ahead(ObjectWithTable{page.begin()});
  load_virtual_functions_ahead(ObjectWithTable{page.end() - 3 * kCacheLineBytes});
  EXPECT_DEATH(load_virtual_functions_ahead(ObjectWithTable{page.end() - 2 * kCacheLineBytes}), "");
}

}  // namespace
}  // namespace tandem
