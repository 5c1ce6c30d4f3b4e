// Descriptions of what surrounds the engine: listening, replicas, disaggregation, logs, and the
// programs' commands.
#include "common/args/spec.h"

namespace tandem::args {
namespace {

constexpr std::string_view kHttp = "HTTP server";
constexpr std::string_view kApi = "API related";
constexpr std::string_view kLogging = "Logging";
constexpr std::string_view kPd = "PD disaggregation";
constexpr std::string_view kReplicas = "Data parallelism";
constexpr std::string_view kUsage = "Usage";
constexpr Range kAnyPort = {.min = 0, .max = 65535};
constexpr Services kWorkers = kEngine;

}  // namespace

void describe(ServerOptions& o, Describe& visit) {
  visit(o.host,
        {.name = "host",
         .services = kEverywhere,
         .section = kHttp,
         .form = Form::kFilled,
         .tier = 1,
         .scope = "http",
         .common = true,
         .keep = true,
         .help = "Address to listen on: IPv4, IPv6 or a name; 0.0.0.0 is every interface."});
  visit(o.port,
        {.name = "port",
         .range = kAnyPort,
         .default_note = "on bootstrap-server that of --disaggregation-bootstrap-port",
         .services = kEverywhere,
         .section = kHttp,
         .tier = 1,
         .scope = "http",
         .common = true,
         .keep = true,
         .help =
             "Port of the HTTP (and gRPC) front end. 0 lets the system choose, see --port-file."});
  visit(o.grpc_port,
        {.name = "grpc-port",
         .range = kAnyPort,
         .default_note = "the same port as --port",
         .services = kServing,
         .section = kHttp,
         .keep = true,
         .help = "A port of its own for gRPC."});
  visit(
      o.port_file,
      {.name = "port-file",
       .services = kEverywhere,
       .section = kHttp,
       .form = Form::kFilled,
       .path = true,
       .keep = true,
       .help = "File that receives the ports in use as one JSON object once the program listens."});
  visit(o.api_key,
        {.name = "api-key",
         .services = kServing,
         .section = kApi,
         .form = Form::kKey,
         .tier = 1,
         .scope = "http",
         .secret = true,
         .keep = true,
         .help = "Key that clients must send as 'Authorization: Bearer <key>'; health checks stay "
                 "open."});
  visit(o.served_model_name,
        {.name = "served-model-name",
         .default_json = "null",
         .default_note = "computed: --model-path",
         .services = kServing,
         .section = kApi,
         .form = Form::kModelName,
         .tier = 1,
         .scope = "http",
         .common = true,
         .help = "Name of the model in /v1/models, in requests and in answers."});
  visit(o.enable_cache_report,
        {.name = "enable-cache-report",
         .services = kServing,
         .section = kApi,
         .tier = 1,
         .scope = "http",
         .help = "Report prompt tokens that came from the prefix cache in usage."});
  visit(o.stream_interval,
        {.name = "stream-interval",
         .range = {.min = 1},
         .services = kEngine,
         .section = "Runtime options",
         .tier = 1,
         .scope = "http",
         .help = "Tokens between two streamed events; the first and last are always sent."});
  visit(o.max_body_bytes,
        {.name = "max-body-bytes",
         .range = {.min = 1024, .max = 1ULL << 32},
         .services = kEverywhere,
         .section = kHttp,
         .unit = Unit::kBytes,
         .keep = true,
         .help = "Largest request body that is read; a longer one gets status 413."});
  visit(o.http_threads,
        {.name = "http-threads",
         .range = {.min = 1, .max = 256},
         .default_json = "null",
         .default_note = "computed: one for two cores, at most 4",
         .services = kEverywhere,
         .section = kHttp,
         .keep = true,
         .help = "Threads of the I/O pool; as many more for bodies over 64 KiB, when one comes."});
  visit(o.shutdown_grace_period_secs,
        {.name = "shutdown-grace-period-secs",
         .range = {.min = 0, .max = 86400},
         .services = kServing,
         .section = kHttp,
         .unit = Unit::kSeconds,
         .keep = true,
         .help = "Time that running requests get to finish after SIGTERM."});
}

void describe(ParallelOptions& o, Describe& visit) {
  visit(o.tp_size,
        {.name = "tensor-parallel-size",
         .aliases = "tp-size,tp",
         .dest = "tp_size",
         .range = {.min = 1, .max = 1024},
         .services = kServing,
         .section = "Runtime options",
         .env = "TP_SIZE",
         .tier = 1,
         .scope = "parallel",
         .common = true,
         .spawn_only = true,
         .trivial_only = true,
         .help = "Ranks that share one copy of the model. This build runs 1."});
  visit(o.dp_size,
        {.name = "data-parallel-size",
         .aliases = "dp-size,dp",
         .dest = "dp_size",
         .range = {.min = 1, .max = 256},
         .services = kServing,
         .section = kReplicas,
         .env = "DP_SIZE",
         .tier = 1,
         .scope = "dp-balance",
         .common = true,
         .spawn_only = true,
         .keep = true,
         .router_only = true,
         .help = "Copies of the model. On the router: workers that it starts and supervises."});
  visit(o.load_balance_method,
        {.name = "load-balance-method",
         .choices = "round_robin,shortest_queue,minimum_tokens",
         .services = kServing,
         .section = kReplicas,
         .tier = 1,
         .scope = "dp-balance",
         .spawn_only = true,
         .keep = true,
         .help = "How requests are spread over the copies: in turn, or to the fewest waiting and "
                 "running."});
  visit(o.prefill_round_robin_balance,
        {.name = "prefill-round-robin-balance",
         .services = kServing,
         .section = kReplicas,
         .tier = 1,
         .scope = "dp-balance",
         .spawn_only = true,
         .keep = true,
         .trivial_only = true,
         .help = "Prefill copies are chosen by bootstrap room modulo their number. With one copy: "
                 "no-op, reported."});
}

void describe(DisaggregationOptions& o, Describe& visit) {
  visit(o.mode,
        {.name = "disaggregation-mode",
         .choices = "null,prefill,decode",
         .services = kWorkers,
         .section = kPd,
         .tier = 1,
         .scope = "pd-disaggregation",
         .common = true,
         .keep = true,
         .help = "Role: prefill computes prompts and sends KV, decode receives it and generates, "
                 "null does "
                 "both in one process."});
  visit(o.transfer_backend,
        {.name = "disaggregation-transfer-backend",
         .choices = "mooncake,nixl,ascend,fake,ucx",
         .needs_vendor = "ascend",
         .services = kWorkers,
         .section = kPd,
         .tier = 1,
         .scope = "pd-disaggregation",
         .pd_only = true,
         .help = "Transport of KV. mooncake, nixl and ucx all select UCX; both sides must agree."});
  visit(o.bootstrap_port,
        {.name = "disaggregation-bootstrap-port",
         .range = {.min = 1, .max = 65535},
         .services = kEverywhere,
         .section = kPd,
         .tier = 1,
         .scope = "pd-disaggregation",
         .common = true,
         .keep = true,
         .pd_only = true,
         .help = "Port of the bootstrap service, where prefill workers register."});
  visit(
      o.num_reserved_decode_tokens,
      {.name = "num-reserved-decode-tokens",
       .range = {.min = 0, .max = 1 << 30},
       .services = kDecode,
       .section = kPd,
       .tier = 1,
       .scope = "pd-disaggregation",
       .pd_only = true,
       .help =
           "KV slots kept free for each running or arriving request when a new one is admitted."});
  visit(o.bootstrap_address,
        {.name = "disaggregation-bootstrap-address",
         .default_note = "the service inside prefill-server",
         .services = kPrefill | kDecode,
         .section = kPd,
         .form = Form::kHostPort,
         .keep = true,
         .pd_only = true,
         .help = "HOST:PORT of a bootstrap-server to use instead of the embedded one."});
  visit(o.grant_window,
        {.name = "disaggregation-grant-window",
         .range = {.min = 1, .max = 1024},
         .services = kDecode,
         .section = kPd,
         .pd_only = true,
         .help = "Chunks of landing pages that decode grants ahead of need."});
  visit(o.advertise_host,
        {.name = "disaggregation-advertise-host",
         .default_note = "derived from --host",
         .services = kPrefill | kDecode,
         .section = kPd,
         .form = Form::kFilled,
         .keep = true,
         .pd_only = true,
         .help = "Host name or address under which peers reach this worker."});
}

void describe(ObservabilityOptions& o, Describe& visit) {
  visit(o.log_level,
        {.name = "log-level",
         .choices = "debug,info,warning,error,critical",
         .services = kEverywhere,
         .section = kLogging,
         .env = "LOG_LEVEL",
         .tier = 1,
         .scope = "observability",
         .common = true,
         .ignore_case = true,
         .help = "Least severity that is written."});
  visit(o.log_requests,
        {.name = "log-requests",
         .services = kServing,
         .section = kLogging,
         .tier = 1,
         .scope = "observability",
         .help = "One log line for each request and one for its end."});
  visit(o.enable_metrics,
        {.name = "enable-metrics",
         .services = kEverywhere,
         .section = kLogging,
         .tier = 1,
         .scope = "observability",
         .common = true,
         .help = "Serve Prometheus metrics at /metrics."});
  visit(o.decode_log_interval,
        {.name = "decode-log-interval",
         .range = {.min = 1},
         .services = kEngine,
         .section = kLogging,
         .tier = 1,
         .scope = "observability",
         .help = "Decode steps between two status lines in the log."});
  visit(o.failure_points,
        {.name = "failure-points",
         .services = kEverywhere,
         .section = "Optimization/debug options",
         .env = "TANDEM_FAILPOINTS",
         .form = Form::kFailurePoints,
         .keep = true,
         .help = "For tests: places that fail on purpose, name=action[;name=action], with action "
                 "error, sleep(MS), abort, hang, N*action or N+action. Said in the log."});
}

void describe(CommandOptions& o, Describe& visit) {
  visit(
      o.config,
      {.name = "config",
       .services = kEverywhere,
       .section = "Configuration file support",
       .tier = 1,
       .scope = "args",
       .common = true,
       .path = true,
       .command = true,
       .help =
           "YAML file of long flag names and values. The command line beats it. One file may serve "
           "all programs: each takes the keys it knows."});
  visit(o.help,
        {.name = "help",
         .aliases = "h",
         .default_json = "null",
         .services = kEverywhere,
         .section = kUsage,
         .tier = 1,
         .scope = "args",
         .common = true,
         .command = true,
         .help = "Print the arguments of this program and exit."});
  visit(o.help_all,
        {.name = "help-all",
         .services = kEverywhere,
         .section = kUsage,
         .common = true,
         .command = true,
         .help = "As --help, with everything about the arguments that are not built yet."});
  visit(o.version,
        {.name = "version",
         .services = kEverywhere,
         .section = kUsage,
         .command = true,
         .help = "Print the version and exit."});
  visit(o.dump_config,
        {.name = "dump-config",
         .services = kEverywhere,
         .section = kUsage,
         .common = true,
         .command = true,
         .help = "Print the resolved arguments as JSON and exit."});
  visit(o.dry_run,
        {.name = "dry-run",
         .services = kEverywhere,
         .section = kUsage,
         .common = true,
         .command = true,
         .help = "Resolve and check everything, open no port, exit."});
  visit(o.explain,
        {.name = "explain",
         .services = kEverywhere,
         .section = kUsage,
         .command = true,
         .help = "Print value, origin, allowed values and effect of one argument and exit."});
  visit(o.print_completion,
        {.name = "print-completion",
         .choices = "bash,zsh",
         .default_json = "null",
         .services = kEverywhere,
         .section = kUsage,
         .command = true,
         .help = "Print a script that completes this program's arguments in a shell and exit."});
  visit(o.print_man,
        {.name = "print-man",
         .services = kEverywhere,
         .section = kUsage,
         .command = true,
         .help = "Print the manual page (troff) and exit: --print-man | man -l -"});
  visit(o.print_json_schema,
        {.name = "print-json-schema",
         .services = kEverywhere,
         .section = kUsage,
         .command = true,
         .help = "Print the JSON Schema of this program's config file and exit."});
}

}  // namespace tandem::args
