// The exhaustive explorer: every order of every step of a small world.
#pragma once

#include "tests/sim/handoff_world.h"

#include <cstdint>
#include <string>
#include <vector>

namespace tandem::sim {

struct ExploreResult {
  std::string violation;     ///< empty: all invariants hold in every state
  std::vector<Step> path;    ///< to the violation
  std::uint64_t states = 0;  ///< distinct ones
  std::uint64_t transitions = 0;
  std::uint64_t ends = 0;       ///< states in which nothing is left to happen
  std::uint64_t delivered = 0;  ///< most requests delivered in one of them
  bool complete = false;        ///< false: stopped at states_max or at a violation
  double seconds = 0;
};

/// Depth first over all steps, states told apart by their fingerprint (64 bits: with n states the
/// chance of missing one is about n^2 / 2^65). Where a process has a step that nothing else can
/// observe or disturb (see the file), only that step is taken: the others commute with it.
ExploreResult explore(const WorldOptions& options, std::uint64_t states_max);

}  // namespace tandem::sim
