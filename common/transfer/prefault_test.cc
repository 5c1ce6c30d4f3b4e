#include "common/transfer/prefault.h"

#include "common/base/clock.h"
#include "common/base/shared_memory.h"
#include "common/transfer/transport_test_support.h"

#include <gtest/gtest.h>

#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <thread>
#include <vector>

namespace tandem::transfer {
namespace {

using testing::BackEnd;
using testing::Node;
using testing::test_name;

constexpr std::size_t kBlock = Prefault::kBlockBytes;
constexpr std::size_t kBlocks = 8;

/// Memory that the system has not given yet, in blocks.
class Untouched {
 public:
  Untouched() {
    constexpr std::size_t kAll = (kBlocks + 1) * kBlock;
    mapped_ = ::mmap(nullptr, kAll, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    TANDEM_CHECK(mapped_ != MAP_FAILED, "mmap");
    // Small pages, so that what is there is told page by page.
    ::madvise(mapped_, kAll, MADV_NOHUGEPAGE);
    const auto at = reinterpret_cast<std::uintptr_t>(mapped_);
    base_ = static_cast<std::byte*>(mapped_) + ((at + kBlock - 1) / kBlock * kBlock - at);
  }

  Untouched(const Untouched&) = delete;
  Untouched& operator=(const Untouched&) = delete;

  ~Untouched() { ::munmap(mapped_, (kBlocks + 1) * kBlock); }

  [[nodiscard]] std::byte* base() const { return base_; }

  /// How much of each block is there, in percent.
  [[nodiscard]] std::vector<std::size_t> there() const {
    const auto page = static_cast<std::size_t>(::sysconf(_SC_PAGESIZE));
    std::vector<std::size_t> found;
    for (std::size_t block = 0; block < kBlocks; ++block) {
      std::vector<unsigned char> pages(kBlock / page);
      TANDEM_CHECK(::mincore(base_ + block * kBlock, kBlock, pages.data()) == 0, "mincore");
      std::size_t count = 0;
      for (const unsigned char each : pages)
        count += each & 1U;
      found.push_back(100 * count / pages.size());
    }
    return found;
  }

  /// Pages of half a block.
  [[nodiscard]] PageMemory memory() const {
    PageMemory memory;
    memory.base = base_;
    memory.stride_bytes = kBlock / 2;
    memory.page_count = 2 * kBlocks;
    memory.part_offsets = {0, kBlock / 2};
    return memory;
  }

 private:
  void* mapped_ = nullptr;
  std::byte* base_ = nullptr;
};

/// What the system has to know for any of this.
bool system_can() {
  const Untouched probe;
  return ::madvise(probe.base(), kBlock, /*MADV_POPULATE_WRITE*/ 23) == 0 || errno != EINVAL;
}

std::vector<std::size_t> only(std::initializer_list<std::size_t> blocks) {
  std::vector<std::size_t> wanted(kBlocks);
  for (const std::size_t block : blocks)
    wanted[block] = 100;
  return wanted;
}

class TransferPrefault : public ::testing::Test {
 protected:
  void SetUp() override {
    if (!system_can()) GTEST_SKIP() << "Linux before 5.14";
  }
};

TEST_F(TransferPrefault, TakesOpenPagesAndNoOthers) {
  const Untouched pool;
  Prefault prefault(pool.memory());
  EXPECT_FALSE(prefault.waiting());
  prefault.open(test_name(), std::vector<std::uint32_t>{6, 7, 12, 1});
  EXPECT_EQ(pool.there(), only({}));
  prefault.take_some();
  EXPECT_EQ(pool.there(), only({3}));
  prefault.take_some();
  EXPECT_EQ(pool.there(), only({3, 6}));
  EXPECT_TRUE(prefault.waiting());
  prefault.take_some();
  EXPECT_FALSE(prefault.waiting());
  EXPECT_EQ(pool.there(), only({0, 3, 6}));
}

TEST_F(TransferPrefault, WhatIsThereStaysAsItIs) {
  const Untouched pool;
  Prefault prefault(pool.memory());
  prefault.open(test_name(), std::vector<std::uint32_t>{0, 1});
  pool.base()[0] = std::byte{7};
  pool.base()[kBlock - 1] = std::byte{9};
  prefault.take_some();
  EXPECT_EQ(pool.base()[0], std::byte{7});
  EXPECT_EQ(pool.base()[kBlock - 1], std::byte{9});
}

TEST_F(TransferPrefault, AClosedNameTakesNoMore) {
  const Untouched pool;
  Prefault prefault(pool.memory());
  prefault.open(test_name(1), std::vector<std::uint32_t>{0, 2, 4});
  prefault.open(test_name(2), std::vector<std::uint32_t>{10});
  prefault.take_some();
  prefault.close(test_name(1));
  while (prefault.waiting())
    prefault.take_some();
  EXPECT_EQ(pool.there(), only({0, 5}));
}

TEST_F(TransferPrefault, ABlockOfTwoNamesIsTakenAlthoughOneIsClosed) {
  const Untouched pool;
  Prefault prefault(pool.memory());
  prefault.open(test_name(1), std::vector<std::uint32_t>{4});
  prefault.open(test_name(2), std::vector<std::uint32_t>{5});
  prefault.close(test_name(1));
  while (prefault.waiting())
    prefault.take_some();
  EXPECT_EQ(pool.there(), only({2}));
}

/// What a worker's pool is where peers of the same machine read it: the seals against writing leave
/// its owner's mapping alone.
TEST_F(TransferPrefault, TakesSharedMemory) {
  auto pool = SharedMemory::create("tandem-prefault-test", 4 * kBlock);
  ASSERT_TRUE(pool.ok()) << pool.status().message();
  PageMemory memory;
  memory.base = pool->base();
  memory.stride_bytes = kBlock;
  memory.page_count = 4;
  memory.part_offsets = {0, kBlock};
  Prefault prefault(memory);
  pool->base()[3 * kBlock / 2] = std::byte{7};
  prefault.open(test_name(), std::vector<std::uint32_t>{1});
  while (prefault.waiting())
    prefault.take_some();
  const auto page = static_cast<std::size_t>(::sysconf(_SC_PAGESIZE));
  std::vector<unsigned char> pages(kBlock / page);
  ASSERT_EQ(::mincore(pool->base() + kBlock, kBlock, pages.data()), 0);
  for (const unsigned char each : pages)
    EXPECT_EQ(each & 1U, 1U);
  EXPECT_EQ(pool->base()[3 * kBlock / 2], std::byte{7});
}

/// Pages that the file behind them has no memory for would end the process if they were touched.
TEST_F(TransferPrefault, MemoryThatCannotBeHadIsLeftAlone) {
  const int file = ::memfd_create("tandem-prefault-test", MFD_CLOEXEC);
  ASSERT_GE(file, 0);
  ASSERT_EQ(::ftruncate(file, kBlock), 0);
  void* base = ::mmap(nullptr, 4 * kBlock, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
  ::close(file);
  ASSERT_NE(base, MAP_FAILED);
  PageMemory memory;
  memory.base = static_cast<std::byte*>(base);
  memory.stride_bytes = kBlock;
  memory.page_count = 4;
  memory.part_offsets = {0, kBlock};
  Prefault prefault(memory);
  prefault.open(test_name(), std::vector<std::uint32_t>{2, 0});
  while (prefault.waiting())
    prefault.take_some();
  unsigned char first = 0;
  EXPECT_EQ(::mincore(base, 1, &first), 0);
  EXPECT_EQ(first & 1U, 1U) << "a failure ends nothing but its own block";
  ::munmap(base, 4 * kBlock);
}

TEST_F(TransferPrefault, NothingIsTakenTwice) {
  const Untouched pool;
  Prefault prefault(pool.memory());
  prefault.open(test_name(1), std::vector<std::uint32_t>{0, 1, 2});
  prefault.open(test_name(2), std::vector<std::uint32_t>{1, 8});
  for (int i = 0; i < 3; ++i)
    prefault.take_some();
  EXPECT_EQ(pool.there(), only({0, 1, 4}));
  EXPECT_FALSE(prefault.waiting());
  prefault.open(test_name(3), std::vector<std::uint32_t>{0, 8, 9});
  EXPECT_FALSE(prefault.waiting());
}

/// A pool that begins and ends in the middle of a block: what is beside it is left alone.
TEST_F(TransferPrefault, StaysInsideThePool) {
  const Untouched around;
  PageMemory memory = around.memory();
  memory.base += kBlock / 2;
  memory.page_count = 2;
  ::mprotect(around.base(), kBlock / 2, PROT_NONE);
  ::mprotect(memory.base + kBlock, kBlock / 2, PROT_NONE);
  Prefault prefault(memory);
  prefault.open(test_name(), std::vector<std::uint32_t>{0, 1});
  while (prefault.waiting())
    prefault.take_some();
  const auto page = static_cast<std::size_t>(::sysconf(_SC_PAGESIZE));
  std::vector<unsigned char> pages(2 * kBlock / page);
  ASSERT_EQ(::mincore(around.base(), 2 * kBlock, pages.data()), 0);
  for (std::size_t i = 0; i < pages.size(); ++i)
    EXPECT_EQ(pages[i] & 1U, i * page >= kBlock / 2 && i * page < 3 * kBlock / 2 ? 1U : 0U) << i;
}

/// The gap between the first and the second token of a long prompt: its pages are there before the
/// prefill worker has anything to send.
TEST_F(TransferPrefault, ATransportTakesOpenPagesWhileItWaits) {
  const Untouched pool;
  Node receiver({.back_end = BackEnd::kUcx,
                 .pages = 2 * kBlocks,
                 .page_bytes = kBlock / 2,
                 .tell = [&](PageMemory& memory) { memory.base = pool.base(); }});
  receiver.transport->open_landing(test_name(), 0, {4, 5, 9});
  const Time deadline = steady_clock().now() + seconds(20);
  while (pool.there() != only({2, 4}) && steady_clock().now() < deadline)
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  EXPECT_EQ(pool.there(), only({2, 4}));
}

/// What a prompt computes on now goes first: nothing is taken where no processor is known to idle.
TEST_F(TransferPrefault, ATransportTakesNothingWhileProcessorsAreBusy) {
  const Untouched pool;
  Node receiver({.back_end = BackEnd::kUcx,
                 .pages = 2 * kBlocks,
                 .page_bytes = kBlock / 2,
                 .idle_from = "/nowhere/stat",
                 .tell = [&](PageMemory& memory) { memory.base = pool.base(); }});
  receiver.transport->open_landing(test_name(), 0, {4, 5, 9});
  std::this_thread::sleep_for(std::chrono::milliseconds(300));
  EXPECT_EQ(pool.there(), only({}));
}

}  // namespace
}  // namespace tandem::transfer
