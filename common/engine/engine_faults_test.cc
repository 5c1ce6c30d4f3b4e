// Requests that end early: aborts, deadlines, broken logits, a failing model.
#include "common/engine/engine_fixture.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace tandem::engine {
namespace {

using core::FinishKind;
using testing::HasSubstr;

class EngineFaults : public EngineFixture {};

TEST_F(EngineFaults, AbortAndDeadlineEndARequestInAnyState) {
  make({.max_running_requests = 1});
  Log running, waiting, late;
  core::Request slow = request(3, {1, 2}, 100);
  slow.deadline = clock_.now() + milliseconds(20);
  ASSERT_TRUE(engine_->submit(request(1, {1, 2}, 100), running.sink()).ok());
  ASSERT_TRUE(engine_->submit(request(2, {1, 2}, 100), waiting.sink()).ok());
  ASSERT_TRUE(engine_->submit(slow, late.sink()).ok());
  for (int i = 0; i < 5; ++i)
    engine_->step(clock_.now());
  EXPECT_EQ(engine_->flush_cache().code(), Code::kFailedPrecondition);
  engine_->abort({2}, cancelled("the client left"));
  EXPECT_EQ(waiting.finish().status.code(), Code::kCancelled);
  engine_->abort({1}, cancelled("the client left"));
  EXPECT_EQ(running.tokens.size(), 5U);
  engine_->abort({77}, cancelled("unknown"));
  run();
  EXPECT_EQ(late.finish().kind, FinishKind::kAbort);
  EXPECT_EQ(late.finish().status.code(), Code::kDeadlineExceeded);
  EXPECT_GT(late.tokens.size(), 0U);
  expect_all_free();
}

TEST_F(EngineFaults, EachDeadlineIsMetWhateverCameBefore) {
  make({.max_total_tokens = 4096});
  // The third one ends on its own before its deadline.
  const int last_ms[] = {60, 20, 40, 80};
  Log logs[4];
  const Time start = clock_.now();
  for (std::uint64_t id = 0; id < 4; ++id) {
    core::Request r = request(id + 1, {1, 2}, id == 2 ? 3 : 200);
    r.deadline = start + milliseconds(last_ms[id]);
    ASSERT_TRUE(engine_->submit(r, logs[id].sink()).ok());
  }
  run();
  for (int id = 0; id < 4; ++id) {
    SCOPED_TRACE(id);
    if (id == 2) continue;
    EXPECT_EQ(logs[id].finish().status.code(), Code::kDeadlineExceeded);
    // A token a millisecond.
    EXPECT_EQ(logs[id].tokens.size(), static_cast<std::size_t>(last_ms[id] - 1));
  }
  EXPECT_EQ(logs[2].tokens.size(), 3U);
}

TEST_F(EngineFaults, NanLogitsEndTheirRequestAloneAndLeaveNoPageInTheCache) {
  make({}, {.poison = 60});
  Log bad, good;
  ASSERT_TRUE(engine_->submit(request(1, {5, 60, 5}, 4), bad.sink()).ok());
  ASSERT_TRUE(engine_->submit(request(2, {5, 6, 5}, 4), good.sink()).ok());
  run();
  EXPECT_EQ(bad.finish().kind, FinishKind::kAbort);
  EXPECT_EQ(bad.finish().status.code(), Code::kInternal);
  EXPECT_THAT(bad.finish().status.message(), HasSubstr("NaN"));
  EXPECT_TRUE(bad.tokens.empty());
  EXPECT_EQ(good.tokens.size(), 4U);
  EXPECT_EQ(engine_->load().cached_pages, 6);  // of the good one
  expect_all_free();
}

TEST_F(EngineFaults, KvOfAChunkBeforeNanLogitsLeavesTheCacheToo) {
  make({.chunked_prefill_size = 2}, {.poison = 60});
  Log bad;
  ASSERT_TRUE(engine_->submit(request(1, {60, 5, 5, 5, 5}, 4), bad.sink()).ok());
  engine_->step(clock_.now());
  EXPECT_EQ(engine_->load().used_pages, 5);  // two of them in the prefix tree already
  run();
  EXPECT_EQ(bad.finish().kind, FinishKind::kAbort);
  EXPECT_EQ(engine_->load().cached_pages, 0);
}

TEST_F(EngineFaults, AFailedForwardEndsItsBatchAndTheEngineGoesOn) {
  make({});
  Log first, second;
  ASSERT_TRUE(engine_->submit(request(1, {5, 6}, 4), first.sink()).ok());
  ASSERT_TRUE(engine_->submit(request(2, {5, 7}, 4), second.sink()).ok());
  engine_->step(clock_.now());
  executor_->fail_next(internal_error("device lost"));
  engine_->step(clock_.now());
  for (const Log* log : {&first, &second}) {
    EXPECT_EQ(log->finish().status.message(), "device lost");
    EXPECT_EQ(log->tokens.size(), 1U);
  }
  EXPECT_EQ(generate(request(3, {5, 6}, 4)).tokens.size(), 4U);
  expect_all_free();
}

}  // namespace
}  // namespace tandem::engine
