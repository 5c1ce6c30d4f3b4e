// Products of bytes that are summed in words of 16 bits (kernels/cpu/simd/byte_cuts.h), where these
// words are as large as they can be.
#include "kernels/test_util.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstddef>
#include <string>
#include <vector>

namespace tandem::kernels {
namespace {

using testing::Matrix;
using testing::Rng;

/// Rows of [k] that hold 1 and -1, in an order that depends on the row: alike, in turn, in pairs,
/// in fours, halves of the one and of the other; or any order, and values in between.
std::vector<float> extremes(std::size_t rows, std::size_t k, std::uint64_t seed) {
  Rng rng(seed);
  std::vector<float> out = rng.reals(rows * k);
  for (std::size_t row = 0; row < rows; ++row) {
    for (std::size_t i = 0; i < k; ++i) {
      float& value = out[row * k + i];
      const float sign = value < 0.0F ? -1.0F : 1.0F;
      const std::size_t runs[] = {k, 1, 2, 4, k / 2};
      const std::size_t kind = row % 8;
      if (kind < 5) value = (i / runs[kind] + row / 8) % 2 == 0 ? 1.0F : -1.0F;
      if (kind == 5) value = sign;
      // Sums of two that just fit and just do not: 64 and 64, or 65, of 127.
      if (kind == 6) value = i == 0 ? 1.0F : sign * (64.0F + static_cast<float>(i % 3 == 0)) / 127;
    }
  }
  return out;
}

std::vector<float> product(const Backend& backend,
                           const Matrix& source,
                           WeightScheme scheme,
                           const std::vector<float>& x,
                           ThreadPool& pool) {
  const MatrixView part = source.view();
  const auto weight = backend.pack({&part, 1}, scheme, pool);
  const std::size_t tokens = x.size() / weight->k();
  std::vector<float> y(tokens * weight->n());
  backend.linear({.x = x.data(), .weight = weight.get(), .y = y.data(), .tokens = tokens}, pool);
  return y;
}

TEST(ByteCuts, TheLargestProductsAreExact) {
  constexpr std::size_t kN = 35;
  ThreadPool pool(2);
  for (const std::size_t k : {3U, 64U, 130U, 1030U}) {
    const Matrix source(kN, k, DType::kF32, extremes(kN, k, 3));
    for (const std::size_t tokens : {1U, 2U, 5U, 6U, 7U, 16U, 41U, 200U}) {
      const std::vector<float> x = extremes(tokens, k, 4);
      for (const WeightScheme scheme : {WeightScheme::kInt8Dynamic, WeightScheme::kInt4Group128}) {
        const std::vector<float> want = product(testing::reference(), source, scheme, x, pool);
        std::vector<float> first;
        for (const Backend* backend : testing::vector_backends()) {
          SCOPED_TRACE(std::string(family_name(backend->family())) + " K=" + std::to_string(k) +
                       " T=" + std::to_string(tokens) +
                       (scheme == WeightScheme::kInt4Group128 ? " int4" : " int8"));
          const std::vector<float> got = product(*backend, source, scheme, x, pool);
          if (first.empty()) first = got;
          ASSERT_TRUE(testing::same_bits(got, first));
          for (std::size_t i = 0; i < got.size(); ++i)
            ASSERT_NEAR(got[i], want[i], static_cast<float>(k) * 1e-5F) << i;
        }
      }
    }
  }
}

}  // namespace
}  // namespace tandem::kernels
