#include "tests/sim/handoff_sim.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <string>

namespace tandem::sim {
namespace {

#ifdef TANDEM_SANITIZED
constexpr std::uint64_t kSchedules = 2'000;
#else
constexpr std::uint64_t kSchedules = 50'000;
#endif

std::string replay(std::uint64_t seed) {
  return "replay: build/release/tests/handoff-sim --trace --seed " + std::to_string(seed) +
         "  (or TANDEM_SIM_SEED=" + std::to_string(seed) + " in front of this test)";
}

TEST(HandoffSimulation, AllSchedulesKeepTheInvariants) {
  std::uint64_t first = 1;
  std::uint64_t count = kSchedules;
  if (const char* seed = std::getenv("TANDEM_SIM_SEED"); seed != nullptr) {
    first = std::strtoull(seed, nullptr, 10);
    count = 1;
  }
  std::size_t steps = 0;
  std::size_t delivered = 0;
  std::size_t errors = 0;
  for (std::uint64_t seed = first; seed < first + count; ++seed) {
    const SimResult result = simulate(seed, {}, count == 1);
    steps += result.steps;
    delivered += result.delivered;
    errors += result.errors;
    ASSERT_EQ(result.violation, "") << replay(seed) << "\n" << result.trace;
  }
  std::cout << count << " schedules, " << steps << " steps, " << delivered << " deliveries, "
            << errors << " clean errors\n";
  if (count > 1) {
    // A simulator in which nothing gets through, or nothing ever fails, would prove nothing.
    EXPECT_GT(delivered, count / 2);
    EXPECT_GT(errors, count / 2);
  }
}

TEST(HandoffSimulation, OneSeedIsOneSchedule) {
  for (const std::uint64_t seed : {3U, 99U, 1234U}) {
    const SimResult a = simulate(seed, {}, true);
    const SimResult b = simulate(seed, {}, true);
    EXPECT_EQ(a.trace, b.trace) << "seed " << seed;
    EXPECT_FALSE(a.trace.empty());
  }
}

struct Plant {
  const char* name;
  handoff::PlantedBugs bugs;
  const char* symptom;
};

const Plant kPlants[] = {
    {"skip_generation_check",
     {.skip_generation_check = true, .free_on_timer = false, .double_accept = false},
     "foreign byte"},
    {"free_on_timer",
     {.skip_generation_check = false, .free_on_timer = true, .double_accept = false},
     "foreign byte"},
    {"double_accept",
     {.skip_generation_check = false, .free_on_timer = false, .double_accept = true},
     "delivered twice"},
};

TEST(HandoffSimulation, CatchesEachPlantedBug) {
  for (const Plant& plant : kPlants) {
    SCOPED_TRACE(plant.name);
    std::string found;
    std::uint64_t seed = 0;
    while (found.empty() && seed < kSchedules)
      found = simulate(++seed, plant.bugs, false).violation;
    std::cout << plant.name << ": caught by seed " << seed << ": " << found << "\n";
    EXPECT_NE(found.find(plant.symptom), std::string::npos) << found;
  }
}

}  // namespace
}  // namespace tandem::sim
