// The roles of a disaggregated pair, in one process: engine P computes prompts, engine D decodes.
#include "common/engine/engine.h"
#include "common/engine/fake_executor.h"

#include <gtest/gtest.h>

#include <cstring>
#include <map>

namespace tandem::engine {
namespace {

using core::TokenId;

constexpr std::int32_t kPageSize = 4;

struct Observer final : PrefillObserver {
  std::vector<kv::PageId> pages;
  std::vector<std::int32_t> ready;
  std::optional<core::TokenEvent> first;
  Status why;

  void chunk_ready(core::RequestId,
                   std::int32_t first_page_index,
                   std::span<const kv::PageId> more,
                   std::int32_t tokens_ready) override {
    EXPECT_FALSE(first.has_value());
    EXPECT_EQ(static_cast<std::size_t>(first_page_index), pages.size());
    pages.insert(pages.end(), more.begin(), more.end());
    ready.push_back(tokens_ready);
  }

  void first_token(core::TokenEvent&& event) override {
    EXPECT_FALSE(first.has_value());
    first = std::move(event);
  }

  void ended(core::RequestId, const Status& status) override { why = status; }
};

class TransferTest : public testing::Test {
 protected:
  void SetUp() override {
    const FakeExecutor::Options model{.page_size = kPageSize};
    for (std::size_t i = 0; i < 2; ++i) {
      executors_[i] = std::make_unique<FakeExecutor>(model);
      EngineOptions options{.max_total_tokens = 128, .page_size = kPageSize};
      options.chunked_prefill_size = 5;
      options.reserved_decode_tokens = 8;
      auto engine = Engine::create(options, executors_[i].get());
      ASSERT_TRUE(engine.ok());
      (i == 0 ? prefill_ : decode_) = std::move(*engine);
    }
  }

  static core::Request request(std::uint64_t id, std::int32_t prompt, int max_new) {
    core::Request out;
    out.id = {id};
    for (std::int32_t i = 0; i < prompt; ++i) {
      out.input_ids.push_back(3 +
                              static_cast<TokenId>((id + static_cast<std::uint64_t>(i) * i) % 50));
    }
    out.sampling.max_new_tokens = max_new;
    out.sampling.ignore_eos = true;
    out.sampling.seed = id;
    return out;
  }

  static void run(Engine& engine) {
    while (engine.has_work() && engine.step(steady_clock().now())) {
      const Status status = engine.check_invariants();
      ASSERT_TRUE(status.ok()) << status.message();
    }
  }

  void copy_pages(const std::vector<kv::PageId>& from, const std::vector<kv::PageId>& to) {
    ASSERT_EQ(from.size(), to.size());
    for (std::size_t i = 0; i < from.size(); ++i) {
      std::memcpy(
          decode_->page_address(to[i]), prefill_->page_address(from[i]), prefill_->page_bytes());
    }
  }

  std::vector<TokenId> alone(core::Request r) {
    FakeExecutor executor({.page_size = kPageSize});
    auto engine = Engine::create({.max_total_tokens = 128, .page_size = kPageSize}, &executor);
    std::vector<TokenId> out = r.resumed_output_ids;
    EXPECT_TRUE((*engine)
                    ->submit(std::move(r),
                             [&](core::TokenEvent&& event) {
                               out.insert(out.end(), event.tokens.begin(), event.tokens.end());
                             })
                    .ok());
    run(**engine);
    return out;
  }

  /// The whole way of one request.
  std::vector<TokenId> through_pair(const core::Request& r) {
    std::vector<TokenId> out = r.resumed_output_ids;
    Observer observer;
    const auto reservation = decode_->reserve(r);
    EXPECT_TRUE(reservation.ok()) << reservation.status().message();
    EXPECT_TRUE(prefill_->submit_prefill(r, &observer).ok());
    run(*prefill_);
    if (reservation->nothing_to_decode) {
      EXPECT_TRUE(observer.first && observer.first->finish);
      out.insert(out.end(), observer.first->tokens.begin(), observer.first->tokens.end());
      prefill_->release_prefill(r.id);
      return out;
    }
    const auto landing = decode_->take_pages(r.id, reservation->page_count);
    EXPECT_TRUE(landing.ok());
    const auto skip = reservation->matched_tokens / kPageSize;
    copy_pages({observer.pages.begin() + skip, observer.pages.end()}, *landing);
    EXPECT_TRUE(observer.first.has_value());
    out.insert(out.end(), observer.first->tokens.begin(), observer.first->tokens.end());
    if (observer.first->finish) {
      decode_->cancel_reservation(r.id, static_cast<std::int32_t>(r.input_ids.size()));
    } else {
      const AdoptState state{.first_token = observer.first->tokens.back()};
      auto next = static_cast<std::int32_t>(out.size());
      EXPECT_TRUE(decode_
                      ->adopt(r.id,
                              state,
                              [&, next](core::TokenEvent&& event) mutable {
                                EXPECT_EQ(event.first_index, next);
                                next += static_cast<std::int32_t>(event.tokens.size());
                                out.insert(out.end(), event.tokens.begin(), event.tokens.end());
                              })
                      .ok());
    }
    prefill_->release_prefill(r.id);
    run(*decode_);
    return out;
  }

  void expect_all_free() {
    for (Engine* engine : {prefill_.get(), decode_.get()}) {
      const Status status = engine->check_invariants();
      EXPECT_TRUE(status.ok()) << status.message();
      ASSERT_TRUE(engine->flush_cache().ok());
      EXPECT_EQ(engine->load().free_pages, engine->load().total_pages);
    }
  }

  std::unique_ptr<FakeExecutor> executors_[2];
  std::unique_ptr<Engine> prefill_;
  std::unique_ptr<Engine> decode_;
};

TEST_F(TransferTest, APairGivesTheTokensOfOneEngine) {
  for (const std::int32_t prompt : {1, 3, 4, 5, 8, 23}) {
    for (const int max_new : {1, 2, 9}) {
      SCOPED_TRACE(std::to_string(prompt) + " tokens, " + std::to_string(max_new) + " new");
      core::Request r = request(7, prompt, max_new);
      const auto want = alone(r);
      EXPECT_EQ(through_pair(r), want);  // cold
      EXPECT_EQ(through_pair(r), want);  // both caches warm
      if (max_new < 9) continue;
      r.resumed_output_ids.assign(want.begin(), want.begin() + 4);
      EXPECT_EQ(through_pair(r), want);
    }
  }
  expect_all_free();
}

TEST_F(TransferTest, ChunksCoverThePromptInFullPagesAndTheRestAtTheEnd) {
  Observer observer;
  ASSERT_TRUE(prefill_->submit_prefill(request(1, 14, 4), &observer).ok());
  run(*prefill_);
  EXPECT_EQ(observer.ready, (std::vector<std::int32_t>{4, 8, 14}));  // chunks end at 5, 10, 14
  EXPECT_EQ(observer.pages.size(), 4U);
  ASSERT_TRUE(observer.first.has_value());
  EXPECT_FALSE(observer.first->finish.has_value());
  EXPECT_EQ(prefill_->flush_cache().code(), Code::kFailedPrecondition);
  EXPECT_GT(prefill_->load().transferring_pages, 0);
  prefill_->release_prefill({1});
  EXPECT_EQ(prefill_->load().transferring_pages, 0);
  EXPECT_EQ(prefill_->load().cached_pages, 3);
  // A cached prefix is part of what the observer is told.
  Observer again;
  ASSERT_TRUE(prefill_->submit_prefill(request(1, 14, 4), &again).ok());
  run(*prefill_);
  EXPECT_EQ(again.pages.size(), 4U);
  EXPECT_EQ(again.first->cached_tokens, 12);
  EXPECT_EQ(again.first->tokens, observer.first->tokens);
  prefill_->release_prefill({1});
  expect_all_free();
}

TEST_F(TransferTest, AReservationOutlivesItsDeadlineButIsNotComputed) {
  core::Request r = request(1, 14, 40);
  r.deadline = steady_clock().now();
  const auto reservation = decode_->reserve(r);
  ASSERT_TRUE(reservation.ok());
  // Bytes may be on their way to its pages.
  decode_->step(*r.deadline + seconds(1));
  EXPECT_GT(decode_->load().transferring_pages, 0);
  Status why;
  ASSERT_TRUE(decode_
                  ->adopt({1},
                          {.first_token = 3},
                          [&](core::TokenEvent&& event) {
                            if (event.finish) why = event.finish->status;
                          })
                  .ok());
  decode_->step(*r.deadline + seconds(1));
  EXPECT_EQ(why.code(), Code::kDeadlineExceeded);
  EXPECT_FALSE(decode_->has_work());
}

TEST_F(TransferTest, PagesOfAnEndedPrefillStayUntilTheyAreReleased) {
  Observer observer;
  core::Request r = request(1, 14, 4);
  r.deadline = steady_clock().now();
  ASSERT_TRUE(prefill_->submit_prefill(r, &observer).ok());
  prefill_->step(*r.deadline - milliseconds(1));
  EXPECT_EQ(observer.pages.size(), 1U);
  prefill_->step(*r.deadline);
  EXPECT_EQ(observer.why.code(), Code::kDeadlineExceeded);
  EXPECT_FALSE(prefill_->has_work());
  EXPECT_GT(prefill_->load().transferring_pages, 0);
  prefill_->release_prefill({1});
  prefill_->release_prefill({1});
  expect_all_free();

  Observer second;
  ASSERT_TRUE(prefill_->submit_prefill(request(2, 14, 4), &second).ok());
  prefill_->step(steady_clock().now());
  prefill_->abort({2}, cancelled("enough"));
  EXPECT_EQ(second.why.code(), Code::kCancelled);
  expect_all_free();
}

TEST_F(TransferTest, ReservationsAreBoundedAndGiveTheirPagesBack) {
  int held = 0;
  Status status;
  for (std::uint64_t id = 1; status.ok(); ++id) {
    status = decode_->reserve(request(id, 20, 50)).status();
    held += status.ok() ? 1 : 0;
  }
  EXPECT_EQ(status.code(), Code::kResourceExhausted);
  EXPECT_EQ(held, 4);  // 32 pages: 5 each, and 2 for each one that runs or arrives
  EXPECT_EQ(decode_->load().transferring_pages, 20);
  EXPECT_EQ(decode_->take_pages({1}, 6).status().code(), Code::kInvalidArgument);
  EXPECT_EQ(decode_->take_pages({99}, 1).status().code(), Code::kNotFound);
  EXPECT_EQ(decode_->adopt({99}, {}, {}).code(), Code::kNotFound);
  EXPECT_EQ(decode_->adopt({1}, {.first_token = 64}, {}).code(), Code::kInvalidArgument);
  decode_->cancel_reservation({1}, 13);  // three full pages
  decode_->abort({2}, cancelled("gone"));
  for (const std::uint64_t id : {3U, 4U, 4U})
    decode_->cancel_reservation({id}, 0);
  EXPECT_EQ(decode_->load().cached_pages, 3);
  EXPECT_EQ(decode_->reserve(request(1, 20, 50))->matched_tokens, 12);
  decode_->cancel_reservation({1}, 0);
  expect_all_free();
}

TEST_F(TransferTest, AnOutputThatPrefillEndsReservesNothing) {
  core::Request last_token = request(2, 20, 5);
  last_token.resumed_output_ids.assign(4, 7);
  for (const core::Request& r : {request(1, 20, 0), request(1, 20, 1), last_token}) {
    SCOPED_TRACE(r.sampling.max_new_tokens);
    const auto reservation = decode_->reserve(r);
    ASSERT_TRUE(reservation.ok());
    EXPECT_TRUE(reservation->nothing_to_decode);
    EXPECT_EQ(decode_->adopt(r.id, {}, {}).code(), Code::kNotFound);
  }
  const auto goes_on = decode_->reserve(request(1, 20, 2));
  ASSERT_TRUE(goes_on.ok());
  EXPECT_FALSE(goes_on->nothing_to_decode);
  decode_->cancel_reservation({1}, 0);
  expect_all_free();
}

TEST_F(TransferTest, AnAdoptedRequestSurvivesRetraction) {
  // 128 tokens: six requests of 20 + 30 cannot all stay.
  std::map<std::uint64_t, std::vector<TokenId>> got;
  std::map<std::uint64_t, bool> done;
  for (std::uint64_t id = 1; id <= 4; ++id) {
    const core::Request r = request(id, 20, 30);
    Observer observer;
    const auto reservation = decode_->reserve(r);
    ASSERT_TRUE(reservation.ok());
    ASSERT_TRUE(prefill_->submit_prefill(r, &observer).ok());
    run(*prefill_);
    copy_pages(observer.pages, *decode_->take_pages(r.id, reservation->page_count));
    got[id].assign(observer.first->tokens.begin(), observer.first->tokens.end());
    prefill_->release_prefill(r.id);
    ASSERT_TRUE(decode_
                    ->adopt(r.id,
                            {.first_token = got[id][0]},
                            [&got, &done, id](core::TokenEvent&& event) {
                              auto& tokens = got[id];
                              EXPECT_EQ(static_cast<std::size_t>(event.first_index), tokens.size());
                              tokens.insert(tokens.end(), event.tokens.begin(), event.tokens.end());
                              done[id] = event.finish.has_value();
                            })
                    .ok());
  }
  run(*decode_);
  EXPECT_GT(decode_->retraction_count(), 0);
  for (std::uint64_t id = 1; id <= 4; ++id) {
    EXPECT_TRUE(done[id]);
    EXPECT_EQ(got[id], alone(request(id, 20, 30))) << id;
  }
  expect_all_free();
}

/// Each side has room for what it has room for: the answer says where it was cut, and by whom.
TEST_F(TransferTest, ADecodePoolThatPromptsFillEndsAnswers) {
  FakeExecutor executor({.page_size = kPageSize});
  auto small = Engine::create({.max_total_tokens = 64, .page_size = kPageSize}, &executor);
  ASSERT_TRUE(small.ok());
  decode_ = std::move(*small);
  const core::Request r = request(1, 64, 20);
  Observer observer;
  const auto reservation = decode_->reserve(r);
  ASSERT_TRUE(reservation.ok());
  ASSERT_TRUE(prefill_->submit_prefill(r, &observer).ok());
  run(*prefill_);
  ASSERT_TRUE(observer.first.has_value());
  EXPECT_FALSE(observer.first->finish.has_value()) << "prefill has more room";
  const auto landing = decode_->take_pages(r.id, reservation->page_count);
  ASSERT_TRUE(landing.ok());
  copy_pages(observer.pages, *landing);
  std::vector<core::TokenEvent> events;
  ASSERT_TRUE(decode_
                  ->adopt(r.id,
                          {.first_token = observer.first->tokens.at(0)},
                          [&](core::TokenEvent&& event) { events.push_back(std::move(event)); })
                  .ok());
  run(*decode_);
  ASSERT_EQ(events.size(), 1U);
  EXPECT_TRUE(events[0].tokens.empty());
  EXPECT_EQ(events[0].first_index, 1);
  ASSERT_TRUE(events[0].finish.has_value());
  EXPECT_EQ(events[0].finish->kind, core::FinishKind::kLength);
  EXPECT_EQ(decode_->load().used_pages, 0);
}

TEST_F(TransferTest, APrefillPoolThatThePromptFillsCutsNothing) {
  const core::Request r = request(1, 128, 20);
  Observer observer;
  ASSERT_TRUE(prefill_->submit_prefill(r, &observer).ok());
  run(*prefill_);
  ASSERT_TRUE(observer.first.has_value());
  EXPECT_FALSE(observer.first->finish.has_value());
  EXPECT_EQ(prefill_->submit_prefill(request(2, 129, 1), &observer).code(), Code::kOutOfRange);
}

/// An engine with more room began them.
TEST_F(TransferTest, AnswersThatHaveOutgrownAnEngineAreRefused) {
  core::Request r = request(1, 100, 40);
  r.resumed_output_ids.assign(29, 7);
  Observer observer;
  const auto nobody = [](const core::TokenEvent&) { FAIL(); };
  EXPECT_EQ(prefill_->submit(r, nobody).code(), Code::kOutOfRange);
  EXPECT_EQ(prefill_->submit_prefill(r, &observer).code(), Code::kOutOfRange);
  EXPECT_EQ(decode_->reserve(r).status().code(), Code::kOutOfRange);
  // Those that are complete are not.
  r.sampling.max_new_tokens = 29;
  EXPECT_TRUE(decode_->reserve(r)->nothing_to_decode);
  EXPECT_TRUE(prefill_->submit_prefill(r, &observer).ok());
  run(*prefill_);
  EXPECT_TRUE(observer.first && observer.first->finish);
}

}  // namespace
}  // namespace tandem::engine
