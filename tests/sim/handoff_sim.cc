#include "tests/sim/handoff_sim.h"

#include "common/base/random.h"

namespace tandem::sim {

namespace {

std::uint32_t pick(Random& random, std::uint32_t low, std::uint32_t high) {
  return low + static_cast<std::uint32_t>(random.below(high - low + 1));
}

WorldOptions draw_options(Random& random, const handoff::PlantedBugs& bugs) {
  WorldOptions o;
  o.prefill_count = pick(random, 1, 3);
  o.decode_count = pick(random, 1, 3);
  o.pool_pages = pick(random, 4, 9);
  o.slots = random.chance(0.3) ? pick(random, 1, 2) : pick(random, 3, 8);
  o.window_pages = pick(random, 0, 3);
  o.unit_pages = pick(random, 1, 3);
  o.part_count = pick(random, 1, 2);
  o.attempts_max = pick(random, 1, 3);
  o.units_in_flight = pick(random, 1, 6);
  o.bugs = bugs;
  const std::uint32_t requests = pick(random, 2, 9);
  for (std::uint32_t i = 0; i < requests; ++i) {
    RequestPlan plan;
    plan.pages = pick(random, 1, 4);
    plan.cached_pages = random.chance(0.3) ? pick(random, 0, plan.pages) : 0;
    plan.prefill = pick(random, 0, o.prefill_count - 1);
    plan.decode = pick(random, 0, o.decode_count - 1);
    plan.deadline = milliseconds(pick(random, 20, 400));
    o.requests.push_back(plan);
  }
  // Swarm: each seed has its own subset of fault kinds.
  const auto some = [&random](std::uint32_t most) {
    return random.chance(0.6) ? static_cast<int>(pick(random, 1, most)) : 0;
  };
  o.faults.drops = some(3);
  o.faults.duplicates = some(5);
  o.faults.corruptions = some(3);
  o.faults.crashes = some(2);
  o.faults.cancels = some(3);
  o.faults.total = static_cast<int>(pick(random, 0, 9));
  o.run_parts = pick(random, 1, 4);
  o.local = random.chance(0.3);
  o.near = random.chance(0.3);
  return o;
}

bool is_fault(StepKind kind) {
  switch (kind) {
    case StepKind::kDropControl:
    case StepKind::kRepeatControl:
    case StepKind::kUnitLandsBad:
    case StepKind::kDropUnit:
    case StepKind::kRepeatUnit:
    case StepKind::kCrashPrefill:
    case StepKind::kCrashDecode:
    case StepKind::kCancel:
      return true;
    default:
      return false;
  }
}

/// Faults are rarer than the steps that they disturb, bytes land later than messages arrive.
Step draw_step(Random& random, const std::vector<Step>& steps, double fault_rate, double landing) {
  for (;;) {
    const Step& step = steps[static_cast<std::size_t>(random.below(steps.size()))];
    if (is_fault(step.kind) && !random.chance(fault_rate)) continue;
    if (step.kind == StepKind::kUnitLands && !random.chance(landing)) continue;
    return step;
  }
}

}  // namespace

SimResult simulate(std::uint64_t seed, const handoff::PlantedBugs& bugs, bool trace) {
  constexpr std::size_t kStepsMax = 20'000;
  constexpr Duration kEndWithin = seconds(2);  // after faults stop; deadlines are 400 ms at most
  Random random(seed);
  World world(draw_options(random, bugs));
  SimResult result;
  if (trace) world.trace_to(&result.trace);
  const double fault_rate = 0.05 + 0.4 * random.uniform();
  const double landing = 0.1 + 0.9 * random.uniform();
  const std::uint64_t step_us =
      random.chance(0.2) ? pick(random, 1000, 4000) : pick(random, 0, 500);
  const std::size_t faults_until = pick(random, 50, 400);
  Time faults_stopped;
  std::vector<Step> steps;
  while (world.violation().empty()) {
    if (result.steps == faults_until) {
      world.stop_faults();
      faults_stopped = world.now();
    }
    world.steps(steps);
    if (steps.empty()) break;
    if (++result.steps > kStepsMax) {
      result.violation = "the cluster never comes to rest: " + world.state_line();
      break;
    }
    const bool faults_only = [&] {
      for (const Step& s : steps)
        if (!is_fault(s.kind)) return false;
      return true;
    }();
    if (faults_only) {  // nothing but mischief is left to do
      world.stop_faults();
      continue;
    }
    world.apply(draw_step(random, steps, fault_rate, landing));
    if (step_us > 0) {
      world.advance(microseconds(static_cast<std::int64_t>(random.below(step_us))));
    }
    if (result.steps > faults_until && !world.all_ended() &&
        world.now() > faults_stopped + kEndWithin + milliseconds(400)) {
      result.violation = "a request has not ended " + std::to_string(kEndWithin.milliseconds()) +
                         " ms after faults stopped: " + world.state_line();
      break;
    }
  }
  if (world.violation().empty() && result.violation.empty()) world.check_quiescent();
  if (result.violation.empty()) result.violation = world.violation();
  result.delivered = world.delivered_count();
  result.errors = world.error_count();
  return result;
}

}  // namespace tandem::sim
