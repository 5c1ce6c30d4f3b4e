// Structured log lines: one event, one line, `level=info event=kv_transfer_done request=7f3a
// ms=4.1`.
#pragma once

#include "common/base/status.h"

#include <atomic>
#include <cstdint>
#include <functional>
#include <initializer_list>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <variant>

namespace tandem::obs {

/// error = someone must act; warn = we coped; info = state changes; debug = free.
enum class Level : std::uint8_t {
  kDebug,
  kInfo,
  kWarn,
  kError,
  kOff
};

/// A value that must never reach a log, an error text or a dump. Prints as [secret].
class Secret {
 public:
  Secret() = default;

  explicit Secret(std::string value) : value_(std::move(value)) {}

  /// The value itself, for the one place that compares or sends it.
  [[nodiscard]] const std::string& reveal() const { return value_; }

  [[nodiscard]] bool empty() const { return value_.empty(); }

 private:
  std::string value_;
};

/// One key=value. Holds views: lives as long as the log call.
class Field {
 public:
  Field(std::string_view name, std::string_view text) : key(name), value(text) {}

  Field(std::string_view name, const std::string& text)
      : key(name), value(std::string_view(text)) {}

  Field(std::string_view name, const char* text) : key(name), value(std::string_view(text)) {}

  Field(std::string_view name, bool flag) : key(name), value(flag) {}

  Field(std::string_view name, double number) : key(name), value(number) {}

  Field(std::string_view name, const Secret& /*secret*/)
      : key(name), value(std::string_view("[secret]")) {}

  Field(std::string_view name, const Status& status);

  template <class T, std::enable_if_t<std::is_integral_v<T> && !std::is_same_v<T, bool>, int> = 0>
  Field(std::string_view name, T number) : key(name), value(make_integer(number)) {}

  std::string_view key;
  std::variant<std::string_view, std::int64_t, std::uint64_t, double, bool> value;

 private:
  template <class T>
  static std::variant<std::string_view, std::int64_t, std::uint64_t, double, bool> make_integer(
      T number) {
    if constexpr (std::is_signed_v<T>) {
      return static_cast<std::int64_t>(number);
    } else {
      return static_cast<std::uint64_t>(number);
    }
  }
};

namespace internal {
extern std::atomic<Level> level;
[[gnu::cold]] void write(Level level, std::string_view event, std::initializer_list<Field> fields);
}  // namespace internal

/// debug, info, warn|warning, error|critical, off (any case): the values of --log-level.
Result<Level> parse_level(std::string_view name);

/// Any thread; holds for lines that start later.
void set_level(Level level);

inline bool enabled(Level level) {
  return level >= internal::level.load(std::memory_order_relaxed);
}

/// Writes one line to stderr with a single write(2), so that lines of several threads never mix.
/// Any thread. A filtered line costs one relaxed load.
inline void log(Level level, std::string_view event, std::initializer_list<Field> fields = {}) {
  if (enabled(level)) internal::write(level, event, fields);
}

inline void debug(std::string_view event, std::initializer_list<Field> fields = {}) {
  log(Level::kDebug, event, fields);
}

inline void info(std::string_view event, std::initializer_list<Field> fields = {}) {
  log(Level::kInfo, event, fields);
}

inline void warn(std::string_view event, std::initializer_list<Field> fields = {}) {
  log(Level::kWarn, event, fields);
}

inline void error(std::string_view event, std::initializer_list<Field> fields = {}) {
  log(Level::kError, event, fields);
}

/// The line without time stamp or newline; what tests look at.
std::string format_line(Level level, std::string_view event, std::initializer_list<Field> fields);

/// Sends lines (without newline) to `sink` instead of stderr; empty restores stderr. For tests.
void set_sink(std::function<void(std::string_view)> sink);

}  // namespace tandem::obs
