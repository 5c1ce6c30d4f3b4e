#include "common/async/channel.h"
#include "common/async/io_pool.h"
#include "common/async/strand.h"

#include <gtest/gtest.h>

#include <atomic>
#include <future>
#include <memory>
#include <thread>

namespace tandem::async {
namespace {

TEST(IoPool, RunsTasksAndStopsTwice) {
  IoPool pool(2);
  std::promise<void> ran;
  pool.post([&] { ran.set_value(); });
  ran.get_future().wait();
  pool.stop();
  pool.stop();
  pool.post([] { FAIL() << "ran after stop"; });
}

TEST(Strand, OrderAndExclusion) {
  IoPool pool(4);
  const Strand strand(pool);
  std::vector<int> seen;  // No lock: the strand is the lock.
  std::atomic<int> inside{0};
  std::promise<void> done;
  constexpr int kTasks = 500;
  for (int i = 0; i < kTasks; ++i)
    strand.post([&, i] {
      EXPECT_EQ(inside.fetch_add(1), 0);
      EXPECT_TRUE(strand.running_here());
      seen.push_back(i);
      inside.fetch_sub(1);
      if (i == kTasks - 1) done.set_value();
    });
  done.get_future().wait();
  ASSERT_EQ(seen.size(), static_cast<std::size_t>(kTasks));
  for (int i = 0; i < kTasks; ++i)
    EXPECT_EQ(seen[static_cast<std::size_t>(i)], i);
  EXPECT_FALSE(strand.running_here());
}

TEST(Timer, FiresAndCancels) {
  IoPool pool(2);
  const Strand strand(pool);
  auto timer = std::make_shared<Timer>(strand);
  std::promise<int> fired;
  std::atomic<int> stale{0};
  strand.post([&] {
    timer->start(milliseconds(1), [&] { stale.fetch_add(1); });
    timer->cancel();
    timer->start(milliseconds(1), [&] { stale.fetch_add(1); });
    timer->start(milliseconds(5), [&] { fired.set_value(stale.load()); });
  });
  EXPECT_EQ(fired.get_future().get(), 0);
}

TEST(Channel, BoundAndClose) {
  Channel<std::unique_ptr<int>> channel(2);
  EXPECT_TRUE(channel.try_push(std::make_unique<int>(1)));
  EXPECT_TRUE(channel.try_push(std::make_unique<int>(2)));
  auto third = std::make_unique<int>(3);
  EXPECT_FALSE(channel.try_push(std::move(third)));
  ASSERT_NE(third, nullptr) << "a refused value stays with the caller";
  EXPECT_FALSE(channel.push(std::move(third), milliseconds(1)));
  EXPECT_EQ(**channel.pop(Duration{}), 1);
  EXPECT_TRUE(channel.push(std::move(third), milliseconds(1)));
  channel.close();
  EXPECT_FALSE(channel.try_push(std::make_unique<int>(4)));
  const auto rest = channel.pop_all(seconds(5));
  ASSERT_EQ(rest.size(), 2U);
  EXPECT_EQ(*rest[1], 3);
  EXPECT_FALSE(channel.pop(seconds(5)).has_value()) << "closed and empty does not wait";
}

TEST(Channel, WakeEndsOneWait) {
  Channel<int> channel(2);
  channel.wake();
  EXPECT_TRUE(channel.pop_all(seconds(60)).empty());
  std::thread waker([&] { channel.wake(); });
  EXPECT_FALSE(channel.pop(seconds(60)).has_value());
  waker.join();
}

TEST(Channel, ManyProducersKeepTheirOwnOrder) {
  Channel<std::pair<int, int>> channel(8);
  constexpr int kProducers = 4;
  constexpr int kEach = 500;
  std::vector<std::thread> producers;
  for (int p = 0; p < kProducers; ++p)
    producers.emplace_back([&channel, p] {
      for (int i = 0; i < kEach; ++i)
        EXPECT_TRUE(channel.push(std::pair(p, i), seconds(60)));
    });
  std::vector<int> next(kProducers, 0);
  for (int got = 0; got < kProducers * kEach;) {
    for (const auto& [p, i] : channel.pop_all(seconds(60))) {
      EXPECT_EQ(next[static_cast<std::size_t>(p)]++, i);
      ++got;
    }
  }
  for (std::thread& producer : producers)
    producer.join();
  EXPECT_EQ(channel.size(), 0U);
}

}  // namespace
}  // namespace tandem::async
