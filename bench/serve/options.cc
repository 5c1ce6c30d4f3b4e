#include "bench/serve/options.h"

#include "common/json/parse.h"

#include <CLI/CLI.hpp>

#include <charconv>
#include <cmath>
#include <limits>

namespace tandem::bench {

namespace {

struct Backend {
  const char* name;
  Api api;
};

constexpr Backend kBackends[] = {{"sglang", Api::kNative},
                                 {"sglang-native", Api::kNative},
                                 {"sglang-oai", Api::kCompletions},
                                 {"sglang-oai-chat", Api::kChat},
                                 {"openai", Api::kCompletions},
                                 {"openai-chat", Api::kChat},
                                 {"vllm", Api::kCompletions},
                                 {"vllm-chat", Api::kChat}};

// Words of the command line that need a second look.
struct Raw {
  std::string base_url;
  std::string extra_body;
  std::vector<std::string> headers;
  std::vector<std::string> goodput;
  std::vector<std::string> metadata;
  std::optional<std::string> metrics;
  std::optional<std::string> percentiles;
  std::optional<std::int64_t> output_len;
  bool disable_stream = false;
  bool ignore_eos = false;
  bool disable_ignore_eos = false;
  bool disable_tqdm = false;
};

// Flags of bench_serving that cannot be kept here: an answer that names the way out.
struct Refused {
  const char* flag;
  const char* why;
};

constexpr const char* kToBody = "put it into --extra-request-body, which is merged into each body";
constexpr const char* kRates = "the rate is constant here: one run for each --request-rate";
constexpr const char* kAdapter =
    "one adapter a run: --extra-request-body '{\"lora_path\": \"NAME\"}' or, as vLLM has it, "
    "--model NAME";

constexpr Refused kRefused[] = {
    {"--trust-remote-code", "no code of a model folder is ever run here: leave the flag out"},
    {"--profile", "no profiler is started from here: put the server under perf record"},
    {"--lora-name", kAdapter},
    {"--lora-modules", kAdapter},
    {"--lora-assignment", kAdapter},
    {"--top-p", kToBody},
    {"--top-k", kToBody},
    {"--min-p", kToBody},
    {"--temperature", kToBody},
    {"--frequency-penalty", kToBody},
    {"--presence-penalty", kToBody},
    {"--repetition-penalty", kToBody},
    {"--logprobs", kToBody},
    {"--return-logprob", kToBody},
    {"--use-beam-search", "answers are counted one to a request: leave the flag out"},
    {"--ramp-up-strategy", kRates},
    {"--ramp-up-start-rps", kRates},
    {"--ramp-up-end-rps", kRates},
    {"--ready-check-timeout-sec", "nothing is waited for: ask the server's /health first"},
    {"--insecure", "there is no TLS: put http://HOST:PORT into --base-url"},
    {"--plot-timeline", "nothing is drawn: --save-detailed gives the figures for it"},
    {"--plot-dataset-stats", "nothing is drawn: --save-detailed gives the figures for it"},
    {"--tokenizer-mode", "a tokenizer.json is read as it is: leave the flag out"},
    {"--skip-tokenizer-init", "without --tokenizer there is none: leave the flag out"},
    {"--tokenize-prompt", "random prompts are ids already where the API takes them"},
    {"--apply-chat-template", "--backend sglang-oai-chat has the server apply it"},
    {"--pd-separated", "point --base-url at the router: pairs need no flag here"}};

void add_target(CLI::App& app, Options& o, Raw& raw) {
  app.add_option("--backend", o.backend, "sglang, sglang-oai, sglang-oai-chat, openai, vllm, ...");
  app.add_option("--base-url", raw.base_url, "http://HOST:PORT; replaces --host and --port");
  app.add_option("--host", o.host);
  app.add_option("--port", o.port);
  app.add_option("--endpoint", o.endpoint, "replaces the route; the backend's shape must fit it");
  app.add_option("--model", o.model, "default: the first one of /v1/models");
  app.add_option("--served-model-name", o.served_model_name, "what requests call it; --model");
  app.add_option(
      "--tokenizer", o.tokenizer, "model folder; counts tokens of conversations and answers");
  app.add_option("--header", raw.headers, "KEY=VALUE, sent with each request")->expected(-1);
  app.add_option("--request-id-prefix", o.request_id_prefix, "x-request-id: PREFIX0, PREFIX1, ...");
  app.add_option(
      "--extra-request-body,--extra-body", raw.extra_body, "JSON object, merged into each request");
  app.add_flag("--disable-stream", raw.disable_stream);
  app.add_flag("--ignore-eos", raw.ignore_eos, "the default");
  app.add_flag("--disable-ignore-eos", raw.disable_ignore_eos);
}

void add_load(CLI::App& app, Options& o, Raw& raw) {
  app.add_option("--dataset-name", o.dataset_name, "random or sharegpt");
  app.add_option("--dataset-path", o.dataset_path, "JSON file of conversations");
  app.add_option("--num-prompts,--num-prompt", o.num_prompts);
  app.add_option("--random-input-len,--random-input,--input-len", o.random_input_len, "tokens");
  app.add_option("--random-output-len,--random-output", o.random_output_len, "tokens");
  app.add_option("--output-len", raw.output_len, "tokens, whatever the dataset");
  app.add_option("--random-range-ratio", o.random_range_ratio, "lengths from RATIO x len to len");
  app.add_option("--sharegpt-output-len", o.sharegpt_output_len, "tokens");
  app.add_option("--request-rate", o.request_rate, "requests/s, Poisson; inf: all at once");
  app.add_option("--burstiness", o.burstiness, "shape of gamma arrivals; 1: Poisson");
  app.add_option("--max-concurrency", o.max_concurrency);
  app.add_option("--seed", o.seed);
  app.add_option("--warmup-requests,--num-warmups", o.warmup_requests);
  app.add_flag("--flush-cache", o.flush_cache, "POST /flush_cache before the run");
  app.add_option("--timeout", o.timeout_s, "seconds for one request");
}

void add_output(CLI::App& app, Options& o, Raw& raw) {
  app.add_option("--percentile-metrics", raw.metrics, "of ttft,tpot,itl,e2el; the table has these");
  app.add_option("--metric-percentiles", raw.percentiles, "50,90,99.9: adds p<N>_<metric>_ms");
  app.add_option("--goodput", raw.goodput, "ttft:MS tpot:MS e2el:MS")->expected(-1);
  app.add_option("--output-file", o.output_file, "one JSON line is appended");
  app.add_flag("--output-details", o.output_details, "per-request lists in the JSON line");
  app.add_option("--tag", o.tag);
  app.add_flag("--save-result", o.save_result, "a JSON file, named LABEL-RATEqps-MODEL-DATE.json");
  app.add_flag("--append-result", o.append_result, "the same, at the end of a file that is there");
  app.add_flag("--save-detailed", o.save_detailed, "per-request lists in that file");
  app.add_option("--result-dir", o.result_dir, "for --save-result; made where it is not there");
  app.add_option("--result-filename", o.result_filename, "for --save-result");
  app.add_option("--label", o.label, "first part of that name; default: the backend");
  app.add_option("--metadata", raw.metadata, "KEY=VALUE, into the result")->expected(-1);
  app.add_flag("--disable-tqdm", raw.disable_tqdm, "no progress bar: there is none");
}

Status settle_backend(Options& o) {
  std::string names;
  for (const Backend& backend : kBackends) {
    if (o.backend == backend.name) {
      o.api = backend.api;
      return {};
    }
    names.append(names.empty() ? "" : ", ").append(backend.name);
  }
  return invalid_argument("--backend: found '" + o.backend + "', expected one of " + names);
}

// The backend's shape must be what the route takes.
Status check_endpoint(const Options& o) {
  if (o.endpoint.empty()) return {};
  if (o.endpoint.front() != '/' || o.endpoint.find_first_of(" \r\n") != std::string::npos)
    return invalid_argument("--endpoint: found '" + o.endpoint + "', expected a path with '/'");
  const bool chat = o.endpoint.ends_with("/chat/completions");
  const bool fits = o.api == Api::kChat          ? chat
                    : o.api == Api::kCompletions ? !chat && o.endpoint.ends_with("/completions")
                                                 : o.endpoint.ends_with("/generate");
  if (fits) return {};
  return invalid_argument("--endpoint: found '" + o.endpoint + "', but --backend " + o.backend +
                          " speaks " + route_of(o.api) + ": choose the --backend that fits");
}

Status check_saving(const Options& o) {
  if (o.output_details && o.output_file.empty())
    return invalid_argument("--output-details needs --output-file");
  if (o.save_result || o.append_result) return {};
  if (o.save_detailed) return invalid_argument("--save-detailed needs --save-result");
  if (!o.result_dir.empty()) return invalid_argument("--result-dir needs --save-result");
  if (!o.result_filename.empty()) return invalid_argument("--result-filename needs --save-result");
  return {};
}

// "a,b" in its words; nothing for nothing.
std::vector<std::string> words_of(const std::optional<std::string>& list) {
  std::vector<std::string> words;
  for (std::size_t at = 0; list && at <= list->size();) {
    const std::size_t end = std::min(list->find(',', at), list->size());
    words.push_back(list->substr(at, end - at));
    at = end + 1;
  }
  return words;
}

Status settle_percentiles(const Raw& raw, Options& o) {
  o.percentile_metrics = words_of(raw.metrics);
  for (const std::string& name : o.percentile_metrics) {
    if (name != "ttft" && name != "tpot" && name != "itl" && name != "e2el") {
      return invalid_argument("--percentile-metrics: found '" + name +
                              "', expected ttft, tpot, itl or e2el");
    }
  }
  for (const std::string& word : words_of(raw.percentiles)) {
    double percent = 0;
    const char* end = word.data() + word.size();
    const auto [at, error] = std::from_chars(word.data(), end, percent);
    if (error != std::errc() || at != end || !(percent >= 0 && percent <= 100)) {
      return invalid_argument("--metric-percentiles: found '" + word +
                              "', expected numbers from 0 to 100");
    }
    o.percentiles.push_back(percent);
  }
  return {};
}

Status check_ranges(const Options& o) {
  if (o.num_prompts == 0) return invalid_argument("--num-prompts: expected at least 1");
  if (o.random_input_len < 1 || o.random_output_len < 1)
    return invalid_argument("--random-input-len and --random-output-len: expected at least 1");
  if (!(o.random_range_ratio >= 0 && o.random_range_ratio <= 1))
    return invalid_argument("--random-range-ratio: expected 0 to 1");
  if (!(o.request_rate > 0)) return invalid_argument("--request-rate: expected more than 0");
  if (!(o.burstiness > 0)) return invalid_argument("--burstiness: expected more than 0");
  if (o.burstiness != 1 && std::isinf(o.request_rate))
    return invalid_argument("--burstiness needs --request-rate: without, all are sent at once");
  if (!o.served_model_name.empty() && o.api == Api::kNative) {
    return invalid_argument("--served-model-name: --backend " + o.backend +
                            " sends no name of a model");
  }
  if (o.request_id_prefix.find_first_of("\r\n") != std::string::npos)
    return invalid_argument("--request-id-prefix: expected one line");
  if (o.max_concurrency == 0) return invalid_argument("--max-concurrency: expected at least 1");
  if (!(o.timeout_s > 0)) return invalid_argument("--timeout: expected more than 0");
  const bool random = o.dataset_name == "random" || o.dataset_name == "random-ids";
  if (!random && o.dataset_name != "sharegpt") {
    return invalid_argument("--dataset-name: found '" + o.dataset_name +
                            "', expected random or sharegpt");
  }
  if (random == o.dataset_path.empty()) return {};
  return invalid_argument(random ? "--dataset-path: goes with --dataset-name sharegpt only"
                                 : "--dataset-name sharegpt needs --dataset-path");
}

// Words of the form KEY=VALUE.
Status settle_pairs(const Raw& raw, Options& o) {
  for (const std::string& header : raw.headers) {
    const std::size_t at = header.find('=');
    if (at == std::string::npos || at == 0 || header.find_first_of("\r\n") != std::string::npos)
      return invalid_argument("--header: found '" + header + "', expected KEY=VALUE");
    o.headers.emplace_back(header.substr(0, at), header.substr(at + 1));
  }
  for (const std::string& pair : raw.metadata) {
    const std::size_t at = pair.find('=');
    if (at == std::string::npos || at == 0)
      return invalid_argument("--metadata: found '" + pair + "', expected KEY=VALUE");
    o.metadata.emplace_back(pair.substr(0, at), pair.substr(at + 1));
  }
  return {};
}

Status settle(const Raw& raw, Options& o) {
  TANDEM_TRY(settle_backend(o));
  if (!raw.base_url.empty()) {
    TANDEM_TRY(apply_base_url(raw.base_url, &o));
  }
  if (raw.ignore_eos && raw.disable_ignore_eos)
    return invalid_argument("--ignore-eos and --disable-ignore-eos: expected one of them");
  if (raw.output_len) {
    o.random_output_len = *raw.output_len;
    o.sharegpt_output_len = raw.output_len;
  }
  o.stream = !raw.disable_stream;
  o.ignore_eos = !raw.disable_ignore_eos;
  if (!raw.extra_body.empty()) {
    const auto value = json::parse(raw.extra_body);
    if (!value.ok()) return value.status().with_context("--extra-request-body");
    if (!value->is_object())
      return invalid_argument("--extra-request-body: expected a JSON object");
    o.extra_body = *value->if_object();
  }
  TANDEM_TRY(settle_pairs(raw, o));
  for (const std::string& word : raw.goodput) {
    TANDEM_TRY(const Goal goal, parse_goal(word));
    o.goodput.push_back(goal);
  }
  TANDEM_TRY(settle_percentiles(raw, o));
  TANDEM_TRY(check_endpoint(o));
  TANDEM_TRY(check_saving(o));
  return check_ranges(o);
}

// What is said of a command line that CLI11 does not take.
std::string refusal(int argc, const char* const* argv, const std::string& otherwise) {
  for (int i = 1; i < argc; ++i) {
    const std::string word = argv[i];
    const std::string flag = word.substr(0, word.find('='));
    for (const Refused& refused : kRefused) {
      if (flag == refused.flag) return flag + ": " + refused.why;
    }
  }
  return otherwise;
}

}  // namespace

std::string route_of(Api api) {
  switch (api) {
    case Api::kNative:
      return "/generate";
    case Api::kChat:
      return "/v1/chat/completions";
    case Api::kCompletions:
      break;
  }
  return "/v1/completions";
}

Status apply_base_url(const std::string& url, Options* options) {
  constexpr std::string_view kScheme = "http://";
  Status bad =
      invalid_argument("--base-url: found '" + url + "', expected http://HOST:PORT (without TLS)");
  if (!url.starts_with(kScheme)) return bad;
  std::string rest = url.substr(kScheme.size());
  const std::size_t slash = rest.find('/');
  std::string prefix = slash == std::string::npos ? "" : rest.substr(slash);
  rest.resize(std::min(slash, rest.size()));
  while (prefix.ends_with('/'))
    prefix.pop_back();
  std::uint16_t port = 80;
  const std::size_t colon = rest.rfind(':');
  if (colon != std::string::npos && rest.find(']', colon) == std::string::npos) {
    const char* end = rest.data() + rest.size();
    const auto [at, error] = std::from_chars(rest.data() + colon + 1, end, port);
    if (error != std::errc() || at != end || port == 0) return bad;
    rest.resize(colon);
  }
  if (rest.size() > 2 && rest.front() == '[' && rest.back() == ']')
    rest = rest.substr(1, rest.size() - 2);
  if (rest.empty()) return bad;
  options->host = rest;
  options->port = port;
  options->path_prefix = prefix;
  return {};
}

Result<Goal> parse_goal(const std::string& word) {
  Status bad =
      invalid_argument("--goodput: found '" + word + "', expected ttft:MS, tpot:MS or e2el:MS");
  const std::size_t colon = word.find(':');
  if (colon == std::string::npos) return bad;
  const std::string name = word.substr(0, colon);
  Goal goal{};
  if (name == "ttft") {
    goal.figure = Goal::Figure::kTtft;
  } else if (name == "tpot") {
    goal.figure = Goal::Figure::kTpot;
  } else if (name == "e2el") {
    goal.figure = Goal::Figure::kE2e;
  } else {
    return bad;
  }
  const char* end = word.data() + word.size();
  const auto [at, error] = std::from_chars(word.data() + colon + 1, end, goal.limit_ms);
  if (error != std::errc() || at != end || !(goal.limit_ms >= 0)) return bad;
  return goal;
}

Parsed parse_options(int argc, const char* const* argv) {
  Options options;
  options.request_rate = std::numeric_limits<double>::infinity();
  Raw raw;
  CLI::App app("Puts load on a server and measures it, as bench_serving does");
  app.name("serve");
  add_target(app, options, raw);
  add_load(app, options, raw);
  add_output(app, options, raw);
  try {
    app.parse(argc, argv);
  } catch (const CLI::CallForHelp&) {
    return {.options = std::nullopt, .text = app.help(), .exit_code = 0};
  } catch (const CLI::ParseError& error) {
    return {.options = std::nullopt, .text = refusal(argc, argv, error.what()), .exit_code = 2};
  }
  const Status status = settle(raw, options);
  if (!status.ok()) return {.options = std::nullopt, .text = status.message(), .exit_code = 2};
  return {.options = std::move(options), .text = {}, .exit_code = 0};
}

}  // namespace tandem::bench
