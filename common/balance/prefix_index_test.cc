#include "common/balance/prefix_index.h"

#include "common/base/random.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <list>
#include <map>
#include <numeric>
#include <set>
#include <string>
#include <utility>
#include <vector>

namespace tandem::balance {
namespace {

using Keys = std::vector<std::uint64_t>;

/// Keys of `blocks` whole blocks; prompts of different `kind` have no beginning in common.
Keys make_keys(const PrefixIndex& index, int kind, std::size_t blocks) {
  std::vector<core::TokenId> ids(blocks * PrefixIndex::kBlockTokens);
  for (std::size_t i = 0; i < ids.size(); ++i)
    ids[i] = static_cast<core::TokenId>(i) + kind * 1'000'000;
  Keys keys;
  index.keys_of(ids, keys);
  return keys;
}

constexpr std::uint64_t tokens(std::size_t blocks) {
  return blocks * PrefixIndex::kBlockTokens;
}

TEST(PrefixIndex, KeysStandForPrefixes) {
  const PrefixIndex index({.seed = 1});
  std::vector<core::TokenId> ids(50, 3);
  Keys keys;
  index.keys_of(ids, keys);
  ASSERT_EQ(keys.size(), 3U);  // the tail of two ids is no block
  EXPECT_NE(keys[0], keys[1]);
  Keys other;
  ids[47] = 4;
  index.keys_of(ids, other);
  EXPECT_EQ(std::vector(other.begin(), other.begin() + 2),
            std::vector(keys.begin(), keys.begin() + 2));
  EXPECT_NE(other[2], keys[2]);
  ids[0] = 4;
  index.keys_of(ids, other);
  EXPECT_NE(other[1], keys[1]);
  index.keys_of({}, other);
  EXPECT_TRUE(other.empty());
  PrefixIndex({.seed = 2}).keys_of(std::vector<core::TokenId>(50, 3), other);
  EXPECT_NE(other, keys);
}

TEST(PrefixIndex, AKeyHangsOnEachIdAndItsPlace) {
  const PrefixIndex index({.seed = 1});
  std::vector<core::TokenId> ids(PrefixIndex::kBlockTokens);
  std::iota(ids.begin(), ids.end(), 0);
  std::set<std::uint64_t> seen;
  std::size_t wanted = 0;
  const auto note = [&](const std::vector<core::TokenId>& block) {
    Keys keys;
    index.keys_of(block, keys);
    seen.insert(keys.at(0));
    EXPECT_EQ(seen.size(), ++wanted);
  };
  note(ids);
  for (std::size_t i = 0; i < ids.size(); ++i) {
    std::vector<core::TokenId> other = ids;
    other[i] = 1000;
    note(other);
    for (std::size_t j = 0; j < i; ++j) {
      other = ids;
      std::swap(other[i], other[j]);
      note(other);
    }
  }
}

TEST(PrefixIndex, TheDeepestAmongThoseAsked) {
  PrefixIndex index({});
  const Keys keys = make_keys(index, 1, 10);
  index.insert(std::span(keys).first(4), 7);
  index.insert(keys, 8);
  index.insert(std::span(keys).first(4), 9);
  EXPECT_EQ(index.depth(keys, 7), 4U);
  EXPECT_EQ(index.depth(keys, 8), 10U);
  EXPECT_EQ(index.depth(keys, 1), 0U);
  Keys found = {99};
  EXPECT_EQ(index.deepest(keys, Keys{7, 8, 9}, found), 10U);
  EXPECT_EQ(found, Keys{8});
  EXPECT_EQ(index.deepest(keys, Keys{9, 1, 7}, found), 4U);
  std::ranges::sort(found);
  EXPECT_EQ(found, (Keys{7, 9}));
  EXPECT_EQ(index.deepest(keys, Keys{1}, found), 0U);
  EXPECT_TRUE(found.empty());
  EXPECT_EQ(index.deepest(make_keys(index, 2, 10), Keys{7, 8, 9}, found), 0U);
  EXPECT_EQ(index.deepest({}, Keys{7, 8, 9}, found), 0U);
  EXPECT_EQ(index.tokens(), tokens(18));
}

TEST(PrefixIndex, AWorkerThatWasRemovedIsForgotten) {
  PrefixIndex index({});
  const Keys keys = make_keys(index, 1, 100);
  index.insert(keys, 7);
  index.insert(keys, 8);
  index.remove_worker(7);
  index.remove_worker(7);
  Keys found;
  EXPECT_EQ(index.deepest(keys, Keys{7}, found), 0U);
  EXPECT_EQ(index.tokens_of(7), 0U);
  // Its memory comes back in slices.
  EXPECT_EQ(index.tokens(), tokens(200));
  EXPECT_FALSE(index.sweep(99));
  EXPECT_EQ(index.tokens(), tokens(101));
  EXPECT_TRUE(index.sweep(99));
  EXPECT_EQ(index.tokens(), tokens(100));
  EXPECT_EQ(index.deepest(keys, Keys{7, 8}, found), 100U);
  EXPECT_EQ(found, Keys{8});
  // One that comes back under its number starts with nothing, also when it is not yet swept.
  index.insert(keys, 7);
  index.remove_worker(7);
  index.insert(std::span(keys).first(2), 7);
  EXPECT_EQ(index.depth(keys, 7), 2U);
  EXPECT_TRUE(index.sweep(1000));
  EXPECT_EQ(index.depth(keys, 7), 2U);
  EXPECT_EQ(index.tokens(), tokens(102));
  index.remove_worker(7);
  index.remove_worker(8);
  EXPECT_TRUE(index.sweep(1000));
  EXPECT_EQ(index.tokens(), 0U);
  index.insert(keys, 8);
  EXPECT_EQ(index.depth(keys, 8), 100U);
}

TEST(PrefixIndex, ItIsCutToItsSizeAndNeverTwiceAsLarge) {
  PrefixIndex index({.tokens_max = tokens(100), .seed = 0});
  for (int kind = 0; kind < 50; ++kind) {
    index.insert(make_keys(index, kind, 9), 7);
    EXPECT_LE(index.tokens_of(7), tokens(200));
  }
  index.insert(make_keys(index, 99, 3), 8);
  EXPECT_EQ(index.tokens_of(7), tokens(200));
  EXPECT_FALSE(index.trim(60));
  EXPECT_TRUE(index.trim(60));
  EXPECT_EQ(index.tokens_of(7), tokens(100));
  EXPECT_EQ(index.tokens_of(8), tokens(3));
  // The latest eleven are whole, of the twelfth the beginning is left.
  EXPECT_EQ(index.depth(make_keys(index, 49, 9), 7), 9U);
  EXPECT_EQ(index.depth(make_keys(index, 39, 9), 7), 9U);
  EXPECT_EQ(index.depth(make_keys(index, 38, 9), 7), 1U);
  EXPECT_EQ(index.depth(make_keys(index, 37, 9), 7), 0U);
  // What is used again stays.
  index.insert(make_keys(index, 39, 9), 7);
  for (int kind = 100; kind < 111; ++kind)
    index.insert(make_keys(index, kind, 9), 7);
  EXPECT_TRUE(index.trim(1000));
  EXPECT_EQ(index.depth(make_keys(index, 39, 9), 7), 1U);
  EXPECT_EQ(index.depth(make_keys(index, 40, 9), 7), 0U);
  // One prompt that is longer than all there may be.
  index.insert(make_keys(index, 500, 1000), 7);
  EXPECT_EQ(index.depth(make_keys(index, 500, 1000), 7), 200U);
  EXPECT_EQ(index.tokens_of(7), tokens(200));
}

/// The same, written down as it is said: per worker a list of prefixes in order of use.
class Model {
 public:
  explicit Model(std::size_t kept) : kept_(kept) {}

  void insert(const Keys& keys, std::uint64_t worker) {
    std::list<std::uint64_t>& list = lists_[worker];
    for (std::size_t i = std::min(keys.size(), 2 * kept_); i-- > 0;) {
      const auto known = std::ranges::find(list, keys[i]);
      if (known != list.end()) {
        list.erase(known);
      } else if (list.size() >= 2 * kept_) {
        list.pop_back();
      }
      list.push_front(keys[i]);
    }
  }

  void trim() {
    for (auto& [worker, list] : lists_) {
      while (list.size() > kept_)
        list.pop_back();
    }
  }

  void remove_worker(std::uint64_t worker) { lists_.erase(worker); }

  [[nodiscard]] std::size_t depth(const Keys& keys, std::uint64_t worker) const {
    const auto found = lists_.find(worker);
    if (found == lists_.end()) return 0;
    std::size_t depth = 0;
    while (depth < keys.size() && std::ranges::count(found->second, keys[depth]) == 1)
      ++depth;
    return depth;
  }

  [[nodiscard]] std::uint64_t size() const {
    std::uint64_t sum = 0;
    for (const auto& [worker, list] : lists_)
      sum += list.size();
    return sum;
  }

 private:
  std::size_t kept_;
  std::map<std::uint64_t, std::list<std::uint64_t>> lists_;
};

class PrefixIndexRandom : public testing::TestWithParam<std::uint64_t> {};

TEST_P(PrefixIndexRandom, DoesAsTheModel) {
  const std::uint64_t seed = GetParam();
  SCOPED_TRACE("seed " + std::to_string(seed));
  Random random(seed);
  const std::size_t kept = 1 + random.below(40);
  PrefixIndex index({.tokens_max = tokens(kept), .seed = seed});
  Model model(kept);
  // Prompts with common beginnings: ways through a tree with two branches at each block.
  const auto draw = [&] {
    std::vector<core::TokenId> ids(tokens(1 + random.below(12)));
    for (std::size_t i = 0; i < ids.size(); ++i)
      ids[i] = i % tokens(1) == 0 ? static_cast<core::TokenId>(random.below(2)) : 5;
    Keys keys;
    index.keys_of(ids, keys);
    return keys;
  };
  const Keys workers = {11, 22, 33, 44};
  for (int step = 0; step < 1500; ++step) {
    const Keys keys = draw();
    const std::uint64_t worker = workers[random.below(workers.size())];
    const std::uint64_t what = random.below(100);
    if (what < 3) {
      index.remove_worker(worker);
      model.remove_worker(worker);
    } else if (what < 8) {
      while (!index.trim(1 + random.below(9))) {
      }
      model.trim();
    } else if (what < 20) {
      (void)index.sweep(random.below(9));
    } else {
      index.insert(keys, worker);
      model.insert(keys, worker);
    }
    const Keys asked = draw();
    std::size_t deepest = 0;
    for (const std::uint64_t each : workers) {
      const std::size_t depth = model.depth(asked, each);
      ASSERT_EQ(index.depth(asked, each), depth) << "step " << step << ", worker " << each;
      deepest = std::max(deepest, depth);
    }
    Keys found;
    ASSERT_EQ(index.deepest(asked, workers, found), deepest) << "step " << step;
    Keys want;
    for (const std::uint64_t each : workers) {
      if (deepest > 0 && model.depth(asked, each) == deepest) want.push_back(each);
    }
    std::ranges::sort(found);
    ASSERT_EQ(found, want) << "step " << step;
  }
  while (!index.sweep(100)) {
  }
  EXPECT_EQ(index.tokens(), tokens(model.size()));
}

INSTANTIATE_TEST_SUITE_P(Seeds, PrefixIndexRandom, testing::Range<std::uint64_t>(1, 41));

}  // namespace
}  // namespace tandem::balance
