// Failure points for tests: a named place where a test may make the program fail, sleep or stop.
//
// Off unless the program is started with --failure-points "name=action[;name=action]" (or the
// variable TANDEM_FAILPOINTS), with action one of
//   error | sleep(ms) | abort | hang | N*error (first N hits) | N+error (after N hits)
// A process that has any set says so in its first log line. Cost when none is set: one relaxed
// load.
#pragma once

#include "common/base/status.h"

#include <atomic>
#include <cstdint>
#include <string>
#include <string_view>

namespace tandem::failpoint {

namespace internal {
extern std::atomic<bool> any_set;
Status hit_slow(std::string_view name);
}  // namespace internal

/// Ok, or the error that a test asked for at this place; may sleep, hang or abort instead.
inline Status hit(std::string_view name) {
  if (!internal::any_set.load(std::memory_order_relaxed)) return {};
  return internal::hit_slow(name);
}

/// Replaces all points with those in `spec` ("" clears). Not for use while other threads hit
/// points.
Status configure(std::string_view spec);

/// What configure() would say to `spec`; sets nothing.
Status check(std::string_view spec);

/// The active specification, empty when none.
std::string active();

}  // namespace tandem::failpoint
