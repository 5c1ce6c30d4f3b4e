#include "common/balance/balance.h"

#include <gtest/gtest.h>

#include <cmath>
#include <map>
#include <vector>

namespace tandem::balance {
namespace {

std::vector<Candidate> make_workers(std::size_t count) {
  std::vector<Candidate> workers(count);
  for (std::size_t i = 0; i < count; ++i)
    workers[i].id = 10 * (i + 1);
  return workers;
}

constexpr Method kMethods[] = {Method::kRandom,
                               Method::kRoundRobin,
                               Method::kLeastLoad,
                               Method::kMinimumTokens,
                               Method::kPowerOfTwo,
                               Method::kCacheAware};

std::map<std::size_t, int> count_picks(Method method,
                                       const std::vector<Candidate>& workers,
                                       int rounds,
                                       std::uint64_t seed = 3) {
  Turn turn(seed);
  std::map<std::size_t, int> counts;
  for (int i = 0; i < rounds; ++i)
    ++counts[*pick(method, workers, {}, turn)];
  return counts;
}

TEST(Balance, Names) {
  for (const Method method : kMethods)
    EXPECT_EQ(*parse_method(method_name(method)), method);
  EXPECT_EQ(*parse_method("shortest_queue"), Method::kLeastLoad);
  const Status status = parse_method("bucket").status();
  EXPECT_EQ(status.code(), Code::kInvalidArgument);
  EXPECT_NE(status.message().find("'bucket'"), std::string::npos);
  EXPECT_NE(status.message().find("least_load"), std::string::npos);
}

TEST(Balance, EqualWorkersShareEvenly) {
  const std::vector<Candidate> workers = make_workers(5);
  for (const Method method :
       {Method::kRoundRobin, Method::kLeastLoad, Method::kMinimumTokens, Method::kCacheAware}) {
    SCOPED_TRACE(method_name(method));
    const auto counts = count_picks(method, workers, 1000);
    ASSERT_EQ(counts.size(), 5U);
    for (const auto& [index, count] : counts)
      EXPECT_EQ(count, 200);
  }
}

TEST(Balance, RandomIsUniformAndReplayable) {
  const std::vector<Candidate> workers = make_workers(5);
  const std::uint64_t seed = 42;
  SCOPED_TRACE("seed " + std::to_string(seed));
  const auto counts = count_picks(Method::kRandom, workers, 50'000, seed);
  double chi_square = 0;
  for (const auto& [index, count] : counts)
    chi_square += std::pow(count - 10'000, 2) / 10'000;
  EXPECT_LT(chi_square, 18.47);  // 4 degrees of freedom, p = 0.001
  EXPECT_EQ(counts, count_picks(Method::kRandom, workers, 50'000, seed));
  EXPECT_NE(counts, count_picks(Method::kRandom, workers, 50'000, seed + 1));
}

struct LoadRow {
  const char* name;
  Method method;
  core::Load loads[3];
  std::int64_t unreported_requests[3];
  std::size_t want;
};

core::Load make_load(std::int64_t running, std::int64_t waiting, std::int64_t tokens) {
  core::Load load;
  load.running_requests = running;
  load.waiting_requests = waiting;
  load.used_tokens = tokens;
  return load;
}

TEST(Balance, LoadDecides) {
  const LoadRow rows[] = {
      {"waiting counts",
       Method::kLeastLoad,
       {make_load(1, 3, 0), make_load(2, 1, 9), make_load(4, 0, 0)},
       {0, 0, 0},
       1},
      {"unreported counts",
       Method::kLeastLoad,
       {make_load(1, 0, 0), make_load(2, 0, 0), make_load(9, 0, 0)},
       {2, 0, 0},
       1},
      {"tokens break ties",
       Method::kLeastLoad,
       {make_load(1, 0, 9), make_load(1, 0, 8), make_load(0, 1, 7)},
       {0, 0, 0},
       2},
      {"tokens first",
       Method::kMinimumTokens,
       {make_load(0, 0, 9), make_load(5, 5, 8), make_load(1, 0, 9)},
       {0, 0, 0},
       1},
  };
  for (const LoadRow& row : rows) {
    SCOPED_TRACE(row.name);
    std::vector<Candidate> workers = make_workers(3);
    for (std::size_t i = 0; i < 3; ++i) {
      workers[i].load = row.loads[i];
      workers[i].unreported_requests = row.unreported_requests[i];
    }
    Turn turn(1);
    EXPECT_EQ(*pick(row.method, workers, {}, turn), row.want);
  }
}

TEST(Balance, TheBetterOfTwoIsTaken) {
  std::vector<Candidate> workers = make_workers(3);
  workers[0].load = make_load(9, 0, 0);
  workers[1].load = make_load(1, 3, 0);
  workers[2].load = make_load(0, 4, 9);
  // Each of the three pairs is drawn a third of the time; the most loaded one never wins, and
  // tokens decide between the others.
  const auto counts = count_picks(Method::kPowerOfTwo, workers, 9000);
  EXPECT_EQ(counts.count(0), 0U);
  EXPECT_NEAR(counts.at(1), 6000, 300);
  EXPECT_NEAR(counts.at(2), 3000, 300);
  // Equals: the first that was drawn, so each as often as the others.
  for (Candidate& worker : workers)
    worker.load = {};
  for (const auto& [index, count] : count_picks(Method::kPowerOfTwo, workers, 9000))
    EXPECT_NEAR(count, 3000, 300) << index;
}

/// Two or three workers of which some know a prompt of ten blocks.
struct Known {
  PrefixIndex prefixes{{.seed = 1}};
  std::vector<core::TokenId> prompt = std::vector<core::TokenId>(160, 5);
  std::vector<std::uint64_t> keys;

  Known() { prefixes.keys_of(prompt, keys); }

  void tell(const Candidate& worker, std::size_t blocks) {
    prefixes.insert(std::span(keys).first(blocks), worker.id);
  }

  std::size_t pick_one(const std::vector<Candidate>& workers,
                       Turn& turn,
                       CacheAware cache = {},
                       std::span<const std::uint64_t> excluded = {}) {
    cache.prefixes = &prefixes;
    const Demand demand{.tokens = 0, .excluded = excluded, .prefix = keys};
    return *pick(Method::kCacheAware, workers, demand, turn, cache);
  }
};

TEST(CacheAware, TheOneThatKnowsThePromptGetsIt) {
  const std::vector<Candidate> workers = make_workers(3);
  Known known;
  known.tell(workers[1], 10);
  known.tell(workers[2], 9);
  Turn turn(1);
  for (int i = 0; i < 20; ++i)
    EXPECT_EQ(known.pick_one(workers, turn), 1U);
  // Dead or tried: the next best.
  const std::uint64_t tried[] = {workers[1].id};
  EXPECT_EQ(known.pick_one(workers, turn, {}, tried), 2U);
  // Two that know as much share it by load.
  known.tell(workers[2], 10);
  std::vector<Candidate> loaded = workers;
  loaded[1].load = make_load(3, 0, 0);
  EXPECT_EQ(known.pick_one(loaded, turn), 2U);
  std::map<std::size_t, int> counts;
  for (int i = 0; i < 20; ++i)
    ++counts[known.pick_one(workers, turn)];
  EXPECT_EQ(counts, (std::map<std::size_t, int>{{1, 10}, {2, 10}}));
}

TEST(CacheAware, AShortMatchCountsForNothing) {
  std::vector<Candidate> workers = make_workers(2);
  workers[1].load = make_load(1, 0, 0);

  struct Row {
    std::size_t blocks;
    double threshold;
    std::size_t want;
  };

  for (const Row& row :
       {Row{3, 0.3, 0}, Row{4, 0.3, 1}, Row{0, 0, 0}, Row{1, 0, 1}, Row{10, 1, 0}}) {
    SCOPED_TRACE(std::to_string(row.blocks) + " of 10, threshold " + std::to_string(row.threshold));
    Known known;
    known.tell(workers[1], row.blocks);
    Turn turn(1);
    EXPECT_EQ(known.pick_one(workers, turn, {.cache_threshold = row.threshold}), row.want);
  }
}

TEST(CacheAware, UnevenLoadIsEvenedOutFirst) {
  struct Row {
    const char* name;
    std::int64_t most;
    std::int64_t least;
    CacheAware cache;
    std::size_t want;
  };

  const Row rows[] = {
      {"defaults, difference not above 64", 64, 0, {}, 1},
      {"defaults, uneven", 65, 0, {}, 0},
      {"defaults, ratio not above 1.5", 300, 200, {}, 1},
      {"defaults, ratio above 1.5", 301, 200, {}, 0},
      {"absolute threshold", 3, 0, {.balance_abs_threshold = 2}, 0},
      {"relative threshold", 300, 100, {.balance_rel_threshold = 3}, 1},
  };
  for (const Row& row : rows) {
    SCOPED_TRACE(row.name);
    std::vector<Candidate> workers = make_workers(2);
    workers[0].load = make_load(row.least, 0, 0);
    workers[1].load = make_load(row.most - 1, 0, 0);
    workers[1].unreported_requests = 1;
    Known known;
    known.tell(workers[1], 10);
    Turn turn(1);
    EXPECT_EQ(known.pick_one(workers, turn, row.cache), row.want);
  }
}

TEST(CacheAware, WhereNothingIsKnownTheLoadDecides) {
  std::vector<Candidate> workers = make_workers(3);
  workers[0].load = workers[1].load = make_load(1, 0, 0);
  Known known;
  Turn turn(1);
  EXPECT_EQ(known.pick_one(workers, turn), 2U);
  // Nor does a tree that is not there.
  EXPECT_EQ(*pick(Method::kCacheAware, workers, {.prefix = known.keys}, turn), 2U);
}

TEST(CacheAware, BothSidesOfAPairFollowThePrompt) {
  const std::vector<Candidate> prefill = make_workers(3);
  std::vector<Candidate> decode = make_workers(3);
  for (Candidate& worker : decode)
    worker.id += 1000;
  Known known;
  known.tell(prefill[2], 10);
  known.tell(decode[1], 10);
  PairTurns turns(5);
  const PairMethods methods{.prefill = Method::kCacheAware,
                            .decode = Method::kCacheAware,
                            .cache = {.prefixes = &known.prefixes}};
  for (int i = 0; i < 9; ++i) {
    const auto pair = pick_pair(methods, prefill, decode, {.prefix = known.keys}, turns);
    ASSERT_TRUE(pair.ok());
    EXPECT_EQ(pair->prefill, 2U);
    EXPECT_EQ(pair->decode, 1U);
  }
}

// Conversations that grow turn by turn, on four workers with room for all: what a worker has
// computed before is what the index was told. Random choice finds its own history one time in four.
TEST(CacheAware, ConversationsStayWhereTheyAre) {
  const std::uint64_t seed = 7;
  SCOPED_TRACE("seed " + std::to_string(seed));
  const auto run = [seed](Method method) {
    Random random(seed);
    std::vector<Candidate> workers = make_workers(4);
    PrefixIndex prefixes({.seed = seed});
    std::vector<std::vector<core::TokenId>> talks(40);
    std::map<std::uint64_t, PrefixIndex> caches;
    Turn turn(seed);
    std::size_t total = 0;
    std::size_t hits = 0;
    std::map<std::uint64_t, int> placed;
    std::vector<std::uint64_t> keys;
    for (int round = 0; round < 1000; ++round) {
      auto& talk = talks[random.below(talks.size())];
      for (std::size_t i = 16 + random.below(64); i-- > 0;)
        talk.push_back(static_cast<core::TokenId>(random.below(30'000)));
      prefixes.keys_of(talk, keys);
      const std::size_t chosen =
          *pick(method, workers, {.prefix = keys}, turn, {.prefixes = &prefixes});
      const std::uint64_t id = workers[chosen].id;
      prefixes.insert(keys, id);
      auto& cache = caches.try_emplace(id, PrefixIndex::Options{.seed = seed}).first->second;
      total += keys.size();
      hits += cache.depth(keys, 0);
      cache.insert(keys, 0);
      ++placed[id];
      // Some are under way at any time.
      workers[chosen].unreported_requests = static_cast<std::int64_t>(random.below(4));
    }
    for (const auto& [id, count] : placed)
      EXPECT_GT(count, 100) << method_name(method) << " on " << id;
    return static_cast<double>(hits) / static_cast<double>(total);
  };
  const double random_share = run(Method::kRandom);
  const double cache_share = run(Method::kCacheAware);
  EXPECT_GT(cache_share, 0.85);
  EXPECT_LT(random_share, cache_share - 0.1);
}

TEST(Balance, DeadAndTriedAreNeverPicked) {
  std::vector<Candidate> workers = make_workers(4);
  workers[1].usable = false;
  const std::uint64_t tried[] = {workers[2].id};
  for (const Method method : kMethods) {
    SCOPED_TRACE(method_name(method));
    Turn turn(7);
    std::map<std::size_t, int> counts;
    for (int i = 0; i < 100; ++i)
      ++counts[*pick(method, workers, {.tokens = 0, .excluded = tried}, turn)];
    EXPECT_EQ(counts.size(), 2U);
    EXPECT_EQ(counts.count(1) + counts.count(2), 0U);
  }
  workers[0].usable = workers[3].usable = false;
  Turn turn(7);
  const auto none = pick(Method::kRandom, workers, {.tokens = 0, .excluded = tried}, turn);
  EXPECT_EQ(none.status().code(), Code::kUnavailable);
  EXPECT_NE(none.status().message().find("4 known, 1 usable, 1 tried"), std::string::npos)
      << none.status().message();
  EXPECT_FALSE(turn.any);
  EXPECT_EQ(pick(Method::kRandom, {}, {}, turn).status().code(), Code::kUnavailable);
}

TEST(Balance, FullWorkersArePassedOver) {
  std::vector<Candidate> workers = make_workers(3);
  for (Candidate& worker : workers)
    worker.load.total_tokens = 100;
  workers[0].load.used_tokens = 95;
  workers[1].unreported_tokens = 95;
  Turn turn(1);
  for (int i = 0; i < 10; ++i) {
    EXPECT_EQ(*pick(Method::kRoundRobin, workers, {.tokens = 10, .excluded = {}}, turn), 2U);
  }
  // When nobody has room the request waits at one of them rather than fail here.
  EXPECT_TRUE(pick(Method::kRoundRobin, workers, {.tokens = 1000, .excluded = {}}, turn).ok());
}

TEST(Balance, RoundRobinIsFairWhileWorkersComeAndGo) {
  std::vector<Candidate> workers = make_workers(3);
  Turn turn(1);
  std::vector<std::uint64_t> order;
  const auto step = [&] {
    order.push_back(workers[*pick(Method::kRoundRobin, workers, {}, turn)].id);
  };
  step();
  step();
  workers.erase(workers.begin());  // positions shift, ids do not
  step();
  step();
  Candidate back;
  back.id = 10;
  workers.insert(workers.begin(), back);
  step();
  step();
  EXPECT_EQ(order, (std::vector<std::uint64_t>{10, 20, 30, 20, 30, 10}));
}

TEST(Balance, PairsAreOfOneGroup) {
  std::vector<Candidate> prefill = make_workers(3);
  std::vector<Candidate> decode = make_workers(3);
  for (std::size_t i = 0; i < 3; ++i) {
    prefill[i].group = i;  // 0, 1, 2
    decode[i].id += 1000;
    decode[i].group = i / 2;  // 0, 0, 1
  }
  PairTurns turns(5);
  std::map<std::pair<std::size_t, std::size_t>, int> counts;
  for (int i = 0; i < 400; ++i) {
    const auto pair = pick_pair({}, prefill, decode, {}, turns);
    ASSERT_TRUE(pair.ok());
    EXPECT_EQ(prefill[pair->prefill].group, decode[pair->decode].group);
    ++counts[{pair->prefill, pair->decode}];
  }
  EXPECT_EQ((counts[{0, 0}] + counts[{0, 1}]), 200);
  EXPECT_EQ((counts[{1, 2}]), 200);
  EXPECT_GT((counts[{0, 0}]), 50);
  EXPECT_GT((counts[{0, 1}]), 50);
}

TEST(Balance, PairErrorsNameTheSide) {
  std::vector<Candidate> prefill = make_workers(1);
  std::vector<Candidate> decode = make_workers(1);
  decode[0].id = 1000;
  PairTurns turns(5);
  EXPECT_NE(pick_pair({}, {}, decode, {}, turns).status().message().find("prefill"),
            std::string::npos);
  EXPECT_NE(pick_pair({}, prefill, {}, {}, turns).status().message().find("decode"),
            std::string::npos);
  decode[0].group = 1;
  EXPECT_EQ(pick_pair({}, prefill, decode, {}, turns).status().code(), Code::kUnavailable);
  EXPECT_FALSE(turns.prefill.any);
  decode[0].group = 0;
  const std::uint64_t tried[] = {1000};
  EXPECT_EQ(pick_pair({}, prefill, decode, {.tokens = 0, .excluded = tried}, turns).status().code(),
            Code::kUnavailable);
}

TEST(Balance, RoomsModuloSize) {
  EXPECT_EQ(dp_rank_of_room(13, 4), 1U);
  EXPECT_EQ(dp_rank_of_room((1ULL << 63U) - 1, 1), 0U);
}

}  // namespace
}  // namespace tandem::balance
