#include "common/rpc/internal/packed.h"

#include "common/base/random.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <limits>
#include <string>
#include <vector>

namespace tandem::rpc::internal {
namespace {

using Bytes = std::vector<std::uint8_t>;

/// Section "Base 128 Varints" of Protocol Buffers' "Encoding", to the letter.
Bytes pack_slowly(const std::vector<std::int32_t>& numbers) {
  Bytes out;
  for (const std::int32_t number : numbers) {
    auto bits = static_cast<std::uint64_t>(std::int64_t{number});
    for (; bits >= 0x80; bits >>= 7U)
      out.push_back(static_cast<std::uint8_t>(bits & 0x7FU) | 0x80U);
    out.push_back(static_cast<std::uint8_t>(bits));
  }
  return out;
}

void expect_packed(const std::vector<std::int32_t>& numbers) {
  const Bytes want = pack_slowly(numbers);
  ASSERT_EQ(packed_bytes(numbers), want.size());
  ASSERT_EQ(packed_bytes_portable(numbers), want.size());
  constexpr std::size_t kBehind = 40;
  constexpr std::uint8_t kUntouched = 0xA5;
  Bytes chosen(want.size());
  ASSERT_EQ(write_packed(numbers, chosen.data()), chosen.data() + want.size());
  ASSERT_EQ(chosen, want);
  for (const PackBy by : {PackBy::kPlainCode, PackBy::kShuffles, PackBy::kCompress}) {
    if (!can_pack_by(by)) continue;
    Bytes got(want.size() + kBehind, kUntouched);
    ASSERT_EQ(write_packed_by(by, numbers, got.data()), got.data() + want.size());
    ASSERT_TRUE(std::equal(want.begin(), want.end(), got.begin()));
    ASSERT_EQ(std::count(got.end() - kBehind, got.end(), kUntouched), kBehind);
  }
}

/// A number that takes so many bytes: 1 to 5, or 10 as negative ones do.
std::int32_t number_of_bytes(Random& random, std::uint64_t bytes) {
  if (bytes == 10) return static_cast<std::int32_t>(random.next() | 1U << 31U);
  const std::uint64_t least = bytes == 1 ? 0 : std::uint64_t{1} << (7 * (bytes - 1));
  const std::uint64_t end = std::min(std::uint64_t{1} << (7 * bytes), std::uint64_t{1} << 31U);
  if (random.chance(0.1)) return static_cast<std::int32_t>(random.chance(0.5) ? least : end - 1);
  return static_cast<std::int32_t>(least + random.below(end - least));
}

TEST(Packed, ListsOfEveryLengthAndMix) {
  constexpr std::uint64_t kBytes[] = {1, 2, 3, 4, 5, 10};
  for (std::uint64_t seed = 1; seed <= 30; ++seed) {
    Random random(seed);
    for (std::size_t count = 0; count < 70; ++count) {
      SCOPED_TRACE("seed " + std::to_string(seed) + ", " + std::to_string(count) + " numbers");
      // Of every size, of those that token ids have, of one.
      const std::uint64_t kinds = seed % 3 == 0 ? 6 : seed % 3 == 1 ? 3 : 1;
      const std::uint64_t first = kinds == 1 ? random.below(6) : 0;
      std::vector<std::int32_t> numbers;
      while (numbers.size() < count)
        numbers.push_back(number_of_bytes(random, kBytes[first + random.below(kinds)]));
      expect_packed(numbers);
      if (count == 0) continue;
      // One stranger among them.
      numbers[random.below(count)] = number_of_bytes(random, kBytes[random.below(6)]);
      expect_packed(numbers);
    }
  }
}

TEST(Packed, FirstAndLastNumbersOfEverySize) {
  std::vector<std::int32_t> edges{
      0, -1, std::numeric_limits<std::int32_t>::min(), std::numeric_limits<std::int32_t>::max()};
  for (std::uint32_t bit = 1; bit < 1U << 31U; bit <<= 1U) {
    edges.push_back(static_cast<std::int32_t>(bit));
    edges.push_back(static_cast<std::int32_t>(bit - 1));
  }
  for (const std::int32_t edge : edges) {
    for (std::size_t place = 0; place < 33; ++place) {
      SCOPED_TRACE(std::to_string(edge) + " at " + std::to_string(place));
      std::vector<std::int32_t> numbers(33, 300);
      numbers[place] = edge;
      expect_packed(numbers);
    }
  }
}

}  // namespace
}  // namespace tandem::rpc::internal
