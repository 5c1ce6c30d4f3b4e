// Options of the load client: the flags that users of SGLang's and vLLM's bench_serving know.
#pragma once

#include "common/base/status.h"
#include "common/json/value.h"

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace tandem::bench {

/// Which request shape is spoken.
enum class Api {
  kNative,       ///< SGLang's /generate
  kChat,         ///< OpenAI's /v1/chat/completions
  kCompletions,  ///< OpenAI's /v1/completions
};

/// A latency bound: a request is good when its figure is at most `limit_ms`.
struct Goal {
  enum class Figure {
    kTtft,
    kTpot,
    kE2e
  } figure;
  double limit_ms;
};

struct Options {
  std::string backend = "sglang";
  Api api = Api::kNative;
  std::string host = "127.0.0.1";
  std::uint16_t port = 30000;
  /// Comes from --base-url: what stands before the route.
  std::string path_prefix;
  /// Empty: asked of the server.
  std::string model;
  /// Name that requests carry, where it is not `model`.
  std::string served_model_name;
  /// Replaces the route of the API; empty: route_of(api).
  std::string endpoint;
  /// Folder of tokenizer.json: counts tokens of a conversation file and of the answers' text.
  std::string tokenizer;
  std::string dataset_name = "random";
  std::string dataset_path;
  std::size_t num_prompts = 1000;
  std::int64_t random_input_len = 1024;
  std::int64_t random_output_len = 1024;
  /// Lengths are uniform in [ratio * len, len].
  double random_range_ratio = 0.0;
  std::optional<std::int64_t> sharegpt_output_len;
  /// Requests in a second (Poisson); infinity: all at once.
  double request_rate = 0;
  /// Shape of the gamma distribution of the gaps: 1 is Poisson, infinity even gaps.
  double burstiness = 1;
  std::optional<std::size_t> max_concurrency;
  std::uint64_t seed = 1;
  std::size_t warmup_requests = 1;
  bool stream = true;
  bool ignore_eos = true;
  bool flush_cache = false;
  bool output_details = false;
  json::Object extra_body;
  std::vector<std::pair<std::string, std::string>> headers;
  /// Request i carries x-request-id: PREFIX i. Empty: none does.
  std::string request_id_prefix;
  std::vector<Goal> goodput;
  /// Latencies that the table shows: ttft, tpot, itl, e2el. Empty: all.
  std::vector<std::string> percentile_metrics;
  /// Asked for beside the usual ones, of `percentile_metrics` or of ttft, tpot and itl.
  std::vector<double> percentiles;
  std::string output_file;
  std::string tag;
  std::string label;
  std::vector<std::pair<std::string, std::string>> metadata;
  bool save_result = false;
  bool append_result = false;
  bool save_detailed = false;
  std::string result_dir;
  std::string result_filename;
  double timeout_s = 6 * 3600;
};

/// What became of the command line: options, or text to print and an exit code.
struct Parsed {
  std::optional<Options> options;
  std::string text;
  int exit_code = 0;
};

/// Threads: any. Reads nothing but its arguments.
Parsed parse_options(int argc, const char* const* argv);

/// "http://host:port/prefix" into its parts. Errors: another scheme, no host, a bad port.
Status apply_base_url(const std::string& url, Options* options);
/// "ttft:200" with ttft, tpot or e2el.
Result<Goal> parse_goal(const std::string& word);
/// Route of the API, without the prefix.
std::string route_of(Api api);

}  // namespace tandem::bench
