// What the control groups of a process let it use (cgroups(7); cgroup v1 and v2).
#pragma once

#include <cstdint>
#include <optional>
#include <string>

namespace tandem::args {

struct CgroupLimits {
  std::optional<std::uint64_t> memory_bytes;
  std::optional<double> cpus;
};

/// The smallest limits on the way from the process's group up to the root. `membership` is the text
/// of /proc/self/cgroup, `mount` is /sys/fs/cgroup. Groups whose files are not to be seen from here
/// are passed over.
CgroupLimits cgroup_limits(const std::string& mount, const std::string& membership);

}  // namespace tandem::args
