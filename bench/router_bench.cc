// What the router costs: CPU time per request and per relayed token, added latency, memory.
//
//   router_bench [--seconds 1] [--reps 3] [--policy NAME] [--only ROW] [--profile COMMAND]
//
// Starts two fake workers (this program again) and build/<preset>/bin/router in front of them, puts
// load on it from this process, and reads the router's own CPU time from /proc, so that client and
// workers are outside the figures. One JSON line per figure with its target beside it; each is the
// best of --reps, since a neighbour can only add. `{pid}` in --profile becomes the router's pid;
// the command runs beside the load.
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
#include "bench/router/child.h"
#include "bench/router/fake_worker.h"
#include "bench/router/http_load.h"
#include "bench/router/one_processor.h"
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

struct Options {
  double seconds = 1;
  int reps = 3;
  std::string policy;
  std::string only;
  std::string profile;
};

struct Worker {
  Worker(const std::string& self, int step_us)
      : child({self, "worker", std::to_string(step_us), std::to_string(kWholeTokens)}) {
    std::istringstream(child.first_line()) >> grpc_port >> http_port;
    if (http_port == 0) throw std::runtime_error("a fake worker did not start");
  }

  Child child;
  int grpc_port = 0;
  std::uint16_t http_port = 0;
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
      words.push_back("grpc://127.0.0.1:" + std::to_string(worker->grpc_port));
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

std::string ids_body() {
  std::string ids;
  for (int i = 0; i < kPromptTokens; ++i)
    ids += (i == 0 ? "" : ",") + std::to_string(300 + i * 7 % 1500);
  return R"({"input_ids":[)" + ids +
         R"(],"sampling_params":{"max_new_tokens":8,"ignore_eos":true,"temperature":0}})";
}

std::string text_of(std::size_t bytes) {
  std::string text;
  while (text.size() < bytes)
    text += "the quick brown fox jumps over the lazy dog ";
  return text.substr(0, bytes);
}

std::string chat_body(int max_tokens, std::size_t bytes, bool stream) {
  return R"({"model":"m","max_tokens":)" + std::to_string(max_tokens) +
         R"(,"ignore_eos":true,"stream":)" + (stream ? "true" : "false") +
         R"(,"messages":[{"role":"user","content":")" + text_of(bytes) + R"("}]})";
}

/// One request after the other on a session, as the router sends them: what of its added latency is
/// the worker's gRPC server and the way there.
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

  /// The median round trip; the handler is `self`.
  static double p50_us(const std::shared_ptr<SessionLatency>& self, int grpc_port) {
    async::IoPool io(1, "session");
    rpc::SessionClient::Options options;
    options.io = &io;
    options.client.address = "127.0.0.1:" + std::to_string(grpc_port);
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

  void run() {
    for (const char* policy : {"round_robin", "power_of_two", "cache_aware"}) {
      if (!options_.policy.empty() && options_.policy != policy) continue;
      requests(policy);
    }
    streams(0, "fast");
    streams(kPacedStepUs, "paced");
  }

 private:
  struct Measured {
    HttpLoadResult load;
    double cpu_us = 0;  ///< of the router in all
  };

  [[nodiscard]] bool wanted(const std::string& row) const {
    return row.find(options_.only) != std::string::npos;
  }

  static void print(const std::string& row,
                    const std::string& policy,
                    std::size_t connections,
                    double value,
                    const std::string& unit,
                    std::optional<double> target,
                    const HttpLoadResult& load) {
    std::cout
        << fmt::format(
               R"({{"bench":"router","row":"{}","policy":"{}","connections":{},"value":{:.3f},)"
               R"("unit":"{}","target":{},"requests_per_s":{:.0f},"errors":{}}})",
               row,
               policy,
               connections,
               value,
               unit,
               target ? fmt::format("{}", *target) : "null",
               static_cast<double>(load.requests) / std::max(load.seconds, 1e-9),
               load.errors)
        << std::endl;
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

  /// The repetition with the least CPU time per request.
  Measured best(const Router& router, const HttpLoad& load) const {
    std::optional<Measured> best;
    const auto cost = [](const Measured& m) {
      return m.cpu_us / static_cast<double>(std::max<std::uint64_t>(m.load.requests, 1));
    };
    for (int i = 0; i < options_.reps; ++i) {
      const Measured next = measure(router, load);
      if (!best || cost(next) < cost(*best)) best = next;
    }
    return *best;
  }

  void requests(const std::string& policy) {
    const Worker a(self_, 0);
    const Worker b(self_, 0);
    const Router router(folder_, policy, {&a, &b});
    if (policy == "round_robin" && wanted("rss_idle"))
      print("rss_idle", policy, 0, router.rss_mib(), "MiB", 20, {});

    struct Kind {
      const char* name;
      const char* path;
      std::string body;
    };

    const Kind kinds[] = {
        {"cpu_per_request_ids", "/generate", ids_body()},
        {"cpu_per_request_text", "/v1/chat/completions", chat_body(kWholeTokens, 1800, false)}};
    for (const Kind& kind : kinds) {
      if (!wanted(kind.name)) continue;
      for (const std::size_t connections : {8, 32}) {
        const Measured m = best(router, load(router, kind.path, kind.body, connections));
        print(kind.name,
              policy,
              connections,
              m.cpu_us / static_cast<double>(std::max<std::uint64_t>(m.load.requests, 1)),
              "us",
              policy == "cache_aware" ? 25 : 18,
              m.load);
      }
    }
    if (policy != "round_robin") return;
    added_latency(router, {&a, &b});
    if (wanted("rss_loaded")) {
      const HttpLoadResult last =
          run_http_load(load(router, "/v1/chat/completions", kinds[1].body, 128));
      print("rss_loaded", policy, 128, router.rss_mib(), "MiB", 40, last);
    }
  }

  [[nodiscard]] HttpLoad load(const Router& router,
                              const std::string& path,
                              const std::string& body,
                              std::size_t connections) const {
    return {.port = router.port(),
            .path = path,
            .body = body,
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
      if (result.requests == 0) throw std::runtime_error("no answer to one request at a time");
      if (!best || result.p50_us < best->p50_us) best = result;
    };
    Latencies found;
    for (int i = 0; i < std::max(options_.reps, 3); ++i) {
      run(routed.port, found.router.through);
      run(worker.http_port, found.router.direct);
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
    if (seen.requests == 0 || seen.errors != 0)
      throw std::runtime_error("the router does not answer each request");
    return {.request_bytes = seen.sent_bytes / seen.requests,
            .answer_bytes = seen.received_bytes / seen.requests};
  }

  /// Says what went wrong, if something did: other rows do not need these.
  void added_latency(const Router& router, const std::array<const Worker*, 2>& workers) const {
    try {
      measure_added_latency(router, workers);
    } catch (const std::exception& error) {
      std::cerr << "router_bench: added latency: " << error.what() << std::endl;
    }
  }

  void measure_added_latency(const Router& router,
                             const std::array<const Worker*, 2>& workers) const {
    const bool as_placed = wanted("added_p50") || wanted("relay_p50");
    const bool one_cpu =
        (wanted("added_p50_one_cpu") || wanted("relay_p50_one_cpu")) && OneProcessor::differs();
    if (!as_placed && !one_cpu) return;
    const Worker& direct = *workers.front();
    const HttpLoad load = this->load(router, "/generate", ids_body(), 1);
    const MessageSizes sizes = message_sizes(load);
    if (as_placed) {
      const Latencies found = latencies(load, direct, sizes);
      const double session =
          SessionLatency::p50_us(std::make_shared<SessionLatency>(), direct.grpc_port);
      print("session_p50", "round_robin", 1, session, "us", std::nullopt, {});
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

  static void print_added(const std::string& where,
                          const Latencies& found,
                          std::optional<double> target) {
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
    const Worker a(self_, step_us);
    const Worker b(self_, step_us);
    const Router router(folder_, "round_robin", {&a, &b});
    const std::string body = chat_body(kStreamTokens, 500, true);
    for (const std::size_t connections : {1, 32}) {
      const Measured m = best(router, load(router, "/v1/chat/completions", body, connections));
      const auto tokens = static_cast<double>(m.load.requests * kStreamTokens);
      print(row, "round_robin", connections, m.cpu_us / std::max(tokens, 1.0), "us", 1.5, m.load);
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
};

}  // namespace

int main(int argc, char** argv) {
  if (argc == 4 && std::strcmp(argv[1], "worker") == 0)
    return run_fake_worker(std::atoi(argv[2]), std::atoi(argv[3]));
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
    Bench(options, std::filesystem::canonical("/proc/self/exe").string()).run();
  } catch (const std::exception& error) {
    std::cerr << "router_bench: " << error.what() << "\n";
    return 1;
  }
  return 0;
}
