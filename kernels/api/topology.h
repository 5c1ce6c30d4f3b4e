// Which hardware threads a pool's threads should keep to.
#pragma once

#include <cstddef>
#include <filesystem>
#include <span>
#include <vector>

namespace tandem::kernels {

/// Numbers of hardware threads, as the system counts them.
using CpuList = std::vector<int>;

/// Hardware threads that the calling thread may run on, rising; empty when the system does not say.
CpuList allowed_cpus();

/// Where thread i of a pool of `threads` should stay, for each i; empty: leave all to the
/// scheduler.
///
/// Threads have places only where the process computes with all processors that it may use
/// (taskset, cpusets and Kubernetes' CPU manager say which): a thread for each hardware thread, or
/// one for each core, which then may use any of that core's hardware threads. Then two processes
/// that share them have as many threads on each as the scheduler would give them. Where there are
/// fewer threads, two that both took the first processors would leave the others idle.
///
/// The order is that of cores, those of one NUMA node before the next; second hardware threads of
/// cores come after the first ones of all.
///
/// `system` is where the system describes itself; tests have trees of their own. What cannot be
/// read there counts as a core of its own, on node 0.
std::vector<CpuList> thread_places(std::size_t threads,
                                   std::span<const int> allowed,
                                   const std::filesystem::path& system = "/sys/devices/system");

/// The calling thread keeps to `cpus`; false when the system refuses.
bool keep_to(std::span<const int> cpus);

}  // namespace tandem::kernels
