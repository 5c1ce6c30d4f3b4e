// LocalWorkers: worker processes that the router starts itself, watches, starts again and takes
// down with it.
#pragma once

#include "common/base/ids.h"
#include "common/base/status.h"
#include "common/rpc/types.h"

#include <sys/types.h>

#include <atomic>
#include <cstdint>
#include <functional>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

namespace tandem::fleet {

struct LocalWorkerSpec {
  rpc::Role role = rpc::Role::kUnified;
  /// Program and arguments, without the port file; the ports are the system's choice.
  std::vector<std::string> argv;
};

struct LocalWorkerPorts {
  std::uint16_t http = 0;
  std::uint16_t bootstrap = 0;  ///< 0: none
};

/// Children die with the router, also when it is killed (PR_SET_PDEATHSIG). They tell their ports
/// through a pipe, so nothing is left in the file system.
class LocalWorkers {
 public:
  struct Events {
    /// A life of worker `index` listens. On the supervisor's thread.
    std::function<void(std::size_t index, const LocalWorkerPorts&)> on_ready;
    /// That life has ended; it is started again unless the set is stopping.
    std::function<void(std::size_t index, const Status& why)> on_exit;
    /// Worker `index` has never listened and is not likely to: it refuses its arguments
    /// (kInvalidArgument), or has ended several times in a row (kFailedPrecondition). It has said
    /// why on stderr. on_exit comes first.
    std::function<void(std::size_t index, const Status& why)> on_hopeless;
  };

  LocalWorkers(std::vector<LocalWorkerSpec> specs, Events events);
  /// stop() without patience.
  ~LocalWorkers();
  LocalWorkers(const LocalWorkers&) = delete;
  LocalWorkers& operator=(const LocalWorkers&) = delete;

  void start();
  /// SIGTERM to all, SIGKILL to what is left after `grace`; waits for the end of all.
  void stop(Duration grace);
  /// Kills the present life of worker `index`, which does not answer; another follows. Any thread.
  void replace(std::size_t index);
  /// Process ids of the running ones, for logs and /get_server_info. Any thread.
  [[nodiscard]] std::vector<pid_t> pids() const;

 private:
  struct Child {
    pid_t pid = -1;
    int port_pipe = -1;
    std::string port_text;
    Time start_at;
    Duration backoff{0};
    std::uint32_t lives_unheard = 0;  // that ended before they listened, in a row
    bool listened = false;            // in some life
  };

  void run();
  void launch(std::size_t index);
  void read_ports(std::size_t index);
  void reap(std::size_t index);
  void take_down(Duration grace);

  std::vector<LocalWorkerSpec> specs_;
  Events events_;
  // Guards children_[i].pid, for pids() and replace(): the rest is the supervisor thread's own.
  mutable std::mutex mutex_;
  std::vector<Child> children_;
  std::atomic<bool> stopping_{false};
  std::atomic<std::int64_t> grace_ns_{0};
  std::thread thread_;
};

/// Path of a program that lies beside this one.
std::string sibling_program(const std::string& name);

}  // namespace tandem::fleet
