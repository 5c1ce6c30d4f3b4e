// Memory of packed weights: sizes that have some of their own, and those that share it.
#include "kernels/api/weight.h"

#include <gtest/gtest.h>

#include <cstring>
#include <utility>
#include <vector>

namespace tandem::kernels {
namespace {

constexpr std::size_t kKiB = 1024;
constexpr std::size_t kMiB = 1024 * kKiB;

PackedWeight weight_of(std::size_t bytes) {
  return {WeightLayout::kRowMajor, DType::kF32, 1, bytes / sizeof(float), bytes};
}

bool all(const PackedWeight& weight, int value) {
  for (std::size_t i = 0; i < weight.bytes(); ++i) {
    if (weight.data()[i] != static_cast<std::byte>(value)) return false;
  }
  return true;
}

TEST(PackedWeight, NoneLiesInAnothersMemory) {
  std::vector<PackedWeight> weights;
  // More than fits into one piece of shared memory, in sizes that are no whole pages, too.
  for (int round = 0; round < 4; ++round) {
    for (const std::size_t bytes :
         {64 * kKiB, 256 * kKiB, 300 * kKiB + 64, 3 * kMiB + 4160, 9 * kMiB, 15 * kMiB, 17 * kMiB})
      weights.push_back(weight_of(bytes));
  }
  for (std::size_t i = 0; i < weights.size(); ++i) {
    ASSERT_NE(weights[i].data(), nullptr);
    EXPECT_EQ(reinterpret_cast<std::uintptr_t>(weights[i].data()) % 64, 0U);
    std::memset(weights[i].mutable_data(), static_cast<int>(i + 1), weights[i].bytes());
  }
  for (std::size_t i = 0; i < weights.size(); ++i)
    EXPECT_TRUE(all(weights[i], static_cast<int>(i + 1))) << i;
}

TEST(PackedWeight, StaysWhereOthersOfItsMemoryGo) {
  PackedWeight first = weight_of(kMiB);
  PackedWeight stays = weight_of(kMiB);
  std::memset(stays.mutable_data(), 5, stays.bytes());
  const std::byte* at = stays.data();
  first = PackedWeight();
  const PackedWeight moved = std::move(stays);
  for (int i = 0; i < 100; ++i) {
    PackedWeight other = weight_of(kMiB);
    std::memset(other.mutable_data(), 6, other.bytes());
  }
  EXPECT_EQ(moved.data(), at);
  EXPECT_TRUE(all(moved, 5));
}

}  // namespace
}  // namespace tandem::kernels
