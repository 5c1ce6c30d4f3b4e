#include "common/fleet/entrance.h"

#include <gtest/gtest.h>

#include <atomic>
#include <thread>
#include <vector>

namespace tandem::fleet {
namespace {

TEST(Entrance, WorksAtOnceWhenFreeAndNobodyWaits) {
  Entrance entrance(8);
  int done = 0;
  EXPECT_TRUE(entrance.try_now([&] { done = 1; }));
  EXPECT_EQ(done, 1);
  ASSERT_TRUE(entrance.leave([&] { done = 2; }));
  EXPECT_FALSE(entrance.try_now([&] { done = 3; }));
  entrance.do_turn(Duration{0}, [] {});
  EXPECT_EQ(done, 2);
  EXPECT_TRUE(entrance.try_now([&] { done = 4; }));
}

TEST(Entrance, IsNotEnteredTwiceByOneThread) {
  Entrance entrance(8);
  bool again = true;
  EXPECT_TRUE(entrance.try_now([&] { again = entrance.try_now([] {}); }));
  EXPECT_FALSE(again);
  entrance.do_turn(Duration{0}, [&] { again = entrance.try_now([] {}); });
  EXPECT_FALSE(again);
}

TEST(Entrance, LetsNobodyInAfterItsEnd) {
  Entrance entrance(8);
  entrance.close();
  EXPECT_FALSE(entrance.leave([] {}));
  EXPECT_FALSE(entrance.try_leave([] {}));
  EXPECT_TRUE(entrance.try_now([] {}));
  entrance.end();
  EXPECT_FALSE(entrance.try_now([] {}));
}

// What one thread brings is done in its order, and never two things at a time, whichever way each
// of them gets in.
TEST(Entrance, KeepsTheOrderOfEachThread) {
  constexpr int kThreads = 3;
  constexpr int kTasks = 2000;
  Entrance entrance(1 << 14);
  std::vector<int> next(kThreads, 0);
  std::vector<int> wrong(kThreads, 0);
  int inside = 0;
  int overlaps = 0;
  std::atomic<int> left{kThreads};
  std::vector<std::thread> threads;
  for (int t = 0; t < kThreads; ++t) {
    threads.emplace_back([&, t] {
      for (int i = 0; i < kTasks; ++i) {
        const auto task = [&, t, i] {
          overlaps += inside++ == 0 ? 0 : 1;
          wrong[static_cast<std::size_t>(t)] += next[static_cast<std::size_t>(t)]++ == i ? 0 : 1;
          --inside;
        };
        if (!entrance.try_now(task)) entrance.leave(task);
      }
      left.fetch_sub(1);
    });
  }
  while (left.load() > 0)
    entrance.do_turn(milliseconds(1), [] {});
  for (std::thread& thread : threads)
    thread.join();
  entrance.do_turn(Duration{0}, [] {});
  EXPECT_EQ(overlaps, 0);
  EXPECT_EQ(next, std::vector<int>(kThreads, kTasks));
  EXPECT_EQ(wrong, std::vector<int>(kThreads, 0));
}

}  // namespace
}  // namespace tandem::fleet
