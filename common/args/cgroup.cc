#include "common/args/cgroup.h"

#include <algorithm>
#include <fstream>
#include <sstream>
#include <vector>

namespace tandem::args {
namespace {

/// "/a/b": "/a/b", "/a", "".
std::vector<std::string> upwards(std::string path) {
  while (path.ends_with('/'))
    path.pop_back();
  std::vector<std::string> found = {path};
  while (!path.empty()) {
    path.resize(std::min(path.rfind('/'), path.size() - 1));
    found.push_back(path);
  }
  return found;
}

template <class T>
void lower(std::optional<T>* limit, T value) {
  if (!*limit || value < **limit) *limit = value;
}

void read_memory(const std::string& file, CgroupLimits* limits) {
  std::ifstream in(file);
  std::uint64_t bytes = 0;
  if (in >> bytes && bytes > 0) lower(&limits->memory_bytes, bytes);
}

/// cpu.max of v2 is "<quota> <period>" or "max <period>".
void read_cpus(const std::string& file, CgroupLimits* limits) {
  std::ifstream in(file);
  double quota = 0;
  double period = 0;
  if (in >> quota >> period && quota > 0 && period > 0) lower(&limits->cpus, quota / period);
}

}  // namespace

CgroupLimits cgroup_limits(const std::string& mount, const std::string& membership) {
  CgroupLimits limits;
  std::string unified_path;
  std::string memory_path;
  std::istringstream lines(membership);
  for (std::string line; std::getline(lines, line);) {
    // hierarchy-ID:controller-list:path
    const std::size_t first = line.find(':');
    const std::size_t second = line.find(':', first + 1);
    if (first == std::string::npos || second == std::string::npos) continue;
    const std::string controllers = "," + line.substr(first + 1, second - first - 1) + ",";
    if (controllers == ",,") unified_path = line.substr(second + 1);
    if (controllers.find(",memory,") != std::string::npos) memory_path = line.substr(second + 1);
  }
  for (const std::string& path : upwards(unified_path)) {
    read_memory(mount + path + "/memory.max", &limits);
    read_cpus(mount + path + "/cpu.max", &limits);
  }
  for (const std::string& path : upwards(memory_path))
    read_memory(mount + "/memory" + path + "/memory.limit_in_bytes", &limits);
  return limits;
}

}  // namespace tandem::args
