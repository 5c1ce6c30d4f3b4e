// The seeded simulator: one seed, one schedule of a small cluster with faults.
#pragma once

#include "tests/sim/handoff_world.h"

#include <cstdint>
#include <string>

namespace tandem::sim {

struct SimResult {
  std::string violation;  ///< empty: all invariants held
  std::size_t steps = 0;
  std::size_t delivered = 0;
  std::size_t errors = 0;
  std::string trace;  ///< when asked for
};

/// Runs the schedule of `seed` to its end. The seed draws everything: the cluster, the requests,
/// which kinds of faults there are and how many, and every step.
SimResult simulate(std::uint64_t seed, const handoff::PlantedBugs& bugs, bool trace);

}  // namespace tandem::sim
