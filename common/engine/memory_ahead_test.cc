#include "common/engine/memory_ahead.h"

#include "common/base/take_memory.h"
#include "common/engine/engine_fixture.h"
#include "common/engine/kv_arena.h"

#include <gtest/gtest.h>

#include <sys/mman.h>
#include <unistd.h>

#include <optional>
#include <vector>

namespace tandem::engine {
namespace {

constexpr kv::Owner kSequence{kv::OwnerKind::kSequence, 7};
constexpr std::size_t kPageBytes = std::size_t{64} << 10;
constexpr std::int64_t kPages = 1024;
constexpr std::int64_t kBlockPages = kMemoryBlockBytes / kPageBytes;

class EngineMemoryAhead : public ::testing::TestWithParam<bool> {
 protected:
  void SetUp() override {
    auto arena = KvArena::allocate(kPageBytes, kPages, GetParam());
    ASSERT_TRUE(arena.ok());
    arena_.emplace(std::move(arena).value());
    // Small pages: what is there is counted in these.
    ::madvise(arena_->base(), kPageBytes * kPages, MADV_NOHUGEPAGE);
    const auto base = reinterpret_cast<std::uintptr_t>(arena_->base());
    if (!take_memory_block(base, base + 1, base / kMemoryBlockBytes))
      GTEST_SKIP() << "Linux before 5.14";
  }

  /// How many KV pages behind the first `from` have all of their memory, one after the other.
  [[nodiscard]] std::int64_t ready_behind(std::int64_t from) const {
    const auto small = static_cast<std::size_t>(::sysconf(_SC_PAGESIZE));
    std::vector<unsigned char> there(kPageBytes / small);
    std::int64_t page = from;
    for (; page < kPages; ++page) {
      std::byte* at = arena_->base() + static_cast<std::size_t>(page) * kPageBytes;
      if (::mincore(at, kPageBytes, there.data()) != 0) return -1;
      for (const unsigned char each : there)
        if ((each & 1U) == 0) return page - from;
    }
    return page - from;
  }

  [[nodiscard]] MemoryAhead make(std::size_t bytes_max) const {
    return {arena_->base(), kPageBytes, kPages, bytes_max};
  }

  static std::vector<kv::PageId> use(kv::BlockPool& pool, std::int64_t count) {
    std::vector<kv::PageId> pages(static_cast<std::size_t>(count));
    EXPECT_TRUE(pool.allocate(pages, kSequence));
    return pages;
  }

  static int take_all(MemoryAhead& ahead, const kv::BlockPool& pool) {
    int blocks = 0;
    for (; ahead.waiting(pool) && blocks < 1000; ++blocks)
      ahead.take_block(pool);
    return blocks;
  }

  std::optional<KvArena> arena_;
};

INSTANTIATE_TEST_SUITE_P(PrivateAndShared, EngineMemoryAhead, ::testing::Bool());

TEST_P(EngineMemoryAhead, WhoHasServedNothingTakesNothing) {
  const kv::BlockPool pool(kPages);
  EXPECT_FALSE(make(kPages * kPageBytes).waiting(pool));
  EXPECT_EQ(ready_behind(1), 0);
}

TEST_P(EngineMemoryAhead, HasAsMuchReadyAsWasUsedAndNotTwice) {
  kv::BlockPool pool(kPages);
  MemoryAhead ahead = make(kPages * kPageBytes);
  use(pool, 100);
  arena_->base()[100 * kPageBytes] = std::byte{9};
  EXPECT_TRUE(ahead.waiting(pool));
  take_all(ahead, pool);
  EXPECT_GE(ready_behind(100), 100);
  EXPECT_LE(ready_behind(100), 100 + kBlockPages);
  EXPECT_EQ(arena_->base()[100 * kPageBytes], std::byte{9});
  // The next such prompt finds its memory, and the one behind it will too.
  use(pool, 100);
  take_all(ahead, pool);
  EXPECT_GE(ready_behind(200), 100);
  EXPECT_LE(ready_behind(200), 100 + kBlockPages);
  EXPECT_EQ(take_all(ahead, pool), 0);
}

TEST_P(EngineMemoryAhead, KeepsToItsLimit) {
  kv::BlockPool pool(kPages);
  MemoryAhead ahead = make(10 * kPageBytes);
  use(pool, 500);
  take_all(ahead, pool);
  EXPECT_GE(ready_behind(500), 10);
  EXPECT_LE(ready_behind(500), 10 + kBlockPages);
  MemoryAhead none = make(0);
  EXPECT_FALSE(none.waiting(pool));
}

TEST_P(EngineMemoryAhead, PagesThatCameBackNeedNoOthers) {
  kv::BlockPool pool(kPages);
  MemoryAhead ahead = make(kPages * kPageBytes);
  for (const kv::PageId page : use(pool, 100))
    pool.release(page, kSequence);
  EXPECT_FALSE(ahead.waiting(pool));
  use(pool, 160);
  EXPECT_TRUE(ahead.waiting(pool));
}

TEST_P(EngineMemoryAhead, EndsWithThePool) {
  kv::BlockPool pool(kPages);
  MemoryAhead ahead = make(kPages * kPageBytes);
  use(pool, kPages - 3);
  take_all(ahead, pool);
  EXPECT_EQ(ready_behind(kPages - 3), 3);
  use(pool, 3);
  EXPECT_FALSE(ahead.waiting(pool));
}

class EngineReadyMemory : public EngineFixture {};

TEST_F(EngineReadyMemory, IsWantedAfterAPromptAndThenNoMore) {
  for (const std::size_t bytes : {std::size_t{0}, std::size_t{64} << 20}) {
    make({.max_total_tokens = 1 << 20, .ready_bytes_max = bytes});
    EXPECT_FALSE(engine_->wants_memory());
    generate(request(1, std::vector<TokenId>(200, 5), 4));
    EXPECT_EQ(engine_->wants_memory(), bytes > 0);
    for (int turn = 0; turn < 100 && engine_->wants_memory(); ++turn)
      engine_->take_memory();
    EXPECT_FALSE(engine_->wants_memory());
  }
}

}  // namespace
}  // namespace tandem::engine
