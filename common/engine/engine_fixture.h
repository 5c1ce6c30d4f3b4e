// What the engine's unit tests share: a log of events and an engine on a FakeExecutor.
#pragma once

#include "common/base/clock.h"
#include "common/engine/engine.h"
#include "common/engine/fake_executor.h"

#include <gtest/gtest.h>

#include <memory>
#include <vector>

namespace tandem::engine {

using core::TokenId;

/// All events of one request, checked for order while they come.
struct Log {
  std::vector<core::TokenEvent> events;
  std::vector<TokenId> tokens;
  std::int32_t next_index = 0;
  bool finished = false;

  core::EventSink sink() {
    return [this](core::TokenEvent&& event) { take(std::move(event)); };
  }

  void take(core::TokenEvent&& event) {
    EXPECT_FALSE(finished);
    EXPECT_EQ(event.first_index, next_index);
    next_index += static_cast<std::int32_t>(event.tokens.size());
    tokens.insert(tokens.end(), event.tokens.begin(), event.tokens.end());
    finished = event.finish.has_value();
    events.push_back(std::move(event));
  }

  [[nodiscard]] const core::FinishReason& finish() const { return *events.back().finish; }
};

class EngineFixture : public testing::Test {
 protected:
  void make(const EngineOptions& changes, FakeExecutor::Options model = {}) {
    engine_.reset();
    EngineOptions options = changes;
    options.max_total_tokens = options.max_total_tokens > 0 ? options.max_total_tokens : 256;
    options.clock = &clock_;
    model.page_size = options.page_size;
    executor_ = std::make_unique<FakeExecutor>(model);
    auto engine = Engine::create(options, executor_.get());
    ASSERT_TRUE(engine.ok()) << engine.status().message();
    engine_ = std::move(*engine);
  }

  static core::Request request(std::uint64_t id, std::vector<TokenId> prompt, int max_new) {
    core::Request out;
    out.id = {id};
    out.input_ids = std::move(prompt);
    out.sampling.max_new_tokens = max_new;
    out.sampling.ignore_eos = true;
    out.sampling.seed = id;
    return out;
  }

  void run() {
    for (int i = 0; i < 10000 && engine_->has_work(); ++i) {
      clock_.advance(milliseconds(1));
      if (!engine_->step(clock_.now())) break;
      const Status status = engine_->check_invariants();
      ASSERT_TRUE(status.ok()) << status.message();
    }
  }

  /// Runs one request to its end.
  Log generate(core::Request r) {
    Log log;
    log.next_index = static_cast<std::int32_t>(r.resumed_output_ids.size());
    const Status status = engine_->submit(std::move(r), log.sink());
    EXPECT_TRUE(status.ok()) << status.message();
    run();
    EXPECT_TRUE(log.finished);
    return log;
  }

  void expect_all_free() {
    ASSERT_TRUE(engine_->flush_cache().ok());
    EXPECT_EQ(engine_->load().free_pages, engine_->load().total_pages);
  }

  FakeClock clock_;
  std::unique_ptr<FakeExecutor> executor_;
  std::unique_ptr<Engine> engine_;
};

}  // namespace tandem::engine
