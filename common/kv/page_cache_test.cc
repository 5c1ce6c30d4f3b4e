// Pool and tree under random use, against a plain model: a set of known prefixes.
#include "common/kv/page_cache.h"

#include "common/base/random.h"

#include <gtest/gtest.h>

#include <map>
#include <memory>

namespace tandem::kv {
namespace {

std::vector<TokenId> iota(TokenId first, std::size_t count) {
  std::vector<TokenId> out(count);
  for (std::size_t i = 0; i < count; ++i)
    out[i] = first + static_cast<TokenId>(i);
  return out;
}

Owner sequence(std::uint64_t id) {
  return {OwnerKind::kSequence, id};
}

constexpr std::int64_t kAll = 1 << 20;

TEST(PageCache, AClosedSequenceIsFoundAgainUpToFullPages) {
  PageCache cache({.page_count = 8, .page_size = 4});
  PageTable first;
  const auto tokens = iota(100, 11);
  ASSERT_TRUE(cache.open(&first, sequence(1), tokens, kAll, 0));
  EXPECT_EQ(first.pages.size(), 3U);
  EXPECT_EQ(first.shared_count, 0);
  const auto pages = first.pages;
  cache.close(&first, tokens);
  EXPECT_EQ(cache.unused_cached_pages(), 2);
  EXPECT_EQ(cache.available_pages(), 8);
  EXPECT_EQ(cache.match_length(tokens), 2);
  EXPECT_EQ(cache.match_length(std::span(tokens).first(7)), 1);

  PageTable again;
  ASSERT_TRUE(cache.open(&again, sequence(2), tokens, kAll, 0));
  EXPECT_EQ(again.shared_count, 2);
  EXPECT_EQ(again.pages[0], pages[0]);
  EXPECT_EQ(again.pages[1], pages[1]);
  EXPECT_EQ(cache.shared_pages(), 2);
  EXPECT_EQ(cache.available_pages(), 5);
  const PageTable* open[] = {&again};
  EXPECT_TRUE(cache.check(open).ok()) << cache.check(open).message();
  EXPECT_FALSE(cache.check({}).ok());  // the table's private page would be lost
  cache.close(&again, {});
  EXPECT_TRUE(cache.check({}).ok());
}

TEST(PageCache, MatchLimitAndSpareAreKept) {
  PageCache cache({.page_count = 4, .page_size = 2});
  PageTable table;
  const auto tokens = iota(0, 6);
  EXPECT_FALSE(cache.open(&table, sequence(1), tokens, kAll, 2));
  EXPECT_TRUE(table.pages.empty());
  ASSERT_TRUE(cache.open(&table, sequence(1), tokens, kAll, 1));
  cache.close(&table, tokens);
  ASSERT_TRUE(cache.open(&table, sequence(1), tokens, 5, 0));
  EXPECT_EQ(table.shared_count, 2);
  cache.close(&table, tokens);
}

TEST(PageCache, EvictionTakesTheLeastRecentlyUsedAndNeverALockedPrefix) {
  PageCache cache({.page_count = 6, .page_size = 1});
  PageTable a, b, c;
  ASSERT_TRUE(cache.open(&a, sequence(1), iota(10, 3), kAll, 0));
  cache.close(&a, iota(10, 3));
  ASSERT_TRUE(cache.open(&b, sequence(2), iota(20, 3), kAll, 0));
  cache.close(&b, iota(20, 3));
  ASSERT_TRUE(cache.open(&a, sequence(1), iota(10, 2), kAll, 0));  // locks 10, 11; touches them
  ASSERT_TRUE(cache.open(&c, sequence(3), iota(30, 2), kAll, 0));  // evicts 12, then 22
  EXPECT_EQ(cache.match_length(iota(10, 3)), 2);
  EXPECT_EQ(cache.match_length(iota(20, 3)), 2);
  PageTable d;
  EXPECT_FALSE(cache.open(&d, sequence(4), iota(40, 3), kAll, 0));
  EXPECT_TRUE(cache.open(&d, sequence(4), iota(40, 2), kAll, 0));
  EXPECT_EQ(cache.match_length(iota(10, 3)), 2);
  EXPECT_EQ(cache.match_length(iota(20, 3)), 0);
  for (PageTable* table : {&a, &c, &d})
    cache.close(table, {});
  EXPECT_TRUE(cache.check({}).ok());
}

TEST(PageCache, EqualWorkOfTwoSequencesIsKeptOnce) {
  PageCache cache({.page_count = 8, .page_size = 2});
  PageTable a, b;
  const auto tokens = iota(5, 6);
  ASSERT_TRUE(cache.open(&a, sequence(1), tokens, kAll, 0));
  ASSERT_TRUE(cache.open(&b, sequence(2), tokens, kAll, 0));
  cache.publish(&a, tokens);
  cache.publish(&b, tokens);
  EXPECT_EQ(a.pages, b.pages);
  EXPECT_EQ(cache.pool().free_count(), 5);
  cache.clear_unused();
  EXPECT_EQ(cache.match_length(tokens), 3);
  cache.close(&a, tokens);
  cache.close(&b, tokens);
  cache.clear_unused();
  EXPECT_EQ(cache.pool().free_count(), 8);
}

TEST(PageCache, ADiscardedSequenceTakesItsPagesOutOfTheTreeButNotThoseOfOthers) {
  PageCache cache({.page_count = 12, .page_size = 2});
  PageTable a, b;
  const auto tokens = iota(5, 10);
  ASSERT_TRUE(cache.open(&a, sequence(1), tokens, kAll, 0));
  cache.publish(&a, std::span(tokens).first(8));
  ASSERT_TRUE(cache.open(&b, sequence(2), std::span(tokens).first(5), kAll, 0));
  EXPECT_EQ(b.shared_count, 2);
  cache.discard(&a);
  EXPECT_EQ(cache.match_length(tokens), 2);
  const PageTable* open[] = {&b};
  EXPECT_TRUE(cache.check(open).ok()) << cache.check(open).message();
  cache.discard(&b);
  EXPECT_EQ(cache.match_length(tokens), 0);
  EXPECT_EQ(cache.pool().free_count(), 12);
}

TEST(PageCache, WithoutPrefixReuseNothingIsKept) {
  PageCache cache({.page_count = 4, .page_size = 2, .prefix_reuse = false});
  PageTable table;
  const auto tokens = iota(5, 6);
  ASSERT_TRUE(cache.open(&table, sequence(1), tokens, kAll, 0));
  cache.publish(&table, tokens);
  EXPECT_EQ(table.shared_count, 0);
  ASSERT_TRUE(cache.grow(&table, 8));
  EXPECT_FALSE(cache.grow(&table, 9));
  EXPECT_EQ(table.pages.size(), 4U);
  cache.close(&table, tokens);
  EXPECT_EQ(cache.match_length(tokens), 0);
  EXPECT_EQ(cache.pool().free_count(), 4);
}

/// What each page was written with: the whole prefix up to its end. A match must return pages that
/// hold exactly the prefix that was asked for.
class RandomUse {
 public:
  RandomUse(std::uint64_t seed, std::int32_t page_size)
      : random_(seed), cache_({.page_count = 24, .page_size = page_size}), page_size_(page_size) {}

  void run(int steps) {
    for (int i = 0; i < steps; ++i) {
      act();
      std::vector<const PageTable*> tables;
      for (const auto& live : live_)
        tables.push_back(&live->table);
      const Status status = cache_.check(tables);
      ASSERT_TRUE(status.ok()) << "step " << i << ": " << status.message();
      for (const auto& live : live_)
        verify(*live);
    }
    for (const auto& live : live_)
      cache_.close(&live->table, {});
    cache_.clear_unused();
    EXPECT_EQ(cache_.pool().free_count(), 24);
  }

 private:
  struct Live {
    PageTable table;
    std::vector<TokenId> tokens;
    std::size_t computed = 0;
  };

  void act() {
    const auto what = random_.below(10);
    if (what < 4 || live_.empty()) return open();
    const auto at = random_.below(live_.size());
    Live& live = *live_[at];
    if (what < 6) {
      write(live, live.computed + random_.below(live.tokens.size() - live.computed + 1));
      cache_.publish(&live.table, std::span(live.tokens).first(live.computed));
    } else if (what < 8) {
      if (!cache_.grow(&live.table, static_cast<std::int64_t>(live.tokens.size()) + 1)) return;
      live.tokens.push_back(static_cast<TokenId>(random_.below(2)));
    } else {
      if (random_.chance(0.7)) {
        cache_.close(&live.table, std::span(live.tokens).first(live.computed));
      } else {
        cache_.discard(&live.table);
      }
      live_.erase(live_.begin() + static_cast<std::ptrdiff_t>(at));
    }
  }

  void open() {
    auto live = std::make_unique<Live>();
    live->tokens.resize(1 + random_.below(16));
    for (TokenId& token : live->tokens)
      token = static_cast<TokenId>(random_.below(2));
    const auto limit = static_cast<std::int64_t>(live->tokens.size()) - 1;
    if (!cache_.open(&live->table, sequence(++ids_), live->tokens, limit, 0)) return;
    live->computed = static_cast<std::size_t>(live->table.shared_count * page_size_);
    ASSERT_LE(static_cast<std::int64_t>(live->computed), limit);
    live_.push_back(std::move(live));
  }

  void write(Live& live, std::size_t to) {
    for (; live.computed < to; ++live.computed) {
      const auto page = live.table.pages[live.computed / static_cast<std::size_t>(page_size_)];
      written_[page.value] = std::vector<TokenId>(
          live.tokens.begin(),
          live.tokens.begin() + static_cast<std::ptrdiff_t>(live.computed) + 1);
    }
  }

  void verify(const Live& live) {
    const auto page_size = static_cast<std::size_t>(page_size_);
    for (std::size_t begin = 0; begin < live.computed; begin += page_size) {
      const auto& prefix = written_[live.table.pages[begin / page_size].value];
      const std::size_t end = std::min(begin + page_size, live.computed);
      ASSERT_GE(prefix.size(), end);
      ASSERT_TRUE(std::equal(live.tokens.begin(),
                             live.tokens.begin() + static_cast<std::ptrdiff_t>(end),
                             prefix.begin()));
    }
  }

  Random random_;
  PageCache cache_;
  std::int32_t page_size_;
  std::uint64_t ids_ = 0;
  std::vector<std::unique_ptr<Live>> live_;
  std::map<std::uint32_t, std::vector<TokenId>> written_;
};

TEST(PageCache, RandomUseNeverMixesPrefixesNorLosesPages) {
  for (std::uint64_t seed = 1; seed <= 40; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    RandomUse use(seed, seed % 2 == 0 ? 1 : 1 + static_cast<std::int32_t>(seed % 5));
    use.run(400);
    if (testing::Test::HasFatalFailure()) return;
  }
}

}  // namespace
}  // namespace tandem::kv
