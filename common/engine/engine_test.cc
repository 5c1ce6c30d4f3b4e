#include "common/engine/engine.h"

#include "common/base/random.h"
#include "common/engine/engine_fixture.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <functional>

namespace tandem::engine {
namespace {

using core::FinishKind;
using testing::HasSubstr;

class EngineTest : public EngineFixture {};

TEST_F(EngineTest, OptionsOutOfRangeAreRefusedByName) {
  struct Row {
    const char* flag;
    std::function<void(EngineOptions&)> spoil;
  };

  const Row rows[] = {
      {"--page-size", [](EngineOptions& o) { o.page_size = 0; }},
      {"--max-total-tokens", [](EngineOptions& o) { o.max_total_tokens = 3; }},
      {"--max-running-requests", [](EngineOptions& o) { o.max_running_requests = 0; }},
      {"--max-queued-requests", [](EngineOptions& o) { o.max_queued_requests = -1; }},
      {"--max-prefill-tokens", [](EngineOptions& o) { o.max_prefill_tokens = 0; }},
      {"--chunked-prefill-size", [](EngineOptions& o) { o.chunked_prefill_size = 0; }},
      {"--num-reserved-decode-tokens", [](EngineOptions& o) { o.reserved_decode_tokens = -1; }},
      {"--stream-interval", [](EngineOptions& o) { o.stream_interval = 0; }},
      {"--schedule-conservativeness", [](EngineOptions& o) { o.schedule_conservativeness = -1; }},
  };
  FakeExecutor executor({.page_size = 4});
  for (const Row& row : rows) {
    SCOPED_TRACE(row.flag);
    EngineOptions options{.max_total_tokens = 64, .page_size = 4};
    EXPECT_TRUE(Engine::create(options, &executor).ok());
    row.spoil(options);
    const auto engine = Engine::create(options, &executor);
    EXPECT_EQ(engine.status().code(), Code::kInvalidArgument);
    EXPECT_THAT(engine.status().message(), HasSubstr(row.flag));
  }
}

TEST_F(EngineTest, FinishKinds) {
  make({.page_size = 4});
  const auto free_run = generate(request(1, {5, 6, 7}, 12)).tokens;
  ASSERT_EQ(free_run.size(), 12U);

  struct Row {
    const char* name;
    std::function<void(core::Request&)> change;
    FinishKind kind;
    std::size_t count;
  };

  const Row rows[] = {
      {"max_new_tokens", [](auto& r) { r.sampling.max_new_tokens = 5; }, FinishKind::kLength, 5},
      {"none wanted", [](auto& r) { r.sampling.max_new_tokens = 0; }, FinishKind::kLength, 0},
      {"stop id",
       [&](auto& r) { r.sampling.stop_token_ids = {free_run[3]}; },
       FinishKind::kStop,
       4},
      {"context", [](auto& r) { r.sampling.max_new_tokens = 2000; }, FinishKind::kLength, 253 - 4},
  };
  for (const Row& row : rows) {
    SCOPED_TRACE(row.name);
    core::Request r = request(1, {5, 6, 7}, 12);
    row.change(r);
    make({.page_size = 4}, {.context_length = 252});
    const Log log = generate(r);
    EXPECT_EQ(log.tokens.size(), row.count);
    EXPECT_EQ(log.finish().kind, row.kind);
    if (row.kind == FinishKind::kStop) {
      EXPECT_EQ(log.finish().matched_token, free_run[3]);
    }
    for (std::size_t i = 0; i < std::min(row.count, free_run.size()); ++i) {
      EXPECT_EQ(log.tokens[i], free_run[i]);
    }
    expect_all_free();
  }
}

TEST_F(EngineTest, TheModelsEndIdEndsUnlessIgnoredOrTooEarly) {
  make({});
  const auto free_run = generate(request(1, {5, 6, 7}, 12)).tokens;
  make({}, {.eos_token_ids = {free_run[4]}});
  core::Request r = request(1, {5, 6, 7}, 12);
  EXPECT_EQ(generate(r).tokens.size(), 12U);
  r.sampling.ignore_eos = false;
  EXPECT_EQ(generate(r).tokens.size(), 5U);
  r.sampling.min_new_tokens = 5;
  const Log log = generate(r);
  EXPECT_GT(log.tokens.size(), 5U);
  EXPECT_NE(log.tokens[4], free_run[4]);
}

TEST_F(EngineTest, AnOutputThatOutgrowsThePoolEndsByLength) {
  make({.max_total_tokens = 20}, {.context_length = 100});
  const Log log = generate(request(1, {1, 2, 3, 4}, 90));
  EXPECT_EQ(log.finish().kind, FinishKind::kLength);
  EXPECT_EQ(log.tokens.size(), 17U);  // the last token needs no KV
  expect_all_free();
}

TEST_F(EngineTest, BadRequestsAreRefusedWithFieldAndValue) {
  struct Row {
    const char* says;
    std::function<void(core::Request&)> spoil;
    Code code = Code::kInvalidArgument;
  };

  const Row rows[] = {
      {"input_ids is empty", [](auto& r) { r.input_ids.clear(); }},
      {"input_ids[1]: token id 64", [](auto& r) { r.input_ids[1] = 64; }},
      {"resumed_output_ids[0]: token id -1", [](auto& r) { r.resumed_output_ids = {-1}; }},
      {"temperature", [](auto& r) { r.sampling.temperature = -1; }},
      {"logprob_start_len: 4", [](auto& r) { r.logprob_start_len = 4; }},
      {"top_logprobs_num: 65", [](auto& r) { r.top_logprobs_num = 65; }},
      {"has 40 tokens, the KV pool holds 32",
       [](auto& r) { r.input_ids.resize(40); },
       Code::kOutOfRange},
      {"has 60 tokens, the context length is 50",
       [](auto& r) { r.input_ids.resize(60); },
       Code::kOutOfRange},
  };
  make({.max_total_tokens = 32}, {.context_length = 50});
  for (const Row& row : rows) {
    SCOPED_TRACE(row.says);
    core::Request r = request(1, {1, 2, 3}, 4);
    row.spoil(r);
    const Status status = engine_->submit(r, [](core::TokenEvent&&) { FAIL(); });
    EXPECT_EQ(status.code(), row.code);
    EXPECT_THAT(status.message(), HasSubstr(row.says));
    EXPECT_EQ(engine_->reserve(r).status().code(), row.code);
  }
  EXPECT_FALSE(engine_->has_work());
  EXPECT_TRUE(engine_->check_invariants().ok());
}

TEST_F(EngineTest, AFullQueueAndATakenIdAreRefused) {
  make({.max_queued_requests = 1});
  Log log;
  ASSERT_TRUE(engine_->submit(request(1, {1}, 2), log.sink()).ok());
  EXPECT_EQ(engine_->submit(request(1, {1}, 2), {}).code(), Code::kAlreadyExists);
  EXPECT_EQ(engine_->submit(request(2, {1}, 2), {}).code(), Code::kResourceExhausted);
  run();
  EXPECT_TRUE(log.finished);
}

TEST_F(EngineTest, StreamIntervalGroupsEventsButNotTheFirst) {
  make({.stream_interval = 4});
  const Log log = generate(request(1, {1, 2}, 11));
  std::vector<std::size_t> sizes;
  for (const auto& event : log.events)
    sizes.push_back(event.tokens.size());
  EXPECT_EQ(sizes, (std::vector<std::size_t>{1, 4, 4, 2}));  // counts 1, 5, 9, end
}

TEST_F(EngineTest, PromptLogprobsDoNotDependOnCacheOrRowLimit) {
  core::Request r = request(1, {9, 8, 7, 6, 5, 4, 3, 9, 8, 7, 6}, 3);
  r.return_logprob = true;
  r.logprob_start_len = 0;
  r.top_logprobs_num = 3;
  make({.page_size = 2});
  const Log whole = generate(r);
  const auto& all = whole.events.front().prompt_logprobs;
  ASSERT_EQ(all.size(), 11U);
  EXPECT_FALSE(all[0].logprob.has_value());
  for (std::int32_t start = 0; start <= 11; ++start) {
    SCOPED_TRACE("start " + std::to_string(start));
    for (const std::int32_t rows : {1, 3, 64}) {
      make({.page_size = 2, .chunked_prefill_size = rows == 3 ? 4 : -1},
           {.max_batch_tokens = rows == 1 ? 3 : 100, .max_logit_rows = rows});
      core::Request again = r;
      again.logprob_start_len = -1;
      generate(again);  // warms the cache
      again.logprob_start_len = start;
      const Log log = generate(again);
      EXPECT_EQ(log.tokens, whole.tokens);
      const auto& some = log.events.front().prompt_logprobs;
      ASSERT_EQ(some.size(), static_cast<std::size_t>(11 - start));
      EXPECT_LE(log.events.front().cached_tokens, std::max(start - 1, 0));
      for (std::size_t i = 0; i < some.size(); ++i) {
        const auto& want = all[i + static_cast<std::size_t>(start)];
        EXPECT_EQ(some[i].token, want.token);
        EXPECT_EQ(some[i].logprob, want.logprob);
        EXPECT_EQ(some[i].top, want.top);
      }
    }
  }
}

TEST_F(EngineTest, RowsReadSideBySideGiveWhatOneAfterTheOtherGives) {
  const auto serve = [this](std::size_t workers) {
    make({.max_total_tokens = 4096}, {.vocab_size = 300, .poison = 60, .workers = workers});
    std::vector<Log> logs(24);
    for (std::size_t i = 0; i < logs.size(); ++i) {
      const auto token = static_cast<TokenId>(i);
      core::Request r = request(i + 1, {5, i % 6 == 5 ? 60 : 7, token}, 12);
      r.sampling.temperature = i % 4 == 0 ? 0.0F : 1.0F;
      if (i % 4 == 2) r.sampling.top_p = 0.8F;
      if (i % 4 == 3) r.sampling.repetition_penalty = 1.5F;
      if (i % 3 == 1) {
        r.return_logprob = true;
        r.logprob_start_len = 0;
        r.top_logprobs_num = 2;
      }
      EXPECT_TRUE(engine_->submit(std::move(r), logs[i].sink()).ok());
    }
    run();
    expect_all_free();
    return logs;
  };
  const std::vector<Log> want = serve(1);
  for (const std::size_t workers : {2U, 5U}) {
    const std::vector<Log> got = serve(workers);
    for (std::size_t i = 0; i < want.size(); ++i) {
      SCOPED_TRACE("request " + std::to_string(i) + " workers " + std::to_string(workers));
      EXPECT_EQ(got[i].tokens, want[i].tokens);
      EXPECT_EQ(got[i].tokens.empty(), i % 6 == 5);
      EXPECT_EQ(got[i].finish().status.message(), want[i].finish().status.message());
      ASSERT_EQ(got[i].events.size(), want[i].events.size());
      for (std::size_t e = 0; e < got[i].events.size(); ++e) {
        const auto& have = got[i].events[e].logprobs;
        ASSERT_EQ(have.size(), want[i].events[e].logprobs.size());
        for (std::size_t t = 0; t < have.size(); ++t) {
          EXPECT_EQ(have[t].logprob, want[i].events[e].logprobs[t].logprob);
          EXPECT_EQ(have[t].top, want[i].events[e].logprobs[t].top);
        }
      }
    }
  }
}

TEST_F(EngineTest, NoTokensButPromptLogprobs) {
  make({});
  core::Request r = request(1, {9, 8, 7}, 0);
  r.return_logprob = true;
  r.logprob_start_len = 1;
  const Log log = generate(r);
  ASSERT_EQ(log.events.size(), 1U);
  EXPECT_EQ(log.events[0].prompt_logprobs.size(), 2U);
  EXPECT_TRUE(log.tokens.empty());
  EXPECT_EQ(log.finish().kind, FinishKind::kLength);
  expect_all_free();
}

TEST_F(EngineTest, AWarmCacheIsUsedAndReported) {
  make({.page_size = 4});
  core::Request r = request(1, std::vector<TokenId>(18, 3), 4);
  const Log cold = generate(r);
  EXPECT_EQ(cold.events.front().cached_tokens, 0);
  const auto before = executor_->token_count();
  const Log warm = generate(r);
  EXPECT_EQ(warm.events.front().cached_tokens, 16);
  EXPECT_EQ(executor_->token_count() - before, 2 + 3);
  EXPECT_EQ(warm.tokens, cold.tokens);
  ASSERT_TRUE(engine_->flush_cache().ok());
  EXPECT_EQ(generate(r).events.front().cached_tokens, 0);
  make({.page_size = 4, .disable_radix_cache = true});
  generate(r);
  EXPECT_EQ(generate(r).events.front().cached_tokens, 0);
  EXPECT_EQ(engine_->load().cached_pages, 0);
}

TEST_F(EngineTest, NoiseIsThatOfSeedAndOutputPosition) {
  core::Request r = request(1, {5, 6, 7}, 12);
  r.sampling.seed = 991;
  r.resumed_output_ids = {4, 4, 4};
  make({.page_size = 2}, {.flat = true});
  const Log log = generate(r);
  ASSERT_EQ(log.tokens.size(), 9U);
  for (std::size_t i = 0; i < log.tokens.size(); ++i) {
    // 64 equal tokens: the draw is the noise itself.
    EXPECT_EQ(log.tokens[i], static_cast<TokenId>(counter_uniform(991, i + 3, 0) * 64)) << i;
  }
}

TEST_F(EngineTest, ResumedOutputGoesOnWhereItStopped) {
  core::Request r = request(1, {5, 6, 7}, 10);
  r.sampling.frequency_penalty = 1.0F;
  r.sampling.repetition_penalty = 1.3F;
  r.return_logprob = true;
  make({.page_size = 2});
  const Log whole = generate(r);
  for (std::size_t cut = 0; cut <= 10; ++cut) {
    SCOPED_TRACE("cut " + std::to_string(cut));
    core::Request rest = r;
    const auto middle = whole.tokens.begin() + static_cast<std::ptrdiff_t>(cut);
    rest.resumed_output_ids.assign(whole.tokens.begin(), middle);
    const Log log = generate(rest);
    EXPECT_EQ(log.tokens, std::vector<TokenId>(middle, whole.tokens.end()));
    EXPECT_EQ(log.finish().kind, FinishKind::kLength);
  }
}

TEST_F(EngineTest, TimesAreReported) {
  make({.max_running_requests = 1});
  Log first, second;
  ASSERT_TRUE(engine_->submit(request(1, {5, 6}, 4), first.sink()).ok());
  ASSERT_TRUE(engine_->submit(request(2, {5, 7}, 4), second.sink()).ok());
  run();
  EXPECT_EQ(second.events.back().timings.queue, milliseconds(5));
  EXPECT_GE(second.events.back().timings.prefill.ns, 0);
  EXPECT_GT(engine_->load().progress, 0U);
}

}  // namespace
}  // namespace tandem::engine
