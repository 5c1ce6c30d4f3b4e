#include "common/fleet/router_main.h"

#include "common/args/args.h"
#include "common/base/clock.h"
#include "common/fleet/fleet.h"
#include "common/fleet/local_workers.h"
#include "common/fleet/remote_model.h"
#include "common/fleet/worker_address.h"
#include "common/obs/log.h"
#include "common/rpc/library.h"
#include "common/serve/front_door.h"
#include "common/serve/model_text.h"
#include "common/serve/process.h"

#include <fmt/format.h>
#include <link.h>
#include <spawn.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <map>
#include <mutex>
#include <set>
#include <string>
#include <utility>
#include <vector>

namespace tandem::fleet {
namespace {

/// Most of the program was read for starting only. Its pages are the file's: those that are wanted
/// again come back from the system's cache, the others need no longer count as this process's.
void release_program_pages() {
  const auto release = [](dl_phdr_info* program, std::size_t /*bytes*/, void* /*none*/) {
    const auto page = static_cast<std::uintptr_t>(::sysconf(_SC_PAGESIZE));
    for (int i = 0; i < program->dlpi_phnum; ++i) {
      const auto& segment = program->dlpi_phdr[i];
      if (segment.p_type != PT_LOAD || (segment.p_flags & PF_W) != 0) continue;
      const std::uintptr_t begin = (program->dlpi_addr + segment.p_vaddr) / page * page;
      const std::uintptr_t end = program->dlpi_addr + segment.p_vaddr + segment.p_memsz;
      (void)::madvise(reinterpret_cast<void*>(begin), end - begin, MADV_DONTNEED);
    }
    return 1;  // libraries follow
  };
  ::dl_iterate_phdr(release, nullptr);
}

balance::Method policy(args::RoutingPolicy name) {
  switch (name) {
    case args::RoutingPolicy::kRandom:
      return balance::Method::kRandom;
    case args::RoutingPolicy::kRoundRobin:
      return balance::Method::kRoundRobin;
    case args::RoutingPolicy::kPowerOfTwo:
      return balance::Method::kPowerOfTwo;
    case args::RoutingPolicy::kCacheAware:
      return balance::Method::kCacheAware;
    case args::RoutingPolicy::kLeastLoad:
      break;
  }
  return balance::Method::kLeastLoad;
}

FleetOptions fleet_options(const args::Arguments& args) {
  FleetOptions options;
  options.disaggregated = args.router.pd_disaggregation;
  options.policy = policy(args.router.policy);
  options.prefill_policy = policy(args.router.prefill_policy);
  options.decode_policy = policy(args.router.decode_policy);
  options.cache.cache_threshold = args.router.cache_threshold;
  options.cache.balance_abs_threshold = args.router.balance_abs_threshold;
  options.cache.balance_rel_threshold = args.router.balance_rel_threshold;
  options.max_tree_size = args.router.max_tree_size;
  options.eviction_interval = seconds(args.router.eviction_interval_secs);
  options.stall_timeout = milliseconds(args.router.worker_stall_timeout_ms);
  options.no_progress_timeout = {options.stall_timeout.ns * 5};
  options.request_timeout = seconds(args.router.request_timeout_secs);
  options.max_concurrent_requests = args.router.max_concurrent_requests;
  options.queue_size = args.router.queue_size;
  options.random_seed = args.runtime.random_seed;
  options.api_key = args.server.api_key.value_or("");
  return options;
}

Result<std::vector<WorkerAddress>> given_addresses(const args::RouterOptions& router) {
  std::vector<WorkerAddress> addresses;
  for (const std::string& url : router.worker_urls) {
    TANDEM_TRY(WorkerAddress address, parse_worker_url(url, rpc::Role::kUnified));
    addresses.push_back(std::move(address));
  }
  for (const args::PrefillUrl& prefill : router.prefill) {
    TANDEM_TRY(WorkerAddress address, parse_worker_url(prefill.url, rpc::Role::kPrefill));
    address.bootstrap_port = prefill.bootstrap_port;
    addresses.push_back(std::move(address));
  }
  for (const std::string& url : router.decode) {
    TANDEM_TRY(WorkerAddress address, parse_worker_url(url, rpc::Role::kDecode));
    addresses.push_back(std::move(address));
  }
  return addresses;
}

LocalWorkerSpec local_spec(const args::Arguments& args, rpc::Role role, std::uint32_t sharers) {
  const auto mode = role == rpc::Role::kPrefill  ? args::DisaggregationMode::kPrefill
                    : role == rpc::Role::kDecode ? args::DisaggregationMode::kDecode
                                                 : args::DisaggregationMode::kNull;
  LocalWorkerSpec spec{.role = role, .argv = {}};
  spec.argv.push_back(
      sibling_program(role == rpc::Role::kDecode ? "decode-server" : "prefill-server"));
  for (std::string& word : args::worker_argv(args, mode))
    spec.argv.push_back(std::move(word));
  spec.argv.insert(spec.argv.end(), {"--host=127.0.0.1", "--port=0"});
  if (mode != args::DisaggregationMode::kNull) {
    spec.argv.push_back(fmt::format("--disaggregation-mode={}", args::to_string(mode)));
  }
  if (role == rpc::Role::kPrefill && args.is_explicit("disaggregation_bootstrap_port")) {
    spec.argv.push_back(
        fmt::format("--disaggregation-bootstrap-port={}", args.disaggregation.bootstrap_port));
  }
  // Workers of one machine share its cores and memory.
  if (!args.is_explicit("compute_threads")) {
    spec.argv.push_back(
        fmt::format("--compute-threads={}", std::max(1U, args.runtime.compute_threads / sharers)));
  }
  if (sharers > 1) {
    std::erase_if(spec.argv, [](const std::string& word) {
      return word.starts_with("--mem-fraction-static");
    });
    spec.argv.push_back(
        fmt::format("--mem-fraction-static={}", args.kv_cache.mem_fraction_static / sharers));
  }
  return spec;
}

std::vector<LocalWorkerSpec> local_specs(const args::Arguments& args) {
  const std::uint32_t replicas = args.parallel.dp_size;
  std::vector<LocalWorkerSpec> specs;
  if (!args.router.pd_disaggregation) {
    for (std::uint32_t i = 0; i < replicas; ++i)
      specs.push_back(local_spec(args, rpc::Role::kUnified, replicas));
    return specs;
  }
  const std::uint32_t sharers = replicas + args.router.prefill_workers;
  for (std::uint32_t i = 0; i < args.router.prefill_workers; ++i) {
    specs.push_back(local_spec(args, rpc::Role::kPrefill, sharers));
  }
  for (std::uint32_t i = 0; i < replicas; ++i)
    specs.push_back(local_spec(args, rpc::Role::kDecode, sharers));
  return specs;
}

/// Why local workers cannot start, from the supervisor's thread to the one that waits for them.
class Hopeless {
 public:
  void set(const Status& why) {
    const std::lock_guard lock(mutex_);
    if (why_.ok()) why_ = why;
  }

  [[nodiscard]] Status get() const {
    const std::lock_guard lock(mutex_);
    return why_;
  }

 private:
  mutable std::mutex mutex_;  // one status between two threads, at most once
  Status why_;
};

/// Keeps the fleet's list in step with the lives of local workers.
std::unique_ptr<LocalWorkers> make_local_workers(Fleet& fleet,
                                                 const std::shared_ptr<Hopeless>& hopeless,
                                                 std::vector<LocalWorkerSpec> specs) {
  // Touched by the supervisor's thread alone.
  const auto numbers = std::make_shared<std::map<std::size_t, std::uint64_t>>();
  const auto roles = std::make_shared<std::vector<rpc::Role>>();
  for (const LocalWorkerSpec& spec : specs)
    roles->push_back(spec.role);
  // Set before the first of them starts; they end after the fleet has stopped.
  const auto workers = std::make_shared<LocalWorkers*>(nullptr);
  LocalWorkers::Events events;
  events.on_ready = [&fleet, numbers, roles, workers](std::size_t index,
                                                      const LocalWorkerPorts& ports) {
    WorkerAddress address;
    address.role = roles->at(index);
    address.host = "127.0.0.1";
    address.port = ports.http;
    if (ports.bootstrap != 0) address.bootstrap_port = ports.bootstrap;
    (*numbers)[index] =
        fleet.add_worker(std::move(address), [workers, index] { (*workers)->replace(index); });
  };
  events.on_exit = [&fleet, numbers](std::size_t index, const Status& /*why*/) {
    const auto found = numbers->find(index);
    if (found == numbers->end()) return;
    fleet.remove_worker(found->second);
    numbers->erase(found);
  };
  events.on_hopeless = [hopeless](std::size_t /*index*/, const Status& why) { hopeless->set(why); };
  auto made = std::make_unique<LocalWorkers>(std::move(specs), std::move(events));
  *workers = made.get();
  return made;
}

struct Program {
  const args::Arguments& args;
  serve::Signals& signals;
  Time began;
  serve::Ports ports = {};
  // Also reads what workers send; goes after the fleet, which has sockets in it.
  std::shared_ptr<async::IoPool> io = nullptr;
  std::shared_ptr<Fleet> fleet = nullptr;
  std::unique_ptr<LocalWorkers> local = nullptr;
  std::unique_ptr<serve::FrontDoor> door = nullptr;
};

/// The tokenizer is the router's own, or the one that a worker has.
Result<serve::ModelText> load_text(const Program& program) {
  const args::ModelOptions& model = program.args.model;
  if (!model.tokenizer_path.empty())
    return serve::load_model_text(model.tokenizer_path, model.chat_template);
  std::error_code error;
  const std::string local = program.fleet->served_model().tokenizer_path;
  if (!local.empty() && std::filesystem::exists(local + "/tokenizer.json", error)) {
    return serve::load_model_text(local, model.chat_template);
  }
  return fetch_model_text(program.fleet->model_source(),
                          program.args.server.api_key.value_or(""),
                          model.chat_template,
                          steady_clock().now() + seconds(30));
}

Status open_door(Program& program) {
  const args::Arguments& args = program.args;
  TANDEM_TRY(serve::ModelText text, load_text(program));
  serve::FrontDoorSetup setup;
  setup.api.model = program.fleet->served_model();
  const std::string& vocabulary = setup.api.model.vocabulary_digest;
  if (!vocabulary.empty() && vocabulary != text.tokenizer->vocabulary_digest()) {
    return invalid_argument(fmt::format(
        "argument --model-path: {} has another tokenizer than the model that the workers "
        "serve ({}); give that model's folder, or none to take a worker's tokenizer",
        args.model.tokenizer_path,
        setup.api.model.model_path));
  }
  if (!args.model.tokenizer_path.empty())
    setup.api.model.tokenizer_path = args.model.tokenizer_path;
  if (!args.server.served_model_name.empty())
    setup.api.model.served_model_name = args.server.served_model_name;
  if (args.server.api_key) setup.api.api_key = obs::Secret(*args.server.api_key);
  setup.api.enable_cache_report = args.server.enable_cache_report;
  setup.api.enable_metrics = args.observability.enable_metrics;
  if (args.is_explicit("random_seed"))
    setup.api.draw_seed = serve::seed_stream(args.runtime.random_seed);
  setup.log_requests = args.observability.log_requests;
  setup.api.server_args_json = args::dump_json(args,
                                               {{"port", std::to_string(program.ports.http)},
                                                {"grpc_port", std::to_string(program.ports.grpc)}});
  setup.api.startup_seconds = (steady_clock().now() - program.began).seconds();
  setup.api.engine_type = "router";
  setup.generator = program.fleet;
  setup.tokenizer = std::move(text.tokenizer);
  setup.chat = std::move(text.chat);
  return program.door->open(std::move(setup));
}

Status start(Program& program) {
  const args::Arguments& args = program.args;
  TANDEM_TRY(std::vector<WorkerAddress> addresses, given_addresses(args.router));
  program.door = std::make_unique<serve::FrontDoor>(args.server);
  TANDEM_TRY(program.ports, program.door->listen());
  program.io = program.door->io();
  FleetOptions options = fleet_options(args);
  options.io = program.io.get();
  program.fleet = std::make_shared<Fleet>(std::move(options));
  program.fleet->start();
  const auto hopeless = std::make_shared<Hopeless>();
  if (args.router.has_worker_addresses()) {
    for (WorkerAddress& address : addresses)
      program.fleet->add_worker(std::move(address));
  } else {
    std::error_code error;
    if (!std::filesystem::is_directory(args.model.model_path, error)) {
      return invalid_argument("argument --model-path: " + args.model.model_path +
                              ": no such folder (a local checkpoint folder with config.json is "
                              "expected)");
    }
    program.local = make_local_workers(*program.fleet, hopeless, local_specs(args));
    program.local->start();
  }
  const Time until = steady_clock().now() + seconds(args.router.worker_startup_timeout_secs);
  const Status waited = program.fleet->wait_ready(until, [&program, &hopeless] {
    return !hopeless->get().ok() || program.signals.stop_requested({0});
  });
  if (!waited.ok()) return hopeless->get().ok() ? waited : hopeless->get();
  TANDEM_TRY(open_door(program));
  release_program_pages();
  if (args.server.port_file)
    TANDEM_TRY(serve::write_port_file(*args.server.port_file, program.ports));
  obs::info("ready",
            {{"program", "router"},
             {"port", program.ports.http},
             {"grpc_port", program.ports.grpc},
             {"disaggregated", args.router.pd_disaggregation},
             {"startup_ms", (steady_clock().now() - program.began).milliseconds()}});
  return {};
}

void drain(Program& program) {
  const Duration grace =
      seconds(static_cast<std::int64_t>(program.args.server.shutdown_grace_period_secs));
  if (program.fleet) program.fleet->drain();
  // Streams that run may end; nothing new comes in.
  if (program.door) program.door->close(grace);
  if (program.fleet) program.fleet->stop();
  if (program.local) program.local->stop(seconds(5));
}

/// Runs a program that ends by itself on our stdout and stderr; its exit code, or 1.
int run_to_end(const std::vector<std::string>& words) {
  std::fflush(stdout);
  std::vector<char*> argv;
  for (const std::string& word : words)
    argv.push_back(const_cast<char*>(word.c_str()));  // NOLINT: posix_spawn's signature
  argv.push_back(nullptr);
  pid_t child = 0;
  const int error = posix_spawn(&child, argv[0], nullptr, nullptr, argv.data(), environ);
  if (error != 0) {
    return serve::fail(args::Program::kRouter,
                       unavailable("cannot start " + words.front() + ": " + std::strerror(error)));
  }
  int status = 0;
  if (waitpid(child, &status, 0) != child || !WIFEXITED(status)) return 1;
  return WEXITSTATUS(status);
}

int dry_run(const args::Arguments& args) {
  const auto addresses = given_addresses(args.router);
  if (!addresses.ok()) return serve::fail(args.program, addresses.status());
  if (args.router.has_worker_addresses()) {
    for (const WorkerAddress& address : *addresses) {
      const std::string_view role = rpc::role_name(address.role);
      std::printf(
          "worker %s (%.*s)\n", address.text().c_str(), static_cast<int>(role.size()), role.data());
    }
    const args::ModelOptions& model = args.model;
    if (model.tokenizer_path.empty()) return 0;
    const auto text = serve::load_model_text(model.tokenizer_path, model.chat_template);
    if (!text.ok()) return serve::fail(args.program, text.status());
    return 0;
  }
  std::set<std::vector<std::string>> different;
  for (const LocalWorkerSpec& spec : local_specs(args)) {
    std::printf("starts");
    for (const std::string& word : spec.argv)
      std::printf(" %s", word.c_str());
    std::printf("\n");
    different.insert(spec.argv);
  }
  // Each kind of worker checks its own arguments and prints its own memory plan.
  if (const std::size_t sharers = local_specs(args).size(); sharers > 1) {
    std::printf(
        "%zu workers share the memory: each has --mem-fraction-static %g of the router's %g, so "
        "multiply by %zu what a worker asks for\n",
        sharers,
        args.kv_cache.mem_fraction_static / static_cast<double>(sharers),
        args.kv_cache.mem_fraction_static,
        sharers);
  }
  for (std::vector<std::string> argv : different) {
    argv.emplace_back("--dry-run");
    const int code = run_to_end(argv);
    if (code != 0) return code;
  }
  return 0;
}

}  // namespace

int router_main(int argc, const char* const* argv) {
  const Time began = steady_clock().now();
  const args::Environment environment = args::Environment::system();
  const args::ParseOutcome outcome = args::parse(args::Program::kRouter, argc, argv, environment);
  const serve::Started started = serve::start_process(outcome);
  if (started.exits) return started.exit_status;
  if (outcome.args.command.dry_run) return dry_run(outcome.args);
  serve::Signals signals;
  const rpc::Library library;
  Program run{.args = outcome.args, .signals = signals, .began = began};
  const Status status = start(run);
  if (status.ok()) {
    while (!signals.stop_requested(seconds(60))) {
    }
  }
  drain(run);
  // A stop that was asked for while workers were still awaited is an orderly end.
  if (status.ok() || status.code() == Code::kCancelled) return 0;
  return serve::fail(args::Program::kRouter, status);
}

}  // namespace tandem::fleet
