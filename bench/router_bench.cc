// What the router costs: CPU time per request and per relayed token, added latency, memory.
//
//   router_bench [--seconds 1] [--reps 3] [--policy NAME] [--only ROW] [--profile COMMAND]
//
// Starts two fake workers (this program again) and build/<preset>/bin/router in front of them, puts
// load on it from this process, and reads the router's own CPU time from /proc, so that client and
// workers are outside the figures. One JSON line per figure with its target beside it; each is the
// best of --reps, since a neighbour can only add. `{pid}` in --profile becomes the router's pid;
// the command runs beside the load. Where a request failed or a token was not an event of its own
// there is no figure: "value" is null, "error" says why, and the program ends with 1.
//
// added_p50 is what one request at a time takes longer through the router, and relay_p50 its bound:
// what a relay adds that looks at nothing (bench/router/bare_relay.h). Both are the time that wakes
// take, for the most part. Under a hypervisor a thread that sleeps on another processor takes some
// 40 us to wake where that processor has halted and half of it where it has not; on the processor
// that wakes it, 2 us. Where client, router and worker run is the scheduler's choice, which it
// keeps for seconds and then changes: a median is one of several values, some 90 us apart for the
// relay and more for the router. In the rows ..._one_cpu all of them share one processor. No such
// wakes there: what is added is work, and it repeats; the relay's figure is the limit of the
// router's.
#include "bench/router/bare_relay.h"
#include "bench/router/bodies.h"
#include "bench/router/child.h"
#include "bench/router/fake_worker.h"
#include "bench/router/http_load.h"
#include "bench/router/one_processor.h"
#include "bench/router/read_tokens.h"
#include "common/async/io_pool.h"
#include "common/base/clock.h"
#include "common/rpc/session_client.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <future>
#include <iostream>
#include <memory>
#include <optional>
#include <sstream>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

namespace {

using namespace tandem;         // NOLINT: a program
using namespace tandem::bench;  // NOLINT: a program

constexpr int kPromptTokens = 450;
constexpr int kWholeTokens = 8;
constexpr int kStreamTokens = 512;
constexpr int kPacedStepUs = 1000;
constexpr std::size_t kTextBytes = 1800;
/// Requests after which the memory of a router that remembers prompts is looked at.
constexpr std::uint64_t kRemembered = 100'000;

struct Options {
  double seconds = 1;
  int reps = 3;
  std::string policy;
  std::string only;
  std::string profile;
};

struct Worker {
  Worker(const std::string& self, int step_us, const ReadTokens& read)
      : child({self,
               "worker",
               std::to_string(step_us),
               std::to_string(kWholeTokens),
               std::to_string(read.fd())}) {
    std::istringstream(child.first_line()) >> port;
    if (port == 0) throw std::runtime_error("a fake worker did not start");
  }

  Child child;
  std::uint16_t port = 0;  ///< HTTP and gRPC
};

std::string temporary_file() {
  std::string name = (std::filesystem::temp_directory_path() / "tandem-bench-XXXXXX").string();
  ::close(::mkstemp(name.data()));
  return name;
}

class Router {
 public:
  Router(const std::string& folder,
         const std::string& policy,
         const std::vector<const Worker*>& workers) {
    const std::string port_file = temporary_file();
    std::filesystem::remove(port_file);
    std::vector<std::string> words = {folder + "/bin/router",
                                      "--policy=" + policy,
                                      "--port=0",
                                      "--host=127.0.0.1",
                                      "--log-level=error",
                                      std::string("--tokenizer-path=") + TANDEM_DEMO_MODEL,
                                      "--port-file=" + port_file,
                                      "--worker-urls"};
    for (const Worker* worker : workers)
      words.push_back("grpc://127.0.0.1:" + std::to_string(worker->port));
    child_.emplace(words);
    for (int i = 0; i < 2000 && port_ == 0; ++i) {
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
      std::ifstream file(port_file);
      std::string text((std::istreambuf_iterator<char>(file)), {});
      const std::size_t at = text.find("\"port\":");
      if (at != std::string::npos && text.find('}') != std::string::npos)
        port_ = static_cast<std::uint16_t>(std::atoi(text.c_str() + at + 7));
    }
    std::filesystem::remove(port_file);
    if (port_ == 0) throw std::runtime_error("the router did not start");
  }

  [[nodiscard]] std::uint16_t port() const { return port_; }

  [[nodiscard]] pid_t pid() const { return child_->pid(); }

  /// CPU time of all its threads so far, to the nanosecond.
  [[nodiscard]] double cpu_s() const {
    double total = 0;
    const auto tasks = "/proc/" + std::to_string(pid()) + "/task";
    for (const auto& task : std::filesystem::directory_iterator(tasks)) {
      double ns = 0;
      std::ifstream(task.path() / "schedstat") >> ns;
      total += ns * 1e-9;
    }
    return total;
  }

  [[nodiscard]] double rss_mib() const {
    std::ifstream file("/proc/" + std::to_string(pid()) + "/status");
    std::string word;
    while (file >> word) {
      if (word != "VmRSS:") continue;
      double kib = 0;
      file >> kib;
      return kib / 1024;
    }
    return 0;
  }

 private:
  std::optional<Child> child_;
  std::uint16_t port_ = 0;
};

/// One request after the other on a session, as the router sends them: what of its added latency is
/// the worker's end of the session and the way there.
class SessionLatency final : public rpc::SessionClientHandler {
 public:
  void on_hello(rpc::WorkerInfo&& /*info*/) override { answered_.set_value(); }

  void on_step(std::vector<core::TokenEvent>&& /*events*/, const core::Load& /*load*/) override {
    answered_.set_value();
  }

  void on_tick(const core::Load& /*load*/) override {}

  void on_rejected(core::RequestId /*id*/,
                   std::uint32_t /*attempt*/,
                   const Status& /*why*/) override {}

  void on_flushed(const Status& /*result*/) override {}

  void on_closed(const Status& /*status*/) override {}

  /// The median round trip, 0 when there is none; the handler is `self`.
  static double p50_us(const std::shared_ptr<SessionLatency>& self, std::uint16_t port) {
    async::IoPool io(1, "session");
    rpc::SessionClient::Options options;
    options.io = &io;
    options.client.address = "127.0.0.1:" + std::to_string(port);
    options.router_incarnation = 1;
    std::future<void> answer = self->next();
    const auto client = rpc::SessionClient::open(options, self);
    if (!client.ok()) return 0;
    answer.wait();
    rpc::Submission submission;
    submission.request.sampling.max_new_tokens = kWholeTokens;
    submission.request.input_ids.assign(kPromptTokens, 300);
    std::vector<double> times;
    for (std::uint64_t i = 1; i <= 3000; ++i) {
      submission.request.id = core::RequestId{i};
      answer = self->next();
      const Time began = steady_clock().now();
      if (!(*client)->submit(submission).ok()) return 0;
      answer.wait();
      times.push_back(static_cast<double>((steady_clock().now() - began).ns) / 1e3);
    }
    std::ranges::sort(times);
    return times[times.size() / 2];
  }

 private:
  std::future<void> next() {
    answered_ = std::promise<void>();
    return answered_.get_future();
  }

  std::promise<void> answered_;
};

class Bench {
 public:
  Bench(Options options, std::string self)
      : options_(std::move(options)),
        self_(std::move(self)),
        folder_(std::filesystem::path(self_).parent_path().parent_path().string()) {}

  /// Whether every row has its figure.
  bool run() {
    for (const char* policy : {"round_robin", "power_of_two", "cache_aware"}) {
      if (!options_.policy.empty() && options_.policy != policy) continue;
      requests(policy);
    }
    streams(0, "fast");
    streams(kPacedStepUs, "paced");
    return complete_;
  }

 private:
  struct Measured {
    HttpLoadResult load;
    double cpu_us = 0;  ///< of the router in all
  };

  [[nodiscard]] bool wanted(const std::string& row) const {
    return row.find(options_.only) != std::string::npos;
  }

  void print(const std::string& row,
             const std::string& policy,
             std::size_t connections,
             double value,
             const std::string& unit,
             std::optional<double> target,
             const HttpLoadResult& load) {
    print(row, policy, connections, value, unit, target, load, load.problem());
  }

  /// Without a figure where there is a `problem`.
  void print(const std::string& row,
             const std::string& policy,
             std::size_t connections,
             double value,
             const std::string& unit,
             std::optional<double> target,
             const HttpLoadResult& load,
             const std::string& problem) {
    std::cout << fmt::format(
                     R"({{"bench":"router","row":"{}","policy":"{}","connections":{},"value":{},)"
                     R"("unit":"{}","target":{},"requests_per_s":{:.0f},"errors":{}{}}})",
                     row,
                     policy,
                     connections,
                     problem.empty() ? fmt::format("{:.3f}", value) : "null",
                     unit,
                     target ? fmt::format("{}", *target) : "null",
                     static_cast<double>(load.requests) / std::max(load.seconds, 1e-9),
                     load.errors,
                     problem.empty() ? "" : fmt::format(R"(,"error":"{}")", problem))
              << std::endl;
    if (problem.empty()) return;
    complete_ = false;
    std::cerr << "router_bench: " << row << ": " << problem << std::endl;
  }

  Measured measure(const Router& router, const HttpLoad& load) const {
    std::thread beside;
    if (!options_.profile.empty()) {
      std::string command = options_.profile;
      const std::size_t at = command.find("{pid}");
      if (at != std::string::npos) command.replace(at, 5, std::to_string(router.pid()));
      // NOLINTNEXTLINE(concurrency-mt-unsafe): a developer's own command
      beside = std::thread([command] { (void)!std::system(command.c_str()); });
    }
    const double before = router.cpu_s();
    Measured measured{run_http_load(load), 0};
    measured.cpu_us = (router.cpu_s() - before) * 1e6;
    if (beside.joinable()) beside.join();
    return measured;
  }

  /// The repetition with the least CPU time per request, or one that has a problem.
  Measured best(const Router& router, const HttpLoad& load) const {
    std::optional<Measured> best;
    const auto cost = [](const Measured& m) {
      return m.cpu_us / static_cast<double>(std::max<std::uint64_t>(m.load.requests, 1));
    };
    for (int i = 0; i < options_.reps; ++i) {
      Measured next = measure(router, load);
      if (!next.load.problem().empty()) return next;
      if (!best || cost(next) < cost(*best)) best = next;
    }
    return *best;
  }

  void requests(const std::string& policy) {
    const Worker a(self_, 0, read_);
    const Worker b(self_, 0, read_);
    const Router router(folder_, policy, {&a, &b});
    if (policy == "round_robin" && wanted("rss_idle"))
      print("rss_idle", policy, 0, router.rss_mib(), "MiB", 20, {}, "");
    for (const std::size_t connections : {8, 32})
      request_cost("cpu_per_request_ids", policy, router, ids_load(router, connections));
    for (const std::size_t connections : {8, 32})
      request_cost("cpu_per_request_text", policy, router, text_load(router, connections));
    if (policy == "round_robin") added_latency(router, {&a, &b});
    if (!wanted("rss_loaded")) return;
    if (policy == "round_robin") loaded_memory(policy, router, 0);
    // What this one remembers grows with each request, so those of the rows before, which are as
    // many as the machine is fast, went to another one.
    if (policy == "cache_aware")
      loaded_memory(policy, Router(folder_, policy, {&a, &b}), kRemembered);
  }

  void loaded_memory(const std::string& policy,
                     const Router& router,
                     std::uint64_t least_requests) {
    HttpLoad load = text_load(router, 128);
    load.least_requests = least_requests;
    const HttpLoadResult last = run_http_load(load);
    print("rss_loaded", policy, 128, router.rss_mib(), "MiB", 40, last);
  }

  void request_cost(const std::string& row,
                    const std::string& policy,
                    const Router& router,
                    const HttpLoad& load) {
    if (!wanted(row)) return;
    const Measured m = best(router, load);
    print(row,
          policy,
          load.connections,
          m.cpu_us / static_cast<double>(m.load.requests),
          "us",
          policy == "cache_aware" ? 25 : 18,
          m.load);
  }

  HttpLoad ids_load(const Router& router, std::size_t connections) {
    return {.port = router.port(),
            .path = "/generate",
            .body = [this](std::size_t /*connection*/) { return ids_.body(++request_count_); },
            .connections = connections,
            .seconds = options_.seconds};
  }

  HttpLoad text_load(const Router& router, std::size_t connections) {
    return {.port = router.port(),
            .path = "/v1/chat/completions",
            .body = [this](std::size_t /*connection*/) { return text_.body(++request_count_); },
            .connections = connections,
            .seconds = options_.seconds};
  }

  /// One request at a time: of some repetitions the one with the smallest median each.
  struct Latency {
    std::optional<HttpLoadResult> direct;
    std::optional<HttpLoadResult> through;

    [[nodiscard]] double added_us() const { return through->p50_us - direct->p50_us; }
  };

  struct Latencies {
    Latency router;
    Latency relay;
  };

  /// Through the router and direct, through the bare relay and direct, all of them in turn.
  [[nodiscard]] Latencies latencies(const HttpLoad& routed,
                                    const Worker& worker,
                                    const MessageSizes& sizes) const {
    const auto run = [&](std::uint16_t port, std::optional<HttpLoadResult>& best) {
      HttpLoad load = routed;
      load.port = port;
      const HttpLoadResult result = run_http_load(load);
      if (const std::string problem = result.problem(); !problem.empty())
        throw std::runtime_error(problem);
      if (!best || result.p50_us < best->p50_us) best = result;
    };
    Latencies found;
    for (int i = 0; i < std::max(options_.reps, 3); ++i) {
      run(routed.port, found.router.through);
      run(worker.port, found.router.direct);
      // A new one each time: where two processes once are the scheduler leaves them for seconds.
      const BareRelay bare(self_, sizes);
      run(bare.relay_port(), found.relay.through);
      run(bare.server_port(), found.relay.direct);
    }
    return found;
  }

  /// As many bytes as the router's clients send and get.
  static MessageSizes message_sizes(HttpLoad load) {
    load.seconds = 0.01;
    const HttpLoadResult seen = run_http_load(load);
    if (const std::string problem = seen.problem(); !problem.empty())
      throw std::runtime_error(problem);
    return {.request_bytes = seen.sent_bytes / seen.requests,
            .answer_bytes = seen.received_bytes / seen.requests};
  }

  /// Says what went wrong, if something did: other rows do not need these.
  void added_latency(const Router& router, const std::array<const Worker*, 2>& workers) {
    try {
      measure_added_latency(router, workers);
    } catch (const std::exception& error) {
      complete_ = false;
      std::cerr << "router_bench: added latency: " << error.what() << std::endl;
    }
  }

  void measure_added_latency(const Router& router, const std::array<const Worker*, 2>& workers) {
    const bool as_placed = wanted("added_p50") || wanted("relay_p50");
    const bool one_cpu =
        (wanted("added_p50_one_cpu") || wanted("relay_p50_one_cpu")) && OneProcessor::differs();
    if (!as_placed && !one_cpu) return;
    const Worker& direct = *workers.front();
    const HttpLoad load = ids_load(router, 1);
    const MessageSizes sizes = message_sizes(load);
    if (as_placed) {
      const Latencies found = latencies(load, direct, sizes);
      const double session =
          SessionLatency::p50_us(std::make_shared<SessionLatency>(), direct.port);
      print("session_p50",
            "round_robin",
            1,
            session,
            "us",
            std::nullopt,
            {},
            session > 0 ? "" : "no answer");
      print_added("", found, 20);
    }
    if (one_cpu) {
      // What this process starts meanwhile, the bare relay, stays there with it.
      const OneProcessor pinned(
          {::getpid(), router.pid(), workers[0]->child.pid(), workers[1]->child.pid()});
      const Latencies found = latencies(load, direct, sizes);
      print_added("_one_cpu", found, std::nullopt);
    }
  }

  void print_added(const std::string& where, const Latencies& found, std::optional<double> target) {
    const auto print_one = [&](const char* row,
                               double value_us,
                               std::optional<double> target_us,
                               const HttpLoadResult& load) {
      print(row + where, "round_robin", 1, value_us, "us", target_us, load);
    };
    const auto& [router, relay] = found;
    print_one("direct_p50", router.direct->p50_us, std::nullopt, *router.direct);
    print_one("relay_p50", relay.added_us(), std::nullopt, *relay.through);
    print_one("added_p50", router.added_us(), target, *router.through);
  }

  void streams(int step_us, const std::string& name) {
    const std::string row = "cpu_per_token_" + name;
    if (!wanted(row) && !wanted("stream_rate_" + name)) return;
    const Worker a(self_, step_us, read_);
    const Worker b(self_, step_us, read_);
    const Router router(folder_, "round_robin", {&a, &b});
    const ChatBodies bodies({.max_tokens = kStreamTokens, .text_bytes = 500, .stream = true});
    for (const std::size_t connections : {1, 32}) {
      const HttpLoad load = {
          .port = router.port(),
          .path = "/v1/chat/completions",
          .body = [&](std::size_t connection) { return bodies.body(++request_count_, connection); },
          .connections = connections,
          .seconds = options_.seconds,
          .answer_tokens = kStreamTokens,
          .read = &read_};
      const Measured m = best(router, load);
      const auto tokens = static_cast<double>(m.load.tokens);
      print(row, "round_robin", connections, m.cpu_us / tokens, "us", 1.5, m.load);
      print("stream_rate_" + name,
            "round_robin",
            connections,
            tokens / m.load.seconds,
            "tokens/s",
            step_us == 0 && connections == 1 ? std::optional<double>(118'000) : std::nullopt,
            m.load);
    }
  }

  Options options_;
  std::string self_;
  std::string folder_;
  ReadTokens read_;
  IdsBodies ids_{kPromptTokens};
  ChatBodies text_{{.max_tokens = kWholeTokens, .text_bytes = kTextBytes}};
  std::uint64_t request_count_ = 0;
  bool complete_ = true;  ///< no row lacks its figure
};

}  // namespace

int main(int argc, char** argv) {
  if (argc == 5 && std::strcmp(argv[1], "worker") == 0) {
    return run_fake_worker(std::atoi(argv[2]), std::atoi(argv[3]), ReadTokens(std::atoi(argv[4])));
  }
  if (argc == 4 && std::strcmp(argv[1], BareRelay::kServerCommand) == 0)
    return run_bare_server(
        {.request_bytes = std::stoul(argv[2]), .answer_bytes = std::stoul(argv[3])});
  if (argc == 3 && std::strcmp(argv[1], BareRelay::kRelayCommand) == 0)
    return run_bare_relay(static_cast<std::uint16_t>(std::stoul(argv[2])));
  Options options;
  for (int i = 1; i + 1 < argc; i += 2) {
    const std::string_view name = argv[i];
    if (name == "--seconds") options.seconds = std::atof(argv[i + 1]);
    if (name == "--reps") options.reps = std::max(std::atoi(argv[i + 1]), 1);
    if (name == "--policy") options.policy = argv[i + 1];
    if (name == "--only") options.only = argv[i + 1];
    if (name == "--profile") options.profile = argv[i + 1];
  }
  try {
    Bench bench(options, std::filesystem::canonical("/proc/self/exe").string());
    return bench.run() ? 0 : 1;
  } catch (const std::exception& error) {
    std::cerr << "router_bench: " << error.what() << "\n";
    return 1;
  }
}
