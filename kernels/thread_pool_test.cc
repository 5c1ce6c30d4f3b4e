#include "kernels/api/thread_pool.h"

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <numeric>
#include <thread>
#include <vector>

namespace tandem::kernels {
namespace {

TEST(ThreadPool, RunsEveryTaskOnce) {
  for (const std::size_t threads : {1U, 2U, 3U, 5U}) {
    ThreadPool pool(threads);
    EXPECT_EQ(pool.thread_count(), threads);
    for (const std::size_t tasks : {0U, 1U, 2U, 7U, 1000U}) {
      std::vector<int> count(tasks);
      std::vector<std::atomic<int>> busy(threads);
      std::atomic<bool> shared{false};
      pool.parallel_for(tasks, [&](std::size_t task, std::size_t worker) {
        if (busy[worker].fetch_add(1) != 0) shared = true;
        ++count[task];
        busy[worker].fetch_sub(1);
      });
      EXPECT_EQ(std::accumulate(count.begin(), count.end(), std::size_t{0}), tasks);
      for (const int times : count)
        EXPECT_EQ(times, 1);
      EXPECT_FALSE(shared) << "two tasks of one worker at a time";
    }
  }
}

TEST(ThreadPool, AsksForWhatIsNearOncePerJob) {
  struct Asked {
    std::thread::id thread = std::this_thread::get_id();
    int* count = nullptr;
  };

  ThreadPool pool(2);
  if (pool.thread_count() < 2) GTEST_SKIP() << "the system refused a thread";
  int count = 0;
  const Asked asked{.count = &count};
  const auto ask = [](const void* context) {
    const Asked& here = *static_cast<const Asked*>(context);
    EXPECT_EQ(std::this_thread::get_id(), here.thread);
    ++*here.count;
  };
  const auto run = [&](std::size_t tasks) { pool.parallel_for(tasks, [](auto, auto) {}); };
  pool.keep_near(ask, &asked);
  run(2);
  run(100);
  EXPECT_EQ(count, 2);
  run(1);  // nobody else is waited for
  EXPECT_EQ(count, 2);
  pool.keep_near(nullptr, nullptr);
  run(2);
  EXPECT_EQ(count, 2);
}

// Many tiny jobs back to back: a worker that wakes late must never run a task of a job that is
// over.
TEST(ThreadPool, LateWorkersFindNothing) {
  ThreadPool pool(4);
  std::uint64_t total = 0;
  for (std::uint64_t job = 0; job < 3000; ++job) {
    std::atomic<std::uint64_t> sum{0};
    const std::size_t tasks = job % 5;
    pool.parallel_for(tasks,
                      [&sum, job](std::size_t task, std::size_t) { sum += job * 10 + task; });
    for (std::uint64_t task = 0; task < tasks; ++task)
      total += job * 10 + task;
    total -= sum;
  }
  EXPECT_EQ(total, 0U);
}

// Workers that went to sleep come back for a job that needs two threads at once, and a caller that
// went to sleep for the end of the last task comes back too. Many times, since a call that is lost
// is lost at one moment only.
TEST(ThreadPool, SleepersAreWoken) {
  using Clock = std::chrono::steady_clock;
  ThreadPool pool(2);
  if (pool.thread_count() < 2) GTEST_SKIP() << "the system refused a thread";
  for (int round = 0; round < 50; ++round) {
    // Around the time that waiting actively ends.
    std::this_thread::sleep_for(std::chrono::microseconds(80 + round * 2));
    std::atomic<int> arrived{0};
    std::atomic<bool> alone{false};
    pool.parallel_for(2, [&](std::size_t, std::size_t worker) {
      ++arrived;
      const auto end = Clock::now() + std::chrono::seconds(20);
      while (arrived < 2 && Clock::now() < end)
        std::this_thread::yield();
      if (arrived < 2) alone = true;
      if (worker != 0) std::this_thread::sleep_for(std::chrono::microseconds(80 + round * 2));
    });
    ASSERT_FALSE(alone) << "round " << round;
  }
}

TEST(ThreadPool, ScratchIsAlignedAndApart) {
  ThreadPool pool(3);
  for (std::size_t worker = 0; worker < 3; ++worker) {
    EXPECT_EQ(reinterpret_cast<std::uintptr_t>(pool.scratch(worker)) % 64, 0U);
    EXPECT_EQ(pool.scratch(worker), pool.scratch(0) + worker * ThreadPool::kScratchBytes);
  }
}

TEST(ThreadPool, ClampsThreads) {
  EXPECT_EQ(ThreadPool(0).thread_count(), 1U);
}

// So many, since a worker that misses the end misses it at one moment only.
TEST(ThreadPool, ManyPoolsStartAndStop) {
  for (std::size_t i = 0; i < 3000; ++i) {
    ThreadPool pool(2 + i % 5);
    if (i % 3 == 0) pool.parallel_for(8, [](std::size_t, std::size_t) {});
  }
}

}  // namespace
}  // namespace tandem::kernels
