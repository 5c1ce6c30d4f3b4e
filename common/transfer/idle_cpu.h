// IdleCpu: whether a processor that this process may use has nothing to do.
#pragma once

#include "common/base/clock.h"

#include <sched.h>

#include <cstdint>
#include <optional>
#include <string>

namespace tandem::transfer {

/// For work that helps later but must take nothing from anybody now: on machines where several
/// workers share processors, time taken here is missed by another one's prompt.
///
/// Source: idle ticks of /proc/stat (proc(5)), over the processors that this process was bound to
/// when it asked first. One thread. Where the file cannot be read nothing is idle.
class IdleCpu {
 public:
  /// Ticks are 10 ms long: shorter looks tell nothing.
  static constexpr Duration kLook = milliseconds(50);

  explicit IdleCpu(std::string stat_path);

  /// Whether at least half a processor was idle over the last look. The first call, and one that
  /// comes long after the one before, begins a look and says no.
  [[nodiscard]] bool spare(Time now);

  /// Ticks of idle processors in the text of /proc/stat, of those in `bound`; nothing where it does
  /// not say so.
  static std::optional<std::uint64_t> idle_ticks(const std::string& text, const cpu_set_t& bound);

 private:
  [[nodiscard]] std::optional<std::uint64_t> read() const;

  std::string path_;
  cpu_set_t bound_;
  std::int64_t ticks_per_second_;
  std::optional<std::uint64_t> ticks_;  ///< when the look began
  Time began_{};
  bool spare_ = false;
};

}  // namespace tandem::transfer
