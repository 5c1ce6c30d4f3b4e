// Quantised weights: what the small integers lose, and that products of them keep every promise of
// linear(): one formula, the same bits in every batch, thread count and family.
#include "kernels/test_util.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <numeric>

namespace tandem::kernels {
namespace {

using testing::kInf;
using testing::kNan;
using testing::Matrix;
using testing::Rng;
using testing::rounds_inputs;
using testing::same_bits;

constexpr WeightScheme kSchemes[] = {
    WeightScheme::kInt8, WeightScheme::kInt4Group128, WeightScheme::kInt8Dynamic};

std::string name_of(const Backend& backend, WeightScheme scheme) {
  const char* names[] = {"float", "int8", "int4", "int8 dynamic"};
  return std::string(family_name(backend.family())) + " " + names[static_cast<int>(scheme)];
}

std::vector<const Backend*> all_backends() {
  std::vector<const Backend*> backends = testing::vector_backends();
  backends.push_back(&testing::reference());
  return backends;
}

std::unique_ptr<PackedWeight> pack(const Backend& backend,
                                   const Matrix& source,
                                   WeightScheme scheme,
                                   ThreadPool& pool) {
  const MatrixView part = source.view();
  return backend.pack({&part, 1}, scheme, pool);
}

std::vector<float> run(const Backend& backend,
                       const PackedWeight& weight,
                       const std::vector<float>& x,
                       ThreadPool& pool) {
  const std::size_t tokens = x.size() / weight.k();
  std::vector<float> y(tokens * weight.n());
  backend.linear({.x = x.data(), .weight = &weight, .y = y.data(), .tokens = tokens}, pool);
  return y;
}

// The weights that a backend computes with: its products with unit vectors.
std::vector<float> widened(const Backend& backend, const PackedWeight& weight, ThreadPool& pool) {
  std::vector<float> unit(weight.k() * weight.k(), 0.0F);
  for (std::size_t i = 0; i < weight.k(); ++i)
    unit[i * weight.k() + i] = 1.0F;
  const std::vector<float> columns = run(backend, weight, unit, pool);
  std::vector<float> rows(weight.n() * weight.k());
  for (std::size_t n = 0; n < weight.n(); ++n) {
    for (std::size_t i = 0; i < weight.k(); ++i)
      rows[n * weight.k() + i] = columns[i * weight.n() + n];
  }
  return rows;
}

TEST(Quantize, WeightsAreWithinHalfAStep) {
  constexpr std::size_t kN = 19;
  constexpr std::size_t kK = 300;
  ThreadPool pool(2);
  Rng rng(1);
  std::vector<float> w = rng.reals(kN * kK);
  const auto row = [&](std::size_t n) { return w.begin() + static_cast<std::ptrdiff_t>(n * kK); };
  std::fill(row(5), row(6), 0.0F);
  // Far from zero, and beside a weight that is much larger than all others.
  std::transform(row(7), row(8), row(7), [](float v) { return 5.0F + v; });
  std::transform(row(8), row(9), row(8), [](float v) { return -2.0F + v / 8; });
  std::fill(row(9), row(10), 0.3F);
  *row(10) = 40.0F;
  *(row(11) + 200) = -1e30F;
  const Matrix source(kN, kK, DType::kF32, w, true);
  for (const Backend* backend : all_backends()) {
    for (const WeightScheme scheme : kSchemes) {
      SCOPED_TRACE(name_of(*backend, scheme));
      const auto weight = pack(*backend, source, scheme, pool);
      ASSERT_NE(weight, nullptr);
      EXPECT_EQ(weight->bytes(), backend->packed_bytes(kN, kK, scheme));
      const std::vector<float> got = widened(*backend, *weight, pool);
      const bool int4 = scheme == WeightScheme::kInt4Group128;
      const std::size_t group = int4 ? kInt4Group : kK;
      for (std::size_t i = 0; i < w.size(); ++i) {
        const auto begin = static_cast<std::ptrdiff_t>(i / kK * kK + i % kK / group * group);
        const auto end = std::min<std::ptrdiff_t>(begin + static_cast<std::ptrdiff_t>(group),
                                                  static_cast<std::ptrdiff_t>(i / kK * kK + kK));
        const auto [low, high] = std::minmax_element(w.begin() + begin, w.begin() + end);
        // Half a step; for int4 a step is up to one scale wider than 16 of them need be. At either
        // end its offset may leave half a scale, and steps that are one scale less leave 8.
        const auto [least, most] = std::minmax_element(row(i / kK), row(i / kK + 1));
        const float scale = std::max(std::abs(*least), std::abs(*most)) / 127;
        const bool inside = w[i] - *low > 9 * scale && *high - w[i] > 9 * scale;
        const float step = int4 ? (*high - *low) / 16 + (inside ? 1.0F : 17.0F) * scale : scale;
        const float limit = step * 0.5001F;
        ASSERT_LE(std::abs(got[i] - w[i]), limit) << "element " << i;
      }
    }
  }
}

// Integers for steps and offsets cost nothing: what usual 4-bit weights have (a float for each:
// steps of a fifteenth of the group's range, from its smallest weight on) is no nearer to the
// weights.
TEST(Quantize, FourBitsAreNearerThanThoseOfFloatSteps) {
  constexpr std::size_t kN = 24;
  constexpr std::size_t kK = 256;
  ThreadPool pool(1);
  Rng rng(12);
  const std::vector<float> even = rng.reals(kN * kK);
  std::vector<float> bell(kN * kK);
  for (float& v : bell) {
    const std::vector<float> some = rng.reals(12);
    v = std::accumulate(some.begin(), some.end(), 0.0F);
  }
  std::vector<float> wild = bell;
  for (std::size_t i = 0; i < wild.size(); i += 100)
    wild[i] *= 6;
  for (const auto& [w, most] : {std::pair{even, 0.97}, {bell, 0.97}, {wild, 0.99}}) {
    double usual = 0;
    for (std::size_t i = 0; i < w.size(); i += kInt4Group) {
      const auto begin = w.begin() + static_cast<std::ptrdiff_t>(i);
      const auto [low, high] = std::minmax_element(begin, begin + kInt4Group);
      const double step = static_cast<double>(*high - *low) / 15;
      for (auto it = begin; it != begin + kInt4Group; ++it) {
        const double at = static_cast<double>(*it - *low) / step;
        usual += std::pow((at - std::round(at)) * step, 2);
      }
    }
    const Matrix source(kN, kK, DType::kF32, w);
    for (const Backend* backend : all_backends()) {
      SCOPED_TRACE(family_name(backend->family()));
      const auto weight = pack(*backend, source, WeightScheme::kInt4Group128, pool);
      const std::vector<float> got = widened(*backend, *weight, pool);
      double ours = 0;
      for (std::size_t i = 0; i < w.size(); ++i)
        ours += std::pow(static_cast<double>(got[i] - w[i]), 2);
      EXPECT_LT(std::sqrt(ours), most * std::sqrt(usual));
      EXPECT_GT(std::sqrt(ours), 0.8 * std::sqrt(usual)) << "of more than 16 values";
    }
  }
}

// A quarter, and a half of that, of bf16, apart from scales and zeros.
TEST(Quantize, PackedWeightsAreAsSmallAsTheirBits) {
  const Backend& backend = *testing::vector_backends().back();
  constexpr std::size_t kWhole = std::size_t{4096} * 4096 * 2;  // bf16, without gaps between panels
  EXPECT_EQ(backend.packed_bytes(4096, 4096, DType::kBf16), kWhole + 4096 * 8);
  EXPECT_EQ(backend.packed_bytes(4096, 4096, WeightScheme::kInt8), kWhole / 2 + 4096 * 8);
  EXPECT_EQ(backend.packed_bytes(4096, 4096, WeightScheme::kInt8Dynamic), kWhole / 2 + 4096 * 8);
  EXPECT_EQ(backend.packed_bytes(4096, 4096, WeightScheme::kInt4Group128),
            kWhole / 4 + 4096 * 8 + 4096 * 4096 / 128 * 2);
}

TEST(Quantize, ProductsAreThoseOfTheReference) {
  struct Problem {
    std::size_t tokens;
    std::size_t n;
    std::size_t k;
  };

  const Problem problems[] = {{1, 1, 1},
                              {1, 15, 31},
                              {2, 16, 128},
                              {3, 17, 129},
                              {4, 33, 2},
                              {5, 64, 64},
                              {8, 48, 257},
                              {13, 129, 131},
                              {25, 40, 384},
                              {37, 100, 50}};
  ThreadPool pool(2);
  const Backend& reference = testing::reference();
  for (const Backend* backend : testing::vector_backends()) {
    for (const Problem& p : problems) {
      for (const WeightScheme scheme : kSchemes) {
        SCOPED_TRACE(name_of(*backend, scheme) + " T=" + std::to_string(p.tokens) +
                     " N=" + std::to_string(p.n) + " K=" + std::to_string(p.k));
        Rng rng(p.tokens * 1000 + p.n);
        const std::vector<float> x = rng.reals(p.tokens * p.k);
        const Matrix source(p.n, p.k, DType::kF32, rng.reals(p.n * p.k));
        const auto exact = pack(reference, source, scheme, pool);
        const std::vector<float> want = run(reference, *exact, x, pool);
        const std::vector<float> got =
            run(*backend, *pack(*backend, source, scheme, pool), x, pool);
        for (std::size_t i = 0; i < want.size(); ++i) {
          // Integer sums are exact: only the two scales and the conversion round. Else a chain of k
          // of terms below 1.
          const auto k = static_cast<double>(p.k);
          double limit = rounds_to_bytes(scheme)
                             ? 4 * 0x1p-24 * std::abs(static_cast<double>(want[i])) + 1e-30
                             : 2 * (k + 4) * 0x1p-24 * k * 1.1;
          // Each x is off by up to 2^-9, with either sign.
          if (rounds_inputs(*backend, scheme)) limit += 2 * 0x1p-9 * 1.1 * std::sqrt(k);
          ASSERT_NEAR(static_cast<double>(got[i]), static_cast<double>(want[i]), limit) << i;
        }
      }
    }
  }
}

TEST(Quantize, RowsAreTheSameBitsInEveryBatchThreadCountAndFamily) {
  constexpr std::size_t kTokens = 53;
  constexpr std::size_t kN = 150;
  constexpr std::size_t kK = 331;
  ThreadPool one(1);
  ThreadPool two(2);
  Rng rng(7);
  const std::vector<float> x = rng.reals(kTokens * kK);
  const Matrix source(kN, kK, DType::kBf16, rng.reals(kN * kK), true);
  for (const WeightScheme scheme : kSchemes) {
    // Families that alone round inputs have numbers of their own; all others share theirs.
    std::map<std::string_view, std::vector<float>> wholes;
    for (const Backend* backend : testing::vector_backends()) {
      SCOPED_TRACE(name_of(*backend, scheme));
      std::vector<float>& whole =
          wholes[rounds_inputs(*backend, scheme) ? backend->numerics() : std::string_view()];
      const auto weight = pack(*backend, source, scheme, two);
      const std::vector<float> got = run(*backend, *weight, x, one);
      if (whole.empty()) whole = got;
      ASSERT_TRUE(same_bits(got, whole));
      EXPECT_TRUE(same_bits(run(*backend, *weight, x, two), whole));
      for (const std::size_t begin : {0U, 5U, 40U}) {
        for (std::size_t tokens = 1; tokens <= (begin == 0 ? 40U : 13U); ++tokens) {
          const std::vector<float> some(
              x.begin() + static_cast<std::ptrdiff_t>(begin * kK),
              x.begin() + static_cast<std::ptrdiff_t>((begin + tokens) * kK));
          const std::vector<float> want(
              whole.begin() + static_cast<std::ptrdiff_t>(begin * kN),
              whole.begin() + static_cast<std::ptrdiff_t>((begin + tokens) * kN));
          ASSERT_TRUE(same_bits(run(*backend, *weight, some, two), want)) << begin << "+" << tokens;
        }
      }
    }
  }
}

// Rows and k enough for several blocks, tiles and cuts of k, and words, groups and tiles that end
// within k.
TEST(Quantize, ManyRowsOfLongInputsAreTheBitsOfOne) {
  constexpr std::size_t kN = 21;
  ThreadPool pool(2);
  for (const auto& [tokens, k] : {std::pair<std::size_t, std::size_t>{75, 2048}, {420, 1130}}) {
    Rng rng(k);
    const std::vector<float> x = rng.reals(tokens * k);
    const Matrix source(kN, k, DType::kF32, rng.reals(kN * k));
    for (const WeightScheme scheme : kSchemes) {
      std::vector<float> exact;
      for (const Backend* backend : testing::vector_backends()) {
        SCOPED_TRACE(name_of(*backend, scheme) + " K=" + std::to_string(k));
        const auto weight = pack(*backend, source, scheme, pool);
        const std::vector<float> whole = run(*backend, *weight, x, pool);
        for (std::size_t t = 0; t < tokens; t += 23) {
          const std::vector<float> row = testing::pick(x, {t}, k);
          ASSERT_TRUE(same_bits(run(*backend, *weight, row, pool), testing::pick(whole, {t}, kN)))
              << "token " << t;
        }
        if (rounds_inputs(*backend, scheme)) continue;
        if (exact.empty()) exact = whole;
        EXPECT_TRUE(same_bits(whole, exact)) << "families differ";
      }
    }
  }
}

// Inputs that lie 2^-15 of the row's largest apart stay apart, up to both ends of 16 bits and where
// the upper byte changes; powers of 2 of the whole row change nothing.
TEST(Quantize, InputsOfInt8WeightsKeepSixteenBitsWhereTheyBecomeBytes) {
  constexpr std::size_t kK = 320;
  constexpr std::size_t kRows = 40;
  ThreadPool pool(2);
  std::vector<float> identity(kK * kK, 0.0F);
  for (std::size_t i = 0; i < kK; ++i)
    identity[i * kK + i] = 127.0F;
  const Matrix source(kK, kK, DType::kF32, identity);
  const float units[] = {1.0F, 0x1p-10F, 0x1p-120F, 0x1p-126F, 0x1p100F};
  std::vector<float> integers(kRows * kK);
  for (std::size_t i = 0; i < integers.size(); ++i) {
    const auto at = static_cast<int>(i);
    integers[i] = static_cast<float>(at % 3 == 0 ? at * 5 % 32512 : -(at * 37 % 32512));
    if (i % kK < 8) integers[i] = static_cast<float>(i % 2 == 0 ? 32511 : -32511);
    if (i % kK >= 8 && i % kK < 16) integers[i] = static_cast<float>(128 - 256 * (at % 120));
  }
  for (const Backend* backend : testing::vector_backends()) {
    if (!rounds_inputs(*backend, WeightScheme::kInt8)) continue;
    SCOPED_TRACE(name_of(*backend, WeightScheme::kInt8));
    const auto weight = pack(*backend, source, WeightScheme::kInt8, pool);
    for (const float unit : units) {
      std::vector<float> x = integers;
      for (float& value : x)
        value *= unit;
      const std::vector<float> y = run(*backend, *weight, x, pool);
      for (std::size_t i = 0; i < x.size(); ++i)
        ASSERT_EQ(y[i], 127.0F * x[i]) << unit << " * " << integers[i] << " at " << i;
      // By vectors with both bytes' sums at once and one after the other; on tiles both bytes in
      // one tile, in two, and in four that take turns.
      for (const std::size_t rows : {1U, 3U, 8U, 14U, 17U, 32U}) {
        const std::vector<float> first(x.begin(), x.begin() + static_cast<int>(rows * kK));
        const std::vector<float> want(y.begin(), y.begin() + static_cast<int>(rows * kK));
        EXPECT_TRUE(same_bits(run(*backend, *weight, first, pool), want)) << rows << " rows";
      }
    }
  }
}

// The same integers and their exact sums wherever inputs become two bytes.
TEST(Quantize, Int8WeightsHaveTheSameBitsWhereverInputsBecomeBytes) {
  constexpr std::size_t kTokens = 37;
  constexpr std::size_t kN = 50;
  ThreadPool pool(2);
  for (const std::size_t k : {64, 331, 1088}) {
    Rng rng(k);
    const Matrix source(kN, k, DType::kF32, rng.reals(kN * k));
    const std::vector<float> x = rng.reals(kTokens * k);
    std::vector<float> want;
    for (const Backend* backend : testing::vector_backends()) {
      if (!rounds_inputs(*backend, WeightScheme::kInt8)) continue;
      const auto weight = pack(*backend, source, WeightScheme::kInt8, pool);
      const std::vector<float> y = run(*backend, *weight, x, pool);
      if (want.empty()) want = y;
      EXPECT_TRUE(same_bits(y, want)) << name_of(*backend, WeightScheme::kInt8) << " K=" << k;
    }
  }
}

// Halves between two integers go to the even one, and what is beside them by as little as a float
// can be to its own.
TEST(Quantize, WeightsAtTheMiddleOfTwoStepsRoundAsTheReference) {
  constexpr std::size_t kK = 128;
  ThreadPool pool(2);
  std::vector<float> identity(kK * kK, 0.0F);
  for (std::size_t i = 0; i < kK; ++i)
    identity[i * kK + i] = 1.0F;
  Rng rng(1);
  std::vector<float> w;
  constexpr std::size_t kN = 200;
  for (std::size_t n = 0; n < kN; ++n) {
    // Also scales that have no usual inverse.
    const int exponent = n % 8 == 6 ? -130 : n % 8 == 7 ? 110 : static_cast<int>(n % 40) - 20;
    const float largest = std::ldexp(1.5F + rng.reals(1)[0] / 2, exponent);
    const float scale = largest / 127.0F;
    w.push_back(largest);
    for (std::size_t i = 1; i < kK; ++i) {
      // One of 64 in or beside the middle, in another place of each row; the others far from it.
      const float step = static_cast<float>((i * 31 + n) % 127);
      const float middle = (step + 0.5F) * scale;
      const float aside = std::nextafter(middle, n % 3 == 0 ? largest : 0.0F);
      const float far = (step + (i % 2 == 0 ? 0.0F : 0.5F - 0x1p-12F)) * scale;
      const float value = i % 64 != n % 64 ? far : n % 3 == 1 ? middle : aside;
      w.push_back(i / 2 % 2 == 0 ? -value : value);
    }
  }
  const Matrix source(kN, kK, DType::kF32, w);
  const Backend& reference = testing::reference();
  const std::vector<float> want =
      run(reference, *pack(reference, source, WeightScheme::kInt8, pool), identity, pool);
  for (const Backend* backend : testing::vector_backends()) {
    SCOPED_TRACE(family_name(backend->family()));
    const auto weight = pack(*backend, source, WeightScheme::kInt8, pool);
    const std::vector<float> got = run(*backend, *weight, identity, pool);
    for (std::size_t i = 0; i < want.size(); ++i)
      ASSERT_NEAR(got[i], want[i], std::abs(want[i]) * 0x1p-20F) << i;
  }
}

// Inputs that are bf16 lie in the middle of two steps often; others become bf16 first.
TEST(Quantize, InputsOfAllMagnitudesRoundAsTheReference) {
  constexpr std::size_t kK = 1024;
  ThreadPool pool(2);
  std::vector<float> identity(kK * kK, 0.0F);
  for (std::size_t i = 0; i < kK; ++i)
    identity[i * kK + i] = 1.0F;
  const Matrix source(kK, kK, DType::kF32, identity);
  const Backend& reference = testing::reference();
  const auto exact = pack(reference, source, WeightScheme::kInt8Dynamic, pool);
  for (const std::size_t tokens : {1U, 3U, 40U, 130U}) {
    Rng rng(tokens);
    std::vector<float> x;
    for (std::size_t t = 0; t < tokens; ++t) {
      // Also scales that have no usual inverse; all mantissas of bf16.
      const int exponent = t % 8 == 6 ? -130 : t % 8 == 7 ? 110 : static_cast<int>(t % 40) - 20;
      const float largest =
          std::ldexp(1.0F + static_cast<float>((t * 53 + 1) % 128) / 128, exponent);
      x.push_back(largest);
      for (std::size_t i = 1; i < kK; ++i) {
        float value = std::ldexp(1.0F + static_cast<float>(i % 128) / 128,
                                 exponent - 1 - static_cast<int>(i / 128));
        if (t % 3 == 2) value *= 1.0F + rng.reals(1)[0] / 512;
        x.push_back(i % 2 == 0 ? -value : value);
      }
    }
    const std::vector<float> want = run(reference, *exact, x, pool);
    for (const Backend* backend : testing::vector_backends()) {
      SCOPED_TRACE(std::string(family_name(backend->family())) + " T=" + std::to_string(tokens));
      const auto weight = pack(*backend, source, WeightScheme::kInt8Dynamic, pool);
      const std::vector<float> got = run(*backend, *weight, x, pool);
      for (std::size_t i = 0; i < want.size(); ++i)
        ASSERT_NEAR(got[i], want[i], std::abs(want[i]) * 0x1p-20F) << i << " of " << x[i];
    }
  }
}

TEST(Quantize, InputsBeyondBf16GiveNan) {
  constexpr std::size_t kK = 64;
  ThreadPool pool(1);
  const Matrix source(16, kK, DType::kF32, std::vector<float>(16 * kK, 0.5F));
  for (const Backend* backend : all_backends()) {
    SCOPED_TRACE(family_name(backend->family()));
    const auto weight = pack(*backend, source, WeightScheme::kInt8Dynamic, pool);
    for (const std::size_t tokens : {1U, 40U}) {
      std::vector<float> x(tokens * kK, 1.0F);
      x.back() = std::numeric_limits<float>::max();
      const std::vector<float> y = run(*backend, *weight, x, pool);
      for (std::size_t i = 0; i < y.size(); ++i)
        EXPECT_EQ(std::isnan(y[i]), i / 16 == tokens - 1) << i;
    }
  }
}

TEST(Quantize, LargestIntegerSumsAreExact) {
  constexpr std::size_t kK = kMaxByteInputs;
  ThreadPool pool(1);
  std::vector<float> w(2 * kK, 1.0F);
  std::fill(w.begin() + kK, w.end(), -1.0F);
  const Matrix source(2, kK, DType::kF32, w);
  // As 16 bits 64 * 256 - 128: the lower byte is as large as one can be.
  const std::vector<float> x(4 * kK, 16256.0F);
  constexpr auto kSum = static_cast<float>(kK) * 16256.0F;
  for (const Backend* backend : testing::vector_backends()) {
    for (const WeightScheme scheme : {WeightScheme::kInt8Dynamic, WeightScheme::kInt8}) {
      // Where inputs stay float, sums round.
      if (scheme == WeightScheme::kInt8 && !rounds_inputs(*backend, scheme)) continue;
      SCOPED_TRACE(name_of(*backend, scheme));
      const auto weight = pack(*backend, source, scheme, pool);
      // By vectors, and on tiles.
      for (const std::size_t rows : {std::size_t{1}, std::size_t{4}}) {
        const std::vector<float> some(x.begin(), x.begin() + static_cast<int>(rows * kK));
        const std::vector<float> y = run(*backend, *weight, some, pool);
        for (std::size_t i = 0; i < y.size(); ++i)
          EXPECT_NEAR(y[i], i % 2 == 0 ? kSum : -kSum, kSum * 0x1p-20F) << rows << " rows";
      }
    }
  }
}

TEST(Quantize, NanAndInfStayInTheirRowAndColumn) {
  ThreadPool pool(1);
  constexpr std::size_t kTokens = 14;
  constexpr std::size_t kN = 35;
  constexpr std::size_t kK = 133;
  for (const Backend* backend : all_backends()) {
    for (const WeightScheme scheme : kSchemes) {
      SCOPED_TRACE(name_of(*backend, scheme));
      Rng rng(5);
      std::vector<float> x = rng.reals(kTokens * kK);
      std::vector<float> w = rng.reals(kN * kK);
      x[3 * kK + 132] = kNan;
      x[9 * kK] = kInf;
      w[34 * kK + 130] = kNan;
      w[33 * kK + 1] = kInf;
      const Matrix source(kN, kK, DType::kF32, w);
      const std::vector<float> y = run(*backend, *pack(*backend, source, scheme, pool), x, pool);
      for (std::size_t t = 0; t < kTokens; ++t) {
        for (std::size_t n = 0; n < kN; ++n) {
          const bool bad = t == 3 || t == 9 || n >= 33;
          EXPECT_EQ(std::isfinite(y[t * kN + n]), !bad) << t << " " << n;
        }
      }
    }
  }
}

// Wherever it is in a row of inputs or of weights.
TEST(Quantize, NothingHidesWhatIsNotFinite) {
  ThreadPool pool(1);
  constexpr std::size_t kK = 150;
  const std::vector<float> ones(kK, 1.0F);
  const Matrix all_ones(1, kK, DType::kF32, ones);
  for (const Backend* backend : all_backends()) {
    for (const WeightScheme scheme : kSchemes) {
      SCOPED_TRACE(name_of(*backend, scheme));
      const auto good = pack(*backend, all_ones, scheme, pool);
      ASSERT_TRUE(std::isfinite(run(*backend, *good, ones, pool)[0]));
      for (std::size_t place = 0; place < kK; ++place) {
        for (const float bad : {kNan, kInf, -kInf}) {
          std::vector<float> values = ones;
          values[place] = bad;
          EXPECT_FALSE(std::isfinite(run(*backend, *good, values, pool)[0])) << place;
          const Matrix source(1, kK, DType::kF32, values);
          EXPECT_FALSE(
              std::isfinite(run(*backend, *pack(*backend, source, scheme, pool), ones, pool)[0]))
              << place;
        }
      }
    }
  }
}

TEST(Quantize, PartsStackAlongRows) {
  constexpr std::size_t kK = 140;
  ThreadPool pool(2);
  Rng rng(11);
  const std::vector<float> w = rng.reals(34 * kK);
  const Matrix a(5, kK, DType::kF32, w);
  const Matrix b(29, kK, DType::kF32, {w.begin() + 5 * kK, w.end()}, true);
  const Matrix all(34, kK, DType::kF32, w);
  const MatrixView parts[] = {a.view(), b.view()};
  const std::vector<float> x = rng.reals(4 * kK);
  for (const Backend* backend : all_backends()) {
    for (const WeightScheme scheme : kSchemes) {
      SCOPED_TRACE(name_of(*backend, scheme));
      const auto stacked = backend->pack(parts, scheme, pool);
      const auto single = pack(*backend, all, scheme, pool);
      ASSERT_EQ(stacked->bytes(), single->bytes());
      EXPECT_EQ(std::memcmp(stacked->data(), single->data(), stacked->bytes()), 0);
      EXPECT_TRUE(same_bits(run(*backend, *stacked, x, pool), run(*backend, *single, x, pool)));
    }
  }
}

}  // namespace
}  // namespace tandem::kernels
