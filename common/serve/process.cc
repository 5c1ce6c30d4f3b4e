#include "common/serve/process.h"

#include "common/base/failpoint.h"
#include "common/base/random.h"
#include "common/obs/log.h"

#include <fmt/format.h>
#include <pthread.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cerrno>
#include <cstdio>
#include <ctime>
#include <filesystem>
#include <fstream>
#include <memory>

namespace tandem::serve {
namespace {

obs::Level log_level(args::LogLevel level) {
  switch (level) {
    case args::LogLevel::kDebug:
      return obs::Level::kDebug;
    case args::LogLevel::kInfo:
      return obs::Level::kInfo;
    case args::LogLevel::kWarning:
      return obs::Level::kWarn;
    case args::LogLevel::kError:
    case args::LogLevel::kCritical:
      break;
  }
  return obs::Level::kError;
}

obs::Level note_level(args::NoteLevel level) {
  switch (level) {
    case args::NoteLevel::kDebug:
      return obs::Level::kDebug;
    case args::NoteLevel::kInfo:
      return obs::Level::kInfo;
    case args::NoteLevel::kWarning:
      break;
  }
  return obs::Level::kWarn;
}

}  // namespace

Signals::Signals() {
  sigemptyset(&set_);
  sigaddset(&set_, SIGTERM);
  sigaddset(&set_, SIGINT);
  pthread_sigmask(SIG_BLOCK, &set_, nullptr);

  struct sigaction ignore {};

  ignore.sa_handler = SIG_IGN;
  sigaction(SIGPIPE, &ignore, nullptr);
}

bool Signals::stop_requested(Duration timeout) {
  if (stop_) return true;
  const timespec wait{.tv_sec = static_cast<time_t>(timeout.ns / 1'000'000'000),
                      .tv_nsec = static_cast<long>(timeout.ns % 1'000'000'000)};
  const int signal = sigtimedwait(&set_, nullptr, &wait);
  if (signal > 0) {
    obs::info("stop_requested", {{"signal", signal}});
    stop_ = true;
  }
  return stop_;
}

Started start_process(const args::ParseOutcome& outcome) {
  std::fputs(outcome.out.c_str(), stdout);
  std::fputs(outcome.err.c_str(), stderr);
  if (outcome.action == args::ParseOutcome::Action::kExit)
    return {.exits = true, .exit_status = outcome.exit_code};
  obs::set_level(log_level(outcome.args.observability.log_level));
  const std::string points_asked = outcome.args.observability.failure_points.value_or("");
  if (const Status status = failpoint::configure(points_asked); !status.ok()) {
    return {.exits = true, .exit_status = fail(outcome.args.program, status)};
  }
  if (const std::string points = failpoint::active(); !points.empty()) {
    obs::warn("failure_points_active", {{"points", points}});
  }
  for (const args::Note& note : outcome.args.notes) {
    obs::log(note_level(note.level), "argument", {{"note", note.text}});
  }
  return {};
}

int fail(args::Program program, const Status& status) {
  std::string_view name = args::program_name(program);
  std::fprintf(stderr,
               "%.*s: error: %s\n",
               static_cast<int>(name.size()),
               name.data(),
               status.message().c_str());
  return status.code() == Code::kInvalidArgument ? 2 : 1;
}

Status write_port_file(const std::string& path, const Ports& ports) {
  const std::string text = fmt::format("{{\"port\":{},\"grpc_port\":{},\"bootstrap_port\":{}}}\n",
                                       ports.http,
                                       ports.grpc,
                                       ports.bootstrap);
  const bool device = path.starts_with("/dev/") || path.starts_with("/proc/");
  const std::string target = device ? path : path + ".part";
  {
    std::ofstream file(target, std::ios::binary | std::ios::trunc);
    file << text;
    file.flush();
    if (!file) return unavailable("argument --port-file: cannot write " + target);
  }
  if (device) return {};
  std::error_code error;
  std::filesystem::rename(target, path, error);
  if (error)
    return unavailable("argument --port-file: cannot write " + path + ": " + error.message());
  return {};
}

std::string advertised_host(const args::Arguments& args) {
  if (args.disaggregation.advertise_host) return *args.disaggregation.advertise_host;
  const std::string& host = args.server.host;
  if (host != "0.0.0.0" && host != "::" && host != "[::]") return host;
  std::array<char, 256> name{};
  return gethostname(name.data(), name.size() - 1) == 0 ? std::string(name.data()) : "127.0.0.1";
}

std::function<std::uint64_t()> seed_stream(std::uint64_t seed) {
  auto drawn = std::make_shared<std::atomic<std::uint64_t>>(0);
  return [seed, drawn] {
    const std::uint64_t n = drawn->fetch_add(1, std::memory_order_relaxed);
    const auto words =
        philox4x32({static_cast<std::uint32_t>(n), static_cast<std::uint32_t>(n >> 32U)},
                   {static_cast<std::uint32_t>(seed), static_cast<std::uint32_t>(seed >> 32U)});
    return std::uint64_t{words[0]} << 32U | words[1];
  };
}

}  // namespace tandem::serve
