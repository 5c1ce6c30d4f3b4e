#include "common/kv/block_pool.h"

#include "common/base/random.h"

#include <gtest/gtest.h>

#include <map>

namespace tandem::kv {
namespace {

constexpr Owner kSeq7{OwnerKind::kSequence, 7};
constexpr Owner kMove9{OwnerKind::kTransfer, 9};

TEST(BlockPool, FreshPoolGivesPagesInOrderAndRefusesOneTooMany) {
  struct Row {
    const char* name;
    std::size_t want;
    bool ok;
    std::int64_t free_after;
  };

  for (const Row& row : {Row{"none", 0, true, 4},
                         Row{"some", 3, true, 1},
                         Row{"all", 4, true, 0},
                         Row{"one too many", 5, false, 4}}) {
    SCOPED_TRACE(row.name);
    BlockPool pool(4);
    std::vector<PageId> pages(row.want);
    EXPECT_EQ(pool.allocate(pages, kSeq7), row.ok);
    EXPECT_EQ(pool.free_count(), row.free_after);
    for (std::size_t i = 0; row.ok && i < pages.size(); ++i)
      EXPECT_EQ(pages[i].value, i);
    EXPECT_TRUE(pool.check().ok());
  }
}

TEST(BlockPool, GenerationNamesEachUse) {
  BlockPool pool(1);
  std::vector<PageId> page(1);
  std::uint32_t last = 0;
  for (int i = 0; i < 5; ++i) {
    ASSERT_TRUE(pool.allocate(page, kSeq7));
    EXPECT_GT(pool.generation(page[0]), last);
    last = pool.generation(page[0]);
    pool.move(page[0], kSeq7, kTreeOwner);
    EXPECT_EQ(pool.generation(page[0]), last);
    pool.release(page[0], kTreeOwner);
  }
}

TEST(BlockPool, PagesThatComeBackAreNotFreshAndAreGivenFirst) {
  BlockPool pool(4);
  EXPECT_EQ(pool.fresh_count(), 4);
  std::vector<PageId> pages(2);
  ASSERT_TRUE(pool.allocate(pages, kSeq7));
  EXPECT_EQ(pool.fresh_count(), 2);
  for (const PageId page : pages)
    pool.release(page, kSeq7);
  EXPECT_EQ(pool.fresh_count(), 2);
  ASSERT_TRUE(pool.allocate(pages, kSeq7));
  EXPECT_EQ(pool.fresh_count(), 2);
  ASSERT_TRUE(pool.allocate(pages, kSeq7));
  EXPECT_EQ(pool.fresh_count(), 0);
  EXPECT_EQ(pages[0].value, 2U);
}

TEST(BlockPoolDeathTest, AWrongGiverIsABrokenInvariant) {
  BlockPool pool(2);
  std::vector<PageId> page(1);
  ASSERT_TRUE(pool.allocate(page, kSeq7));
  EXPECT_DEATH(pool.release(page[0], kMove9), "giver");
  EXPECT_DEATH(pool.release(PageId{1}, Owner{}), "free page");
  EXPECT_DEATH(pool.release(PageId{2}, kSeq7), "no such page");
}

TEST(BlockPool, RandomUseAgreesWithAMap) {
  const std::uint64_t seed = 20240611;
  SCOPED_TRACE(seed);
  Random random(seed);
  BlockPool pool(37);
  std::map<std::uint32_t, Owner> owned;
  const Owner owners[] = {kSeq7, kMove9, kTreeOwner};
  for (int i = 0; i < 5000; ++i) {
    const auto pick = [&] {
      return std::next(owned.begin(), static_cast<std::ptrdiff_t>(random.below(owned.size())));
    };
    const auto what = random.below(3);
    if (what == 0) {
      std::vector<PageId> pages(random.below(8));
      const Owner owner = owners[random.below(3)];
      ASSERT_EQ(pool.allocate(pages, owner), pages.size() + owned.size() <= 37);
      if (pages.size() + owned.size() > 37) continue;
      for (const PageId page : pages)
        ASSERT_TRUE(owned.emplace(page.value, owner).second);
    } else if (!owned.empty()) {
      const auto at = pick();
      const Owner to = owners[random.below(3)];
      if (what == 1) {
        pool.move(PageId{at->first}, at->second, to);
        at->second = to;
      } else {
        pool.release(PageId{at->first}, at->second);
        owned.erase(at);
      }
    }
    ASSERT_EQ(pool.free_count() + static_cast<std::int64_t>(owned.size()), pool.total());
    for (const auto& [page, owner] : owned)
      ASSERT_EQ(pool.owner(PageId{page}), owner);
  }
  EXPECT_TRUE(pool.check().ok()) << pool.check().message();
}

}  // namespace
}  // namespace tandem::kv
