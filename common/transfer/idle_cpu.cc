#include "common/transfer/idle_cpu.h"

#include <unistd.h>

#include <fstream>
#include <sstream>
#include <utility>

namespace tandem::transfer {

IdleCpu::IdleCpu(std::string stat_path)
    : path_(std::move(stat_path)), ticks_per_second_(::sysconf(_SC_CLK_TCK)) {
  CPU_ZERO(&bound_);
  if (::sched_getaffinity(0, sizeof(bound_), &bound_) != 0) {
    // More processors than the set has room for: any of those that it has.
    for (int cpu = 0; cpu < CPU_SETSIZE; ++cpu)
      CPU_SET(cpu, &bound_);
  }
}

std::optional<std::uint64_t> IdleCpu::idle_ticks(const std::string& text, const cpu_set_t& bound) {
  std::optional<std::uint64_t> sum;
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) {
    // cpu3 user nice system idle iowait ...; "cpu" alone is the sum of all. Nothing else comes
    // first.
    if (!line.starts_with("cpu")) break;
    std::istringstream words(line);
    std::string name;
    words >> name;
    if (name.size() < 4 || name.size() > 8 ||
        name.find_first_not_of("0123456789", 3) != std::string::npos) {
      continue;
    }
    const auto cpu = static_cast<std::size_t>(std::stoul(name.substr(3)));
    std::uint64_t user = 0;
    std::uint64_t nice = 0;
    std::uint64_t system = 0;
    std::uint64_t idle = 0;
    if (cpu >= CPU_SETSIZE || !CPU_ISSET(cpu, &bound)) continue;
    if (!(words >> user >> nice >> system >> idle)) continue;
    sum = sum.value_or(0) + idle;
  }
  return sum;
}

std::optional<std::uint64_t> IdleCpu::read() const {
  std::ifstream file(path_);
  std::ostringstream text;
  text << file.rdbuf();
  return idle_ticks(text.str(), bound_);
}

bool IdleCpu::spare(Time now) {
  const Duration since = now - began_;
  if (ticks_ && since < kLook) return spare_;
  const std::optional<std::uint64_t> before = std::exchange(ticks_, read());
  began_ = now;
  spare_ = false;
  if (!before || !ticks_ || *ticks_ < *before || since > kLook * 10) return false;
  const auto idle_ns =
      static_cast<std::int64_t>(*ticks_ - *before) * (1'000'000'000 / ticks_per_second_);
  spare_ = 2 * idle_ns >= since.ns;
  return spare_;
}

}  // namespace tandem::transfer
