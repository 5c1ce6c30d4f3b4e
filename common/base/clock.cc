#include "common/base/clock.h"

#include <chrono>

namespace tandem {
namespace {

class SteadyClock final : public Clock {
 public:
  [[nodiscard]] Time now() const override {
    const auto since = std::chrono::steady_clock::now().time_since_epoch();
    return {std::chrono::duration_cast<std::chrono::nanoseconds>(since).count()};
  }
};

}  // namespace

const Clock& steady_clock() {
  static const SteadyClock kClock;
  return kClock;
}

std::int64_t unix_seconds() {
  return static_cast<std::int64_t>(unix_seconds_exact());
}

double unix_seconds_exact() {
  const auto since = std::chrono::system_clock::now().time_since_epoch();
  return std::chrono::duration<double>(since).count();
}

}  // namespace tandem
