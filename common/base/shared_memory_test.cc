#include "common/base/shared_memory.h"

#include <gtest/gtest.h>

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <string>

namespace tandem {
namespace {

constexpr const char* kName = "tandem-test";
constexpr std::size_t kBytes = 3 * 4096;

/// Of the mapping that holds the address, as /proc has them.
std::string permissions(const void* address) {
  const auto at = reinterpret_cast<std::uintptr_t>(address);
  std::ifstream maps("/proc/self/maps");
  for (std::string line; std::getline(maps, line);) {
    unsigned long begin = 0;
    unsigned long end = 0;
    char words[8] = {};
    if (std::sscanf(line.c_str(), "%lx-%lx %7s", &begin, &end, words) == 3 && at >= begin &&
        at < end)
      return words;
  }
  return {};
}

/// The owner's file, opened anew.
int open_again(const MemoryKey& key, int flags) {
  return ::open(("/proc/self/fd/" + std::to_string(key.fd)).c_str(), flags | O_CLOEXEC);
}

TEST(SharedMemory, WhatIsWrittenIsReadByThePeerAndNotWritable) {
  const auto mine = SharedMemory::create(kName, kBytes - 100);
  ASSERT_TRUE(mine.ok()) << mine.status().message();
  EXPECT_EQ(mine->bytes(), kBytes) << "whole pages";
  EXPECT_EQ(mine->base()[kBytes - 1], std::byte{0});
  std::memset(mine->base(), 0x42, kBytes);
  const auto theirs = PeerMemory::open(mine->key(), kName);
  ASSERT_TRUE(theirs.ok()) << theirs.status().message();
  EXPECT_EQ(theirs->bytes(), kBytes);
  EXPECT_EQ(std::memcmp(theirs->base(), mine->base(), kBytes), 0);
  EXPECT_EQ(permissions(theirs->base()), "r--s");
  mine->base()[7] = std::byte{9};
  EXPECT_EQ(theirs->base()[7], std::byte{9});
}

/// Also a peer that opens the file for writing can neither write to it nor make it shorter.
TEST(SharedMemory, IsSealed) {
  const auto mine = SharedMemory::create(kName, kBytes);
  ASSERT_TRUE(mine.ok());
  const int fd = open_again(mine->key(), O_RDWR);
  ASSERT_GE(fd, 0);
  const char byte = 1;
  EXPECT_EQ(::ftruncate(fd, 4096), -1);
  EXPECT_EQ(::ftruncate(fd, 1 << 20), -1);
  EXPECT_EQ(::pwrite(fd, &byte, 1, 0), -1);
  EXPECT_EQ(::mmap(nullptr, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0), MAP_FAILED);
  EXPECT_EQ(::fallocate(fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 0, 4096), -1);
  ::close(fd);
  mine->base()[0] = std::byte{1};  // its owner still writes
}

TEST(SharedMemory, OutlivesItsOwnerWhereItIsMapped) {
  auto mine = SharedMemory::create(kName, kBytes);
  ASSERT_TRUE(mine.ok());
  std::memset(mine->base(), 0x42, kBytes);
  const auto theirs = PeerMemory::open(mine->key(), kName);
  ASSERT_TRUE(theirs.ok());
  const MemoryKey key = mine->key();
  { const SharedMemory gone = std::move(mine).value(); }
  EXPECT_EQ(theirs->base()[kBytes - 1], std::byte{0x42});
  EXPECT_FALSE(PeerMemory::open(key, kName).ok());
}

TEST(SharedMemory, IsReachedFromAnotherProcess) {
  const auto mine = SharedMemory::create(kName, kBytes);
  ASSERT_TRUE(mine.ok());
  mine->base()[5] = std::byte{0x42};
  const MemoryKey key = mine->key();
  const pid_t child = ::fork();
  if (child == 0) {
    // By the parent's number of the process, not its own.
    const auto theirs = PeerMemory::open(key, kName);
    ::_exit(theirs.ok() && theirs->base()[5] == std::byte{0x42} ? 0 : 1);
  }
  int status = -1;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
}

TEST(SharedMemory, NoBytesOrTooManyAreRefused) {
  EXPECT_EQ(SharedMemory::create(kName, 0).status().code(), Code::kUnavailable);
  EXPECT_EQ(SharedMemory::create(kName, ~std::size_t{0} / 2).status().code(), Code::kUnavailable);
  EXPECT_EQ(SharedMemory::create(kName, ~std::size_t{0}).status().code(), Code::kUnavailable);
}

TEST(SharedMemory, LimitOfFileLengthsIsObeyed) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");  // the limit stays with the process
  const auto refused = [] {
    const rlimit limit{.rlim_cur = 4096, .rlim_max = 4096};
    return ::setrlimit(RLIMIT_FSIZE, &limit) == 0 &&
           SharedMemory::create(kName, kBytes).status().code() == Code::kUnavailable;
  };
  EXPECT_EXIT(::_exit(refused() ? 0 : 1), ::testing::ExitedWithCode(0), "");
}

/// A file that a liar may offer: name, flags of memfd_create, length, seals; with the token behind
/// it.
struct LieRow {
  const char* what;
  const char* name;
  unsigned flags;
  off_t bytes;
  int seals;
  bool good;
};

constexpr int kWanted = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL;

TEST(SharedMemory, OtherMemoryIsRefused) {
  constexpr unsigned kUsual = MFD_CLOEXEC | MFD_ALLOW_SEALING;
  constexpr off_t kHuge = off_t{4} << 20;
  const LieRow rows[] = {
      {"as it should be", kName, kUsual, 8192, kWanted, true},
      {"not sealed", kName, kUsual, 8192, 0, false},
      {"may shrink", kName, kUsual, 8192, F_SEAL_GROW | F_SEAL_SEAL, false},
      {"may be sealed against reading on", kName, kUsual, 8192, F_SEAL_SHRINK | F_SEAL_GROW, false},
      {"the token alone", kName, kUsual, 4096, kWanted, false},
      {"empty", kName, kUsual, 0, kWanted, false},
      {"a byte more", kName, kUsual, 8193, kWanted, false},
      {"another name", "other", kUsual, 8192, kWanted, false},
      {"a longer name", "tandem-test2", kUsual, 8192, kWanted, false},
      {"huge pages", kName, kUsual | MFD_HUGETLB, kHuge, kWanted, false},
  };
  const std::array<std::byte, kMemoryTokenBytes> token{};  // what such a file holds at its end
  for (const LieRow& row : rows) {
    SCOPED_TRACE(row.what);
    const int fd = ::memfd_create(row.name, row.flags);
    if (fd < 0 && (row.flags & MFD_HUGETLB) != 0) continue;  // not everywhere
    ASSERT_GE(fd, 0);
    ASSERT_EQ(::ftruncate(fd, row.bytes), 0);
    ASSERT_EQ(::fcntl(fd, F_ADD_SEALS, row.seals), 0);
    const MemoryKey key{.pid = static_cast<std::uint32_t>(::getpid()),
                        .fd = static_cast<std::uint32_t>(fd),
                        .token = token};
    const auto opened = PeerMemory::open(key, kName);
    EXPECT_EQ(opened.ok(), row.good) << opened.status().message();
    MemoryKey other = key;
    other.token[3] = std::byte{1};
    EXPECT_FALSE(PeerMemory::open(other, kName).ok()) << "not its token";
    ::close(fd);
    EXPECT_FALSE(PeerMemory::open(key, kName).ok()) << "closed";
  }
}

TEST(SharedMemory, WhatIsNoMemoryIsNotEvenOpened) {
  int pipe_fds[2];
  ASSERT_EQ(::pipe2(pipe_fds, O_CLOEXEC), 0);
  const int folder = ::open("/", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  const int null = ::open("/dev/null", O_RDWR | O_CLOEXEC);
  for (const int fd : {pipe_fds[0], pipe_fds[1], folder, null, -1, 1 << 30}) {
    const MemoryKey key{.pid = static_cast<std::uint32_t>(::getpid()),
                        .fd = static_cast<std::uint32_t>(fd),
                        .token = {}};
    EXPECT_EQ(PeerMemory::open(key, kName).status().code(), Code::kUnavailable) << fd;
  }
  for (const int fd : {pipe_fds[0], pipe_fds[1], folder, null})
    ::close(fd);
  const MemoryKey nobody{.pid = 0x7FFFFFFF, .fd = 3, .token = {}};
  EXPECT_EQ(PeerMemory::open(nobody, kName).status().code(), Code::kUnavailable);
}

}  // namespace
}  // namespace tandem
