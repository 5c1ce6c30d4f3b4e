// Cross-checks between arguments, and the values that follow from others.
#include "common/args/input.h"
#include "common/args/text.h"

#include <algorithm>
#include <string>
#include <vector>

namespace tandem::args {
namespace {

constexpr std::uint64_t kGigabyte = 1000ULL * 1000 * 1000;
constexpr std::uint32_t kSeedMax = 1U << 30U;

class Resolver {
 public:
  Resolver(Arguments& args,
           const Registry& registry,
           const Environment& environment,
           Errors& errors)
      : a_(args), registry_(registry), environment_(environment), errors_(errors) {}

  void run() {
    check_ports();
    io_threads();
    if (a_.program == Program::kBootstrap) {
      bootstrap_ports();
      return;
    }
    const bool router = a_.program == Program::kRouter;
    if (router) {
      router_addresses();
      router_policies();
      no_op("prefill_round_robin_balance",
            "the router itself tells decode which prefill worker has a request");
    }
    require_model();
    names();
    resolve_old_names(a_, registry_, errors_);
    if (!router || !a_.router.has_worker_addresses()) engine();
    if (!router) worker();
  }

 private:
  [[nodiscard]] bool given(std::string_view dest) const { return a_.is_explicit(dest); }

  [[nodiscard]] bool usable(std::string_view dest) const { return !errors_.failed(dest); }

  /// False: another value than the one that seems to be in force may stand where nobody could read
  /// it.
  [[nodiscard]] bool known(std::string_view dest) const {
    return usable(dest) && (given(dest) || !errors_.has_gap());
  }

  void computed(std::string_view dest) { a_.origins[std::string(dest)] = Origin::kComputed; }

  void fail(std::string_view dest, const std::string& text) {
    errors_.add(*registry_.find_dest(dest), text);
  }

  void note(NoteLevel level, std::string text) { a_.notes.push_back({level, std::move(text)}); }

  void no_op(std::string_view dest, std::string_view why) {
    note_no_op(a_, *registry_.find_dest(dest), why);
  }

  void check_ports() {
    if (a_.server.grpc_port && *a_.server.grpc_port != 0 &&
        *a_.server.grpc_port == a_.server.port && known("port")) {
      fail("grpc_port", "is the same as --port; leave it out to serve both on one port");
    }
  }

  /// The bootstrap-server has one port with two names.
  void bootstrap_ports() {
    DisaggregationOptions& pd = a_.disaggregation;
    if (!given("port")) {
      a_.server.port = pd.bootstrap_port;
      computed("port");
    } else if (!given("disaggregation_bootstrap_port")) {
      pd.bootstrap_port = a_.server.port;
      computed("disaggregation_bootstrap_port");
    } else if (pd.bootstrap_port != a_.server.port) {
      fail("disaggregation_bootstrap_port",
           std::to_string(pd.bootstrap_port) + " contradicts --port " +
               std::to_string(a_.server.port) + "; bootstrap-server listens on one port");
    }
  }

  /// More threads than the work needs cost CPU time: fewer events for each look at the sockets.
  void io_threads() {
    if (given("http_threads")) return;
    a_.server.http_threads = std::clamp(environment_.cpu_count / 2, 1U, 4U);
    computed("http_threads");
  }

  void router_addresses() {
    const RouterOptions& r = a_.router;
    const bool addresses = r.has_worker_addresses();
    if (r.pd_disaggregation && !r.worker_urls.empty()) {
      fail("worker_urls", "excludes --pd-disaggregation; give --prefill and --decode instead");
    }
    const bool unified = !r.pd_disaggregation && known("pd_disaggregation");
    if (unified && !r.prefill.empty()) fail("prefill", "needs --pd-disaggregation");
    if (unified && !r.decode.empty()) fail("decode", "needs --pd-disaggregation");
    if (r.pd_disaggregation && r.prefill.empty() != r.decode.empty() && known("prefill") &&
        known("decode")) {
      fail(r.prefill.empty() ? "decode" : "prefill",
           std::string("needs at least one --") + (r.prefill.empty() ? "prefill" : "decode") +
               " beside it");
    }
    std::vector<std::string> prefill;
    for (const PrefillUrl& each : r.prefill)
      prefill.push_back(each.url);
    each_once("worker_urls", r.worker_urls);
    each_once("prefill", prefill);
    each_once("decode", r.decode);
    router_bootstrap_port();
    if (!given("prefill_workers")) return;
    if (addresses) fail("prefill_workers", "applies to workers that the router starts");
    if (unified) fail("prefill_workers", "needs --pd-disaggregation");
  }

  /// A worker that is there twice would be taken for two, with twice its room.
  void each_once(std::string_view dest, std::vector<std::string> urls) {
    std::ranges::sort(urls);
    const auto twice = std::ranges::adjacent_find(urls);
    if (twice != urls.end() && usable(dest)) fail(dest, *twice + " is given twice");
  }

  /// The port of the --prefill addresses that name none.
  void router_bootstrap_port() {
    RouterOptions& r = a_.router;
    if (!r.pd_disaggregation) {
      no_op("disaggregation_bootstrap_port", "without --pd-disaggregation no worker has one");
    } else if (!r.has_worker_addresses()) {
      if (given("disaggregation_bootstrap_port") && r.prefill_workers > 1) {
        fail("disaggregation_bootstrap_port",
             std::to_string(a_.disaggregation.bootstrap_port) +
                 " is one port for --prefill-workers " + std::to_string(r.prefill_workers) +
                 "; leave it out and each takes one that the system chooses");
      }
    }
    if (!given("disaggregation_bootstrap_port")) return;
    for (PrefillUrl& each : r.prefill) {
      if (!each.bootstrap_port && !each.no_bootstrap)
        each.bootstrap_port = a_.disaggregation.bootstrap_port;
    }
  }

  void router_policies() {
    RouterOptions& r = a_.router;
    const bool by_method = given("load_balance_method");
    const RoutingPolicy method = a_.parallel.load_balance_method == LoadBalanceMethod::kRoundRobin
                                     ? RoutingPolicy::kRoundRobin
                                     : RoutingPolicy::kLeastLoad;
    if (given("policy") && by_method && r.policy != method &&
        a_.origin("policy") == a_.origin("load_balance_method")) {
      fail("policy",
           std::string(to_string(r.policy)) +
               " contradicts --load-balance-method; give one of the two");
    }
    // Given in different places, the stronger one counts: a flag beats the file's other name for
    // it.
    const bool method_wins = by_method && a_.origin("load_balance_method") > a_.origin("policy");
    if (given("policy") && by_method && r.policy != method &&
        a_.origin("policy") != a_.origin("load_balance_method")) {
      note(NoteLevel::kInfo,
           method_wins ? "--load-balance-method counts, not the weaker --policy"
                       : "--policy counts, not the weaker --load-balance-method");
    }
    if (!given("policy") || method_wins) {
      if (by_method) r.policy = method;
      computed("policy");
    }
    if (r.max_concurrent_requests < 0)
      no_op("queue_size", "--max-concurrent-requests sets no limit, so nobody waits");
    for (const auto& [dest, field] :
         {std::pair<std::string_view, RoutingPolicy*>{"prefill_policy", &r.prefill_policy},
          {"decode_policy", &r.decode_policy}}) {
      if (!given(dest)) {
        *field = r.policy;
        computed(dest);
      } else if (!r.pd_disaggregation && known("pd_disaggregation")) {
        fail(dest, "needs --pd-disaggregation");
      }
    }
    const bool by_prefix = r.pd_disaggregation ? r.prefill_policy == RoutingPolicy::kCacheAware ||
                                                     r.decode_policy == RoutingPolicy::kCacheAware
                                               : r.policy == RoutingPolicy::kCacheAware;
    if (by_prefix) return;
    for (const std::string_view dest : {"cache_threshold",
                                        "balance_abs_threshold",
                                        "balance_rel_threshold",
                                        "max_tree_size",
                                        "eviction_interval_secs"}) {
      no_op(dest, "no policy in use is cache_aware");
    }
  }

  void require_model() {
    if (given("model_path") || !known("model_path")) return;
    if (a_.command.explain || !usable("explain")) return;
    const bool router = a_.program == Program::kRouter;
    if (router && a_.router.has_worker_addresses()) return;
    const bool addresses_failed = !usable("worker_urls") || !usable("prefill") || !usable("decode");
    if (router && addresses_failed) return;
    errors_.add(std::string("the argument --model-path is required") +
                (router ? ", or the addresses of running workers (--worker-urls, or "
                          "--pd-disaggregation with --prefill "
                          "and --decode)"
                        : ""));
  }

  void names() {
    if (!given("tokenizer_path") && given("model_path")) {
      a_.model.tokenizer_path = a_.model.model_path;
      computed("tokenizer_path");
    }
    if (!given("served_model_name") && given("model_path")) {
      a_.server.served_model_name = a_.model.model_path;
      computed("served_model_name");
    }
  }

  /// --kernel-family pins what --attention-backend chooses: two explicit ones must agree.
  void attention_and_kernels() {
    const RuntimeOptions& run = a_.runtime;
    if (!given("attention_backend") || run.kernel_family == KernelFamily::kAuto) return;
    const bool native = run.attention_backend == AttentionBackend::kTorchNative;
    const bool amx = run.kernel_family == KernelFamily::kAmx;
    if (native == amx && (native || environment_.has_amx)) {
      fail("attention_backend",
           std::string(to_string(run.attention_backend)) + " contradicts --kernel-family " +
               std::string(to_string(run.kernel_family)));
    }
  }

  void engine() {
    RuntimeOptions& run = a_.runtime;
    if (a_.parallel.tp_size != 1 && usable("tp_size")) {
      fail("tp_size",
           std::to_string(a_.parallel.tp_size) +
               " is not built yet; a worker of this build runs 1 rank, and router --dp N runs N "
               "workers");
    }
    resolve_elsewhere(a_, registry_, errors_);
    attention_and_kernels();
    if (run.attention_backend == AttentionBackend::kIntelAmx && !environment_.has_amx) {
      note(NoteLevel::kWarning,
           "--attention-backend intel_amx needs AMX, which this machine lacks; using torch_native");
      run.attention_backend = AttentionBackend::kTorchNative;
    }
    if (given("quantization") && a_.model.torchao_config != TorchaoConfig::kNone &&
        usable("torchao_config")) {
      fail("torchao_config", "excludes --quantization; give one of the two");
    }
    if (!given("attention_backend")) {
      run.attention_backend =
          environment_.has_amx ? AttentionBackend::kIntelAmx : AttentionBackend::kTorchNative;
    }
    for (const std::string_view dest :
         {"device", "attention_backend", "sampling_backend", "grammar_backend"}) {
      if (!given(dest)) computed(dest);
    }
    if (!given("random_seed")) {
      run.random_seed = static_cast<std::uint32_t>(environment_.entropy % (kSeedMax + 1ULL));
      computed("random_seed");
    }
    if (!given("compute_threads")) {
      run.compute_threads = environment_.cpu_count == 0 ? 1 : environment_.cpu_count;
      computed("compute_threads");
    }
    if (!given("mem_fraction_static")) computed("mem_fraction_static");
    no_op("disable_overlap_schedule", "this engine always runs its steps one after another");
    if (a_.scheduling.schedule_policy == SchedulePolicy::kLpm && a_.kv_cache.disable_radix_cache) {
      fail("schedule_policy",
           "lpm orders by cached prefix, and --disable-radix-cache leaves none; give one of the "
           "two");
    }
    sizes();
  }

  [[nodiscard]] std::int64_t chunk_by_memory() const {
    const std::uint64_t memory = environment_.memory_bytes;
    if (memory == 0) return 4096;
    if (memory < 35 * kGigabyte) return 2048;
    if (memory < 60 * kGigabyte) return 4096;
    return memory < 160 * kGigabyte ? 8192 : 16384;
  }

  void sizes() {
    SchedulingOptions& sched = a_.scheduling;
    const std::uint32_t page = a_.kv_cache.page_size;
    if (!given("chunked_prefill_size")) {
      const std::int64_t chunk = chunk_by_memory();
      sched.chunked_prefill_size = page == 0 || chunk < page ? page : chunk / page * page;
      computed("chunked_prefill_size");
    }
    const bool decode_role = a_.disaggregation.mode == DisaggregationMode::kDecode;
    const bool sizes_usable = usable("chunked_prefill_size") && usable("page_size");
    if (sizes_usable && !decode_role && sched.chunked_prefill_size > 0 &&
        sched.chunked_prefill_size % page != 0) {
      fail("chunked_prefill_size",
           std::to_string(sched.chunked_prefill_size) +
               " is not -1 and not a multiple of the page size " + std::to_string(page));
    }
    if (a_.kv_cache.max_total_tokens && *a_.kv_cache.max_total_tokens < page &&
        usable("page_size")) {
      fail("max_total_tokens",
           std::to_string(*a_.kv_cache.max_total_tokens) +
               " is smaller than one page (--page-size " + std::to_string(page) + ")");
    }
  }

  void worker() {
    const DisaggregationOptions& pd = a_.disaggregation;
    const bool contradicts = a_.program == Program::kPrefill
                                 ? pd.mode == DisaggregationMode::kDecode
                                 : pd.mode == DisaggregationMode::kPrefill;
    if (contradicts && usable("disaggregation_mode")) {
      fail("disaggregation_mode",
           std::string(to_string(pd.mode)) +
               " contradicts the executable (prefill-server: prefill or null, decode-server: "
               "decode or null)");
    }
    const std::uint32_t replicas = a_.parallel.dp_size;
    if (replicas != 1 && usable("dp_size")) {
      fail("dp_size",
           std::to_string(replicas) + " is not built yet inside one worker; router --dp " +
               std::to_string(replicas) + " starts " + std::to_string(replicas) + " workers");
    }
    no_op("load_balance_method", "there is one copy of the model");
    no_op("prefill_round_robin_balance", "there is one copy of the model");
    if (pd.mode == DisaggregationMode::kNull) {
      for (const Entry& entry : registry_.entries()) {
        if (entry.spec.pd_only) no_op(entry.dest, "--disaggregation-mode is null");
      }
      return;
    }
    worker_bootstrap();
  }

  void worker_bootstrap() {
    DisaggregationOptions& pd = a_.disaggregation;
    const bool prefill = a_.program == Program::kPrefill;
    if (pd.bootstrap_address) {
      const Origin port_from = a_.origin("disaggregation_bootstrap_port");
      if (given("disaggregation_bootstrap_port") &&
          port_from >= a_.origin("disaggregation_bootstrap_address")) {
        fail("disaggregation_bootstrap_port",
             "excludes --disaggregation-bootstrap-address: with an outside service the embedded "
             "one does not run");
      } else {
        no_op("disaggregation_bootstrap_port",
              "--disaggregation-bootstrap-address names an outside service");
      }
      return;
    }
    if (!prefill) {
      no_op("disaggregation_bootstrap_port",
            "the router tells decode where each prefill worker is");
      return;
    }
    // --port 0 asks the system for every port that nobody named.
    if (a_.server.port == 0 && !given("disaggregation_bootstrap_port")) {
      pd.bootstrap_port = 0;
      computed("disaggregation_bootstrap_port");
    }
    const bool same = pd.bootstrap_port != 0 && pd.bootstrap_port == a_.server.port;
    if (same && known("port") && known("disaggregation_bootstrap_port")) {
      fail("disaggregation_bootstrap_port", std::to_string(pd.bootstrap_port) + " is also --port");
    }
  }

  Arguments& a_;
  const Registry& registry_;
  const Environment& environment_;
  Errors& errors_;
};

}  // namespace

void resolve(Arguments& args,
             const Registry& registry,
             const Environment& environment,
             Errors& errors) {
  Resolver(args, registry, environment, errors).run();
}

}  // namespace tandem::args
