// Products of few rows, which may go another way than those of more: each row has the bits that it
// has among others, also where sums are tiny.
#include "kernels/test_util.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <vector>

namespace tandem::kernels {
namespace {

using testing::kInf;
using testing::kNan;
using testing::Matrix;
using testing::Rng;

/// More than any family takes as few.
constexpr std::size_t kMany = 8;

struct Case {
  std::size_t n;
  std::size_t k;
  std::size_t threads;
};

// Steps and groups of k that are whole, and that are not; all counts of panels beside each other;
// few enough inputs to know early, and more than few rows keep at hand.
constexpr Case kCases[] = {
    {16, 1, 1},
    {40, 31, 1},
    {112, 32, 1},
    {100, 33, 2},
    {64, 127, 1},
    {80, 128, 2},
    {72, 260, 1},
    {208, 1100, 3},
    {16, 16400, 1},
};

/// A weight and what x is multiplied with, such that some sums are below the smallest normal f32.
struct Format {
  const char* name;
  WeightScheme scheme;
  float weights;
  float tiny;
};

constexpr Format kFormats[] = {
    {"bf16", WeightScheme::kFloat, 0x1p-62F, 0x1p-66F},
    {"int8wo", WeightScheme::kInt8, 1.0F, 0x1p-86F},
    {"int4wo-128", WeightScheme::kInt4Group128, 1.0F, 0x1p-127F},
};

std::unique_ptr<PackedWeight> pack(const Backend& backend,
                                   const Format& format,
                                   const MatrixView& part,
                                   ThreadPool& pool) {
  if (format.scheme == WeightScheme::kFloat) return backend.pack({&part, 1}, DType::kBf16, pool);
  return backend.pack({&part, 1}, format.scheme, pool);
}

/// kMany rows, half of them tiny, one with zeros of both signs, one with infinity and NaN.
std::vector<float> rows_of(Rng& rng, std::size_t k, float tiny) {
  std::vector<float> x = rng.reals(kMany * k);
  for (std::size_t t = 1; t < kMany; t += 2) {
    for (std::size_t i = 0; i < k; ++i)
      x[t * k + i] *= i % 3 == 0 ? tiny : tiny * 0x1p-6F;
  }
  for (std::size_t i = 0; i < k; ++i)
    x[2 * k + i] = i % 2 == 0 ? 0.0F : -0.0F;
  x[4 * k + k / 2] = kInf;
  x[4 * k + k / 3] = kNan;
  return x;
}

/// The same bits, or NaN in both.
bool same(const float* a, const float* b, std::size_t count) {
  for (std::size_t i = 0; i < count; ++i) {
    if (std::isnan(a[i]) && std::isnan(b[i])) continue;
    if (std::memcmp(a + i, b + i, sizeof(float)) != 0) return false;
  }
  return true;
}

void expect_few_as_many(const Backend& backend, const Format& format, const Case& c) {
  ThreadPool pool(c.threads);
  Rng rng(c.n * 7 + c.k);
  const Matrix source(c.n, c.k, DType::kF32, rng.reals(c.n * c.k, format.weights));
  const auto weight = pack(backend, format, source.view(), pool);
  ASSERT_NE(weight, nullptr);
  const std::vector<float> x = rows_of(rng, c.k, format.tiny);
  for (const bool accumulate : {false, true}) {
    // Subnormal, so they are lost where flushing goes on behind the product.
    std::vector<float> many(kMany * c.n, accumulate ? 0x1p-130F : 0.0F);
    const std::vector<float> before = many;
    const auto run = [&](std::size_t first, std::size_t rows, float* y) {
      backend.linear({.x = x.data() + first * c.k,
                      .weight = weight.get(),
                      .y = y,
                      .tokens = rows,
                      .accumulate = accumulate},
                     pool);
    };
    run(0, kMany, many.data());
    for (std::size_t rows = 1; rows <= 5; ++rows) {
      for (std::size_t first = 0; first + rows <= kMany; first += rows) {
        std::vector<float> few(before.begin(),
                               before.begin() + static_cast<std::ptrdiff_t>(rows * c.n));
        run(first, rows, few.data());
        EXPECT_TRUE(same(few.data(), many.data() + first * c.n, rows * c.n))
            << rows << " rows from " << first << (accumulate ? ", accumulated" : "");
      }
    }
    if (accumulate) {
      // Bits: where flushing goes on, floats compare equal to 0.
      EXPECT_EQ(std::bit_cast<std::uint32_t>(many[2 * c.n]), std::uint32_t{1} << 19)
          << "what was there, and zeros";
    }
  }
}

TEST(FewRows, HaveTheBitsOfMany) {
  for (const Backend* backend : testing::vector_backends()) {
    for (const Format& format : kFormats) {
      for (const Case& c : kCases) {
        // Plain code has no other way for few rows.
        if (testing::in_plain_code(*backend) && c.n * c.k > 20000) continue;
        SCOPED_TRACE(std::string(family_name(backend->family())) + " " + format.name +
                     " N=" + std::to_string(c.n) + " K=" + std::to_string(c.k) + " threads " +
                     std::to_string(c.threads));
        expect_few_as_many(*backend, format, c);
      }
    }
  }
}

// Gate and up of few rows share what was packed of them.
TEST(FewRows, OfGateAndUpHaveTheBitsOfMany) {
  constexpr std::size_t kInner = 72;
  constexpr std::size_t kK = 300;
  ThreadPool pool(2);
  for (const Backend* backend : testing::vector_backends()) {
    for (const Format& format : kFormats) {
      SCOPED_TRACE(std::string(family_name(backend->family())) + " " + format.name);
      Rng rng(5);
      const Matrix source(2 * kInner, kK, DType::kF32, rng.reals(2 * kInner * kK));
      const auto weight = pack(*backend, format, source.view(), pool);
      ASSERT_NE(weight, nullptr);
      const std::vector<float> x = rng.reals(kMany * kK);
      std::vector<float> many(kMany * kInner);
      backend->gated_linear(
          {.x = x.data(), .weight = weight.get(), .y = many.data(), .tokens = kMany}, pool);
      for (std::size_t rows = 1; rows <= 5; ++rows) {
        std::vector<float> few(rows * kInner);
        backend->gated_linear(
            {.x = x.data(), .weight = weight.get(), .y = few.data(), .tokens = rows}, pool);
        EXPECT_TRUE(same(few.data(), many.data(), few.size())) << rows << " rows";
      }
    }
  }
}

}  // namespace
}  // namespace tandem::kernels
