#include "common/api/timings.h"

#include "common/api/testing/fixture.h"

#include <gtest/gtest.h>

namespace tandem::api {
namespace {

core::Timings report(std::int64_t queue_ms, std::int64_t bytes) {
  core::Timings timings;
  timings.queue = milliseconds(queue_ms);
  timings.prefill = microseconds(1500);
  timings.kv_transfer_bytes = bytes;
  return timings;
}

FakeGenerator::Author author() {
  return [](const core::Request& request) {
    Script script = say("one two three");
    // Told apart by the seed; the second choice of n draws its own.
    script.timings = report(request.sampling.seed == 4 ? 3 : 2, 1000);
    return script;
  };
}

void expect_timings(const json::Value& timings,
                    double queue_ms,
                    std::int64_t bytes,
                    bool tokenized = true) {
  ASSERT_TRUE(timings.is_object());
  EXPECT_EQ(timings.if_object()->size(), 7U);
  EXPECT_EQ(at(timings, "queue_ms"), json::Value(queue_ms));
  EXPECT_EQ(at(timings, "prefill_ms"), json::Value(1.5));
  EXPECT_TRUE(at(timings, "kv_transfer_ms").is_null()) << "nobody reported it";
  EXPECT_EQ(at(timings, "kv_transfer_bytes"), json::Value(bytes));
  EXPECT_TRUE(at(timings, "first_token_ms").is_number());
  EXPECT_TRUE(at(timings, "decode_tokens_per_second").is_number());
  EXPECT_EQ(at(timings, "tokenize_ms").is_number(), tokenized);
}

constexpr const char* kChat = "/v1/chat/completions";
constexpr const char* kCompletion = "/v1/completions";

TEST(Timings, WholeAnswersHaveThemAtTheTop) {
  ApiFixture fixture(author());
  expect_timings(
      at(fixture.post(kChat, chat(R"("seed":4,"return_timings":true)")), "timings"), 3, 1000);
  expect_timings(
      at(fixture.post(kCompletion, R"({"prompt":"x","seed":4,"return_timings":true})"), "timings"),
      3,
      1000);
  expect_timings(at(fixture.post(kCompletion, R"({"prompt":[5,6],"seed":4,"return_timings":true})"),
                    "timings"),
                 3,
                 1000,
                 false);
  const std::string seed = R"("sampling_params":{"sampling_seed":4},"return_timings":true})";
  expect_timings(
      at(fixture.post("/generate", R"({"text":"x",)" + seed), "meta_info.timings"), 3, 1000);
  expect_timings(at(fixture.post("/generate", R"({"input_ids":[5],)" + seed), "meta_info.timings"),
                 3,
                 1000,
                 false);
}

TEST(Timings, OfSeveralSequencesTheLongestTimeAndAllBytes) {
  ApiFixture fixture(author());
  const json::Value body = fixture.post(kChat, chat(R"("seed":4,"n":2,"return_timings":true)"));
  expect_timings(at(body, "timings"), 3, 2000);
}

TEST(Timings, StreamsCarryThemOnceInTheLastUsageOrTheFinishChunk) {
  struct Row {
    const char* name;
    const char* path;
    std::string body;
    std::size_t from_end;  ///< which event, counted from [DONE]
    const char* at;
  };

  const std::string asked = R"("seed":4,"stream":true,"return_timings":true)";
  const std::string usage = asked + R"(,"stream_options":{"include_usage":true})";
  const Row rows[] = {
      {"chat, usage", kChat, chat(usage), 2, "timings"},
      {"chat, finish", kChat, chat(asked), 2, "timings"},
      {"completion, usage", kCompletion, R"({"prompt":"x",)" + usage + "}", 2, "timings"},
      {"completion, finish", kCompletion, R"({"prompt":"x",)" + asked + "}", 2, "timings"},
      {"native",
       "/generate",
       R"({"text":"x","stream":true,"sampling_params":{"sampling_seed":4},"return_timings":true})",
       2,
       "meta_info.timings"},
  };
  ApiFixture fixture(author());
  for (const Row& row : rows) {
    SCOPED_TRACE(row.name);
    const auto events = fixture.stream(row.path, row.body);
    ASSERT_GE(events.size(), row.from_end);
    for (std::size_t i = 0; i < events.size(); ++i) {
      const json::Value timings = at(events[i], row.at);
      if (i + row.from_end == events.size()) {
        expect_timings(timings, 3, 1000);
      } else {
        EXPECT_TRUE(timings.is_null()) << i;
      }
    }
  }
}

TEST(Timings, OnlyWhenAskedFor) {
  ApiFixture fixture(author());
  EXPECT_EQ(fixture.post(kChat, chat()).find("timings"), nullptr);
  EXPECT_EQ(fixture.post(kChat, chat(R"("return_timings":false)")).find("timings"), nullptr);
  EXPECT_EQ(at(fixture.post("/generate", R"({"text":"x"})"), "meta_info").find("timings"), nullptr);
  fixture.post(kChat, chat(R"("return_timings":"yes")"), 400);
  fixture.post("/generate", R"({"text":"x","return_timings":1})", 400);
}

TEST(Timings, MergeKeepsWhatWasKnown) {
  SequenceTimings timings;
  timings.merge(report(7, -1));
  core::Timings later;
  later.kv_transfer_bytes = 12;
  timings.merge(later);
  EXPECT_EQ(timings.worker.queue, milliseconds(7));
  EXPECT_EQ(timings.worker.kv_transfer_bytes, 12);
  EXPECT_LT(timings.worker.kv_transfer.ns, 0);
  SequenceTimings total;
  total.add({});
  EXPECT_LT(total.worker.kv_transfer_bytes, 0) << "unknown is not zero";
  EXPECT_LT(total.decode_tokens_per_second, 0);
  total.add(timings);
  total.add({});
  EXPECT_EQ(total.worker.kv_transfer_bytes, 12) << "of the sequences that know";
}

}  // namespace
}  // namespace tandem::api
