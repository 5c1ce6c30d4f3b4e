#include "common/base/random.h"
#include "common/cluster/dp_rank_table.h"
#include "common/cluster/health.h"
#include "common/cluster/registry.h"
#include "common/cluster/route.h"

#include <gtest/gtest.h>

#include <map>
#include <set>
#include <tuple>

namespace tandem::cluster {
namespace {

constexpr Time at_ms(std::int64_t ms) {
  return Time{ms * 1'000'000};
}

Member make_row(const std::string& instance,
                std::uint64_t incarnation,
                std::uint32_t rank,
                std::uint32_t rank_count) {
  Member row;
  row.instance = instance;
  row.incarnation = incarnation;
  row.rank = rank;
  row.rank_count = rank_count;
  return row;
}

Status put(Registry& registry, const Member& row, std::int64_t ms) {
  return registry.put(std::span<const Member>(&row, 1), at_ms(ms));
}

TEST(Registry, ReadyWhenEachRankIsInNotWhenEnoughHaveCalled) {
  Registry registry;
  EXPECT_EQ(registry.resolve(Role::kPrefill, "p").status().code(), Code::kNotFound);
  ASSERT_TRUE(put(registry, make_row("p", 7, 0, 2), 0).ok());
  ASSERT_TRUE(put(registry, make_row("p", 7, 0, 2), 1).ok());
  EXPECT_EQ(registry.resolve(Role::kPrefill, "p").status().code(), Code::kUnavailable);
  ASSERT_TRUE(put(registry, make_row("p", 7, 1, 2), 2).ok());
  auto rows = registry.resolve(Role::kPrefill, "p");
  ASSERT_TRUE(rows.ok());
  EXPECT_EQ(rows->size(), 2U);
  EXPECT_EQ(registry.resolve(Role::kDecode, "p").status().code(), Code::kNotFound);
  EXPECT_TRUE(registry.resolve(Role::kPrefill, "").ok());
}

TEST(Registry, LeasesRunOutAndRenewalsAreSilent) {
  Registry registry;
  const Member row = make_row("p", 7, 0, 1);
  ASSERT_TRUE(put(registry, row, 0).ok());
  EXPECT_EQ(registry.next_expiry(), at_ms(3000));
  const std::uint64_t revision = registry.revision();
  ASSERT_TRUE(put(registry, row, 2000).ok());
  EXPECT_EQ(registry.revision(), revision);
  registry.expire(at_ms(4999));
  EXPECT_EQ(registry.row_count(), 1U);
  (void)registry.take_delta();
  registry.expire(at_ms(5000));
  EXPECT_EQ(registry.row_count(), 0U);
  const Delta delta = registry.take_delta();
  EXPECT_EQ(delta.removed, std::vector<Member>{row});
  EXPECT_TRUE(delta.added.empty());
  EXPECT_GT(delta.revision, revision);
  EXPECT_TRUE(registry.take_delta().empty());
  // A process that hung and came back is the same one.
  EXPECT_TRUE(put(registry, row, 6000).ok());
}

TEST(Registry, ANewIncarnationReplacesTheOldForGood) {
  Registry registry;
  for (std::uint32_t rank = 0; rank < 2; ++rank) {
    ASSERT_TRUE(put(registry, make_row("p", 7, rank, 2), 0).ok());
  }
  (void)registry.take_delta();
  ASSERT_TRUE(put(registry, make_row("p", 8, 0, 2), 10).ok());
  EXPECT_EQ(registry.resolve(Role::kPrefill, "p").status().code(), Code::kUnavailable);
  const Delta delta = registry.take_delta();
  EXPECT_EQ(delta.removed.size(), 2U);
  EXPECT_EQ(delta.added, std::vector<Member>{make_row("p", 8, 0, 2)});
  const Status late = put(registry, make_row("p", 7, 1, 2), 20);
  EXPECT_EQ(late.code(), Code::kFailedPrecondition);
  const Member past = make_row("p", 7, 0, 2);
  registry.leave(std::span<const Member>(&past, 1));  // of the past: ignored
  EXPECT_EQ(registry.row_count(), 1U);
}

TEST(Registry, LeaveDropsAtOnce) {
  Registry registry;
  const Member row = make_row("p", 7, 0, 1);
  ASSERT_TRUE(put(registry, row, 0).ok());
  registry.leave(std::span<const Member>(&row, 1));
  EXPECT_EQ(registry.row_count(), 0U);
  EXPECT_EQ(registry.resolve(Role::kPrefill, "p").status().code(), Code::kNotFound);
}

struct BadRow {
  const char* name;
  void (*damage)(Member& row);
  const char* field;
};

constexpr BadRow kBadRows[] = {
    {"no name", [](Member& m) { m.instance.clear(); }, "instance"},
    {"no incarnation", [](Member& m) { m.incarnation = 0; }, "incarnation"},
    {"rank", [](Member& m) { m.rank = 1; }, "rank"},
    {"no ranks", [](Member& m) { m.rank_count = 0; }, "rank_count"},
    {"too many ranks", [](Member& m) { m.rank_count = 1'000'000; }, "rank_count"},
    {"role", [](Member& m) { m.role = static_cast<Role>(9); }, "role"},
    {"port", [](Member& m) { m.rank_port = 65536; }, "rank_port"},
    {"long text", [](Member& m) { m.kv_layout = std::string(5000, 'x'); }, "kv_layout"},
    {"tp rank", [](Member& m) { m.topology.attn_tp_rank = 1; }, "attn_tp_rank"},
    {"pp size", [](Member& m) { m.topology.pp_size = 0; }, "pp_size"},
    {"product",
     [](Member& m) {
       m.topology.attn_tp_size = m.topology.pp_size = m.topology.attn_dp_size = 4096;
     },
     "attn_tp_size"},
};

TEST(Registry, BadRowsNameTheFieldAndChangeNothing) {
  for (const BadRow& bad : kBadRows) {
    SCOPED_TRACE(bad.name);
    Registry registry;
    Member row = make_row("p", 7, 0, 1);
    bad.damage(row);
    const Status status = put(registry, row, 0);
    EXPECT_EQ(status.code(), Code::kInvalidArgument);
    EXPECT_NE(status.message().find(bad.field), std::string::npos) << status.message();
    EXPECT_EQ(registry.row_count(), 0U);
    EXPECT_EQ(registry.revision(), 0U);
  }
}

TEST(Registry, FullTableAndMixedRows) {
  Registry registry({.rows_max = 2});
  const Member three[] = {make_row("p", 7, 0, 3), make_row("p", 7, 1, 3), make_row("p", 7, 2, 3)};
  EXPECT_EQ(registry.put(three, at_ms(0)).code(), Code::kResourceExhausted);
  EXPECT_EQ(registry.row_count(), 0U);
  const Member mixed[] = {make_row("p", 7, 0, 2), make_row("q", 7, 1, 2)};
  EXPECT_EQ(registry.put(mixed, at_ms(0)).code(), Code::kInvalidArgument);
}

TEST(Registry, RowsOfPutRouteReplaceByPlace) {
  Registry registry;
  Member row;
  row.instance = "http";
  row.topology.attn_tp_size = 2;
  row.rank_ip = "10.0.0.1";
  ASSERT_TRUE(registry.put_unleased(row, at_ms(0)).ok());
  ASSERT_TRUE(registry.put_unleased(row, at_ms(0)).ok());
  EXPECT_EQ(registry.resolve(Role::kPrefill, "").status().code(), Code::kUnavailable);
  row.topology.attn_tp_rank = 1;
  Member other_policy = row;
  other_policy.decode_allocation_policy = "prefill_complete";
  EXPECT_EQ(registry.put_unleased(other_policy, at_ms(0)).code(), Code::kInvalidArgument);
  ASSERT_TRUE(registry.put_unleased(row, at_ms(0)).ok());
  EXPECT_EQ(registry.resolve(Role::kPrefill, "")->size(), 2U);
  registry.expire(at_ms(1'000'000'000));
  EXPECT_EQ(registry.row_count(), 2U);
  // Started again with another layout: the old rows cannot serve.
  row.topology = {};
  ASSERT_TRUE(registry.put_unleased(row, at_ms(0)).ok());
  EXPECT_EQ(registry.resolve(Role::kPrefill, "")->size(), 1U);
}

TEST(Registry, DeltasRebuildTheTable) {
  for (std::uint64_t seed = 1; seed <= 50; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    Random random(seed);
    Registry registry;
    using Key = std::tuple<std::string, std::uint64_t, std::uint32_t>;
    std::map<Key, Member> mirror;
    std::int64_t now = 0;
    for (int step = 0; step < 300; ++step) {
      now += static_cast<std::int64_t>(random.below(900));
      Member row = make_row(random.chance(0.5) ? "a" : "b",
                            1 + random.below(4),
                            static_cast<std::uint32_t>(random.below(3)),
                            3);
      row.page_size = static_cast<std::uint32_t>(random.below(2));
      if (random.chance(0.1)) {
        registry.leave(std::span<const Member>(&row, 1));
      } else {
        (void)put(registry, row, now);  // a past incarnation may be refused
      }
      if (random.chance(0.3)) registry.expire(at_ms(now));
      if (random.chance(0.5)) continue;
      const Delta delta = registry.take_delta();
      for (const Member& m : delta.removed)
        mirror.erase({m.instance, m.incarnation, m.rank});
      for (const Member& m : delta.added)
        mirror[{m.instance, m.incarnation, m.rank}] = m;
      const std::vector<Member> rows = registry.list(std::nullopt);
      ASSERT_EQ(rows.size(), mirror.size());
      ASSERT_EQ(rows.size(), registry.row_count());
      for (const Member& m : rows)
        ASSERT_EQ((mirror[{m.instance, m.incarnation, m.rank}]), m);
    }
  }
}

TEST(Route, FindsRanksAndNamesMissingOnes) {
  std::vector<Member> rows;
  for (std::uint32_t dp = 0; dp < 2; ++dp) {
    for (std::uint32_t tp = 0; tp < 2; ++tp) {
      Member row;
      row.topology.attn_dp_size = row.topology.attn_tp_size = 2;
      row.topology.attn_dp_rank = dp;
      row.topology.attn_tp_rank = tp;
      row.rank_port = dp * 10 + tp;
      rows.push_back(row);
    }
  }
  EXPECT_EQ(dp_size(rows[0].topology), 2U);
  const RouteQuery query{
      .prefill_dp_rank = 1, .prefill_cp_rank = 0, .target_tp_rank = 1, .target_pp_rank = 0};
  EXPECT_EQ(find_rank(rows, query)->rank_port, 11U);
  EXPECT_FALSE(query.asks_for_layout());
  EXPECT_TRUE(RouteQuery{}.asks_for_layout());
  RouteQuery missing = query;
  missing.target_pp_rank = 3;
  EXPECT_EQ(find_rank(rows, missing).status().code(), Code::kNotFound);
  EXPECT_NE(find_rank(rows, missing).status().message().find("pp 3"), std::string::npos);
}

TEST(DpRankTable, LivesAndBound) {
  DpRankTable table({.ttl = seconds(120), .rooms_max = 3});
  table.put(1, 5, at_ms(0));
  EXPECT_EQ(table.find(1, at_ms(119'999)), 5U);
  EXPECT_FALSE(table.find(1, at_ms(120'000)).has_value());
  table.put(1, 6, at_ms(60'000));  // a new rank and a new life
  EXPECT_EQ(table.find(1, at_ms(150'000)), 6U);
  for (std::uint64_t room = 2; room <= 4; ++room)
    table.put(room, 0, at_ms(60'000));
  EXPECT_LE(table.size(), 3U);
  EXPECT_FALSE(table.find(1, at_ms(60'000)).has_value());
  EXPECT_TRUE(table.find(4, at_ms(60'000)).has_value());
  for (int i = 0; i < 1000; ++i)
    table.put(9, 1, at_ms(70'000));
  EXPECT_EQ(table.find(9, at_ms(70'000)), 1U);
  table.put(10, 1, at_ms(1'000'000));
  EXPECT_EQ(table.size(), 1U);
}

TEST(WorkerHealth, ProgressCountsAnswersDoNot) {
  WorkerHealth health({.suspect_after = milliseconds(1000), .dead_after = milliseconds(3000)});
  EXPECT_EQ(health.health(), Health::kUnknown);
  EXPECT_EQ(health.next_deadline(), std::nullopt);
  EXPECT_EQ(health.on_hello(7, at_ms(0)).after, Health::kUp);
  EXPECT_FALSE(health.on_progress(1, at_ms(500)).changed());
  EXPECT_EQ(health.next_deadline(), at_ms(1500));
  // Ticks go on, the scheduler does not.
  for (std::int64_t ms = 750; ms < 1500; ms += 250) {
    EXPECT_FALSE(health.on_progress(1, at_ms(ms)).changed());
    EXPECT_FALSE(health.on_time(at_ms(ms)).changed());
  }
  EXPECT_EQ(health.on_time(at_ms(1500)).after, Health::kSuspect);
  EXPECT_EQ(health.next_deadline(), at_ms(3500));
  EXPECT_EQ(health.on_progress(2, at_ms(2000)).after, Health::kUp);
  EXPECT_EQ(health.on_time(at_ms(3100)).after, Health::kSuspect);
  EXPECT_EQ(health.on_time(at_ms(5000)).after, Health::kDead);
  EXPECT_EQ(health.on_progress(3, at_ms(5001)).after, Health::kDead);
  EXPECT_EQ(health.next_deadline(), std::nullopt);
  const HealthChange back = health.on_hello(7, at_ms(6000));
  EXPECT_EQ(back.after, Health::kUp);
  EXPECT_FALSE(back.restarted);
}

TEST(WorkerHealth, LongSilenceIsDeadWithoutAStopAtSuspect) {
  WorkerHealth health;
  (void)health.on_hello(7, at_ms(0));
  EXPECT_EQ(health.on_time(at_ms(60'000)).after, Health::kDead);
}

TEST(WorkerHealth, RestartsAndEnds) {
  WorkerHealth health;
  (void)health.on_hello(7, at_ms(0));
  (void)health.on_progress(1000, at_ms(10));
  EXPECT_EQ(health.on_closed(false).after, Health::kDead);
  const HealthChange change = health.on_hello(8, at_ms(100));
  EXPECT_TRUE(change.restarted);
  EXPECT_EQ(change.after, Health::kUp);
  // The new process counts from the start.
  (void)health.on_progress(1, at_ms(900));
  EXPECT_FALSE(health.on_time(at_ms(1200)).changed());
  EXPECT_EQ(health.on_closed(true).after, Health::kUnknown);
  EXPECT_EQ(health.on_progress(5, at_ms(1300)).after, Health::kUnknown);
  EXPECT_EQ(health.incarnation(), 8U);
}

}  // namespace
}  // namespace tandem::cluster
