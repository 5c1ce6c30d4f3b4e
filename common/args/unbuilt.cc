// Arguments that are known and refused by name. Giving one a typed field in a describe_*.cc takes
// its row away here.
#include "common/args/spec.h"

#include <algorithm>

namespace tandem::args {
namespace {

struct Row {
  std::string_view name;
  std::string_view aliases;
  std::string_view dest;
  std::string_view type;
  std::string_view arity;
  std::string_view choices;
  std::string_view default_json;
  Services services;
  std::uint8_t tier;
  std::string_view scope;
  std::string_view section;
  std::string_view env;
  bool explicit_only;
  Range range;
  std::string_view deprecated_for;
  std::string_view help;
};

// NOLINTBEGIN(readability-identifier-naming): one letter, or the table below would not be one.
constexpr Services R = kRouter;
constexpr Services P = kPrefill;
constexpr Services D = kDecode;
constexpr Services B = kBootstrap;
constexpr Services U = kUnified;
// NOLINTEND(readability-identifier-naming)

// clang-format off
constexpr Row kSchemaRows[] = {
#include "common/args/schema_table.inc"
};

// clang-format on

/// Flags that users of sglang-router (and of its successor, smg) bring along, with its defaults.
/// Where its name means what another one means here, the help says so.
struct RouterRow {
  std::string_view name;
  std::string_view type;
  std::string_view default_json;
  std::string_view help;
};

// clang-format off: one row a line
constexpr RouterRow kRouterRows[] = {
    {"worker-startup-check-interval",
     "int",
     "30",
     "Seconds between two readiness checks of a starting worker."},
    {"max-idle-secs", "int", "14400", "Age at which a sticky routing key is forgotten."},
    {"assignment-mode", "enum", "\"random\"", "How the manual policy places a new key."},
    {"bucket-adjust-interval-secs",
     "int",
     "5",
     "Seconds between two adjustments of the bucket policy."},
    {"max-payload-size", "int", "536870912", "Largest request body; here --max-body-bytes."},
    {"dp-aware", "bool-flag", "false", "Route to single ranks of a data-parallel worker."},
    {"enable-igw", "bool-flag", "false", "Serve several models behind one router."},
    {"mini-lb", "bool-flag", "false", "Minimal load balancer for tests."},
    {"service-discovery",
     "bool-flag",
     "false",
     "Find workers among the pods of a Kubernetes cluster."},
    {"selector", "list<string>", "null", "Pod labels of workers, key=value."},
    {"service-discovery-port", "int", "80", "Port of discovered workers."},
    {"service-discovery-namespace", "string", "null", "Namespace to watch; all when absent."},
    {"prefill-selector", "list<string>", "null", "Pod labels of prefill workers."},
    {"decode-selector", "list<string>", "null", "Pod labels of decode workers."},
    {"log-dir", "string", "null", "Folder for log files."},
    {"prometheus-port", "int", "29000", "Port of its own for metrics; here /metrics on --port."},
    {"prometheus-host", "string", "\"0.0.0.0\"", "Address of the metrics port."},
    {"prometheus-duration-buckets", "list<float>", "null", "Bounds of the duration histograms."},
    {"request-id-headers", "list<string>", "null", "Headers that carry a request id."},
    {"cors-allowed-origins", "list<string>", "null", "Origins that browsers may call from."},
    {"queue-timeout-secs", "int", "60", "Longest wait in the queue."},
    {"rate-limit-tokens-per-second", "int", "null", "Requests admitted per second."},
    {"retry-max-retries", "int", "5", "Attempts after the first one."},
    {"retry-initial-backoff-ms", "int", "50", "Wait before the first retry."},
    {"retry-max-backoff-ms", "int", "30000", "Longest wait before a retry."},
    {"retry-backoff-multiplier", "float", "1.5", "Growth of the wait from retry to retry."},
    {"retry-jitter-factor", "float", "0.2", "Random share of the wait."},
    {"disable-retries", "bool-flag", "false", "Never try a request again."},
    {"cb-failure-threshold", "int", "10", "Failures in a row that open a worker's circuit."},
    {"cb-success-threshold", "int", "3", "Successes that close it again."},
    {"cb-timeout-duration-secs", "int", "60", "Time a circuit stays open."},
    {"cb-window-duration-secs", "int", "120", "Window in which failures count."},
    {"disable-circuit-breaker", "bool-flag", "false", "Never take a failing worker out."},
    {"health-failure-threshold", "int", "3", "Failed checks that make a worker unhealthy."},
    {"health-success-threshold", "int", "2", "Passed checks that make it healthy."},
    {"health-check-timeout-secs", "int", "5", "Time a health check may take."},
    {"health-check-interval-secs", "int", "60", "Seconds between two health checks."},
    {"health-check-endpoint", "string", "\"/health\"", "Path of the health check."},
    {"disable-health-check", "bool-flag", "false", "Never check a worker's health."},
    {"tokenizer-cache-enable-l0", "bool-flag", "false", "Cache whole tokenized prompts."},
    {"tokenizer-cache-enable-l1", "bool-flag", "false", "Cache tokenized prompt prefixes."},
    {"mcp-config-path", "string", "null", "Configuration of tool servers."},
    {"backend", "enum", "\"sglang\"", "Kind of the workers."},
    {"history-backend", "enum", "\"memory\"", "Where conversations are kept."},
    {"client-cert-path", "string", "null", "Certificate shown to workers."},
    {"client-key-path", "string", "null", "Key of that certificate."},
    {"ca-cert-paths",
     "list<string>",
     "null",
     "Authorities that workers' certificates are checked with."},
    {"tls-cert-path", "string", "null", "Certificate shown to clients."},
    {"tls-key-path", "string", "null", "Key of that certificate."},
    {"admin-api-key", "string", "null", "Key for administrative routes."},
    {"control-plane-api-keys", "list<string>", "null", "Keys with roles, id:name:role:key."},
    {"control-plane-audit-enabled", "bool-flag", "false", "Log every administrative call."},
    {"jwt-issuer", "string", "null", "Issuer of accepted tokens."},
    {"jwt-audience", "string", "null", "Audience of accepted tokens."},
    {"jwt-jwks-uri", "string", "null", "Where the issuer's keys are."},
    {"jwt-role-mapping", "list<string>", "null", "Roles by claim."},
    {"health-check-port",
     "int",
     "null",
     "Port of the health check when it is not that of the requests."},
    {"worker-startup-delay", "int", "0", "Seconds before the first check of a worker."},
    {"runtime-worker-threads", "int", "null", "Threads of the router; here --http-threads."},
    {"balance-token-usage-threshold",
     "float",
     "1.0",
     "Spread of KV use from which cache_aware balances instead."},
    {"overload-token-usage-threshold",
     "float",
     "1.0",
     "KV use from which cache_aware leaves a worker alone."},
    {"block-size", "int", "16", "Tokens of a block of the cache index."},
    {"prefix-token-count", "int", "256", "Tokens that prefix_hash looks at."},
    {"prefix-hash-load-factor",
     "float",
     "1.25",
     "Load over the mean from which prefix_hash takes another worker."},
    {"least-load-kv-pressure-weight", "float", "0.15", "Weight of KV use in least_load."},
    {"least-load-default-throughput",
     "float",
     "2000",
     "Tokens per second assumed of a worker that reports none."},
    {"least-load-mean-prefill-tokens", "int", "1024", "Prompt tokens assumed of a request."},
    {"routing-key-override", "bool-flag", "false", "A header may name the routing key."},
    {"dp-minimum-tokens-scheduler",
     "bool-flag",
     "false",
     "Pick the data-parallel rank with the fewest tokens."},
    {"epd-disaggregation", "bool-flag", "false", "Encoders in workers of their own."},
    {"encode-policy", "enum", "null", "How an encode worker is picked."},
    {"encode-selector", "list<string>", "null", "Pod labels of encode workers."},
    {"router-selector", "list<string>", "null", "Pod labels of other routers."},
    {"model-id-from", "string", "null", "Where a discovered worker says its model."},
    {"model-alias", "list<string>", "null", "Further names of models."},
    {"log-json", "bool-flag", "false", "Log lines as JSON."},
    {"load-monitor-interval", "int", "10", "Seconds between two polls of worker loads."},
    {"engine-metrics", "bool-flag", "false", "Pass the metrics of workers on."},
    {"priority-scheduler-config", "string", "null", "File of priority classes."},
    {"tenant-api-key", "list<string>", "null", "Keys of tenants."},
    {"remove-unhealthy-workers", "bool-flag", "false", "Forget workers that stay unhealthy."},
    {"drain-settle-secs", "int", "5", "Pause between draining a worker and removing it."},
    {"tokenizer-cache-l0-max-entries",
     "int",
     "10000",
     "Prompts kept by --tokenizer-cache-enable-l0."},
    {"tokenizer-cache-l1-max-memory",
     "int",
     "52428800",
     "Bytes kept by --tokenizer-cache-enable-l1."},
    {"oracle-wallet-path", "string", "null", "Wallet of the Oracle history store."},
    {"oracle-tns-alias", "string", "null", "Alias of the Oracle history store."},
    {"oracle-connect-descriptor", "string", "null", "Connection of the Oracle history store."},
    {"oracle-username", "string", "null", "User of the Oracle history store."},
    {"oracle-password", "string", "null", "Password of the Oracle history store."},
    {"oracle-pool-min", "int", "1", "Fewest connections to Oracle."},
    {"oracle-pool-max", "int", "16", "Most connections to Oracle."},
    {"oracle-pool-timeout-secs", "int", "30", "Longest wait for a connection to Oracle."},
    {"postgres-db-url", "string", "null", "Address of the PostgreSQL history store."},
    {"postgres-pool-max", "int", "16", "Most connections to PostgreSQL."},
    {"redis-url", "string", "null", "Address of the Redis history store."},
    {"redis-pool-max", "int", "16", "Most connections to Redis."},
    {"redis-retention-days", "int", "30", "Days that Redis keeps conversations."},
    {"enable-wasm", "bool-flag", "false", "Run WebAssembly middleware."},
    {"storage-hook-wasm-path", "string", "null", "WebAssembly hook of the history store."},
    {"schema-config", "string", "null", "Tables of the history store."},
    {"enable-mesh", "bool-flag", "false", "Share state with other routers."},
    {"mesh-host", "string", "\"0.0.0.0\"", "Address of the mesh."},
    {"mesh-port", "int", "39527", "Port of the mesh."},
    {"mesh-peer-urls", "list<string>", "null", "Addresses of other routers."},
};

// clang-format on

Entry entry_of(const Row& row) {
  Entry entry;
  entry.spec.name = row.name;
  entry.spec.aliases = row.aliases;
  entry.spec.choices = row.choices;
  entry.spec.range = row.range;
  entry.spec.services = row.services;
  entry.spec.section = row.section;
  entry.spec.env = row.env;
  entry.spec.tier = row.tier;
  entry.spec.scope = row.scope;
  entry.spec.explicit_only = row.explicit_only;
  entry.spec.deprecated_for = row.deprecated_for;
  entry.spec.help = row.help;
  entry.dest = row.dest;
  entry.type = row.type;
  entry.arity = row.arity;
  entry.default_json = row.default_json;
  return entry;
}

Entry entry_of(const RouterRow& row, Texts& texts) {
  Entry entry;
  entry.spec.name = row.name;
  entry.spec.services = kRouter;
  entry.spec.section = "Router: not built yet";
  entry.spec.help = row.help;
  std::string& dest = texts.emplace_back(row.name);
  std::replace(dest.begin(), dest.end(), '-', '_');
  entry.dest = dest;
  entry.type = row.type;
  entry.arity = row.type == "bool-flag" ? "0" : row.type.starts_with("list") ? "1+" : "1";
  entry.default_json = row.default_json;
  return entry;
}

}  // namespace

std::vector<Entry> unbuilt_entries(Texts& texts) {
  std::vector<Entry> entries;
  entries.reserve(std::size(kSchemaRows) + std::size(kRouterRows));
  for (const Row& row : kSchemaRows)
    entries.push_back(entry_of(row));
  for (const RouterRow& row : kRouterRows)
    entries.push_back(entry_of(row, texts));
  return entries;
}

}  // namespace tandem::args
