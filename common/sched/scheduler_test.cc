#include "common/sched/scheduler.h"

#include <gtest/gtest.h>

#include <map>

namespace tandem::sched {
namespace {

constexpr std::int32_t kNoLimit = 1 << 30;

std::vector<core::TokenId> tokens_from(core::TokenId first, std::int32_t count) {
  std::vector<core::TokenId> out;
  for (std::int32_t i = 0; i < count; ++i)
    out.push_back(first + i);
  return out;
}

NewSequence request(std::uint64_t id, std::int32_t prompt, std::int32_t max_new) {
  return {.id = {id},
          .prompt = tokens_from(static_cast<core::TokenId>(1000 * id), prompt),
          .resumed = {},
          .max_new_tokens = max_new,
          .match_limit = kNoLimit};
}

SchedulerOptions small(std::int64_t pages) {
  return {.page_count = pages,
          .page_size = 1,
          .context_length = 1000,
          .max_running_requests = 100,
          .conservativeness = 0};
}

/// What a step would do, as "id:first+count" in order of ids.
std::string step(Scheduler& scheduler) {
  std::map<std::uint64_t, std::string> parts;
  for (const WorkItem& item : scheduler.plan()) {
    Sequence& sequence = *item.sequence;
    parts[sequence.id.value] = std::to_string(sequence.id.value) + ":" +
                               std::to_string(item.first) + "+" + std::to_string(item.count);
    scheduler.advance(sequence, item.count);
    if (sequence.computed < sequence.token_count() || sequence.prefill_only) continue;
    if (sequence.remaining_tokens() > 0) scheduler.append(sequence, 7);
    if (sequence.remaining_tokens() == 0) scheduler.finish(sequence, Scheduler::Keep::kComputed);
  }
  EXPECT_TRUE(scheduler.check().ok()) << scheduler.check().message();
  std::string out;
  for (const auto& [id, part] : parts)
    out += (out.empty() ? "" : " ") + part;
  return out;
}

TEST(Scheduler, RefusesWhatCanNeverRun) {
  struct Row {
    const char* name;
    NewSequence spec;
    Code want;
    const char* says;
  };

  NewSequence resumed = request(5, 10, 20);
  resumed.resumed = tokens_from(0, 11);
  const Row rows[] = {
      {"fits the pool", request(1, 20, 1), Code::kOk, ""},
      {"longer than the pool", request(2, 21, 1), Code::kOutOfRange, "21 tokens, the KV pool"},
      {"longer than the context", request(3, 31, 0), Code::kOutOfRange, "context length is 30"},
      {"no room for output", request(4, 30, 1), Code::kOutOfRange, "no room for output"},
      {"resumed counts", resumed, Code::kOutOfRange, "21 tokens"},
      {"twice", request(1, 2, 2), Code::kAlreadyExists, "here already"},
      {"empty", request(6, 0, 2), Code::kInvalidArgument, "empty"},
  };
  SchedulerOptions options = small(20);
  options.context_length = 30;
  Scheduler scheduler(options);
  for (const Row& row : rows) {
    SCOPED_TRACE(row.name);
    const auto result = scheduler.add(row.spec);
    EXPECT_EQ(result.status().code(), row.want);
    EXPECT_NE(result.status().message().find(row.says), std::string::npos)
        << result.status().message();
  }
}

TEST(Scheduler, AStepHoldsAllDecodesAndChunksWithinTheBudget) {
  SchedulerOptions options = small(100);
  options.chunked_prefill_size = 4;
  Scheduler scheduler(options);
  ASSERT_TRUE(scheduler.add(request(1, 3, 5)).ok());
  ASSERT_TRUE(scheduler.add(request(2, 6, 2)).ok());
  ASSERT_TRUE(scheduler.add(request(3, 2, 2)).ok());
  EXPECT_EQ(step(scheduler), "1:0+3 2:0+1");
  EXPECT_EQ(step(scheduler), "1:3+1 2:1+4");
  EXPECT_EQ(step(scheduler), "1:4+1 2:5+1 3:0+2");
  EXPECT_EQ(step(scheduler), "1:5+1 2:6+1 3:2+1");
  EXPECT_EQ(step(scheduler), "1:6+1");
  EXPECT_EQ(step(scheduler), "");
  EXPECT_EQ(scheduler.sequence_count(), 0U);
}

TEST(Scheduler, ChunksAreShorterWhileOthersDecode) {
  SchedulerOptions options = small(100);
  options.chunked_prefill_size = 6;
  options.chunk_beside_decodes = 2;
  Scheduler scheduler(options);
  ASSERT_TRUE(scheduler.add(request(1, 6, 4)).ok());
  ASSERT_TRUE(scheduler.add(request(2, 12, 1)).ok());
  EXPECT_EQ(step(scheduler), "1:0+6");
  EXPECT_EQ(step(scheduler), "1:6+1 2:0+2");
  EXPECT_EQ(step(scheduler), "1:7+1 2:2+2");
  EXPECT_EQ(step(scheduler), "1:8+1 2:4+2");
  EXPECT_EQ(step(scheduler), "2:6+6");
}

TEST(Scheduler, WithoutMixedChunkPrefillAndDecodeTakeTurns) {
  SchedulerOptions options = small(100);
  options.chunked_prefill_size = 4;
  options.mixed_chunk = false;
  Scheduler scheduler(options);
  ASSERT_TRUE(scheduler.add(request(1, 3, 5)).ok());
  ASSERT_TRUE(scheduler.add(request(2, 6, 2)).ok());
  EXPECT_EQ(step(scheduler), "1:0+3 2:0+1");
  EXPECT_EQ(step(scheduler), "1:3+1");
  EXPECT_EQ(step(scheduler), "2:1+4");
  EXPECT_EQ(step(scheduler), "1:4+1");
  EXPECT_EQ(step(scheduler), "2:5+1");
  EXPECT_EQ(step(scheduler), "1:5+1 2:6+1");
  EXPECT_EQ(step(scheduler), "1:6+1");
}

TEST(Scheduler, WholePromptsWhenChunkingIsOff) {
  SchedulerOptions options = small(100);
  options.context_length = 10;
  options.max_prefill_tokens = 1;  // the context length is the larger one
  Scheduler scheduler(options);
  ASSERT_TRUE(scheduler.add(request(1, 6, 1)).ok());
  ASSERT_TRUE(scheduler.add(request(2, 5, 1)).ok());
  ASSERT_TRUE(scheduler.add(request(3, 5, 1)).ok());
  EXPECT_EQ(step(scheduler), "1:0+6");
  EXPECT_EQ(step(scheduler), "2:0+5 3:0+5");
}

TEST(Scheduler, RetractsTheOneWithTheLeastOutputAndRecomputesIt) {
  SchedulerOptions options = small(10);
  options.prefix_reuse = false;
  Scheduler scheduler(options);
  ASSERT_TRUE(scheduler.add(request(1, 3, 6)).ok());
  ASSERT_TRUE(scheduler.add(request(2, 4, 6)).ok());
  EXPECT_EQ(step(scheduler), "1:0+3 2:0+4");
  EXPECT_EQ(step(scheduler), "1:3+1 2:4+1");  // 9 pages of 10
  EXPECT_EQ(step(scheduler), "1:4+1");        // equal output: the longer prompt goes
  EXPECT_EQ(scheduler.retraction_count(), 1);
  EXPECT_GT(scheduler.new_token_ratio(), 0);  // re-estimated
  EXPECT_EQ(step(scheduler), "1:5+1");
  EXPECT_EQ(step(scheduler), "1:6+1");
  EXPECT_EQ(step(scheduler), "1:7+1");
  EXPECT_EQ(step(scheduler), "2:0+6");  // prompt and two output tokens, as one prompt
  EXPECT_EQ(step(scheduler), "2:6+1");
}

TEST(Scheduler, ConservativenessKeepsRoomForRunningOutput) {
  struct Row {
    double conservativeness;
    double ratio;
    const char* want;
  };

  for (const Row& row : {Row{0, 0, "1:0+5 2:0+5"}, Row{1, 0.7, "1:0+5"}, Row{9, 1, "1:0+5"}}) {
    SCOPED_TRACE(row.conservativeness);
    SchedulerOptions options = small(20);
    options.conservativeness = row.conservativeness;
    Scheduler scheduler(options);
    EXPECT_DOUBLE_EQ(scheduler.new_token_ratio(), row.ratio);
    ASSERT_TRUE(scheduler.add(request(1, 5, 10)).ok());
    ASSERT_TRUE(scheduler.add(request(2, 5, 10)).ok());
    EXPECT_EQ(step(scheduler), row.want);
  }
}

TEST(Scheduler, RatioDecaysToItsFloorAndStartsAnewWhenIdle) {
  Scheduler scheduler([] {
    SchedulerOptions options = small(2000);
    options.conservativeness = 1;
    return options;
  }());
  ASSERT_TRUE(scheduler.add(request(1, 1, 900)).ok());
  for (int i = 0; i < 301; ++i)
    step(scheduler);
  EXPECT_NEAR(scheduler.new_token_ratio(), 0.7 - 0.7 * 0.86 / 2, 1e-9);
  for (int i = 0; i < 400; ++i)
    step(scheduler);
  EXPECT_NEAR(scheduler.new_token_ratio(), 0.098, 1e-9);
  scheduler.finish(*scheduler.find({1}), Scheduler::Keep::kComputed);
  EXPECT_EQ(step(scheduler), "");
  EXPECT_DOUBLE_EQ(scheduler.new_token_ratio(), 0.7);
}

TEST(Scheduler, LongestCachedPrefixFirstButNobodyStarves) {
  SchedulerOptions options = small(400);
  options.policy = Policy::kLpm;
  options.max_running_requests = 1;
  Scheduler scheduler(options);
  NewSequence seed = request(1, 20, 1);
  ASSERT_TRUE(scheduler.add(seed).ok());
  EXPECT_EQ(step(scheduler), "1:0+20");
  ASSERT_TRUE(scheduler.add(request(2, 5, 1)).ok());
  std::uint64_t id = 3;
  int steps = 0;
  for (bool unlucky_done = false; !unlucky_done; ++steps) {
    ASSERT_LT(steps, 100);
    NewSequence lucky = seed;
    lucky.id = {id++};
    ASSERT_TRUE(scheduler.add(lucky).ok());
    unlucky_done = step(scheduler) == "2:0+5";
  }
  EXPECT_GT(steps, 10);  // the cached ones did go first
}

TEST(Scheduler, ReservationsFollowTheFloorRule) {
  struct Row {
    std::int32_t reserved;
    int admitted;
  };

  // Pool of 2000, prompts of 500: the n-th needs 500 free and n * reserved beyond.
  for (const Row& row : {Row{0, 4}, Row{100, 3}, Row{300, 2}, Row{800, 1}, Row{5000, 1}}) {
    SCOPED_TRACE(row.reserved);
    SchedulerOptions options = small(2000);
    options.reserved_decode_tokens = row.reserved;
    Scheduler scheduler(options);
    int admitted = 0;
    Status status;
    for (; status.ok(); ++admitted) {
      status =
          scheduler.reserve(request(static_cast<std::uint64_t>(admitted) + 1, 500, 100)).status();
    }
    EXPECT_EQ(status.code(), Code::kResourceExhausted);
    EXPECT_EQ(admitted - 1, row.admitted);
    EXPECT_TRUE(scheduler.check().ok());
    while (scheduler.sequence_count() > 0) {
      scheduler.cancel_reservation(*scheduler.find({scheduler.sequence_count()}), 0);
    }
    EXPECT_EQ(scheduler.cache().pool().free_count(), 2000);
  }
}

TEST(Scheduler, AReservationLandsAndDecodes) {
  SchedulerOptions options = small(40);
  options.page_size = 4;
  options.page_count = 10;
  Scheduler scheduler(options);
  auto reserved = scheduler.reserve(request(1, 10, 3));
  ASSERT_TRUE(reserved.ok());
  Sequence& sequence = **reserved;
  EXPECT_EQ(sequence.computed, 0);
  EXPECT_EQ(scheduler.take_pages(sequence, 2)->size(), 2U);
  EXPECT_EQ(scheduler.take_pages(sequence, 2).status().code(), Code::kInvalidArgument);
  EXPECT_EQ(scheduler.take_pages(sequence, 1)->size(), 1U);
  EXPECT_EQ(step(scheduler), "");
  scheduler.adopt(sequence, 7);
  EXPECT_EQ(step(scheduler), "1:10+1");
  EXPECT_EQ(step(scheduler), "1:11+1");
  EXPECT_EQ(scheduler.sequence_count(), 0U);
  // What was verified of a lost transfer serves the next attempt: full pages only.
  auto again = scheduler.reserve(request(2, 10, 3));
  ASSERT_TRUE(again.ok());
  scheduler.cancel_reservation(**again, 7);
  auto third = scheduler.reserve([] {
    NewSequence spec = request(2, 10, 3);
    spec.id = {3};
    return spec;
  }());
  ASSERT_TRUE(third.ok());
  EXPECT_EQ((*third)->computed, 4);
  EXPECT_TRUE(scheduler.check().ok()) << scheduler.check().message();
}

}  // namespace
}  // namespace tandem::sched
