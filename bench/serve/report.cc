#include "bench/serve/report.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <ctime>
#include <numeric>

namespace tandem::bench {

namespace {

constexpr double kMs = 1e3;

double percentile(const std::vector<double>& sorted, double percent) {
  const double place = percent / 100 * static_cast<double>(sorted.size() - 1);
  const auto below = static_cast<std::size_t>(place);
  const std::size_t above = std::min(below + 1, sorted.size() - 1);
  return sorted[below] + (sorted[above] - sorted[below]) * (place - static_cast<double>(below));
}

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

void set_arguments(json::Object& report, const Options& options) {
  std::string date(20, '\0');
  const std::time_t now = std::time(nullptr);
  std::tm parts{};
  gmtime_r(&now, &parts);
  date.resize(std::strftime(date.data(), date.size(), "%Y%m%d-%H%M%S", &parts));
  report.set("tag", options.tag.empty() ? json::Value() : json::Value(options.tag));
  report.set("date", date);
  report.set("backend", options.backend);
  report.set("model_id", options.model);
  report.set("dataset_name", options.dataset_name);
  report.set("num_prompts", options.num_prompts);
  report.set(
      "request_rate",
      std::isinf(options.request_rate) ? json::Value("inf") : json::Value(options.request_rate));
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

void set_details(json::Object& report, const LoadResult& result) {
  json::Array input, output, ttft, itl, texts, errors;
  for (const Outcome& outcome : result.outcomes) {
    input.emplace_back(outcome.prompt_tokens);
    output.emplace_back(outcome.output_tokens);
    ttft.emplace_back(outcome.ttft_s);
    json::Array gaps;
    for (const double gap : outcome.itl_s)
      gaps.emplace_back(gap);
    itl.emplace_back(std::move(gaps));
    texts.emplace_back(outcome.text);
    errors.emplace_back(outcome.error);
  }
  report.set("input_lens", std::move(input));
  report.set("output_lens", std::move(output));
  report.set("ttfts", std::move(ttft));
  report.set("itls", std::move(itl));
  report.set("generated_texts", std::move(texts));
  report.set("errors", std::move(errors));
}

}  // namespace

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
  report.set("request_throughput", rate(samples.completed));
  report.set("input_throughput", rate(samples.input));
  report.set("output_throughput", rate(samples.output));
  report.set("total_throughput", rate(samples.input + samples.output));
  set_summary(report, "e2e_latency", summarize(samples.e2e));
  set_summary(report, "ttft", summarize(samples.ttft));
  set_summary(report, "tpot", summarize(samples.tpot));
  set_summary(report, "itl", summarize(samples.itl));
  report.set("concurrency",
             std::accumulate(samples.e2e.begin(), samples.e2e.end(), 0.0) / duration);
  if (!options.goodput.empty()) report.set("request_goodput", rate(samples.good));
  if (options.output_details) set_details(report, result);
  return report;
}

std::string report_table(const json::Object& report) {
  struct Row {
    const char* label;
    const char* key;
  };

  constexpr Row kRows[] = {{"Successful requests", "completed"},
                           {"Failed requests", "failed"},
                           {"Benchmark duration (s)", "duration"},
                           {"Total input tokens", "total_input_tokens"},
                           {"Total generated tokens", "total_output_tokens"},
                           {"Request throughput (req/s)", "request_throughput"},
                           {"Request goodput (req/s)", "request_goodput"},
                           {"Input token throughput (tok/s)", "input_throughput"},
                           {"Output token throughput (tok/s)", "output_throughput"},
                           {"Total token throughput (tok/s)", "total_throughput"},
                           {"Concurrency", "concurrency"},
                           {"Mean E2E latency (ms)", "mean_e2e_latency_ms"},
                           {"Median E2E latency (ms)", "median_e2e_latency_ms"},
                           {"P99 E2E latency (ms)", "p99_e2e_latency_ms"},
                           {"Mean TTFT (ms)", "mean_ttft_ms"},
                           {"Median TTFT (ms)", "median_ttft_ms"},
                           {"P99 TTFT (ms)", "p99_ttft_ms"},
                           {"Mean TPOT (ms)", "mean_tpot_ms"},
                           {"Median TPOT (ms)", "median_tpot_ms"},
                           {"P99 TPOT (ms)", "p99_tpot_ms"},
                           {"Mean ITL (ms)", "mean_itl_ms"},
                           {"Median ITL (ms)", "median_itl_ms"},
                           {"P99 ITL (ms)", "p99_itl_ms"},
                           {"Max ITL (ms)", "max_itl_ms"}};
  std::string out = fmt::format("{:=^50}\n", " Serving Benchmark Result ");
  for (const Row& row : kRows) {
    const json::Value* value = report.find(row.key);
    if (value == nullptr) continue;
    const bool whole = value->is_integer();
    out += fmt::format(
        "{:<40} {:>9.{}f}\n", std::string(row.label) + ":", value->number_or_zero(), whole ? 0 : 2);
  }
  return out + std::string(50, '=') + "\n";
}

}  // namespace tandem::bench
