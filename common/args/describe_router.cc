// The router's own arguments. Names and defaults follow sglang-router where it has the same thing.
#include "common/args/spec.h"

namespace tandem::args {
namespace {

constexpr std::string_view kWorkers = "Router: workers";
constexpr std::string_view kPolicy = "Router: policies";
constexpr std::string_view kLimits = "Router: limits";
constexpr std::string_view kPolicies =
    "random,round_robin,least_load,cache_aware,power_of_two,manual,bucket,prefix_hash,consistent_"
    "hashing";
constexpr Range kSeconds = {.min = 1, .max = 604800};

}  // namespace

void describe(RouterOptions& o, Describe& visit) {
  visit(o.worker_urls,
        {.name = "worker-urls",
         .services = kRouter,
         .section = kWorkers,
         .common = true,
         .help = "Running workers: http://host:port, or grpc://host:port for their gRPC port."});
  visit(o.pd_disaggregation,
        {.name = "pd-disaggregation",
         .services = kRouter,
         .section = kWorkers,
         .common = true,
         .help = "Prefill and decode in separate workers, given by --prefill and --decode or "
                 "started here."});
  visit(o.prefill,
        {.name = "prefill",
         .type = "list<string>",
         .arity = "1..2",
         .services = kRouter,
         .section = kWorkers,
         .common = true,
         .repeatable = true,
         .help = "A running prefill worker: URL [BOOTSTRAP_PORT|none]. Repeat for more."});
  visit(o.decode,
        {.name = "decode",
         .arity = "1",
         .services = kRouter,
         .section = kWorkers,
         .common = true,
         .repeatable = true,
         .help = "A running decode worker: URL. Repeat for more."});
  visit(o.prefill_workers,
        {.name = "prefill-workers",
         .range = {.min = 1, .max = 256},
         .services = kRouter,
         .section = kWorkers,
         .help = "Prefill workers that the router starts with --pd-disaggregation."});
  visit(o.policy,
        {.name = "policy",
         .choices = kPolicies,
         .default_json = "null",
         .default_note = "computed: --load-balance-method when given, else cache_aware",
         .services = kRouter,
         .section = kPolicy,
         .common = true,
         .help = "How a worker is picked for a request."});
  visit(o.prefill_policy,
        {.name = "prefill-policy",
         .choices = kPolicies,
         .default_json = "null",
         .default_note = "computed: --policy",
         .services = kRouter,
         .section = kPolicy,
         .help = "How a prefill worker is picked; with --pd-disaggregation."});
  visit(o.decode_policy,
        {.name = "decode-policy",
         .choices = kPolicies,
         .default_json = "null",
         .default_note = "computed: --policy",
         .services = kRouter,
         .section = kPolicy,
         .help = "How a decode worker is picked; with --pd-disaggregation."});
  visit(
      o.cache_threshold,
      {.name = "cache-threshold",
       .range = {.min = 0, .max = 1},
       .services = kRouter,
       .section = kPolicy,
       .help = "cache_aware: share of a prompt above which it goes to the worker that knows it."});
  visit(o.balance_abs_threshold,
        {.name = "balance-abs-threshold",
         .range = {.min = 0, .max = 1 << 20},
         .services = kRouter,
         .section = kPolicy,
         .help = "cache_aware: load decides when two workers differ by more requests than this"
                 " and by --balance-rel-threshold."});
  visit(o.balance_rel_threshold,
        {.name = "balance-rel-threshold",
         .range = {.min = 1},
         .services = kRouter,
         .section = kPolicy,
         .help = "cache_aware: load decides when a worker has more times the requests of another"
                 " than this; see --balance-abs-threshold."});
  visit(o.max_tree_size,
        {.name = "max-tree-size",
         .range = {.min = 16, .max = 1ULL << 34U},
         .services = kRouter,
         .section = kPolicy,
         .help = "cache_aware: tokens of prompts remembered per worker, 1.75 bytes each; up to"
                 " twice as many between two evictions."});
  visit(o.eviction_interval_secs,
        {.name = "eviction-interval-secs",
         .aliases = "eviction-interval",
         .range = kSeconds,
         .services = kRouter,
         .section = kPolicy,
         .unit = Unit::kSeconds,
         .help = "cache_aware: time between two cuts to --max-tree-size."});
  visit(o.request_timeout_secs,
        {.name = "request-timeout-secs",
         .range = kSeconds,
         .services = kRouter,
         .section = kLimits,
         .unit = Unit::kSeconds,
         .help = "Deadline of a request from its arrival."});
  visit(o.max_concurrent_requests,
        {.name = "max-concurrent-requests",
         .range = {.min = 1, .max = 1 << 20, .also_allowed = -1},
         .services = kRouter,
         .section = kLimits,
         .help = "Requests in flight at once; -1 is no limit. Others wait in the queue."});
  visit(o.queue_size,
        {.name = "queue-size",
         .range = {.min = 0, .max = 1 << 20},
         .services = kRouter,
         .section = kLimits,
         .help = "Requests that may wait when the limit is reached; one more gets status 429."});
  visit(o.worker_stall_timeout_ms,
        {.name = "worker-stall-timeout-ms",
         .range = {.min = 50, .max = 3600000},
         .services = kRouter,
         .section = kLimits,
         .unit = Unit::kMilliseconds,
         .help = "A worker that says nothing for so long is dead, and so is one whose "
                 "engine moves no layer for five times that."});
  visit(o.worker_startup_timeout_secs,
        {.name = "worker-startup-timeout-secs",
         .range = kSeconds,
         .services = kRouter,
         .section = kLimits,
         .unit = Unit::kSeconds,
         .help = "Time that a worker has to become ready."});
}

}  // namespace tandem::args
