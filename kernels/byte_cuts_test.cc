// Products of bytes that are summed in words of 16 bits (kernels/cpu/simd/byte_cuts.h), where these
// words are as large as they can be.
#include "kernels/test_util.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>
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

/// Of every family the same bits, and what the reference has of rows that hold numbers alone.
void expect_products(std::size_t n,
                     std::size_t k,
                     const std::vector<float>& x,
                     WeightScheme scheme,
                     ThreadPool& pool) {
  SCOPED_TRACE(std::string(scheme == WeightScheme::kInt4Group128 ? "int4" : "int8") +
               " K=" + std::to_string(k) + " T=" + std::to_string(x.size() / k));
  const Matrix source(n, k, DType::kF32, extremes(n, k, 3));
  const std::vector<float> want = product(testing::reference(), source, scheme, x, pool);
  std::vector<float> first;
  for (const Backend* backend : testing::vector_backends()) {
    SCOPED_TRACE(family_name(backend->family()));
    const std::vector<float> got = product(*backend, source, scheme, x, pool);
    if (first.empty()) first = got;
    for (std::size_t i = 0; i < got.size(); ++i) {
      ASSERT_EQ(std::isnan(got[i]), std::isnan(want[i])) << i;
      if (std::isnan(want[i])) continue;
      ASSERT_EQ(std::bit_cast<std::uint32_t>(got[i]), std::bit_cast<std::uint32_t>(first[i])) << i;
      ASSERT_NEAR(got[i], want[i], static_cast<float>(k) * 1e-5F) << i;
    }
  }
}

TEST(ByteCuts, TheLargestProductsAreExact) {
  ThreadPool pool(2);
  for (const WeightScheme scheme : {WeightScheme::kInt8Dynamic, WeightScheme::kInt4Group128}) {
    for (const std::size_t k : {3U, 64U, 130U, 1030U}) {
      for (const std::size_t tokens : {1U, 2U, 5U, 6U, 7U, 16U, 41U, 200U})
        expect_products(35, k, extremes(tokens, k, 4), scheme, pool);
    }
    // As many rows as there is room for, also where sums pass 32 bits on their way.
    for (const auto& [tokens, k] :
         {std::pair<std::size_t, std::size_t>{2, 122'880}, {6, 40'960}, {192, 1280}})
      expect_products(17, k, extremes(tokens, k, 4), scheme, pool);
  }
}

// Large values that are rare, and so are taken out of their rows, in rows of one group with many.
TEST(ByteCuts, WhatDoesNotFitIsMultipliedApart) {
  constexpr std::size_t kK = 1030;
  ThreadPool pool(1);
  for (const std::size_t tokens : {6U, 40U}) {
    Rng rng(tokens);
    std::vector<float> x = rng.reals(tokens * kK);
    for (std::size_t i = 0; i < x.size(); ++i)
      x[i] = i % 97 < 2 || i % 101 == 0 ? (i % 194 < 97 ? 1.0F : -1.0F) : x[i] / 4;
    expect_products(35, kK, x, WeightScheme::kInt8Dynamic, pool);
    for (std::size_t i = 0; i < kK; ++i)
      x[2 * kK + i] = 1.0F;
    expect_products(35, kK, x, WeightScheme::kInt8Dynamic, pool);
    x[4 * kK + 700] = testing::kNan;
    x[3 * kK + 5] = testing::kInf;
    expect_products(35, kK, x, WeightScheme::kInt8Dynamic, pool);
    expect_products(35, kK, x, WeightScheme::kInt4Group128, pool);
  }
}

}  // namespace
}  // namespace tandem::kernels
