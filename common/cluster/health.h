// WorkerHealth: is a worker alive, judged by progress and not by answers. Pure.
#pragma once

#include "common/base/ids.h"

#include <cstdint>
#include <optional>
#include <string_view>

namespace tandem::cluster {

enum class Health : std::uint8_t {
  kUnknown,  ///< no session yet, or none after the last one ended in order
  kUp,
  kSuspect,  ///< give it nothing new, keep what it has
  kDead,     ///< move what it has; only a new session brings it back
};

std::string_view health_name(Health health);

struct HealthOptions {
  /// Without progress for this long (four ticks).
  Duration suspect_after = milliseconds(1000);
  Duration dead_after = milliseconds(3000);
};

/// What an event changed. `restarted`: the process behind the address is another one than before,
/// so nothing that the old one held exists any more.
struct HealthChange {
  Health before = Health::kUnknown;
  Health after = Health::kUnknown;
  bool restarted = false;

  [[nodiscard]] bool changed() const { return before != after || restarted; }
};

/// One worker as its router sees it. A tick of a hung worker comes in time but with the same
/// progress: that is no sign of life. One owner thread, no clock.
class WorkerHealth {
 public:
  explicit WorkerHealth(HealthOptions options = {}) : options_(options) {}

  /// A session opened. The same incarnation may come back after kDead: its old session is gone, so
  /// it has dropped what it held.
  HealthChange on_hello(std::uint64_t incarnation, Time now);
  /// A step or tick came. Ignored without a session.
  HealthChange on_progress(std::uint64_t progress, Time now);
  /// The session ended; not `in_order`: broken.
  HealthChange on_closed(bool in_order);
  /// Time has passed.
  HealthChange on_time(Time now);
  /// When on_time would change something at the latest.
  [[nodiscard]] std::optional<Time> next_deadline() const;

  [[nodiscard]] Health health() const { return health_; }

  /// 0 before the first hello.
  [[nodiscard]] std::uint64_t incarnation() const { return incarnation_; }

 private:
  HealthChange become(Health next, bool restarted = false);

  HealthOptions options_;
  Health health_ = Health::kUnknown;
  std::uint64_t incarnation_ = 0;
  std::uint64_t progress_ = 0;
  Time progress_at_;
};

}  // namespace tandem::cluster
