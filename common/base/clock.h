// Clock: the only source of time. Decision rooms get a Time as an argument and never hold a Clock.
#pragma once

#include "common/base/ids.h"

#include <atomic>

namespace tandem {

class Clock {
 public:
  virtual ~Clock() = default;
  /// Monotonic; any thread.
  [[nodiscard]] virtual Time now() const = 0;
};

/// CLOCK_MONOTONIC of this process. Lives as long as the program.
const Clock& steady_clock();

/// Seconds since 1970 on the wall clock: for `created` fields and log lines only, never for a
/// decision.
std::int64_t unix_seconds();
double unix_seconds_exact();

/// A clock that moves only when told: tests and simulations.
class FakeClock final : public Clock {
 public:
  [[nodiscard]] Time now() const override { return {now_ns_.load(std::memory_order_relaxed)}; }

  void advance(Duration by) { now_ns_.fetch_add(by.ns, std::memory_order_relaxed); }

  void set(Time to) { now_ns_.store(to.ns, std::memory_order_relaxed); }

 private:
  std::atomic<std::int64_t> now_ns_{0};
};

}  // namespace tandem
