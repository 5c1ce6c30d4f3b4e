#include "common/base/failpoint.h"

#include <charconv>
#include <chrono>
#include <cstdlib>
#include <map>
#include <mutex>
#include <thread>

namespace tandem::failpoint {
namespace internal {
std::atomic<bool> any_set{false};
}  // namespace internal

namespace {

enum class Action : std::uint8_t {
  kError,
  kSleep,
  kAbort,
  kHang
};

struct Point {
  Action action = Action::kError;
  std::uint64_t sleep_ms = 0;
  std::uint64_t skip_count = 0;          // hits that pass before it acts
  std::uint64_t act_count = UINT64_MAX;  // hits on which it acts
  std::uint64_t hit_count = 0;
};

using Points = std::map<std::string, Point, std::less<>>;

struct Registry {
  std::mutex mutex;  // guards the rest; taken only when a test has set a point
  Points points;
  std::string spec;
};

Registry& registry() {
  static Registry instance;
  return instance;
}

Result<std::uint64_t> parse_number(std::string_view text) {
  std::uint64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size()) {
    return invalid_argument("failure point: '" + std::string(text) + "' is not a number");
  }
  return value;
}

Result<Point> parse_point(std::string_view text) {
  Point point;
  if (const auto star = text.find('*'); star != std::string_view::npos) {
    TANDEM_TRY(point.act_count, parse_number(text.substr(0, star)));
    text.remove_prefix(star + 1);
  } else if (const auto plus = text.find('+'); plus != std::string_view::npos) {
    TANDEM_TRY(point.skip_count, parse_number(text.substr(0, plus)));
    text.remove_prefix(plus + 1);
  }
  if (text == "error") return point;
  if (text == "abort") {
    point.action = Action::kAbort;
    return point;
  }
  if (text == "hang") {
    point.action = Action::kHang;
    return point;
  }
  if (text.starts_with("sleep(") && text.ends_with(")")) {
    point.action = Action::kSleep;
    TANDEM_TRY(point.sleep_ms, parse_number(text.substr(6, text.size() - 7)));
    return point;
  }
  return invalid_argument("failure point: unknown action '" + std::string(text) +
                          "' (error, sleep(ms), abort, hang, N*action, N+action)");
}

Result<Points> parse_points(std::string_view spec) {
  Points points;
  for (std::string_view rest = spec; !rest.empty();) {
    const auto semicolon = rest.find(';');
    const std::string_view item = rest.substr(0, semicolon);
    rest = semicolon == std::string_view::npos ? std::string_view{} : rest.substr(semicolon + 1);
    if (item.empty()) continue;
    const auto equals = item.find('=');
    if (equals == std::string_view::npos) {
      return invalid_argument("failure point: '" + std::string(item) + "' is not name=action");
    }
    TANDEM_TRY(Point point, parse_point(item.substr(equals + 1)));
    points.insert_or_assign(std::string(item.substr(0, equals)), point);
  }
  return points;
}

}  // namespace

Status internal::hit_slow(std::string_view name) {
  Point point;
  {
    Registry& all = registry();
    const std::lock_guard lock(all.mutex);
    const auto found = all.points.find(name);
    if (found == all.points.end()) return {};
    const std::uint64_t hit = found->second.hit_count++;
    point = found->second;
    if (hit < point.skip_count || hit - point.skip_count >= point.act_count) return {};
  }
  switch (point.action) {
    case Action::kError:
      return internal_error("failure point " + std::string(name));
    case Action::kSleep:
      std::this_thread::sleep_for(std::chrono::milliseconds(point.sleep_ms));
      return {};
    case Action::kAbort:
      std::abort();
    case Action::kHang:
      for (;;)
        std::this_thread::sleep_for(std::chrono::hours(1));
  }
  return {};
}

Status check(std::string_view spec) {
  return parse_points(spec).status();
}

Status configure(std::string_view spec) {
  TANDEM_TRY(Points points, parse_points(spec));
  Registry& all = registry();
  const std::lock_guard lock(all.mutex);
  all.points = std::move(points);
  all.spec = std::string(spec);
  internal::any_set.store(!all.points.empty(), std::memory_order_relaxed);
  return {};
}

std::string active() {
  Registry& all = registry();
  const std::lock_guard lock(all.mutex);
  return all.spec;
}

}  // namespace tandem::failpoint
