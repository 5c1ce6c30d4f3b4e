#include "bench/serve/answer.h"
#include "bench/serve/dataset.h"
#include "bench/serve/options.h"
#include "bench/serve/report.h"
#include "bench/serve/save.h"
#include "common/json/parse.h"
#include "common/json/write.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <fstream>
#include <initializer_list>
#include <iterator>
#include <limits>
#include <numeric>
#include <string>
#include <vector>

namespace tandem::bench {
namespace {

using ::testing::DoubleEq;
using ::testing::HasSubstr;
using ::testing::Not;

Parsed parse(std::vector<const char*> words) {
  words.insert(words.begin(), "serve");
  return parse_options(static_cast<int>(words.size()), words.data());
}

std::string chunk(const std::string& text) {
  char size[16];
  std::snprintf(size, sizeof size, "%zx\r\n", text.size());
  return size + text + "\r\n";
}

const std::string kStreamHead =
    "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n";

std::string chat_event(const std::string& delta, const std::string& reason) {
  return "data: {\"choices\":[{\"index\":0,\"delta\":" + delta + ",\"finish_reason\":" + reason +
         "}]}\n\n";
}

TEST(ServeOptions, ReadsTheFlagsOfBenchServing) {
  const Parsed parsed = parse({"--backend",
                               "sglang-oai-chat",
                               "--base-url",
                               "http://[::1]:81/x/",
                               "--num-prompts",
                               "7",
                               "--random-input-len",
                               "32",
                               "--random-output-len",
                               "8",
                               "--random-range-ratio",
                               "0.5",
                               "--request-rate",
                               "inf",
                               "--max-concurrency",
                               "4",
                               "--goodput",
                               "ttft:100",
                               "tpot:20.5",
                               "--extra-request-body",
                               "{\"top_k\":3}",
                               "--disable-stream",
                               "--header",
                               "a=b=c"});
  ASSERT_TRUE(parsed.options) << parsed.text;
  const Options& o = *parsed.options;
  EXPECT_EQ(o.api, Api::kChat);
  EXPECT_EQ(o.host, "::1");
  EXPECT_EQ(o.port, 81);
  EXPECT_EQ(o.path_prefix, "/x");
  EXPECT_TRUE(std::isinf(o.request_rate));
  EXPECT_EQ(o.max_concurrency, 4U);
  EXPECT_FALSE(o.stream);
  ASSERT_EQ(o.goodput.size(), 2U);
  EXPECT_EQ(o.goodput[1].figure, Goal::Figure::kTpot);
  EXPECT_EQ(o.goodput[1].limit_ms, 20.5);
  EXPECT_EQ(o.headers.front().second, "b=c");
  const auto body = json::parse(request_body(o, {.text = "hi", .ids = {}, .output_len = 3}));
  ASSERT_TRUE(body.ok());
  EXPECT_EQ(*body->find("top_k"), json::Value(3));
  EXPECT_EQ(*body->find("stream"), json::Value(false));
}

TEST(ServeOptions, RefusesNonsenseWithTheNameOfTheFlag) {
  struct Row {
    std::vector<const char*> words;
    const char* named;
  };

  const Row rows[] = {{{"--backend", "trt"}, "--backend"},
                      {{"--base-url", "https://h"}, "--base-url"},
                      {{"--base-url", "http://h:99999"}, "--base-url"},
                      {{"--goodput", "ttft"}, "--goodput"},
                      {{"--goodput", "itl:3"}, "--goodput"},
                      {{"--request-rate", "0"}, "--request-rate"},
                      {{"--max-concurrency", "0"}, "--max-concurrency"},
                      {{"--num-prompts", "0"}, "--num-prompts"},
                      {{"--random-range-ratio", "1.5"}, "--random-range-ratio"},
                      {{"--dataset-name", "sharegpt"}, "--dataset-path"},
                      {{"--extra-request-body", "[]"}, "--extra-request-body"},
                      {{"--header", "x"}, "--header"},
                      {{"--metadata", "x"}, "--metadata"},
                      {{"--burstiness", "0", "--request-rate", "1"}, "--burstiness"},
                      {{"--burstiness", "2"}, "--request-rate"},
                      {{"--ignore-eos", "--disable-ignore-eos"}, "--disable-ignore-eos"},
                      {{"--percentile-metrics", "ttft,e2e"}, "--percentile-metrics: found 'e2e'"},
                      {{"--metric-percentiles", "50,101"}, "--metric-percentiles: found '101'"},
                      {{"--metric-percentiles", "p99"}, "--metric-percentiles: found 'p99'"},
                      {{"--metric-percentiles", "50,"}, "--metric-percentiles: found ''"},
                      {{"--output-details"}, "--output-details needs --output-file"},
                      {{"--result-dir", "x"}, "--result-dir needs --save-result"},
                      {{"--result-filename", "x"}, "--result-filename needs --save-result"},
                      {{"--save-detailed"}, "--save-detailed needs --save-result"},
                      {{"--endpoint", "/v1/completions"}, "--endpoint"},
                      {{"--endpoint", "generate"}, "--endpoint"},
                      {{"--backend", "vllm", "--endpoint", "/v1/chat/completions"}, "--endpoint"},
                      {{"--backend", "vllm-chat", "--endpoint", "/v1/completions"}, "--endpoint"},
                      {{"--served-model-name", "x"}, "--served-model-name"},
                      {{"--request-id-prefix", "a\r\nb"}, "--request-id-prefix"},
                      {{"--trust-remote-code"}, "--trust-remote-code: no code"},
                      {{"--lora-name", "a", "b"}, "lora_path"},
                      {{"--profile"}, "--profile: no profiler"},
                      {{"--temperature=0"}, "--extra-request-body"},
                      {{"--no-such-flag"}, "--no-such-flag"}};
  for (const Row& row : rows) {
    SCOPED_TRACE(row.words.front());
    const Parsed parsed = parse(row.words);
    EXPECT_FALSE(parsed.options);
    EXPECT_EQ(parsed.exit_code, 2);
    EXPECT_THAT(parsed.text, HasSubstr(row.named));
  }
}

TEST(ServeDataset, LengthsLieWithinTheRatioAndComeBackWithTheSeed) {
  Options options;
  options.num_prompts = 50;
  options.random_input_len = 40;
  options.random_output_len = 10;
  options.random_range_ratio = 0.5;
  const auto prompts = make_prompts(options, 100);
  ASSERT_TRUE(prompts.ok());
  ASSERT_EQ(prompts->size(), 50U);
  for (const Prompt& prompt : *prompts) {
    EXPECT_GE(prompt.ids.size(), 20U);
    EXPECT_LE(prompt.ids.size(), 40U);
    EXPECT_GE(prompt.output_len, 5);
    EXPECT_LE(prompt.output_len, 10);
    for (const std::int32_t id : prompt.ids)
      EXPECT_LT(id, 100);
  }
  const auto again = make_prompts(options, 100);
  EXPECT_EQ((*again)[49].ids, (*prompts)[49].ids);
}

TEST(ServeDataset, PoissonArrivalsHaveTheRateThatWasAskedFor) {
  Options options;
  options.request_rate = 50;
  const std::vector<double> due = arrival_times(options, 5000);
  EXPECT_NEAR(due.back() / 5000, 1.0 / 50, 0.001);
  EXPECT_TRUE(std::is_sorted(due.begin(), due.end()));
}

TEST(ServeOptions, TakesTheFlagsOfVllm) {
  const Parsed parsed = parse({"--backend",
                               "vllm",
                               "--endpoint",
                               "/x/v1/completions",
                               "--served-model-name",
                               "small",
                               "--model",
                               "org/model",
                               "--ignore-eos",
                               "--disable-tqdm",
                               "--input-len",
                               "9",
                               "--output-len",
                               "7",
                               "--num-warmups",
                               "0",
                               "--extra-body",
                               "{\"top_k\":3}",
                               "--percentile-metrics",
                               "ttft,e2el",
                               "--metric-percentiles",
                               "50,99.9",
                               "--metadata",
                               "tp=2",
                               "node=a=b",
                               "--save-result",
                               "--save-detailed"});
  ASSERT_TRUE(parsed.options) << parsed.text;
  const Options& o = *parsed.options;
  EXPECT_EQ(o.endpoint, "/x/v1/completions");
  EXPECT_TRUE(o.ignore_eos);
  EXPECT_EQ(o.random_input_len, 9);
  EXPECT_EQ(o.random_output_len, 7);
  EXPECT_EQ(o.sharegpt_output_len, 7);
  EXPECT_EQ(o.warmup_requests, 0U);
  EXPECT_EQ(o.percentile_metrics, (std::vector<std::string>{"ttft", "e2el"}));
  EXPECT_EQ(o.percentiles, (std::vector<double>{50, 99.9}));
  ASSERT_EQ(o.metadata.size(), 2U);
  EXPECT_EQ(o.metadata[1].second, "a=b");
  EXPECT_TRUE(check_metadata(o).ok());
  EXPECT_TRUE(o.save_detailed);
  const auto body = json::parse(request_body(o, {.text = "hi", .ids = {}, .output_len = 3}));
  ASSERT_TRUE(body.ok());
  EXPECT_EQ(*body->find("model"), json::Value("small"));
  EXPECT_EQ(*body->find("ignore_eos"), json::Value(true));
  EXPECT_EQ(*body->find("top_k"), json::Value(3));
  EXPECT_FALSE(parse({"--disable-ignore-eos"}).options->ignore_eos);
}

TEST(ServeOptions, MetadataHidesNoFigure) {
  Options options;
  options.metadata = {{"note", "1"}, {"mean_ttft_ms", "0"}};
  const Status status = check_metadata(options);
  ASSERT_FALSE(status.ok());
  EXPECT_THAT(status.message(), HasSubstr("mean_ttft_ms"));
}

// Mean and squared coefficient of variation of the gaps: 1 / rate, and 1 / burstiness as a gamma
// distribution has it.
TEST(ServeDataset, BurstinessIsTheShapeOfTheGaps) {
  constexpr std::size_t kCount = 40000;
  for (const double shape : {0.25, 1.0, 4.0, std::numeric_limits<double>::infinity()}) {
    SCOPED_TRACE(shape);
    Options options;
    options.request_rate = 20;
    options.burstiness = shape;
    std::vector<double> gaps = arrival_times(options, kCount);
    std::adjacent_difference(gaps.begin(), gaps.end(), gaps.begin());
    gaps.erase(gaps.begin());
    const Summary summary = summarize(gaps);
    EXPECT_NEAR(summary.mean, 0.05, 0.002);
    const double variation = summary.deviation / summary.mean;
    EXPECT_NEAR(variation * variation, 1 / shape, 0.05 * std::max(1 / shape, 0.01));
  }
}

TEST(ServeAnswer, TimesAChatStreamWhereverItIsCut) {
  const std::string text =
      kStreamHead + chunk(chat_event("{\"role\":\"assistant\",\"content\":\"\"}", "null")) +
      chunk(chat_event("{\"content\":\"Hel\"}", "null")) +
      chunk(chat_event("{\"content\":\"lo\"}", "null")) + chunk(chat_event("{}", "\"length\"")) +
      chunk("data: {\"choices\":[],\"usage\":{\"prompt_tokens\":9,\"completion_tokens\":2}}\n\n") +
      chunk("data: [DONE]\n\n") + "0\r\n\r\n";
  const std::size_t first = text.find("Hel") + 20;
  const std::size_t second = text.find("lo\"") + 20;
  for (const std::size_t step : {std::size_t{1}, std::size_t{7}, text.size()}) {
    SCOPED_TRACE(step);
    AnswerReader reader(Api::kChat, true, 100.0);
    for (std::size_t at = 0; at < text.size(); at += step) {
      const double now = at < first ? 101.0 : at < second ? 101.5 : 103.0;
      reader.feed(std::string_view(text).substr(at, step), now);
    }
    ASSERT_TRUE(reader.done());
    const Outcome& outcome = reader.outcome();
    EXPECT_TRUE(outcome.ok) << outcome.error;
    EXPECT_EQ(outcome.text, "Hello");
    EXPECT_EQ(outcome.prompt_tokens, 9);
    EXPECT_EQ(outcome.output_tokens, 2);
    EXPECT_EQ(outcome.itl_s.size(), 1U);
    EXPECT_TRUE(reader.keep_alive());
  }
}

TEST(ServeAnswer, SharesTheTimeBetweenTokensThatCameTogether) {
  const auto event = [](int tokens, const char* reason) {
    return chunk("data: {\"text\":\"x\",\"meta_info\":{\"prompt_tokens\":4,\"completion_tokens\":" +
                 std::to_string(tokens) + ",\"finish_reason\":" + reason + "}}\n\n");
  };
  AnswerReader reader(Api::kNative, true, 0.0);
  reader.feed(kStreamHead + event(1, "null"), 1.0);
  reader.feed(event(4, "null"), 1.6);
  reader.feed(event(5, "{\"type\":\"length\"}") + chunk("data: [DONE]\n\n") + "0\r\n\r\n", 2.0);
  const Outcome& outcome = reader.outcome();
  ASSERT_TRUE(outcome.ok) << outcome.error;
  EXPECT_DOUBLE_EQ(outcome.ttft_s, 1.0);
  EXPECT_DOUBLE_EQ(outcome.latency_s, 2.0);
  ASSERT_EQ(outcome.itl_s.size(), 4U);
  EXPECT_NEAR(outcome.itl_s[0], 0.2, 1e-12);
  EXPECT_NEAR(outcome.itl_s[3], 0.4, 1e-12);
}

TEST(ServeAnswer, ErrorsAreErrors) {
  struct Row {
    const char* name;
    std::string text;
    const char* error;
  };

  const Row rows[] = {
      {"refused", "HTTP/1.1 429 Too Many\r\nContent-Length: 4\r\n\r\nbusy", "HTTP 429: busy"},
      {"error event",
       kStreamHead + chunk("data: {\"error\":{\"message\":\"lost\"}}\n\n") + "0\r\n\r\n",
       "lost"},
      {"cut", kStreamHead + chunk(chat_event("{\"content\":\"a\"}", "null")), "before the answer"},
      {"no end",
       kStreamHead + chunk(chat_event("{\"content\":\"a\"}", "null")) + "0\r\n\r\n",
       "no end"},
      {"no mark",
       kStreamHead + chunk(chat_event("{\"content\":\"a\"}", "\"stop\"")) + "0\r\n\r\n",
       "[DONE]"},
      {"not HTTP", "SSH-2.0-OpenSSH\r\n\r\n", "not an HTTP/1"}};
  for (const Row& row : rows) {
    SCOPED_TRACE(row.name);
    AnswerReader reader(Api::kChat, true, 0.0);
    reader.feed(row.text, 1.0);
    reader.end_of_input(1.0);
    EXPECT_FALSE(reader.outcome().ok);
    EXPECT_THAT(reader.outcome().error, HasSubstr(row.error));
  }
}

TEST(ServeReport, FiguresAreNumpys) {
  const Summary summary = summarize({4, 1, 3, 2});
  EXPECT_THAT(summary.mean, DoubleEq(2.5));
  EXPECT_THAT(summary.median, DoubleEq(2.5));
  EXPECT_THAT(summary.deviation, DoubleEq(std::sqrt(1.25)));
  EXPECT_NEAR(summary.p99, 3.97, 1e-12);
  EXPECT_EQ(summarize({}).mean, 0);
}

TEST(ServeReport, CountsWhatSucceededAndWhatWasGood) {
  Options options;
  options.goodput = {{Goal::Figure::kTtft, 150}, {Goal::Figure::kTpot, 100}};
  LoadResult result;
  result.duration_s = 2;
  const auto add = [&](bool ok, double ttft, double latency) {
    Outcome outcome;
    outcome.ok = ok;
    outcome.ttft_s = ttft;
    outcome.latency_s = latency;
    outcome.prompt_tokens = 10;
    outcome.output_tokens = 5;
    outcome.itl_s.assign(4, (latency - ttft) / 4);
    result.outcomes.push_back(outcome);
  };
  add(true, 0.1, 0.3);  // tpot 50 ms: good
  add(true, 0.2, 0.3);  // ttft too long
  add(true, 0.1, 0.9);  // tpot 200 ms: too long
  add(false, 0.0, 0.0);
  const json::Object report = make_report(options, result);
  const auto number = [&](const char* key) { return report.find(key)->number_or_zero(); };
  EXPECT_EQ(number("completed"), 3);
  EXPECT_EQ(number("failed"), 1);
  EXPECT_EQ(number("total_input_tokens"), 30);
  EXPECT_EQ(number("total_output_tokens"), 15);
  EXPECT_DOUBLE_EQ(number("request_throughput"), 1.5);
  EXPECT_DOUBLE_EQ(number("output_throughput"), 7.5);
  EXPECT_DOUBLE_EQ(number("request_goodput"), 0.5);
  EXPECT_DOUBLE_EQ(number("median_ttft_ms"), 100);
  EXPECT_DOUBLE_EQ(number("concurrency"), 0.75);
  EXPECT_DOUBLE_EQ(number("total_throughput"), 22.5);
  EXPECT_DOUBLE_EQ(number("total_token_throughput"), 22.5);
  EXPECT_TRUE(report.find("accept_length")->is_null());
  EXPECT_FALSE(report.contains("total_output_tokens_retokenized"));
  for (const char* figure : {"mean", "median", "std", "p99"}) {
    const std::string name = figure;
    EXPECT_EQ(number((name + "_e2el_ms").c_str()), number((name + "_e2e_latency_ms").c_str()));
    EXPECT_GT(number((name + "_e2el_ms").c_str()), 0);
  }
  const std::string table = report_table(options, report);
  EXPECT_THAT(table, HasSubstr("Successful requests"));
  EXPECT_THAT(table, HasSubstr("P99 E2E latency (ms)"));
  EXPECT_THAT(table, Not(HasSubstr("Accept length")));
  options.goodput.clear();
  EXPECT_TRUE(make_report(options, result).find("request_goodput")->is_null());
}

LoadResult three_requests() {
  LoadResult result;
  result.duration_s = 2;
  for (const double start : {10.0, 10.5, 11.5}) {
    Outcome outcome;
    outcome.ok = true;
    outcome.text = "a";
    outcome.start_s = start;
    outcome.ttft_s = 0.25;
    outcome.latency_s = 1;
    outcome.output_tokens = 4;
    outcome.itl_s.assign(3, 0.25);
    result.outcomes.push_back(outcome);
  }
  return result;
}

TEST(ServeReport, PeaksAreOfOneSecondAndOfOneMoment) {
  // Requests run from 0 to 1, 0.5 to 1.5 and 1.5 to 2.5 s; tokens are 0.25 s apart.
  const LoadResult result = three_requests();
  const json::Object report = make_report({}, result);
  EXPECT_EQ(report.find("max_concurrent_requests")->number_or_zero(), 2);
  EXPECT_EQ(report.find("max_output_tokens_per_s")->number_or_zero(), 5);
  Options whole;
  whole.stream = false;
  EXPECT_FALSE(make_report(whole, result).contains("max_output_tokens_per_s"));
}

TEST(ServeReport, PercentilesAreOfTheMetricsThatWereNamed) {
  LoadResult result = three_requests();
  result.outcomes[0].latency_s = 3;
  result.retokenized = 11;
  result.accept_length = 2.5;
  Options options;
  options.percentile_metrics = {"e2el"};
  options.percentiles = {25, 99.5};
  json::Object report = make_report(options, result);
  ASSERT_TRUE(report.contains("p25_e2el_ms") && report.contains("p99.5_e2el_ms"));
  EXPECT_DOUBLE_EQ(report.find("p25_e2el_ms")->number_or_zero(), 1000);
  EXPECT_DOUBLE_EQ(report.find("p99.5_e2el_ms")->number_or_zero(), 2980);
  EXPECT_FALSE(report.contains("p25_ttft_ms"));
  EXPECT_TRUE(report.contains("p99_ttft_ms"));  // The usual ones stay.
  EXPECT_EQ(report.find("total_output_tokens_retokenized")->number_or_zero(), 11);
  EXPECT_EQ(report.find("accept_length")->number_or_zero(), 2.5);
  std::string table = report_table(options, report);
  EXPECT_THAT(table, HasSubstr("P99.5 E2E latency (ms)"));
  EXPECT_THAT(table, HasSubstr("Accept length"));
  EXPECT_THAT(table, HasSubstr("retokenized"));
  EXPECT_THAT(table, Not(HasSubstr("TTFT")));
  // Alone, --metric-percentiles means ttft, tpot and itl.
  options.percentile_metrics.clear();
  report = make_report(options, result);
  EXPECT_TRUE(report.contains("p25_ttft_ms"));
  EXPECT_TRUE(report.contains("p25_tpot_ms"));
  EXPECT_TRUE(report.contains("p99.5_itl_ms"));
  EXPECT_FALSE(report.contains("p25_e2el_ms"));
  table = report_table(options, report);
  EXPECT_THAT(table, HasSubstr("P25 ITL (ms)"));
  EXPECT_THAT(table, HasSubstr("P99 E2E latency (ms)"));
}

TEST(ServeSave, FilesAreNamedAsVllmNamesThem) {
  json::Object report;
  report.set("date", "20260102-030405");
  Options options;
  options.backend = "vllm";
  options.model = "org/small";
  options.request_rate = std::numeric_limits<double>::infinity();
  EXPECT_EQ(result_path(options, report), "vllm-infqps-small-20260102-030405.json");
  options.request_rate = 8;
  options.max_concurrency = 4;
  options.label = "a";
  options.result_dir = "out";
  EXPECT_EQ(result_path(options, report), "out/a-8.0qps-concurrency4-small-20260102-030405.json");
  options.result_filename = "b.json";
  EXPECT_EQ(result_path(options, report), "out/b.json");
}

std::string content(const std::filesystem::path& path) {
  std::ifstream file(path);
  return {std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
}

TEST(ServeSave, WritesAnewOrAppendsALine) {
  json::Object report;
  report.set("n", 1);
  Options options;
  options.save_result = true;
  const std::filesystem::path folder =
      std::filesystem::path(::testing::TempDir()) / "serve_save_test";
  std::filesystem::remove_all(folder);
  options.result_dir = folder / "deep";
  options.result_filename = "r.json";
  ASSERT_TRUE(save_result(options, report).ok());
  ASSERT_TRUE(save_result(options, report).ok());
  EXPECT_EQ(content(result_path(options, report)), "{\"n\":1}");
  options.append_result = true;
  ASSERT_TRUE(save_result(options, report).ok());
  EXPECT_EQ(content(result_path(options, report)), "{\"n\":1}\n{\"n\":1}");
  options.result_filename = "no/such/folder.json";
  EXPECT_FALSE(save_result(options, report).ok());
  std::filesystem::remove_all(folder);
}

TEST(ServeSave, AcceptLengthIsWhereSglangLooksForIt) {
  const auto length = [](const char* text) { return accept_length_of(*json::parse(text)); };
  EXPECT_EQ(length(R"({"internal_states":[{"avg_spec_accept_length":2.5}]})"), 2.5);
  EXPECT_EQ(length(R"({"decode":[{"internal_states":[{"avg_spec_accept_length":3}]}]})"), 3);
  EXPECT_EQ(length(R"({"internal_states":[{}]})"), std::nullopt);
  EXPECT_EQ(length(R"({"internal_states":[]})"), std::nullopt);
  EXPECT_EQ(length(R"({})"), std::nullopt);
}

}  // namespace
}  // namespace tandem::bench
