#include "bench/serve/answer.h"
#include "bench/serve/dataset.h"
#include "bench/serve/options.h"
#include "bench/serve/report.h"
#include "common/json/parse.h"
#include "common/json/write.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <initializer_list>
#include <string>
#include <vector>

namespace tandem::bench {
namespace {

using ::testing::DoubleEq;
using ::testing::HasSubstr;

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
  EXPECT_THAT(report_table(report), HasSubstr("Successful requests"));
}

}  // namespace
}  // namespace tandem::bench
