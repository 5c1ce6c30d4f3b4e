// What this process may use: variables, cores, memory, CPU features.
#include "common/args/args.h"
#include "common/args/cgroup.h"

#include <sched.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <random>
#include <sstream>

#if defined(__x86_64__)
#include <cpuid.h>
#include <sys/syscall.h>
#endif

namespace tandem::args {
namespace {

std::uint32_t affinity_count() {
  cpu_set_t set;
  CPU_ZERO(&set);
  if (sched_getaffinity(0, sizeof set, &set) == 0)
    return static_cast<std::uint32_t>(CPU_COUNT(&set));
  const long online = sysconf(_SC_NPROCESSORS_ONLN);
  return online > 0 ? static_cast<std::uint32_t>(online) : 1;
}

CgroupLimits own_cgroup_limits() {
  std::ifstream file("/proc/self/cgroup");
  std::ostringstream text;
  text << file.rdbuf();
  return cgroup_limits("/sys/fs/cgroup", text.str());
}

std::uint32_t cpu_limit(const CgroupLimits& limits) {
  const std::uint32_t count = affinity_count();
  if (!limits.cpus) return count;
  return std::min(count, static_cast<std::uint32_t>(std::clamp(*limits.cpus + 0.5, 1.0, 65536.0)));
}

std::uint64_t memory_limit(const CgroupLimits& limits) {
  const long pages = sysconf(_SC_PHYS_PAGES);
  const long page_bytes = sysconf(_SC_PAGE_SIZE);
  std::uint64_t bytes = 0;
  if (pages > 0 && page_bytes > 0)
    bytes = static_cast<std::uint64_t>(pages) * static_cast<std::uint64_t>(page_bytes);
  if (limits.memory_bytes && (bytes == 0 || *limits.memory_bytes < bytes))
    bytes = *limits.memory_bytes;
  return bytes;
}

/// AMX tiles, bf16 and 8-bit products, switched on by the kernel (XCR0 bits 17 and 18), which also
/// gives this process leave to use them; it refuses where a thread has an alternate signal stack
/// too small for tiles. The kernels room asks the same at its own start.
bool amx_available() {
#if defined(__x86_64__)
  unsigned a = 0;
  unsigned b = 0;
  unsigned c = 0;
  unsigned d = 0;
  if (__get_cpuid(1, &a, &b, &c, &d) == 0 || (c & (1U << 27U)) == 0) return false;
  if (__get_cpuid_count(7, 0, &a, &b, &c, &d) == 0) return false;
  constexpr unsigned kAmxBits = (1U << 25U) | (1U << 24U) | (1U << 22U);
  if ((d & kAmxBits) != kAmxBits) return false;
  unsigned low = 0;
  unsigned high = 0;
  __asm__ volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
  constexpr unsigned kTileState = (1U << 17U) | (1U << 18U);
  if ((low & kTileState) != kTileState) return false;
  constexpr long kRequestPermission = 0x1023;  // ARCH_REQ_XCOMP_PERM
  constexpr unsigned long kTileData = 18;
  return syscall(SYS_arch_prctl, kRequestPermission, kTileData) == 0;
#else
  return false;
#endif
}

Environment::PathKind kind_of(const std::string& path) {
  std::error_code error;
  switch (std::filesystem::status(path, error).type()) {
    case std::filesystem::file_type::regular:
      return Environment::PathKind::kFile;
    case std::filesystem::file_type::directory:
      return Environment::PathKind::kFolder;
    case std::filesystem::file_type::none:
    case std::filesystem::file_type::not_found:
      return Environment::PathKind::kNothing;
    default:
      return Environment::PathKind::kOther;
  }
}

}  // namespace

Environment Environment::system() {
  Environment environment;
  environment.variable = [](std::string_view name) -> std::optional<std::string> {
    const char* value = std::getenv(std::string(name).c_str());
    if (value == nullptr) return std::nullopt;
    return std::string(value);
  };
  environment.path_kind = kind_of;
  const CgroupLimits limits = own_cgroup_limits();
  environment.cpu_count = std::max(1U, cpu_limit(limits));
  environment.memory_bytes = memory_limit(limits);
  environment.has_amx = amx_available();
  std::random_device device;
  environment.entropy = (static_cast<std::uint64_t>(device()) << 32U) | device();
  return environment;
}

}  // namespace tandem::args
