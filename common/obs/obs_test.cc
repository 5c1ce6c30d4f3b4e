#include "common/obs/log.h"
#include "common/obs/metrics.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <mutex>
#include <thread>

namespace tandem::obs {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

struct LineRow {
  const char* name;
  std::string value;
  const char* want;
};

TEST(Log, Values) {
  const LineRow rows[] = {
      {"plain", "abc", "level=info event=e k=abc"},
      {"empty", "", "level=info event=e k=\"\""},
      {"space", "a b", "level=info event=e k=\"a b\""},
      {"quote", "a\"b", "level=info event=e k=\"a\\\"b\""},
      {"equals", "a=b", "level=info event=e k=\"a=b\""},
      {"newline", "a\nb", "level=info event=e k=\"a\\nb\""},
      {"carriage return", "a\rlevel=error", "level=info event=e k=\"a\\x0dlevel=error\""},
      {"escape", "\x1b[31m", "level=info event=e k=\"\\x1b[31m\""},
      {"backslash", "a\\b", "level=info event=e k=\"a\\\\b\""},
  };
  for (const LineRow& row : rows) {
    SCOPED_TRACE(row.name);
    EXPECT_EQ(format_line(Level::kInfo, "e", {{"k", row.value}}), row.want);
  }
}

TEST(Log, TypesAndSecret) {
  EXPECT_EQ(format_line(Level::kWarn,
                        "e",
                        {{"i", -3},
                         {"u", std::uint64_t{18446744073709551615ULL}},
                         {"d", 4.1},
                         {"b", true},
                         {"key", Secret("hunter2")},
                         {"s", invalid_argument("bad thing")},
                         {"ok", Status()}}),
            "level=warn event=e i=-3 u=18446744073709551615 d=4.1 b=true key=[secret] "
            "s=\"bad thing\" ok=ok");
}

TEST(Log, LongValueIsCut) {
  const std::string line = format_line(Level::kInfo, "e", {{"k", std::string(1U << 20U, 'x')}});
  EXPECT_LT(line.size(), 5000U);
  EXPECT_THAT(line, HasSubstr("...\""));
}

TEST(Log, LevelsFilter) {
  std::mutex mutex;
  std::vector<std::string> lines;
  set_sink([&](std::string_view line) {
    const std::lock_guard lock(mutex);
    lines.emplace_back(line);
  });
  set_level(Level::kWarn);
  debug("a");
  info("b");
  warn("c");
  error("d");
  std::vector<std::thread> threads;
  for (int i = 0; i < 4; ++i)
    threads.emplace_back([i] {
      for (int k = 0; k < 50; ++k)
        warn("t", {{"i", i}});
    });
  for (std::thread& thread : threads)
    thread.join();
  set_level(Level::kInfo);
  set_sink({});
  ASSERT_EQ(lines.size(), 202U);
  EXPECT_EQ(lines[0], "level=warn event=c");
  EXPECT_EQ(lines[1], "level=error event=d");
}

TEST(Log, ParseLevel) {
  EXPECT_EQ(parse_level("WARNING").value(), Level::kWarn);
  EXPECT_EQ(parse_level("info").value(), Level::kInfo);
  EXPECT_EQ(parse_level("critical").value(), Level::kError);
  EXPECT_THAT(parse_level("loud").status().message(), HasSubstr("\"loud\""));
}

TEST(Metrics, TextHasSglangNamesAndLabels) {
  Metrics metrics({{"model_name", "m"}, {"engine_type", "unified"}});
  const Counter counter =
      metrics.counter("sglang:prompt_tokens_total", "Prompt tokens.", {{"is_streaming", "true"}});
  counter.add(3);
  metrics.counter("sglang:prompt_tokens_total", "Prompt tokens.", {{"is_streaming", "true"}})
      .add(2);
  EXPECT_EQ(counter.value(), 5.0);
  const Gauge gauge = metrics.gauge("sglang:num_running_reqs", "Running requests.");
  metrics.on_scrape([&] { gauge.set(7); });
  metrics.histogram("sglang:e2e_request_latency_seconds", "Latency.", {0.1, 1.0}).observe(0.5);
  const std::string text = metrics.text();
  EXPECT_THAT(text, HasSubstr("sglang:prompt_tokens_total{"));
  EXPECT_THAT(text, HasSubstr("engine_type=\"unified\""));
  EXPECT_THAT(text, HasSubstr("is_streaming=\"true\"} 5"));
  EXPECT_THAT(text,
              HasSubstr("sglang:num_running_reqs{engine_type=\"unified\",model_name=\"m\"} 7"));
  EXPECT_THAT(text, HasSubstr("le=\"1\"} 1"));
  EXPECT_THAT(text, HasSubstr("# TYPE sglang:e2e_request_latency_seconds histogram"));
}

TEST(Metrics, SeriesOfOneFamilyAreBounded) {
  Metrics metrics;
  for (std::size_t i = 0; i < Metrics::kSeriesMax + 50; ++i)
    metrics.counter("tandem_test_total", "x", {{"path", std::to_string(i)}}).add();
  const std::string text = metrics.text();
  EXPECT_THAT(text, HasSubstr("path=\"other\"} 50"));
  EXPECT_THAT(text, Not(HasSubstr("path=\"1030\"")));
}

}  // namespace
}  // namespace tandem::obs
