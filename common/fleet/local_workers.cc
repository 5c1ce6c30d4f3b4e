#include "common/fleet/local_workers.h"

#include "common/base/clock.h"
#include "common/json/parse.h"
#include "common/json/value.h"
#include "common/obs/log.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstring>
#include <utility>

namespace tandem::fleet {
namespace {

constexpr Duration kBackoffFirst = milliseconds(200);
constexpr Duration kBackoffMax = seconds(5);
constexpr std::size_t kPortTextMax = 4096;
constexpr int kTurnMs = 20;
constexpr std::uint32_t kLivesUnheardMax = 3;
/// What our programs exit with when they refuse their arguments.
constexpr int kExitUsage = 2;

std::string describe_exit(int status) {
  if (WIFSIGNALED(status))
    return std::string("killed by signal ") + std::to_string(WTERMSIG(status));
  return "exited with status " + std::to_string(WEXITSTATUS(status));
}

/// 0 when there is none.
std::uint16_t port_member(const json::Value& value, std::string_view key) {
  const json::Value* member = value.find(key);
  const std::int64_t* port = member == nullptr ? nullptr : member->if_int();
  return port != nullptr && *port > 0 && *port <= 65535 ? static_cast<std::uint16_t>(*port)
                                                        : std::uint16_t{0};
}

/// In the child, between fork and exec: only what is safe there.
[[noreturn]] void become(const char* const* argv, pid_t parent, const sigset_t& clear) {
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (getppid() != parent) _exit(127);  // the router died before the line above
  sigprocmask(SIG_SETMASK, &clear, nullptr);
  execv(argv[0],
        const_cast<char* const*>(
            argv));  // NOLINT(cppcoreguidelines-pro-type-const-cast): execv's signature
  constexpr char kText[] = "tandem: cannot execute a worker program\n";
  [[maybe_unused]] const ssize_t written = write(STDERR_FILENO, kText, sizeof kText - 1);
  _exit(127);
}

}  // namespace

std::string sibling_program(const std::string& name) {
  std::array<char, 4096> path{};
  const ssize_t length = readlink("/proc/self/exe", path.data(), path.size() - 1);
  if (length <= 0) return name;
  const std::string self(path.data(), static_cast<std::size_t>(length));
  return self.substr(0, self.rfind('/') + 1) + name;
}

LocalWorkers::LocalWorkers(std::vector<LocalWorkerSpec> specs, Events events)
    : specs_(std::move(specs)), events_(std::move(events)), children_(specs_.size()) {}

LocalWorkers::~LocalWorkers() {
  stop({0});
}

void LocalWorkers::start() {
  thread_ = std::thread([this] { run(); });
}

void LocalWorkers::stop(Duration grace) {
  grace_ns_ = grace.ns;
  stopping_ = true;
  if (thread_.joinable()) thread_.join();
}

void LocalWorkers::replace(std::size_t index) {
  const std::lock_guard lock(mutex_);
  if (const pid_t pid = children_.at(index).pid; pid > 0) kill(pid, SIGKILL);
}

std::vector<pid_t> LocalWorkers::pids() const {
  const std::lock_guard lock(mutex_);
  std::vector<pid_t> pids;
  for (const Child& child : children_) {
    if (child.pid > 0) pids.push_back(child.pid);
  }
  return pids;
}

void LocalWorkers::run() {
  // This thread lives as long as the children: the kernel ties their death signal to the thread
  // that forked them.
  while (!stopping_) {
    std::vector<pollfd> polls;
    for (std::size_t i = 0; i < children_.size(); ++i) {
      if (children_[i].pid <= 0 && children_[i].start_at <= steady_clock().now()) launch(i);
      if (children_[i].port_pipe >= 0) polls.push_back({children_[i].port_pipe, POLLIN, 0});
    }
    if (polls.empty()) {
      std::this_thread::sleep_for(std::chrono::milliseconds(kTurnMs));
    } else {
      poll(polls.data(), polls.size(), kTurnMs);
    }
    for (std::size_t i = 0; i < children_.size(); ++i) {
      read_ports(i);
      reap(i);
    }
  }
  take_down({grace_ns_.load()});
}

void LocalWorkers::launch(std::size_t index) {
  Child& child = children_[index];
  std::array<int, 2> ends{};
  if (pipe2(ends.data(), O_CLOEXEC) != 0) {
    child.start_at = steady_clock().now() + kBackoffMax;
    return;
  }
  // The write end is inherited under its own number; the child names it as its port file.
  std::vector<std::string> words = specs_[index].argv;
  words.emplace_back("--port-file=/dev/fd/" + std::to_string(ends[1]));
  std::vector<const char*> argv;
  for (const std::string& word : words)
    argv.push_back(word.c_str());
  argv.push_back(nullptr);
  sigset_t clear;
  sigemptyset(&clear);
  const pid_t parent = getpid();
  const pid_t pid = fork();
  if (pid == 0) {
    fcntl(ends[1], F_SETFD, 0);
    become(argv.data(), parent, clear);
  }
  close(ends[1]);
  if (pid < 0) {
    close(ends[0]);
    child.start_at = steady_clock().now() + kBackoffMax;
    obs::error("worker_start_failed",
               {{"worker", index}, {"reason", std::strerror(errno)}});  // NOLINT
    return;
  }
  fcntl(ends[0], F_SETFL, O_NONBLOCK);
  {
    const std::lock_guard lock(mutex_);
    child.pid = pid;
  }
  child.port_pipe = ends[0];
  child.port_text.clear();
  obs::info("worker_started",
            {{"worker", index}, {"role", rpc::role_name(specs_[index].role)}, {"pid", pid}});
}

void LocalWorkers::read_ports(std::size_t index) {
  Child& child = children_[index];
  if (child.port_pipe < 0) return;
  std::array<char, 512> buffer{};
  ssize_t got = 0;
  while ((got = read(child.port_pipe, buffer.data(), buffer.size())) > 0) {
    child.port_text.append(buffer.data(), static_cast<std::size_t>(got));
    if (child.port_text.size() > kPortTextMax) break;
  }
  if (got < 0 && errno == EAGAIN && child.port_text.size() <= kPortTextMax) {
    if (!child.port_text.ends_with('\n')) return;  // more is to come
  }
  close(child.port_pipe);
  child.port_pipe = -1;
  if (child.port_text.empty()) return;  // it ended before it listened: reap() tells
  LocalWorkerPorts ports;
  if (const auto value = json::parse(child.port_text); value.ok()) {
    ports.http = port_member(*value, "port");
    ports.bootstrap = port_member(*value, "bootstrap_port");
  }
  if (ports.http == 0) {
    obs::error("worker_ports_unreadable", {{"worker", index}, {"text", child.port_text}});
    return;
  }
  child.backoff = {0};
  child.listened = true;
  events_.on_ready(index, ports);
}

void LocalWorkers::reap(std::size_t index) {
  Child& child = children_[index];
  if (child.pid <= 0) return;
  int status = 0;
  const pid_t pid = child.pid;
  {
    const std::lock_guard lock(mutex_);
    if (waitpid(pid, &status, WNOHANG) != pid) return;
    child.pid = -1;
  }
  const std::string why = describe_exit(status);
  obs::error("worker_ended", {{"worker", index}, {"pid", pid}, {"reason", why}});
  if (child.port_pipe >= 0) close(child.port_pipe);
  child.port_pipe = -1;
  child.start_at = steady_clock().now() + child.backoff;
  child.backoff = {std::clamp(child.backoff.ns * 2, kBackoffFirst.ns, kBackoffMax.ns)};
  events_.on_exit(index, unavailable("worker process " + why));
  if (child.listened) return;
  const std::string program = specs_[index].argv.front();
  const std::string text = program.substr(program.rfind('/') + 1) + " " + why + " (see above)";
  if (WIFEXITED(status) && WEXITSTATUS(status) == kExitUsage) {
    events_.on_hopeless(index, invalid_argument("a local worker cannot start: " + text));
  } else if (++child.lives_unheard >= kLivesUnheardMax) {
    events_.on_hopeless(index, failed_precondition("a local worker does not start: " + text));
  }
}

void LocalWorkers::take_down(Duration grace) {
  const Time until = steady_clock().now() + grace;
  for (const Child& child : children_) {
    if (child.pid > 0) kill(child.pid, SIGTERM);
  }
  for (bool killed = false;;) {
    bool any = false;
    for (Child& child : children_) {
      if (child.pid <= 0) continue;
      int status = 0;
      if (waitpid(child.pid, &status, WNOHANG) == child.pid) {
        const std::lock_guard lock(mutex_);
        child.pid = -1;
      } else {
        any = true;
      }
    }
    if (!any) break;
    if (!killed && steady_clock().now() >= until) {
      killed = true;
      for (const Child& child : children_) {
        if (child.pid > 0) kill(child.pid, SIGKILL);
      }
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
  }
  for (Child& child : children_) {
    if (child.port_pipe >= 0) close(child.port_pipe);
    child.port_pipe = -1;
  }
}

}  // namespace tandem::fleet
