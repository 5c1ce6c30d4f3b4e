#include "common/worker/worker_main.h"

#include "common/api/auth.h"
#include "common/args/args.h"
#include "common/base/clock.h"
#include "common/bootstrap/bootstrap_server.h"
#include "common/http/router.h"
#include "common/json/parse.h"
#include "common/obs/log.h"
#include "common/rpc/library.h"
#include "common/serve/front_door.h"
#include "common/serve/model_text.h"
#include "common/serve/process.h"
#include "common/transfer/transport.h"
#include "common/weights/checkpoint.h"
#include "common/worker/worker.h"

#include <fmt/format.h>

#include <atomic>
#include <cstdio>
#include <filesystem>
#include <future>
#include <optional>
#include <thread>
#include <utility>

namespace tandem::worker {
namespace {

constexpr std::size_t kTokenizerFileMax = 256U << 20U;

/// Everything that one run of the program holds, in the order in which it is made.
struct Program {
  const args::Arguments& args;
  std::uint64_t memory_bytes;
  serve::Signals& signals;
  Time began;
  serve::Ports ports = {};
  std::unique_ptr<serve::FrontDoor> door = nullptr;
  std::unique_ptr<bootstrap::BootstrapServer> bootstrap = nullptr;
  std::unique_ptr<Worker> worker = nullptr;

  [[nodiscard]] bool is_prefill() const {
    return args.disaggregation.mode == args::DisaggregationMode::kPrefill;
  }

  [[nodiscard]] bool is_unified() const {
    return args.disaggregation.mode == args::DisaggregationMode::kNull;
  }
};

/// A router on another machine has no model folder: it takes the tokenizer from a worker.
void add_tokenizer_route(http::Router& router, const std::string& folder) {
  router.add(
      "GET",
      "/tokenizer_files/*",
      [folder](http::Request&& request, std::shared_ptr<http::ResponseWriter> writer) {
        const std::string name = request.path.substr(request.path.rfind('/') + 1);
        for (const char* known : {"tokenizer.json",
                                  "tokenizer_config.json",
                                  "chat_template.jinja",
                                  "special_tokens_map.json"}) {
          if (name != known) continue;
          auto text =
              json::read_text_file(std::filesystem::path(folder) / known, kTokenizerFileMax);
          if (!text.ok()) break;
          writer->send(200, {{"content-type", "application/octet-stream"}}, std::move(*text));
          return;
        }
        writer->send(404,
                     {{"content-type", "application/json"}},
                     http::error_json(404, "no such tokenizer file: " + name));
      });
}

/// The embedded bootstrap service of a prefill worker, or the address of the one that it was told
/// of.
Result<std::string> start_bootstrap(Program& program) {
  const auto& options = program.args.disaggregation;
  if (options.bootstrap_address) return *options.bootstrap_address;
  if (!program.is_prefill()) return std::string();
  program.bootstrap = std::make_unique<bootstrap::BootstrapServer>(bootstrap::BootstrapOptions{});
  auto port = program.bootstrap->start(program.args.server.host, options.bootstrap_port);
  if (!port.ok()) return port.status();
  program.ports.bootstrap = *port;
  // Registering with oneself goes over the loopback unless the service listens elsewhere only.
  const std::string& host = program.args.server.host;
  const bool any = host == "0.0.0.0" || host == "::" || host == "[::]";
  return (any ? std::string("127.0.0.1") : host) + ":" + std::to_string(*port);
}

Status open_door(Program& program, serve::ModelText text) {
  const args::Arguments& args = program.args;
  serve::FrontDoorSetup setup;
  setup.api.model = program.worker->served_model();
  if (args.server.api_key) setup.api.api_key = obs::Secret(*args.server.api_key);
  setup.api.enable_cache_report = args.server.enable_cache_report;
  setup.api.enable_metrics = args.observability.enable_metrics;
  setup.api.draw_seed = serve::seed_stream(args.runtime.random_seed);
  setup.log_requests = args.observability.log_requests;
  auto computed = program.worker->computed_arguments();
  computed["port"] = std::to_string(program.ports.http);
  computed["grpc_port"] = std::to_string(program.ports.grpc);
  if (program.ports.bootstrap != 0)
    computed["disaggregation_bootstrap_port"] = std::to_string(program.ports.bootstrap);
  setup.api.server_args_json = args::dump_json(args, computed);
  setup.api.startup_seconds = (steady_clock().now() - program.began).seconds();
  setup.api.engine_type =
      program.is_unified() ? "unified" : std::string(args::to_string(args.disaggregation.mode));
  setup.generator = program.worker->generator();
  setup.tokenizer = std::move(text.tokenizer);
  setup.chat = std::move(text.chat);
  std::function<bool(std::string_view)> authorize;
  if (args.server.api_key) {
    authorize = [check = api::KeyCheck(obs::Secret(*args.server.api_key))](
                    std::string_view authorization) { return check.allows(authorization); };
  }
  setup.services = program.worker->services(authorize);
  setup.add_routes = [folder = args.model.tokenizer_path](http::Router& router) {
    add_tokenizer_route(router, folder);
  };
  return program.door->open(std::move(setup));
}

/// The pool is never larger than memory allows, whatever was asked for; said, not hidden.
void warn_of_clamped_pool(const args::Arguments& args, const WorkerPlan& plan) {
  const auto asked = static_cast<std::int64_t>(args.kv_cache.max_total_tokens.value_or(0));
  if (asked / plan.page_size <= plan.page_count) return;
  obs::warn("argument",
            {{"note",
              "--max-total-tokens " + std::to_string(asked) + " is more than memory holds; using " +
                  std::to_string(plan.max_total_tokens) + " (see --mem-fraction-static)"}});
}

void warn_of_missing_scales(const WorkerPlan& plan) {
  if (!kernels::is_fp8(plan.kv_dtype)) return;
  obs::warn("argument",
            {{"note",
              fmt::format("--kv-cache-dtype {}: every scale is 1.0, since none is given; values "
                          "above {} are stored as that, and answers are less accurate than with "
                          "auto",
                          kernels::dtype_name(plan.kv_dtype),
                          plan.kv_dtype == kernels::DType::kFp8E5m2 ? 57344 : 448)}});
}

/// The arguments know what the processor has, the kernels whether it can be used.
void warn_of_missing_tiles(const args::Arguments& args, const WorkerPlan& plan) {
  std::string reason;
  if (args.runtime.attention_backend != args::AttentionBackend::kIntelAmx ||
      args.runtime.kernel_family != args::KernelFamily::kAuto ||
      kernels::select(kernels::Family::kAmx, &reason) != nullptr)
    return;
  obs::warn("argument",
            {{"note",
              fmt::format("--attention-backend intel_amx: amx cannot run here: {}; using {}",
                          reason,
                          kernels::family_name(plan.backend->family()))}});
}

/// A limit that another one lifts is told.
void tell_lifted_limit(const args::Arguments& args, const WorkerPlan& plan) {
  const auto asked = static_cast<std::int64_t>(args.scheduling.max_prefill_tokens);
  if (!args.is_explicit("max_prefill_tokens") || asked >= plan.context_length) return;
  obs::info("argument",
            {{"note",
              "--max-prefill-tokens " + std::to_string(asked) +
                  " is below the context length, which is in force: " +
                  std::to_string(plan.context_length)}});
}

/// Tokenizer and chat template, read by a thread of their own while weights are read.
class TextToCome {
 public:
  /// Makes `failed` true when they cannot be had; borrowed, like `model`.
  TextToCome(const args::ModelOptions& model, std::atomic<bool>& failed)
      // Deferred where the system refuses a thread: then it is read when it is asked for.
      : text_(std::async(std::launch::async | std::launch::deferred, [&model, &failed] {
          auto text = serve::load_model_text(model.tokenizer_path, model.chat_template);
          if (!text.ok()) failed = true;
          return text;
        })) {}

  /// Waits; then it is there for as long as this lives.
  const Result<serve::ModelText>& get() { return text_.get(); }

 private:
  std::shared_future<Result<serve::ModelText>> text_;
};

/// Waits for a signal to stop while weights are read, which may take minutes. For its life nobody
/// else may ask `signals`.
class StopWatcher {
 public:
  /// Makes `stop` true when a signal comes.
  StopWatcher(serve::Signals& signals, std::atomic<bool>& stop)
      : thread_([this, &signals, &stop] {
          while (!over_) {
            // Short, since the start waits for the end of this thread.
            if (!signals.stop_requested(milliseconds(5))) continue;
            stop = true;
            return;
          }
        }) {}

  StopWatcher(const StopWatcher&) = delete;
  StopWatcher& operator=(const StopWatcher&) = delete;

  ~StopWatcher() {
    over_ = true;
    thread_.join();
  }

 private:
  std::atomic<bool> over_{false};
  std::thread thread_;
};

Status serve_model(Program& program,
                   const WorkerPlan& plan,
                   TextToCome& text,
                   std::atomic<bool>& unwanted) {
  const args::Arguments& args = program.args;
  program.door = std::make_unique<serve::FrontDoor>(args.server);
  TANDEM_TRY(program.ports, program.door->listen());
  TANDEM_TRY(const std::string bootstrap_address, start_bootstrap(program));
  obs::info("plan",
            {{"load_format", args::to_string(args.model.load_format)},
             {"kernels", kernels::family_name(plan.backend->family())},
             {"dtype", kernels::dtype_name(plan.dtype)},
             {"kv_cache_dtype", kernels::dtype_name(plan.kv_dtype)},
             {"weights_bytes", plan.memory.weight_bytes},
             {"pool_pages", plan.page_count},
             {"pool_bytes", plan.pool_bytes()},
             {"threads", args.runtime.compute_threads},
             {"random_seed", args.runtime.random_seed}});
  const WorkerAddresses addresses{.host = serve::advertised_host(args),
                                  .http_port = program.ports.http,
                                  .grpc_port = program.ports.grpc,
                                  .bootstrap_port = program.ports.bootstrap};
  const auto vocabulary_digest = [&text]() -> Result<std::string> {
    const Result<serve::ModelText>& loaded = text.get();
    if (!loaded.ok()) return loaded.status();
    return loaded->tokenizer->vocabulary_digest();
  };
  {
    const StopWatcher watcher(program.signals, unwanted);
    TANDEM_TRY(program.worker,
               Worker::create(args,
                              plan,
                              addresses,
                              {.vocabulary_digest = vocabulary_digest, .unwanted = &unwanted}));
  }
  TANDEM_TRY(open_door(program, *text.get()));
  if (!program.is_unified() && !bootstrap_address.empty())
    program.worker->register_at(bootstrap_address);
  if (args.server.port_file)
    TANDEM_TRY(serve::write_port_file(*args.server.port_file, program.ports));
  return {};
}

Status start(Program& program) {
  const args::Arguments& args = program.args;
  TANDEM_TRY(const WorkerPlan plan, make_plan(args, program.memory_bytes));
  warn_of_clamped_pool(args, plan);
  warn_of_missing_scales(plan);
  warn_of_missing_tiles(args, plan);
  tell_lifted_limit(args, plan);
  std::atomic<bool> unwanted{false};
  TextToCome text(args.model, unwanted);
  const Status served = serve_model(program, plan, text, unwanted);
  if (!served.ok()) {
    if (program.signals.stop_requested({})) {
      obs::info("not_started", {{"reason", served.message()}});
      return {};
    }
    // Small files first, whatever else was wrong by then: nobody waits for weights to hear that a
    // template is not there.
    return text.get().ok() ? served : text.get().status();
  }
  obs::info("ready",
            {{"program", args::program_name(args.program)},
             {"mode", args::to_string(args.disaggregation.mode)},
             {"model", args.model.model_path},
             {"port", program.ports.http},
             {"grpc_port", program.ports.grpc},
             {"bootstrap_port", program.ports.bootstrap},
             {"startup_ms", (steady_clock().now() - program.began).milliseconds()}});
  return {};
}

/// In-flight requests end first, as long as the grace lasts; a second signal does not shorten it.
void drain(Program& program) {
  const Time until =
      steady_clock().now() +
      seconds(static_cast<std::int64_t>(program.args.server.shutdown_grace_period_secs));
  if (program.worker) {
    program.worker->drain();
    while (!program.worker->idle() && steady_clock().now() < until) {
      timespec pause{.tv_sec = 0, .tv_nsec = 5'000'000};
      nanosleep(&pause, nullptr);
    }
  }
  if (program.worker) program.worker->stop();
  if (program.door) program.door->close(milliseconds(200));
  if (program.bootstrap) program.bootstrap->stop();
}

int dry_run(const args::Arguments& args, std::uint64_t memory_bytes) {
  const auto plan = make_plan(args, memory_bytes);
  if (!plan.ok()) return serve::fail(args.program, plan.status());
  warn_of_clamped_pool(args, *plan);
  warn_of_missing_scales(*plan);
  warn_of_missing_tiles(args, *plan);
  tell_lifted_limit(args, *plan);
  std::optional<CheckpointFacts> facts;
  if (weights::has_checkpoint(args.model.model_path)) {
    auto read = read_checkpoint_facts(args.model.model_path, plan->kv_dtype);
    if (!read.ok()) return serve::fail(args.program, read.status());
    facts = std::move(*read);
  }
  const auto text = serve::load_model_text(args.model.tokenizer_path, args.model.chat_template);
  if (!text.ok()) return serve::fail(args.program, text.status());
  std::fputs(plan_text(*plan, facts ? &*facts : nullptr).c_str(), stdout);
  return 0;
}

}  // namespace

int worker_main(args::Program program, int argc, const char* const* argv) {
  const Time began = steady_clock().now();
  transfer::tame_ucx();
  const args::Environment environment = args::Environment::system();
  const args::ParseOutcome outcome = args::parse(program, argc, argv, environment);
  const serve::Started started = serve::start_process(outcome);
  if (started.exits) return started.exit_status;
  if (outcome.args.command.dry_run) return dry_run(outcome.args, environment.memory_bytes);
  serve::Signals signals;
  const rpc::Library library;
  Program run{.args = outcome.args,
              .memory_bytes = environment.memory_bytes,
              .signals = signals,
              .began = began};
  const Status status = start(run);
  if (status.ok()) {
    while (!signals.stop_requested(seconds(60))) {
    }
  }
  drain(run);
  run.worker.reset();
  run.door.reset();
  run.bootstrap.reset();
  return status.ok() ? 0 : serve::fail(program, status);
}

}  // namespace tandem::worker
