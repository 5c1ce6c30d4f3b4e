#include "bench/serve/report.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <ctime>
#include <limits>
#include <map>
#include <numeric>
#include <string_view>
#include <utility>

namespace tandem::bench {

namespace {

constexpr double kMs = 1e3;

double tpot_s(const Outcome& outcome) {
  return (outcome.latency_s - outcome.ttft_s) / static_cast<double>(outcome.output_tokens - 1);
}

void set_summary(json::Object& report, const std::string& name, const Summary& summary) {
  report.set("mean_" + name + "_ms", summary.mean * kMs);
  report.set("median_" + name + "_ms", summary.median * kMs);
  report.set("std_" + name + "_ms", summary.deviation * kMs);
  report.set("p90_" + name + "_ms", summary.p90 * kMs);
  report.set("p95_" + name + "_ms", summary.p95 * kMs);
  report.set("p99_" + name + "_ms", summary.p99 * kMs);
  report.set("max_" + name + "_ms", summary.max * kMs);
}

// A latency that --percentile-metrics can name.
struct Latency {
  const char* name;
  const char* label;
};

constexpr Latency kLatencies[] = {
    {"e2el", "E2E latency"}, {"ttft", "TTFT"}, {"tpot", "TPOT"}, {"itl", "ITL"}};

bool is_named(const Options& options, const std::string& name) {
  const auto& names = options.percentile_metrics;
  return std::find(names.begin(), names.end(), name) != names.end();
}

bool is_shown(const Options& options, const std::string& name) {
  return options.percentile_metrics.empty() || is_named(options, name);
}

// Whether --metric-percentiles means this one; where it stands alone, it means vLLM's three.
bool has_percentiles(const Options& options, const std::string& name) {
  if (options.percentiles.empty()) return false;
  return options.percentile_metrics.empty() ? name != "e2el" : is_named(options, name);
}

void set_latency(json::Object& report,
                 const Options& options,
                 const std::string& name,
                 std::vector<double> values) {
  set_summary(report, name, summarize(values));
  if (!has_percentiles(options, name)) return;
  std::sort(values.begin(), values.end());
  for (const double percent : options.percentiles)
    report.set("p" + percent_word(percent) + "_" + name + "_ms", percentile(values, percent) * kMs);
}

void add_line(std::string& out,
              const json::Object& report,
              const std::string& label,
              const std::string& key) {
  const json::Value* value = report.find(key);
  if (value == nullptr || value->is_null()) return;
  const int digits = value->is_integer() ? 0 : 2;
  out += fmt::format("{:<40} {:>9.{}f}\n", label + ":", value->number_or_zero(), digits);
}

void add_latency(std::string& out,
                 const Options& options,
                 const json::Object& report,
                 const Latency& latency) {
  const std::string unit = std::string(latency.label) + " (ms)";
  const std::string end = std::string("_") + latency.name + "_ms";
  add_line(out, report, "Mean " + unit, "mean" + end);
  add_line(out, report, "Median " + unit, "median" + end);
  std::vector<double> percents = {99};
  if (has_percentiles(options, latency.name)) percents = options.percentiles;
  for (const double percent : percents) {
    const std::string word = percent_word(percent);
    add_line(out, report, fmt::format("P{} {}", word, unit), fmt::format("p{}{}", word, end));
  }
  if (std::string_view(latency.name) == "itl") add_line(out, report, "Max " + unit, "max" + end);
}

json::Value text_or_null(const std::string& text) {
  return text.empty() ? json::Value() : json::Value(text);
}

void set_arguments(json::Object& report, const Options& options) {
  std::string date(20, '\0');
  const std::time_t now = std::time(nullptr);
  std::tm parts{};
  gmtime_r(&now, &parts);
  date.resize(std::strftime(date.data(), date.size(), "%Y%m%d-%H%M%S", &parts));
  report.set("tag", text_or_null(options.tag));
  report.set("date", date);
  report.set("backend", options.backend);
  report.set("endpoint_type", options.backend);
  report.set("label", text_or_null(options.label));
  report.set("model_id", options.model);
  report.set("tokenizer_id", text_or_null(options.tokenizer));
  report.set("dataset_name", options.dataset_name);
  report.set("num_prompts", options.num_prompts);
  report.set(
      "request_rate",
      std::isinf(options.request_rate) ? json::Value("inf") : json::Value(options.request_rate));
  report.set("burstiness",
             std::isinf(options.burstiness) ? json::Value("inf") : json::Value(options.burstiness));
  report.set("max_concurrency",
             options.max_concurrency ? json::Value(*options.max_concurrency) : json::Value());
  report.set("random_input_len", options.random_input_len);
  report.set("random_output_len", options.random_output_len);
  report.set("random_range_ratio", options.random_range_ratio);
  report.set(
      "sharegpt_output_len",
      options.sharegpt_output_len ? json::Value(*options.sharegpt_output_len) : json::Value());
}

struct Samples {
  std::vector<double> ttft, tpot, itl, e2e;
  std::int64_t input = 0;
  std::int64_t output = 0;
  std::size_t completed = 0;
  std::size_t good = 0;
};

Samples collect(const Options& options, const LoadResult& result) {
  Samples samples;
  for (const Outcome& outcome : result.outcomes) {
    if (!outcome.ok) continue;
    ++samples.completed;
    samples.input += outcome.prompt_tokens;
    samples.output += outcome.output_tokens;
    samples.ttft.push_back(outcome.ttft_s);
    samples.e2e.push_back(outcome.latency_s);
    samples.itl.insert(samples.itl.end(), outcome.itl_s.begin(), outcome.itl_s.end());
    if (outcome.output_tokens > 1) samples.tpot.push_back(tpot_s(outcome));
    if (is_good(outcome, options.goodput)) ++samples.good;
  }
  return samples;
}

// Most requests under way at one time.
std::int64_t peak_requests(const LoadResult& result) {
  std::vector<std::pair<double, int>> events;
  for (const Outcome& outcome : result.outcomes) {
    if (!outcome.ok) continue;
    events.emplace_back(outcome.start_s, 1);
    events.emplace_back(outcome.start_s + outcome.latency_s, -1);
  }
  // Of a leave and an arrival at the same time the leave is first.
  std::sort(events.begin(), events.end());
  std::int64_t now = 0;
  std::int64_t peak = 0;
  for (const auto& [at, change] : events)
    peak = std::max(peak, now += change);
  return peak;
}

// Most tokens in one of the seconds that follow the first sending.
double peak_tokens(const LoadResult& result) {
  double began = std::numeric_limits<double>::infinity();
  for (const Outcome& outcome : result.outcomes)
    if (outcome.ok) began = std::min(began, outcome.start_s);
  std::map<std::int64_t, std::int64_t> seconds;
  for (const Outcome& outcome : result.outcomes) {
    if (!outcome.ok) continue;
    double at = outcome.start_s + outcome.ttft_s - began;
    ++seconds[static_cast<std::int64_t>(at)];
    for (const double gap : outcome.itl_s)
      ++seconds[static_cast<std::int64_t>(at += gap)];
  }
  std::int64_t peak = 0;
  for (const auto& [second, tokens] : seconds)
    peak = std::max(peak, tokens);
  return static_cast<double>(peak);
}

}  // namespace

double percentile(const std::vector<double>& sorted, double percent) {
  if (sorted.empty()) return 0;
  const double place = percent / 100 * static_cast<double>(sorted.size() - 1);
  const auto below = static_cast<std::size_t>(place);
  const std::size_t above = std::min(below + 1, sorted.size() - 1);
  return sorted[below] + (sorted[above] - sorted[below]) * (place - static_cast<double>(below));
}

std::string percent_word(double percent) {
  return fmt::format("{}", percent);
}

Summary summarize(std::vector<double> values) {
  if (values.empty()) return {};
  std::sort(values.begin(), values.end());
  const auto count = static_cast<double>(values.size());
  Summary summary;
  summary.mean = std::accumulate(values.begin(), values.end(), 0.0) / count;
  double squares = 0;
  for (const double value : values)
    squares += (value - summary.mean) * (value - summary.mean);
  summary.deviation = std::sqrt(squares / count);
  summary.median = percentile(values, 50);
  summary.p90 = percentile(values, 90);
  summary.p95 = percentile(values, 95);
  summary.p99 = percentile(values, 99);
  summary.max = values.back();
  return summary;
}

bool is_good(const Outcome& outcome, const std::vector<Goal>& goals) {
  return std::all_of(goals.begin(), goals.end(), [&](const Goal& goal) {
    switch (goal.figure) {
      case Goal::Figure::kTtft:
        return outcome.ttft_s * kMs <= goal.limit_ms;
      case Goal::Figure::kTpot:
        return outcome.output_tokens < 2 || tpot_s(outcome) * kMs <= goal.limit_ms;
      case Goal::Figure::kE2e:
        break;
    }
    return outcome.latency_s * kMs <= goal.limit_ms;
  });
}

json::Object make_report(const Options& options, const LoadResult& result) {
  const Samples samples = collect(options, result);
  const double duration = std::max(result.duration_s, 1e-9);
  const auto rate = [duration](auto count) { return static_cast<double>(count) / duration; };
  json::Object report;
  set_arguments(report, options);
  report.set("duration", result.duration_s);
  report.set("completed", samples.completed);
  report.set("failed", result.outcomes.size() - samples.completed);
  report.set("total_input_tokens", samples.input);
  report.set("total_output_tokens", samples.output);
  if (result.retokenized) report.set("total_output_tokens_retokenized", *result.retokenized);
  report.set("request_throughput", rate(samples.completed));
  report.set("input_throughput", rate(samples.input));
  report.set("output_throughput", rate(samples.output));
  report.set("total_throughput", rate(samples.input + samples.output));
  report.set("total_token_throughput", rate(samples.input + samples.output));
  // Without a stream it is not known when a token came.
  if (options.stream) report.set("max_output_tokens_per_s", peak_tokens(result));
  report.set("max_concurrent_requests", peak_requests(result));
  set_summary(report, "e2e_latency", summarize(samples.e2e));
  set_latency(report, options, "e2el", samples.e2e);
  set_latency(report, options, "ttft", samples.ttft);
  set_latency(report, options, "tpot", samples.tpot);
  set_latency(report, options, "itl", samples.itl);
  report.set("concurrency",
             std::accumulate(samples.e2e.begin(), samples.e2e.end(), 0.0) / duration);
  report.set("request_goodput",
             options.goodput.empty() ? json::Value() : json::Value(rate(samples.good)));
  for (const auto& [key, value] : options.metadata)
    report.set(key, value);
  report.set("accept_length",
             result.accept_length ? json::Value(*result.accept_length) : json::Value());
  return report;
}

void add_details(json::Object* report, const LoadResult& result) {
  json::Array input, output, ttft, itl, latency, start, texts, errors;
  for (const Outcome& outcome : result.outcomes) {
    input.emplace_back(outcome.prompt_tokens);
    output.emplace_back(outcome.output_tokens);
    ttft.emplace_back(outcome.ttft_s);
    json::Array gaps;
    for (const double gap : outcome.itl_s)
      gaps.emplace_back(gap);
    itl.emplace_back(std::move(gaps));
    latency.emplace_back(outcome.latency_s);
    start.emplace_back(outcome.start_s);
    texts.emplace_back(outcome.text);
    errors.emplace_back(outcome.error);
  }
  report->set("input_lens", std::move(input));
  report->set("output_lens", std::move(output));
  report->set("ttfts", std::move(ttft));
  report->set("itls", std::move(itl));
  report->set("latencies", std::move(latency));
  report->set("start_times", std::move(start));
  report->set("generated_texts", std::move(texts));
  report->set("errors", std::move(errors));
}

std::string report_table(const Options& options, const json::Object& report) {
  struct Row {
    const char* label;
    const char* key;
  };

  constexpr Row kRows[] = {
      {"Successful requests", "completed"},
      {"Failed requests", "failed"},
      {"Benchmark duration (s)", "duration"},
      {"Total input tokens", "total_input_tokens"},
      {"Total generated tokens", "total_output_tokens"},
      {"Total generated tokens (retokenized)", "total_output_tokens_retokenized"},
      {"Request throughput (req/s)", "request_throughput"},
      {"Request goodput (req/s)", "request_goodput"},
      {"Input token throughput (tok/s)", "input_throughput"},
      {"Output token throughput (tok/s)", "output_throughput"},
      {"Peak output token throughput (tok/s)", "max_output_tokens_per_s"},
      {"Peak concurrent requests", "max_concurrent_requests"},
      {"Total token throughput (tok/s)", "total_throughput"},
      {"Concurrency", "concurrency"},
      {"Accept length", "accept_length"}};
  std::string out = fmt::format("{:=^50}\n", " Serving Benchmark Result ");
  for (const Row& row : kRows)
    add_line(out, report, row.label, row.key);
  for (const Latency& latency : kLatencies) {
    if (is_shown(options, latency.name)) add_latency(out, options, report, latency);
  }
  return out + std::string(50, '=') + "\n";
}

}  // namespace tandem::bench
