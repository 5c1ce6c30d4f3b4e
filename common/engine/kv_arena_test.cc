#include "common/engine/kv_arena.h"

#include <gtest/gtest.h>

#include <cstring>
#include <utility>

namespace tandem::engine {
namespace {

constexpr std::size_t kPageBytes = 1000;
constexpr std::int64_t kPages = 9;

TEST(KvArena, IsZeroedAndWritable) {
  for (const bool shared : {false, true}) {
    auto arena = KvArena::allocate(kPageBytes, kPages, shared);
    ASSERT_TRUE(arena.ok());
    EXPECT_EQ(arena->base()[kPageBytes * kPages - 1], std::byte{0});
    std::memset(arena->base(), 1, kPageBytes * kPages);
    const std::byte* base = arena->base();
    KvArena other = std::move(arena).value();
    EXPECT_EQ(other.base(), base);
    EXPECT_EQ(other.base()[5], std::byte{1});
    EXPECT_EQ(other.shared() != nullptr, shared);
  }
}

TEST(KvArena, PeersReadASharedOne) {
  auto arena = KvArena::allocate(kPageBytes, kPages, /*shared=*/true);
  ASSERT_TRUE(arena.ok());
  ASSERT_NE(arena->shared(), nullptr);
  ASSERT_EQ(arena->shared()->base(), arena->base());
  const auto peer = PeerMemory::open(arena->shared()->key(), kKvPoolName);
  ASSERT_TRUE(peer.ok()) << peer.status().message();
  arena->base()[kPageBytes * 3] = std::byte{7};
  EXPECT_EQ(peer->base()[kPageBytes * 3], std::byte{7});
}

TEST(KvArena, NobodyReadsAPrivateOne) {
  const auto arena = KvArena::allocate(kPageBytes, kPages, /*shared=*/false);
  ASSERT_TRUE(arena.ok());
  EXPECT_EQ(arena->shared(), nullptr);
}

TEST(KvArena, SizesThatCannotBeAreRefused) {
  for (const bool shared : {false, true}) {
    EXPECT_EQ(KvArena::allocate(0, 1, shared).status().code(), Code::kResourceExhausted);
    EXPECT_EQ(KvArena::allocate(1, 0, shared).status().code(), Code::kResourceExhausted);
    EXPECT_EQ(
        KvArena::allocate(std::size_t{1} << 40U, std::int64_t{1} << 20U, shared).status().code(),
        Code::kResourceExhausted);
  }
}

}  // namespace
}  // namespace tandem::engine
