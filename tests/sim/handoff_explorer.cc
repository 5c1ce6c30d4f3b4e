#include "tests/sim/handoff_explorer.h"

#include "common/base/clock.h"

#include <algorithm>
#include <unordered_set>

namespace tandem::sim {

namespace {

struct Frame {
  World world;
  std::vector<Step> steps;
  std::size_t next = 0;
};

/// Partial-order reduction. Submitting a waiting request only appends to inboxes that are empty of
/// it: it commutes with every step but a crash of the two processes, so with no crash left in the
/// budget it is taken first.
void reduce(std::vector<Step>& steps, bool crashes_left) {
  if (crashes_left) return;
  const auto submit = std::find_if(
      steps.begin(), steps.end(), [](const Step& s) { return s.kind == StepKind::kSubmit; });
  if (submit == steps.end()) return;
  const Step only = *submit;
  steps.assign(1, only);
}

}  // namespace

ExploreResult explore(const WorldOptions& options, std::uint64_t states_max) {
  const Time begin = steady_clock().now();
  ExploreResult result;
  std::unordered_set<std::uint64_t> seen;
  std::vector<Frame> stack;
  const auto fail = [&](const std::string& violation) {
    result.violation = violation;
    for (const Frame& f : stack)
      result.path.push_back(f.steps[f.next - 1]);
  };
  const auto enter = [&](World&& world) {
    if (!seen.insert(world.fingerprint()).second) return true;
    Frame frame{std::move(world), {}, 0};
    frame.world.steps(frame.steps);
    reduce(frame.steps, options.faults.crashes > 0);
    if (frame.steps.empty()) {
      ++result.ends;
      result.delivered = std::max<std::uint64_t>(result.delivered, frame.world.delivered_count());
      frame.world.check_quiescent();
      if (!frame.world.violation().empty()) {
        fail(frame.world.violation());
        return false;
      }
      return true;
    }
    stack.push_back(std::move(frame));
    return true;
  };
  bool going = enter(World(options));
  while (going && !stack.empty() && seen.size() < states_max) {
    Frame& top = stack.back();
    if (top.next == top.steps.size()) {
      stack.pop_back();
      continue;
    }
    const Step step = top.steps[top.next++];
    // The last step of a state may use up the state itself.
    World world = top.next == top.steps.size() ? std::move(top.world) : top.world;
    world.apply(step);
    ++result.transitions;
    if (!world.violation().empty()) {
      fail(world.violation());
      break;
    }
    going = enter(std::move(world));
  }
  result.complete = going && stack.empty();
  result.states = seen.size();
  result.seconds = (steady_clock().now() - begin).seconds();
  return result;
}

}  // namespace tandem::sim
