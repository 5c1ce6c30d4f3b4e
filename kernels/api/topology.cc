#include "kernels/api/topology.h"

#include <sched.h>

#include <algorithm>
#include <charconv>
#include <fstream>
#include <string>
#include <string_view>
#include <system_error>
#include <utility>

namespace tandem::kernels {
namespace {

/// "0-3,8,10-11"; empty when the text is no such list.
CpuList parse_list(std::string_view text) {
  CpuList cpus;
  while (!text.empty()) {
    const std::string_view item = text.substr(0, text.find(','));
    text.remove_prefix(std::min(text.size(), item.size() + 1));
    int first = 0;
    const char* const end = item.data() + item.size();
    auto [at, error] = std::from_chars(item.data(), end, first);
    int last = first;
    if (error == std::errc() && at != end && *at == '-') {
      const auto range = std::from_chars(at + 1, end, last);
      at = range.ptr;
      error = range.ec;
    }
    if (error != std::errc() || at != end || first < 0 || last < first || last >= CPU_SETSIZE) {
      return {};
    }
    for (int cpu = first; cpu <= last; ++cpu)
      cpus.push_back(cpu);
  }
  return cpus;
}

CpuList read_list(const std::filesystem::path& path) {
  std::ifstream file(path);
  std::string line;
  std::getline(file, line);
  return parse_list(line);
}

struct Core {
  int node = 0;
  CpuList cpus;  ///< of those that are allowed
};

int node_of(int cpu, const std::filesystem::path& system) {
  std::error_code error;
  // node3 in the folder of the hardware thread, a link to the node's own.
  std::filesystem::directory_iterator entry(system / "cpu" / ("cpu" + std::to_string(cpu)), error);
  for (; !error && entry != std::filesystem::directory_iterator(); entry.increment(error)) {
    const std::string name = entry->path().filename().string();
    int node = 0;
    if (!name.starts_with("node")) continue;
    const auto [at, bad] = std::from_chars(name.data() + 4, name.data() + name.size(), node);
    if (bad == std::errc() && at == name.data() + name.size()) return node;
  }
  return 0;
}

/// In the order in which they are used.
std::vector<Core> cores_of(std::span<const int> allowed, const std::filesystem::path& system) {
  std::vector<Core> cores;
  for (const int cpu : allowed) {
    const bool known = std::ranges::any_of(
        cores, [&](const Core& core) { return std::ranges::count(core.cpus, cpu) > 0; });
    if (known) continue;
    CpuList siblings = read_list(system / "cpu" / ("cpu" + std::to_string(cpu)) / "topology" /
                                 "thread_siblings_list");
    std::erase_if(siblings, [&](int other) {
      return other != cpu && std::ranges::count(allowed, other) == 0;
    });
    if (std::ranges::count(siblings, cpu) == 0) siblings = {cpu};
    cores.push_back({.node = node_of(cpu, system), .cpus = std::move(siblings)});
  }
  std::ranges::stable_sort(cores, {}, &Core::node);
  return cores;
}

}  // namespace

CpuList allowed_cpus() {
  CpuList cpus;
  cpu_set_t set;
  CPU_ZERO(&set);
  if (::sched_getaffinity(0, sizeof set, &set) != 0) return cpus;
  for (int cpu = 0; cpu < CPU_SETSIZE; ++cpu) {
    if (CPU_ISSET(cpu, &set)) cpus.push_back(cpu);
  }
  return cpus;
}

std::vector<CpuList> thread_places(std::size_t threads,
                                   std::span<const int> allowed,
                                   const std::filesystem::path& system) {
  if (threads < 2 || threads > allowed.size()) return {};
  std::vector<Core> cores = cores_of(allowed, system);
  std::vector<CpuList> places;
  if (threads == cores.size()) {
    for (Core& core : cores)
      places.push_back(std::move(core.cpus));
  } else if (threads == allowed.size()) {
    for (std::size_t sibling = 0; places.size() < threads; ++sibling) {
      for (const Core& core : cores) {
        if (sibling < core.cpus.size()) places.push_back({core.cpus[sibling]});
      }
    }
  }
  return places;
}

bool keep_to(std::span<const int> cpus) {
  cpu_set_t set;
  CPU_ZERO(&set);
  for (const int cpu : cpus)
    CPU_SET(cpu, &set);
  return ::sched_setaffinity(0, sizeof set, &set) == 0;
}

}  // namespace tandem::kernels
