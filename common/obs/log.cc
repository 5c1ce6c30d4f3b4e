#include "common/obs/log.h"

#include "common/base/clock.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <ctime>
#include <iterator>
#include <memory>
#include <mutex>

namespace tandem::obs {

namespace internal {
std::atomic<Level> level{Level::kInfo};
}  // namespace internal

namespace {

constexpr std::size_t kValueBytesMax = 4096;

// Guards the sink only; lines to stderr need no lock because each is one write(2).
std::mutex sink_mutex;
std::shared_ptr<const std::function<void(std::string_view)>> sink;
std::atomic<bool> has_sink{false};

std::string_view level_name(Level level) {
  switch (level) {
    case Level::kDebug:
      return "debug";
    case Level::kInfo:
      return "info";
    case Level::kWarn:
      return "warn";
    case Level::kError:
      return "error";
    case Level::kOff:
      break;
  }
  return "off";
}

bool needs_quotes(std::string_view text) {
  if (text.empty()) return true;
  return std::any_of(text.begin(), text.end(), [](char c) {
    const auto byte = static_cast<unsigned char>(c);
    return byte <= 0x20U || byte >= 0x7FU || c == '"' || c == '=' || c == '\\';
  });
}

// Control bytes and quotes are escaped, so that no value can start a line or forge a field.
void append_text(std::string& out, std::string_view text) {
  const bool cut = text.size() > kValueBytesMax;
  if (cut) text = text.substr(0, kValueBytesMax);
  if (!cut && !needs_quotes(text)) {
    out.append(text);
    return;
  }
  out.push_back('"');
  for (const char c : text) {
    const auto byte = static_cast<unsigned char>(c);
    if (c == '"' || c == '\\') {
      out.push_back('\\');
      out.push_back(c);
    } else if (c == '\n') {
      out.append("\\n");
    } else if (byte < 0x20U || byte == 0x7FU) {
      fmt::format_to(std::back_inserter(out), "\\x{:02x}", static_cast<unsigned>(byte));
    } else {
      out.push_back(c);
    }
  }
  out.append(cut ? "...\"" : "\"");
}

void append_time(std::string& out) {
  const double now = unix_seconds_exact();
  const auto whole = static_cast<std::time_t>(now);
  std::tm parts{};
  gmtime_r(&whole, &parts);
  fmt::format_to(std::back_inserter(out),
                 "time={:04}-{:02}-{:02}T{:02}:{:02}:{:02}.{:03}Z ",
                 parts.tm_year + 1900,
                 parts.tm_mon + 1,
                 parts.tm_mday,
                 parts.tm_hour,
                 parts.tm_min,
                 parts.tm_sec,
                 std::clamp(static_cast<int>((now - static_cast<double>(whole)) * 1e3), 0, 999));
}

void append_line(std::string& out,
                 Level level,
                 std::string_view event,
                 std::initializer_list<Field> fields) {
  out.append("level=").append(level_name(level)).append(" event=");
  append_text(out, event);
  for (const Field& field : fields) {
    out.push_back(' ');
    out.append(field.key);
    out.push_back('=');
    std::visit(
        [&out](auto value) {
          using T = decltype(value);
          if constexpr (std::is_same_v<T, std::string_view>) {
            append_text(out, value);
          } else if constexpr (std::is_same_v<T, double>) {
            fmt::format_to(std::back_inserter(out), "{:.6g}", value);
          } else {
            fmt::format_to(std::back_inserter(out), "{}", value);
          }
        },
        field.value);
  }
}

void write_all(std::string_view line) {
  while (!line.empty()) {
    const ssize_t done = ::write(STDERR_FILENO, line.data(), line.size());
    if (done < 0 && errno == EINTR) continue;
    if (done <= 0) return;  // Nowhere left to say it.
    line.remove_prefix(static_cast<std::size_t>(done));
  }
}

}  // namespace

Field::Field(std::string_view name, const Status& status)
    : key(name), value(status.ok() ? std::string_view("ok") : std::string_view(status.message())) {}

namespace internal {

void write(Level line_level, std::string_view event, std::initializer_list<Field> fields) {
  std::string line;
  line.reserve(160);
  if (has_sink.load(std::memory_order_acquire)) {
    std::shared_ptr<const std::function<void(std::string_view)>> target;
    {
      const std::lock_guard lock(sink_mutex);
      target = sink;
    }
    if (target) {
      append_line(line, line_level, event, fields);
      (*target)(line);
      return;
    }
  }
  append_time(line);
  append_line(line, line_level, event, fields);
  line.push_back('\n');
  write_all(line);
}

}  // namespace internal

Result<Level> parse_level(std::string_view name) {
  std::string lower(name);
  std::transform(lower.begin(), lower.end(), lower.begin(), [](char c) {
    return c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c;
  });

  struct Row {
    std::string_view name;
    Level level;
  };

  constexpr Row kRows[] = {{"debug", Level::kDebug},
                           {"info", Level::kInfo},
                           {"warn", Level::kWarn},
                           {"warning", Level::kWarn},
                           {"error", Level::kError},
                           {"critical", Level::kError},
                           {"off", Level::kOff}};
  for (const Row& row : kRows) {
    if (row.name == lower) return row.level;
  }
  return invalid_argument("log level \"" + std::string(name.substr(0, 64)) +
                          "\" is not one of debug, info, warning, error, critical, off");
}

void set_level(Level level) {
  internal::level.store(level, std::memory_order_relaxed);
}

std::string format_line(Level level, std::string_view event, std::initializer_list<Field> fields) {
  std::string line;
  append_line(line, level, event, fields);
  return line;
}

void set_sink(std::function<void(std::string_view)> target) {
  const std::lock_guard lock(sink_mutex);
  has_sink.store(static_cast<bool>(target), std::memory_order_release);
  sink = target ? std::make_shared<const std::function<void(std::string_view)>>(std::move(target))
                : nullptr;
}

}  // namespace tandem::obs
