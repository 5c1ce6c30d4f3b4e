#include "common/base/clock.h"
#include "common/base/crc32c.h"
#include "common/base/failpoint.h"
#include "common/base/ids.h"
#include "common/base/random.h"
#include "common/base/status.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <functional>
#include <string>
#include <vector>

namespace tandem {
namespace {

Result<int> half(int n) {
  if (n % 2 != 0) return invalid_argument("odd: " + std::to_string(n));
  return n / 2;
}

Result<int> quarter(int n) {
  TANDEM_TRY(int h, half(n));
  TANDEM_TRY(auto q, half(h));
  return q;
}

Status all_even(const std::vector<int>& numbers) {
  for (int n : numbers)
    TANDEM_TRY(half(n));
  return {};
}

TEST(Status, TryReturnsTheFirstError) {
  EXPECT_EQ(quarter(8).value(), 2);
  EXPECT_EQ(quarter(6).status().message(), "odd: 3");
  EXPECT_EQ(quarter(6).status().code(), Code::kInvalidArgument);
  EXPECT_TRUE(all_even({2, 4}).ok());
  EXPECT_EQ(all_even({2, 5, 7}).message(), "odd: 5");
}

TEST(Status, ContextIsPutBefore) {
  EXPECT_EQ(not_found("no file").with_context("config.json").message(), "config.json: no file");
  EXPECT_TRUE(ok_status().with_context("x").ok());
  EXPECT_EQ(code_name(Code::kDataLoss), "data_loss");
}

TEST(StatusDeathTest, ValueOfAFailedResultEndsTheProcess) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_DEATH((void)half(1).value(), "odd: 1");
}

TEST(Random, PhiloxKnownAnswers) {
  // Known answers of the Random123 distribution, kat_vectors.
  const auto zero = philox4x32({0, 0, 0, 0}, {0, 0});
  EXPECT_EQ(zero,
            (std::array<std::uint32_t, 4>{0x6627e8d5U, 0xe169c58dU, 0xbc57ac4cU, 0x9b00dbd8U}));
  const auto ones = philox4x32({~0U, ~0U, ~0U, ~0U}, {~0U, ~0U});
  EXPECT_EQ(ones,
            (std::array<std::uint32_t, 4>{0x408f276dU, 0x41c83b0eU, 0xa20bc7c6U, 0x6d5451fdU}));
}

TEST(Random, CounterUniformDependsOnEveryArgument) {
  const double base = counter_uniform(1, 2, 3);
  EXPECT_EQ(base, counter_uniform(1, 2, 3));
  EXPECT_NE(base, counter_uniform(2, 2, 3));
  EXPECT_NE(base, counter_uniform(1, 3, 3));
  EXPECT_NE(base, counter_uniform(1, 2, 4));
  for (std::uint64_t i = 0; i < 1000; ++i) {
    const double u = counter_uniform(7, i, 0);
    EXPECT_GT(u, 0.0);
    EXPECT_LT(u, 1.0);
  }
}

TEST(Crc32c, KnownAnswers) {
  EXPECT_EQ(crc32c("123456789", 9), 0xE3069283U);
  const std::vector<unsigned char> zeros(32, 0);
  EXPECT_EQ(crc32c(zeros.data(), zeros.size()), 0x8A9136AAU);
}

/// Bits of the vectors that this machine folds by.
std::vector<int> folds() {
  std::vector<int> bits = {512, 256};
  std::erase_if(bits, [](int each) { return !crc32c_can_fold(each); });
  return bits;
}

TEST(Crc32c, HardwareMatchesTableAtEverySizeAndSplit) {
  Random random(11);
  std::vector<unsigned char> data(200000);
  for (auto& byte : data)
    byte = static_cast<unsigned char>(random.next());
  // Around a turn, and around both kinds of blocks: alone, with a tail, and one behind the other.
  for (const std::size_t size :
       {0U,     1U,     7U,     8U,     9U,     63U,    255U,   256U,    257U,   511U,   512U,
        513U,   783U,   4095U,  12287U, 12288U, 12289U, 32767U, 32768U,  33023U, 33024U, 39999U,
        65535U, 65536U, 65537U, 65791U, 65792U, 98304U, 98559U, 131072U, 199999U}) {
    const std::uint32_t whole = crc32c(data.data() + 1, size);
    EXPECT_EQ(whole, crc32c_portable(data.data() + 1, size)) << size;
    EXPECT_EQ(whole, crc32c_unfolded(data.data() + 1, size)) << size;
    using Copy = std::function<std::uint32_t(void*, const void*, std::size_t, std::uint32_t)>;
    std::vector<Copy> copies = {crc32c_copy_in_pieces};
    for (const bool read_soon : {true, false}) {
      copies.emplace_back([=](void* out, const void* in, std::size_t n, std::uint32_t crc) {
        return crc32c_copy(out, in, n, crc, read_soon);
      });
      for (const int bits : folds()) {
        copies.emplace_back([=](void* out, const void* in, std::size_t n, std::uint32_t crc) {
          return crc32c_copy_folded(bits, out, in, n, crc, read_soon);
        });
      }
    }
    const std::uint32_t before = crc32c_portable(data.data(), 1);
    for (const Copy& copy : copies) {
      // To a multiple of 64 and beside one.
      for (const std::size_t offset : {64U, 65U}) {
        std::vector<unsigned char> memory(size + 192, 0xEE);
        unsigned char* out = memory.data() + offset;
        out -= reinterpret_cast<std::uintptr_t>(memory.data()) % 64;
        EXPECT_EQ(whole, copy(out, data.data() + 1, size, 0)) << size;
        EXPECT_TRUE(std::equal(out, out + size, data.data() + 1)) << size;
        EXPECT_EQ(out[-1], 0xEE);
        EXPECT_EQ(out[size], 0xEE) << size;
        EXPECT_EQ(crc32c_portable(data.data(), size + 1), copy(out, data.data() + 1, size, before))
            << size;
      }
    }
    const std::size_t cut = size / 3;
    const std::uint32_t first = crc32c(data.data() + 1, cut);
    EXPECT_EQ(whole, crc32c(data.data() + 1 + cut, size - cut, first)) << size;
    EXPECT_EQ(whole, crc32c_unfolded(data.data() + 1 + cut, size - cut, first)) << size;
    EXPECT_EQ(whole, crc32c(data.data() + 1, size, 0, /*demote=*/true)) << size;
    for (const int bits : folds()) {
      for (const bool demote : {false, true}) {
        EXPECT_EQ(whole, crc32c_folded(bits, data.data() + 1, size, 0, demote))
            << size << " by " << bits;
        EXPECT_EQ(whole, crc32c_folded(bits, data.data() + 1 + cut, size - cut, first, demote))
            << size << " by " << bits;
      }
    }
    EXPECT_EQ(whole, crc32c_combine(first, crc32c(data.data() + 1 + cut, size - cut), size - cut))
        << size;
  }
}

TEST(Failpoint, CountsAndClears) {
  EXPECT_TRUE(failpoint::hit("a").ok());
  ASSERT_TRUE(failpoint::configure("a=2*error;b=1+error").ok());
  EXPECT_FALSE(failpoint::hit("a").ok());
  EXPECT_FALSE(failpoint::hit("a").ok());
  EXPECT_TRUE(failpoint::hit("a").ok());
  EXPECT_TRUE(failpoint::hit("b").ok());
  EXPECT_FALSE(failpoint::hit("b").ok());
  EXPECT_EQ(failpoint::configure("c=explode").code(), Code::kInvalidArgument);
  ASSERT_TRUE(failpoint::configure("").ok());
  EXPECT_TRUE(failpoint::hit("b").ok());
}

TEST(Time, Arithmetic) {
  FakeClock clock;
  const Time start = clock.now();
  clock.advance(milliseconds(5));
  EXPECT_EQ((clock.now() - start).milliseconds(), 5);
  EXPECT_LT(start, clock.now());
  const Time earlier = steady_clock().now();
  const Time later = steady_clock().now();
  EXPECT_LE(earlier, later);
}

}  // namespace
}  // namespace tandem
