// Processes that share one processor for a while.
#pragma once

#include <sched.h>
#include <sys/types.h>

#include <map>
#include <set>
#include <vector>

namespace tandem::bench {

/// While it lives, all threads of some processes run on one processor, the last one of those that
/// the calling thread may use; then each where it might run before. Processes that they start
/// meanwhile inherit it.
class OneProcessor {
 public:
  explicit OneProcessor(std::vector<pid_t> processes);
  OneProcessor(const OneProcessor&) = delete;
  OneProcessor& operator=(const OneProcessor&) = delete;
  ~OneProcessor();

  /// Whether the calling thread may use more than one, so that it makes a difference.
  static bool differs();

 private:
  bool pin_new_threads();
  bool free_new_threads(std::set<pid_t>& freed) const;

  std::vector<pid_t> processes_;
  cpu_set_t one_{};
  std::map<pid_t, cpu_set_t> before_;  ///< by thread
};

}  // namespace tandem::bench
