#include "tests/sim/handoff_explorer.h"

#include <gtest/gtest.h>

#include <string>

namespace tandem::sim {
namespace {

/// 2 prefill and 2 decode processes, 2 requests of 2 pages, 2 pages per pool. With `second_decode`
/// 0 both requests meet in one pool: pages and slots pass from one to the other.
struct SmallWorld {
  const char* name;
  std::uint32_t second_decode;
  std::uint32_t slots;
  std::uint32_t window_pages;
  std::uint32_t attempts_max;
  FaultBudget faults;
  std::uint64_t states_expected_min;  ///< a reduction that cuts too much would show here
  bool slow;                          ///< left out under sanitizers
};

// drops, duplicates, corruptions, crashes, cancels, expiries; total
const SmallWorld kWorlds[] = {
    {"no faults", 0, 2, 0, 1, {0, 0, 0, 0, 0, 0, 0}, 100, false},
    {"any one fault, one pool", 0, 2, 0, 1, {1, 1, 1, 1, 1, 1, 1}, 100'000, true},
    {"any one fault, one slot", 0, 1, 0, 1, {1, 1, 1, 1, 1, 1, 1}, 1'000, true},
    {"any one fault, window of 1 page", 0, 2, 1, 1, {1, 1, 1, 1, 1, 1, 1}, 10'000, true},
    {"two of drop, duplicate, corrupt, cancel, expire",
     0,
     2,
     0,
     1,
     {1, 1, 1, 0, 1, 1, 2},
     100'000,
     true},
    {"a crash, failover to the other pair", 0, 2, 0, 2, {0, 0, 0, 1, 0, 0, 1}, 10'000, true},
    {"a cancel, two pools", 1, 1, 0, 1, {0, 0, 0, 0, 1, 0, 1}, 1'000, true},
    {"a cancel, one slot", 0, 1, 0, 1, {0, 0, 0, 0, 1, 0, 1}, 1'000, false},
};

WorldOptions options_of(const SmallWorld& small, const handoff::PlantedBugs& bugs) {
  WorldOptions o;
  o.pool_pages = 2;
  o.slots = small.slots;
  o.window_pages = small.window_pages;
  o.attempts_max = small.attempts_max;
  o.eager_engines = true;
  o.faults = small.faults;
  o.requests = {{.pages = 2, .cached_pages = 0, .prefill = 0, .decode = 0},
                {.pages = 2, .cached_pages = 0, .prefill = 1, .decode = small.second_decode}};
  o.bugs = bugs;
  return o;
}

std::string explain(const WorldOptions& options, const ExploreResult& result) {
  std::string log;
  World world(options);
  world.trace_to(&log);
  for (const Step& step : result.path)
    world.apply(step);
  return log;
}

TEST(HandoffExplorer, EveryStateOfTheSmallWorldsKeepsTheInvariants) {
  std::uint64_t states = 0;
  double seconds = 0;
  for (const SmallWorld& small : kWorlds) {
    SCOPED_TRACE(small.name);
#ifdef TANDEM_SANITIZED
    if (small.slow) continue;
#endif
    const WorldOptions options = options_of(small, {});
    const ExploreResult result = explore(options, 20'000'000);
    std::cout << small.name << ": " << result.states << " states, " << result.transitions
              << " transitions, " << result.ends << " ends, " << result.seconds << " s, "
              << static_cast<std::uint64_t>(static_cast<double>(result.states) /
                                            std::max(result.seconds, 1e-9))
              << " states/s\n";
    ASSERT_EQ(result.violation, "") << explain(options, result);
    EXPECT_TRUE(result.complete);
    EXPECT_GE(result.delivered, 2U);
    EXPECT_GE(result.states, small.states_expected_min);
    states += result.states;
    seconds += result.seconds;
  }
  std::cout << "explorer: " << states << " states in " << seconds << " s, "
            << static_cast<std::uint64_t>(static_cast<double>(states) / std::max(seconds, 1e-9))
            << " states/s\n";
}

TEST(HandoffExplorer, CatchesEachPlantedBug) {
  struct Row {
    const char* name;
    handoff::PlantedBugs bugs;
    SmallWorld world;
    const char* symptom;
  };

  const Row rows[] = {
      {"skip_generation_check",
       {.skip_generation_check = true, .free_on_timer = false, .double_accept = false},
       {"", 0, 1, 0, 1, {0, 0, 0, 0, 1, 0, 1}, 0, false},
       "foreign byte"},
      {"free_on_timer",
       {.skip_generation_check = false, .free_on_timer = true, .double_accept = false},
       {"", 0, 2, 0, 1, {0, 0, 0, 0, 0, 1, 1}, 0, false},
       "foreign byte"},
      {"double_accept",
       {.skip_generation_check = false, .free_on_timer = false, .double_accept = true},
       {"", 0, 2, 0, 1, {0, 1, 0, 0, 0, 0, 1}, 0, false},
       "delivered twice"},
  };
  for (const Row& row : rows) {
    SCOPED_TRACE(row.name);
    const ExploreResult result = explore(options_of(row.world, row.bugs), 2'000'000);
    std::cout << row.name << ": caught after " << result.states << " states, path of "
              << result.path.size() << " steps: " << result.violation << "\n";
    EXPECT_NE(result.violation.find(row.symptom), std::string::npos) << result.violation;
    // The same world without the bug is clean: it is the bug that was caught.
    EXPECT_EQ(explore(options_of(row.world, {}), 2'000'000).violation, "");
  }
}

}  // namespace
}  // namespace tandem::sim
