// The names and defaults that users of sglang-router bring along (its 0.3.2, and those that its
// successor added), against ours.
#include "common/args/spec.h"

#include <gtest/gtest.h>

#include <map>
#include <set>
#include <string>

namespace tandem::args {
namespace {

/// Name and default as JSON; null stands for none and for an empty list.
const std::map<std::string, std::string>& theirs() {
  static const std::map<std::string, std::string> kTheirs = {
      {"host", R"("0.0.0.0")"},
      {"port", "30000"},
      {"worker-urls", "null"},
      {"worker-startup-timeout-secs", "1800"},
      {"worker-startup-check-interval", "30"},
      {"health-check-port", "null"},
      {"worker-startup-delay", "0"},
      {"runtime-worker-threads", "null"},
      {"policy", R"("cache_aware")"},
      {"prefill-policy", "null"},
      {"decode-policy", "null"},
      {"cache-threshold", "0.3"},
      {"balance-abs-threshold", "64"},
      {"balance-rel-threshold", "1.5"},
      {"eviction-interval-secs", "60"},
      {"eviction-interval", "120"},
      {"max-tree-size", "67108864"},
      {"max-idle-secs", "14400"},
      {"assignment-mode", R"("random")"},
      {"bucket-adjust-interval-secs", "5"},
      {"max-payload-size", "536870912"},
      {"dp-aware", "false"},
      {"enable-igw", "false"},
      {"balance-token-usage-threshold", "1.0"},
      {"overload-token-usage-threshold", "1.0"},
      {"block-size", "16"},
      {"prefix-token-count", "256"},
      {"prefix-hash-load-factor", "1.25"},
      {"least-load-kv-pressure-weight", "0.15"},
      {"least-load-default-throughput", "2000"},
      {"least-load-mean-prefill-tokens", "1024"},
      {"routing-key-override", "false"},
      {"dp-minimum-tokens-scheduler", "false"},
      {"pd-disaggregation", "false"},
      {"prefill", "null"},
      {"decode", "null"},
      {"mini-lb", "false"},
      {"epd-disaggregation", "false"},
      {"encode-policy", "null"},
      {"service-discovery", "false"},
      {"selector", "null"},
      {"service-discovery-port", "80"},
      {"service-discovery-namespace", "null"},
      {"prefill-selector", "null"},
      {"decode-selector", "null"},
      {"encode-selector", "null"},
      {"router-selector", "null"},
      {"model-id-from", "null"},
      {"model-alias", "null"},
      {"log-dir", "null"},
      {"log-level", R"("info")"},
      {"prometheus-port", "29000"},
      {"prometheus-host", R"("0.0.0.0")"},
      {"prometheus-duration-buckets", "null"},
      {"log-json", "false"},
      {"load-monitor-interval", "10"},
      {"engine-metrics", "false"},
      {"request-id-headers", "null"},
      {"request-timeout-secs", "1800"},
      {"shutdown-grace-period-secs", "180"},
      {"cors-allowed-origins", "null"},
      {"max-concurrent-requests", "-1"},
      {"queue-size", "100"},
      {"queue-timeout-secs", "60"},
      {"rate-limit-tokens-per-second", "null"},
      {"priority-scheduler-config", "null"},
      {"retry-max-retries", "5"},
      {"retry-initial-backoff-ms", "50"},
      {"retry-max-backoff-ms", "30000"},
      {"retry-backoff-multiplier", "1.5"},
      {"retry-jitter-factor", "0.2"},
      {"disable-retries", "false"},
      {"cb-failure-threshold", "10"},
      {"cb-success-threshold", "3"},
      {"cb-timeout-duration-secs", "60"},
      {"cb-window-duration-secs", "120"},
      {"disable-circuit-breaker", "false"},
      {"health-failure-threshold", "3"},
      {"health-success-threshold", "2"},
      {"health-check-timeout-secs", "5"},
      {"health-check-interval-secs", "60"},
      {"health-check-endpoint", R"("/health")"},
      {"disable-health-check", "false"},
      {"remove-unhealthy-workers", "false"},
      {"drain-settle-secs", "5"},
      {"model-path", "null"},
      {"tokenizer-path", "null"},
      {"chat-template", "null"},
      {"tokenizer-cache-enable-l0", "false"},
      {"tokenizer-cache-l0-max-entries", "10000"},
      {"tokenizer-cache-enable-l1", "false"},
      {"tokenizer-cache-l1-max-memory", "52428800"},
      {"reasoning-parser", "null"},
      {"tool-call-parser", "null"},
      {"mcp-config-path", "null"},
      {"backend", R"("sglang")"},
      {"history-backend", R"("memory")"},
      {"oracle-wallet-path", "null"},
      {"oracle-tns-alias", "null"},
      {"oracle-connect-descriptor", "null"},
      {"oracle-username", "null"},
      {"oracle-password", "null"},
      {"oracle-pool-min", "1"},
      {"oracle-pool-max", "16"},
      {"oracle-pool-timeout-secs", "30"},
      {"postgres-db-url", "null"},
      {"postgres-pool-max", "16"},
      {"redis-url", "null"},
      {"redis-pool-max", "16"},
      {"redis-retention-days", "30"},
      {"enable-wasm", "false"},
      {"storage-hook-wasm-path", "null"},
      {"schema-config", "null"},
      {"client-cert-path", "null"},
      {"client-key-path", "null"},
      {"ca-cert-paths", "null"},
      {"tls-cert-path", "null"},
      {"tls-key-path", "null"},
      {"api-key", "null"},
      {"control-plane-api-keys", "null"},
      {"control-plane-audit-enabled", "false"},
      {"jwt-issuer", "null"},
      {"jwt-audience", "null"},
      {"jwt-jwks-uri", "null"},
      {"jwt-role-mapping", "null"},
      {"tenant-api-key", "null"},
      {"enable-trace", "false"},
      {"otlp-traces-endpoint", R"("localhost:4317")"},
      {"enable-mesh", "false"},
      {"mesh-port", "39527"},
      {"mesh-peer-urls", "null"},
  };
  return kTheirs;
}

/// Where ours differ on purpose, and why.
const std::map<std::string, std::string>& reviewed_differences() {
  static const std::map<std::string, std::string> kDifferences = {
      {"host",
       "an argument of the schema, whose default for all programs is 127.0.0.1: nothing is open to "
       "the network unless somebody says so"},
      {"eviction-interval", "another name of eviction-interval-secs, whose default is 60"},
      {"policy",
       "the default is computed: --load-balance-method, an argument of the schema, means the same"},
  };
  return kDifferences;
}

TEST(RouterNames, AreThoseOfSglangRouterWithItsDefaults) {
  Arguments args;
  const Registry registry(args);
  std::set<std::string> used;
  for (const auto& [name, value] : theirs()) {
    SCOPED_TRACE(name);
    const Entry* entry = registry.find(name);
    ASSERT_NE(entry, nullptr);
    EXPECT_NE(entry->spec.services & kRouter, 0);
    const std::string ours =
        entry->default_json == "[]" ? "null" : std::string(entry->default_json);
    if (ours == value) continue;
    EXPECT_EQ(reviewed_differences().count(name), 1U) << ours << " / " << value;
    used.insert(name);
  }
  EXPECT_EQ(used.size(), reviewed_differences().size())
      << "a reviewed difference is gone: take it off the list";
}

}  // namespace
}  // namespace tandem::args
