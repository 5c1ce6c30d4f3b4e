#include "common/worker/ready_memory.h"

#include "common/base/clock.h"
#include "common/engine/engine_fixture.h"

#include <gtest/gtest.h>

#include <sched.h>
#include <unistd.h>

#include <fstream>
#include <string>

namespace tandem::worker {
namespace {

constexpr Duration kLook = transfer::IdleCpu::kLook;

class WorkerReadyMemory : public engine::EngineFixture {
 protected:
  void SetUp() override {
    path_ = testing::TempDir() + "stat." + std::to_string(::getpid());
    make({.max_total_tokens = 1 << 20, .ready_bytes_max = std::size_t{8} << 20});
    loop_ = std::make_unique<EngineLoop>(engine_.get(), nullptr);
    ready_ = std::make_unique<ReadyMemory>(engine_.get(), loop_.get(), path_);
  }

  void TearDown() override { ::unlink(path_.c_str()); }

  /// Every processor has been idle for so many ticks in all.
  void idle(int ticks) const {
    std::ofstream file(path_);
    for (int cpu = 0; cpu < CPU_SETSIZE; ++cpu)
      file << "cpu" << cpu << " 1 1 1 " << ticks << " 0\n";
  }

  void use_some() { generate(request(1, std::vector<engine::TokenId>(200, 5), 4)); }

  std::string path_;
  std::unique_ptr<EngineLoop> loop_;
  std::unique_ptr<ReadyMemory> ready_;
  Time now_{seconds(1).ns};
};

TEST_F(WorkerReadyMemory, WantsNoTurnBeforeAnythingWasUsed) {
  idle(0);
  ready_->after_step(now_);
  EXPECT_FALSE(ready_->next_deadline().has_value());
}

TEST_F(WorkerReadyMemory, IsTakenOnceAProcessorWasIdleForALook) {
  use_some();
  idle(0);
  ready_->after_step(now_);
  EXPECT_TRUE(engine_->wants_memory());
  ASSERT_TRUE(ready_->next_deadline().has_value());
  EXPECT_EQ(*ready_->next_deadline(), now_ + kLook);
  now_ = now_ + kLook;
  idle(10);
  ready_->after_step(now_);
  EXPECT_FALSE(engine_->wants_memory());
  ready_->after_step(now_);
  EXPECT_FALSE(ready_->next_deadline().has_value());
}

TEST_F(WorkerReadyMemory, IsLeftWhileOthersUseAllProcessors) {
  use_some();
  idle(7);
  for (int look = 0; look < 4; ++look, now_ = now_ + kLook)
    ready_->after_step(now_);
  EXPECT_TRUE(engine_->wants_memory());
  EXPECT_TRUE(ready_->next_deadline().has_value());
}

TEST_F(WorkerReadyMemory, IsLeftWhileTheEngineHasWork) {
  use_some();
  ASSERT_TRUE(engine_->submit(request(2, {7, 8}, 4), [](core::TokenEvent&&) {}).ok());
  for (int look = 0; look < 4; ++look, now_ = now_ + kLook) {
    idle(100 * look);
    ready_->after_step(now_);
  }
  EXPECT_TRUE(engine_->wants_memory());
  EXPECT_FALSE(ready_->next_deadline().has_value());
}

}  // namespace
}  // namespace tandem::worker
