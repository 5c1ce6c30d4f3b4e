// handoff-sim --seed N [--count N] [--trace] [--plant
// skip_generation_check|free_on_timer|double_accept]
#include "tests/sim/handoff_sim.h"

#include <cstdlib>
#include <iostream>
#include <string_view>

int main(int argc, char** argv) {
  std::uint64_t seed = 1;
  std::uint64_t count = 1;
  bool trace = false;
  tandem::handoff::PlantedBugs bugs;
  for (int i = 1; i < argc; ++i) {
    const std::string_view arg = argv[i];
    const char* value = i + 1 < argc ? argv[i + 1] : "";
    if (arg == "--seed") {
      seed = std::strtoull(value, nullptr, 10);
      ++i;
    } else if (arg == "--count") {
      count = std::strtoull(value, nullptr, 10);
      ++i;
    } else if (arg == "--trace") {
      trace = true;
    } else if (arg == "--plant") {
      const std::string_view bug = value;
      bugs.skip_generation_check = bug == "skip_generation_check";
      bugs.free_on_timer = bug == "free_on_timer";
      bugs.double_accept = bug == "double_accept";
      if (!bugs.skip_generation_check && !bugs.free_on_timer && !bugs.double_accept) {
        std::cerr << "--plant: unknown bug \"" << bug << "\"\n";
        return 2;
      }
      ++i;
    } else {
      std::cerr << "unknown argument " << arg << "\n"
                << "usage: handoff-sim [--seed N] [--count N] [--trace] [--plant BUG]\n";
      return 2;
    }
  }
  for (std::uint64_t s = seed; s < seed + count; ++s) {
    const tandem::sim::SimResult result = tandem::sim::simulate(s, bugs, trace);
    if (trace) std::cout << result.trace;
    if (!result.violation.empty()) {
      std::cout << "seed " << s << ": " << result.violation << "\n";
      return 1;
    }
    if (trace || count == 1) {
      std::cout << "seed " << s << ": ok, " << result.steps << " steps, " << result.delivered
                << " delivered, " << result.errors << " errors\n";
    }
  }
  return 0;
}
