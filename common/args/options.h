// The typed values of every argument that does something in this build, one plain struct per
// section. A room takes its own small struct, never the whole set. Which flag fills which field,
// and what it means, is written once in describe_*.cc.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace tandem::args {

/// The four executables.
enum class Program : std::uint8_t {
  kRouter,
  kPrefill,
  kDecode,
  kBootstrap
};

/// "router", "prefill-server", "decode-server", "bootstrap-server".
std::string_view program_name(Program program);

/// Where a value comes from; a later one beats an earlier one (computed fills what nobody gave).
enum class Origin : std::uint8_t {
  kDefault,
  kComputed,
  kEnv,
  kFile,
  kCli
};

/// "default", "computed", "env", "file", "cli".
std::string_view origin_name(Origin origin);

// Each enum holds only the values that this build can do. The other choices of a flag are known to
// the parser and refused by name, so no room has to handle them.
enum class DisaggregationMode : std::uint8_t {
  kNull,
  kPrefill,
  kDecode
};
enum class TransferBackend : std::uint8_t {
  kMooncake,
  kNixl,
  kUcx
};
enum class LoadFormat : std::uint8_t {
  kAuto,
  kSafetensors,
  kDummy
};
enum class DType : std::uint8_t {
  kAuto,
  kFloat16,
  kBfloat16,
  kFloat32
};
enum class Quantization : std::uint8_t {
  kW8A8Int8
};
enum class TorchaoConfig : std::uint8_t {
  kNone,
  kInt8wo,
  kInt4wo128
};
enum class KvCacheDType : std::uint8_t {
  kAuto,
  kFp8E5m2,
  kFp8E4m3
};
enum class Device : std::uint8_t {
  kCpu
};
enum class AttentionBackend : std::uint8_t {
  kTorchNative,
  kIntelAmx
};
enum class SamplingBackend : std::uint8_t {
  kPytorch
};
enum class GrammarBackend : std::uint8_t {
  kNone
};
enum class MoeA2aBackend : std::uint8_t {
  kNone
};
enum class MoeRunnerBackend : std::uint8_t {
  kAuto
};
enum class ElasticEpBackend : std::uint8_t {
  kNone
};
enum class KernelFamily : std::uint8_t {
  kAuto,
  kReference,
  kAvx2,
  kAvx512,
  kAvx512Bf16,
  kAmx
};
enum class SchedulePolicy : std::uint8_t {
  kFcfs,
  kLpm
};
enum class LoadBalanceMethod : std::uint8_t {
  kRoundRobin,
  kShortestQueue
};
enum class LogLevel : std::uint8_t {
  kDebug,
  kInfo,
  kWarning,
  kError,
  kCritical
};
enum class RoutingPolicy : std::uint8_t {
  kRandom,
  kRoundRobin,
  kLeastLoad,
  kCacheAware,
  kPowerOfTwo
};

enum class Shell : std::uint8_t {
  kBash,
  kZsh
};

/// The model, its tokenizer and its template.
struct ModelOptions {
  std::string model_path;      ///< empty only on bootstrap-server and on a router with workers
  std::string tokenizer_path;  ///< computed: model_path
  LoadFormat load_format = LoadFormat::kAuto;
  DType dtype = DType::kAuto;                ///< auto: f32 and f16 checkpoints in f16, bf16 in bf16
  std::optional<Quantization> quantization;  ///< unset: as the checkpoint is
  TorchaoConfig torchao_config = TorchaoConfig::kNone;  ///< excludes quantization
  std::optional<std::uint32_t> context_length;          ///< unset: from config.json
  std::string json_model_override_args = "{}";  ///< a valid JSON object, merged over config.json
  std::optional<std::string> chat_template;  ///< built-in name or file; unset: the tokenizer's own
};

/// Listening, authentication and the shape of answers. All programs.
struct ServerOptions {
  std::string host = "127.0.0.1";
  std::uint16_t port = 30000;              ///< 0: the system chooses (see port_file)
  std::optional<std::uint16_t> grpc_port;  ///< unset: HTTP and gRPC share `port`
  std::optional<std::string> port_file;    ///< where the chosen ports are written as JSON
  std::optional<std::string> api_key;      ///< never logged, never dumped
  std::string served_model_name;           ///< computed: model_path
  bool enable_cache_report = false;
  std::uint32_t stream_interval = 1;  ///< tokens per streamed event
  std::uint64_t max_body_bytes = 64U << 20;
  std::uint32_t http_threads = 1;                  ///< computed: one for two cores, at most 4
  std::uint32_t shutdown_grace_period_secs = 180;  ///< as sglang-router has it
};

/// Device, kernels, threads, seed.
struct RuntimeOptions {
  Device device = Device::kCpu;  ///< computed by detection
  AttentionBackend attention_backend =
      AttentionBackend::kTorchNative;  ///< computed: intel_amx where AMX is
  SamplingBackend sampling_backend = SamplingBackend::kPytorch;
  GrammarBackend grammar_backend = GrammarBackend::kNone;
  KernelFamily kernel_family = KernelFamily::kAuto;  ///< test switch
  std::uint32_t compute_threads = 1;      ///< computed: cores that affinity and cgroup allow
  std::uint32_t random_seed = 0;          ///< computed: random in [0, 2^30]
  bool disable_overlap_schedule = false;  ///< reported no-op: this engine never overlaps steps
};

/// What the scheduler may put into a step.
struct SchedulingOptions {
  std::optional<std::uint32_t> max_running_requests;  ///< unset: derived from the KV pool
  std::int64_t chunked_prefill_size = 4096;  ///< tokens, a multiple of page_size; -1: never split
  std::uint32_t max_prefill_tokens =
      16384;  ///< per step; the larger of this and the context length rules
  SchedulePolicy schedule_policy = SchedulePolicy::kFcfs;
  double schedule_conservativeness = 1.0;
};

/// The page pool and prefix reuse.
struct KvCacheOptions {
  double mem_fraction_static = 0.9;  ///< weights + KV pool, of the memory the process may use
  std::optional<std::uint64_t>
      max_total_tokens;         ///< caps the pool; unset: from mem_fraction_static
  std::uint32_t page_size = 1;  ///< tokens
  KvCacheDType kv_cache_dtype = KvCacheDType::kAuto;
  bool disable_radix_cache = false;
};

/// Replicas and ranks.
struct ParallelOptions {
  std::uint32_t tp_size = 1;  ///< 1 in this build
  std::uint32_t dp_size = 1;  ///< router: workers that it starts; 1 on a worker
  LoadBalanceMethod load_balance_method = LoadBalanceMethod::kRoundRobin;
  bool prefill_round_robin_balance = false;
};

/// Prefill and decode in separate processes.
struct DisaggregationOptions {
  DisaggregationMode mode = DisaggregationMode::kNull;
  TransferBackend transfer_backend = TransferBackend::kMooncake;  ///< all names select UCX here
  std::uint16_t bootstrap_port = 8998;
  std::uint32_t num_reserved_decode_tokens = 512;
  std::optional<std::string>
      bootstrap_address;           ///< "host:port" of a bootstrap-server; unset: own embedded one
  std::uint32_t grant_window = 2;  ///< chunks of landing pages granted ahead of need
  std::optional<std::string> advertise_host;  ///< address that peers use; unset: derived from host
};

/// Experts. No model of this build has any, so only the values that change nothing are taken.
struct MoeOptions {
  std::uint32_t ep_size = 1;
  MoeA2aBackend a2a_backend = MoeA2aBackend::kNone;
  MoeRunnerBackend runner_backend = MoeRunnerBackend::kAuto;
  // Old names of values of the three above; set: resolve() has mapped it.
  std::optional<bool> enable_ep_moe;
  std::optional<bool> enable_deepep_moe;
  std::optional<bool> enable_flashinfer_cutlass_moe;
  std::optional<bool> enable_flashinfer_cutedsl_moe;
  std::optional<bool> enable_flashinfer_trtllm_moe;
  std::optional<bool> enable_triton_kernel_moe;
  std::optional<bool> enable_flashinfer_mxfp4_moe;
};

/// What is for hardware or libraries that this build never has: checked, then refused or ignored
/// with a warning.
struct ElsewhereOptions {
  std::optional<ElasticEpBackend> elastic_ep_backend;
  std::optional<std::string> mooncake_ib_device;  ///< names with commas between them
  bool enable_lmcache = false;
  bool enable_mscclpp = false;
  bool arm_gemm_use_kai = false;
  std::string rocm_hipblaslt_config = "gemm_config.csv";
  bool enable_3fs = false;
};

/// Logs and metrics. All programs take log_level and enable_metrics.
struct ObservabilityOptions {
  LogLevel log_level = LogLevel::kInfo;
  bool log_requests = false;
  bool enable_metrics = false;
  std::uint32_t decode_log_interval = 40;     ///< decode steps between status lines
  std::optional<std::string> failure_points;  ///< for tests; see common/base/failpoint.h
};

/// One `--prefill URL [BOOTSTRAP_PORT|none]`.
struct PrefillUrl {
  std::string url;  ///< http://host:port or grpc://host:port
  std::optional<std::uint16_t> bootstrap_port;
  bool no_bootstrap = false;  ///< "none" was given for the port

  bool operator==(const PrefillUrl&) const = default;
};

/// The router's own arguments; names as in sglang-router where it has them.
struct RouterOptions {
  std::vector<std::string> worker_urls;  ///< unified workers that run already
  bool pd_disaggregation = false;
  std::vector<PrefillUrl> prefill;  ///< prefill workers that run already
  std::vector<std::string> decode;  ///< decode workers that run already
  RoutingPolicy policy =
      RoutingPolicy::kCacheAware;  ///< computed from load_balance_method when that is given
  RoutingPolicy prefill_policy = RoutingPolicy::kCacheAware;  ///< computed: policy
  RoutingPolicy decode_policy = RoutingPolicy::kCacheAware;   ///< computed: policy
  double cache_threshold = 0.3;  ///< share of a prompt above which a worker that knows it is taken
  std::int32_t balance_abs_threshold = 64;    ///< requests; both above: load before prefix
  double balance_rel_threshold = 1.5;         ///< most to least requests
  std::uint64_t max_tree_size = 67'108'864;   ///< tokens of prompts remembered per worker
  std::uint32_t eviction_interval_secs = 60;  ///< between two cuts to max_tree_size
  std::uint32_t prefill_workers = 1;          ///< local prefill workers with pd_disaggregation
  std::uint32_t request_timeout_secs = 1800;
  std::int32_t max_concurrent_requests = -1;  ///< -1: no limit
  std::uint32_t queue_size = 100;             ///< requests that wait when the limit is reached
  std::uint32_t worker_stall_timeout_ms =
      2000;  ///< silence for so long: the worker is dead; no progress: five times that
  std::uint32_t worker_startup_timeout_secs = 1800;

  /// True when addresses of running workers were given; false: the router starts its own.
  [[nodiscard]] bool has_worker_addresses() const {
    return !worker_urls.empty() || !prefill.empty() || !decode.empty();
  }
};

/// What to do instead of, or before, serving.
struct CommandOptions {
  std::optional<std::string> config;  ///< path of the YAML file that was read
  bool help = false;
  bool help_all = false;
  bool version = false;
  bool dump_config = false;               ///< handled by parse()
  bool dry_run = false;                   ///< the program resolves, checks, opens no port, exits
  std::optional<std::string> explain;     ///< handled by parse()
  Shell print_completion = Shell::kBash;  ///< handled by parse()
  bool print_man = false;                 ///< handled by parse()
  bool print_json_schema = false;         ///< handled by parse()
};

enum class NoteLevel : std::uint8_t {
  kDebug,
  kInfo,
  kWarning
};

/// One line for the start-up log: a fall-back, a no-op, an ignored key. The program logs it.
struct Note {
  NoteLevel level = NoteLevel::kInfo;
  std::string text;
};

/// Everything a program was told, resolved. parse() hands it out; nobody changes it afterwards.
struct Arguments {
  Program program = Program::kRouter;
  ModelOptions model;
  ServerOptions server;
  RuntimeOptions runtime;
  SchedulingOptions scheduling;
  KvCacheOptions kv_cache;
  ParallelOptions parallel;
  DisaggregationOptions disaggregation;
  ObservabilityOptions observability;
  MoeOptions moe;
  ElsewhereOptions elsewhere;
  RouterOptions router;
  CommandOptions command;
  std::map<std::string, Origin, std::less<>> origins;  ///< by dest; a missing dest is kDefault
  std::vector<Note> notes;

  [[nodiscard]] Origin origin(std::string_view dest) const;

  /// Given by a person (cli, file or env), as opposed to default or computed.
  [[nodiscard]] bool is_explicit(std::string_view dest) const {
    return origin(dest) >= Origin::kEnv;
  }
};

}  // namespace tandem::args
