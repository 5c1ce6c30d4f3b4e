#include "kernels/cpu/features.h"
#include "kernels/cpu/unit_check.h"
#include "kernels/test_util.h"

#include <algorithm>
#include <cmath>

namespace tandem::kernels {
namespace {

using testing::kInf;
using testing::kNan;
using testing::Matrix;
using testing::Rng;
using testing::same_bits;

constexpr DType kDTypes[] = {DType::kF32, DType::kF16, DType::kBf16};

struct Problem {
  std::size_t tokens;
  std::size_t n;
  std::size_t k;
};

std::vector<float> run(const Backend& backend,
                       const PackedWeight& weight,
                       const std::vector<float>& x,
                       std::size_t tokens,
                       ThreadPool& pool,
                       const float* bias = nullptr,
                       std::vector<float> y = {}) {
  const bool accumulate = !y.empty();
  y.resize(tokens * weight.n());
  backend.linear({.x = x.data(),
                  .weight = &weight,
                  .bias = bias,
                  .y = y.data(),
                  .tokens = tokens,
                  .accumulate = accumulate},
                 pool);
  return y;
}

float round_activation(const Backend& backend, DType dtype, float x) {
  // The one documented rounding of activations: these families multiply bf16 by bf16.
  return testing::rounds_inputs(backend) && dtype == DType::kBf16 ? bf16_to_f32(f32_to_bf16(x)) : x;
}

// |error| of a chain of k roundings: k 2^-24 times the sum of magnitudes; two more for bias and
// accumulate.
void expect_close(const Backend& backend,
                  const Problem& p,
                  DType dtype,
                  const std::vector<float>& x,
                  const std::vector<float>& w,
                  const std::vector<float>& got) {
  for (std::size_t t = 0; t < p.tokens; ++t) {
    for (std::size_t n = 0; n < p.n; ++n) {
      double want = 0;
      double magnitude = 0;
      for (std::size_t i = 0; i < p.k; ++i) {
        std::byte stored[4];
        store_element(stored, dtype, 0, w[n * p.k + i]);
        const double term = static_cast<double>(round_activation(backend, dtype, x[t * p.k + i])) *
                            static_cast<double>(load_element(stored, dtype, 0));
        want += term;
        magnitude += std::abs(term);
      }
      const double limit = static_cast<double>(p.k + 2) * 0x1p-24 * magnitude + 1e-30;
      ASSERT_NEAR(static_cast<double>(got[t * p.n + n]), want, limit)
          << "token " << t << " output " << n;
    }
  }
}

TEST(Linear, MatchesTheFormulaForEverySizeDTypeAndFamily) {
  const Problem problems[] = {{0, 5, 4},
                              {1, 1, 1},
                              {1, 15, 31},
                              {2, 16, 32},
                              {3, 17, 33},
                              {4, 33, 0},
                              {5, 64, 64},
                              {6, 65, 7},
                              {7, 31, 100},
                              {8, 48, 129},
                              {11, 80, 63},
                              {13, 129, 65},
                              {25, 40, 96},
                              {37, 100, 50},
                              {14, 33, 515}};
  ThreadPool pool(2);
  std::vector<const Backend*> backends = testing::vector_backends();
  backends.push_back(&testing::reference());
  for (const Backend* backend : backends) {
    for (const Problem& p : problems) {
      for (const DType dtype : kDTypes) {
        SCOPED_TRACE(std::string(family_name(backend->family())) + " " +
                     std::string(dtype_name(dtype)) + " T=" + std::to_string(p.tokens) +
                     " N=" + std::to_string(p.n) + " K=" + std::to_string(p.k));
        Rng rng(p.tokens * 1000 + p.n);
        const std::vector<float> x = rng.reals(p.tokens * p.k);
        const std::vector<float> w = rng.reals(p.n * p.k);
        const Matrix source(p.n, p.k, DType::kF32, w, true);
        const MatrixView part = source.view();
        const auto weight = backend->pack({&part, 1}, dtype, pool);
        ASSERT_NE(weight, nullptr);
        ASSERT_EQ(weight->n(), p.n);
        ASSERT_EQ(weight->k(), p.k);
        ASSERT_EQ(weight->bytes(), backend->packed_bytes(p.n, p.k, dtype));
        expect_close(*backend, p, dtype, x, w, run(*backend, *weight, x, p.tokens, pool));
      }
    }
  }
}

TEST(Linear, BiasAndAccumulateRoundOnceEach) {
  ThreadPool pool(1);
  constexpr std::size_t kK = 40;
  for (const Backend* backend : testing::vector_backends()) {
    // Whole panels, two and five of them, and a part of one.
    for (const std::size_t n : {21U, 32U, 80U}) {
      for (const std::size_t tokens : {1U, 3U, 5U, 14U, 40U}) {
        SCOPED_TRACE(std::string(family_name(backend->family())) + " N=" + std::to_string(n) +
                     " T=" + std::to_string(tokens));
        Rng rng(tokens);
        const std::vector<float> x = rng.reals(tokens * kK);
        const std::vector<float> bias = rng.reals(n);
        const std::vector<float> old = rng.reals(tokens * n);
        const Matrix source(n, kK, DType::kF32, rng.reals(n * kK));
        const MatrixView part = source.view();
        const auto weight = backend->pack({&part, 1}, DType::kBf16, pool);
        const std::vector<float> sums = run(*backend, *weight, x, tokens, pool);
        std::vector<float> on_old = sums;
        std::vector<float> on_both = sums;
        for (std::size_t i = 0; i < sums.size(); ++i) {
          on_old[i] = sums[i] + old[i];
          on_both[i] = sums[i] + bias[i % n];
          on_both[i] = on_both[i] + old[i];
        }
        EXPECT_TRUE(same_bits(run(*backend, *weight, x, tokens, pool, nullptr, old), on_old));
        EXPECT_TRUE(same_bits(run(*backend, *weight, x, tokens, pool, bias.data(), old), on_both));
      }
    }
  }
}

// The promise: a row's bits do not depend on the batch, on its place in it, or on threads.
TEST(Linear, RowsAreTheSameBitsInEveryBatchAndThreadCount) {
  constexpr std::size_t kTokens = 53;
  constexpr std::size_t kN = 210;
  constexpr std::size_t kK = 161;
  ThreadPool one(1);
  ThreadPool two(2);
  ThreadPool three(3);
  for (const Backend* backend : testing::vector_backends()) {
    for (const DType dtype : kDTypes) {
      SCOPED_TRACE(std::string(family_name(backend->family())) + " " +
                   std::string(dtype_name(dtype)));
      Rng rng(7);
      const std::vector<float> x = rng.reals(kTokens * kK);
      const Matrix source(kN, kK, DType::kF32, rng.reals(kN * kK));
      const MatrixView part = source.view();
      const auto weight = backend->pack({&part, 1}, dtype, one);
      const std::vector<float> whole = run(*backend, *weight, x, kTokens, one);
      EXPECT_TRUE(same_bits(run(*backend, *weight, x, kTokens, two), whole));
      EXPECT_TRUE(same_bits(run(*backend, *weight, x, kTokens, three), whole));
      for (const std::size_t begin : {0U, 1U, 5U, 20U, 40U}) {
        for (std::size_t tokens = 1; tokens <= (begin == 0 ? 40U : 13U); ++tokens) {
          const std::vector<float> some(
              x.begin() + static_cast<std::ptrdiff_t>(begin * kK),
              x.begin() + static_cast<std::ptrdiff_t>((begin + tokens) * kK));
          const std::vector<float> want(
              whole.begin() + static_cast<std::ptrdiff_t>(begin * kN),
              whole.begin() + static_cast<std::ptrdiff_t>((begin + tokens) * kN));
          ASSERT_TRUE(same_bits(run(*backend, *weight, some, tokens, two), want))
              << begin << "+" << tokens;
        }
      }
    }
  }
}

// A task packs only as many rows as fit its scratch: k large enough for several row blocks.
TEST(Linear, LongRowsCrossRowBlocks) {
  constexpr std::size_t kTokens = 20;
  constexpr std::size_t kN = 3;
  constexpr std::size_t kK = 40000;
  ThreadPool pool(2);
  for (const Backend* backend : testing::vector_backends()) {
    SCOPED_TRACE(family_name(backend->family()));
    Rng rng(3);
    const std::vector<float> x = rng.reals(kTokens * kK);
    const Matrix source(kN, kK, DType::kF32, rng.reals(kN * kK));
    const MatrixView part = source.view();
    const auto weight = backend->pack({&part, 1}, DType::kBf16, pool);
    const std::vector<float> whole = run(*backend, *weight, x, kTokens, pool);
    for (std::size_t t = 0; t < kTokens; t += 7) {
      const std::vector<float> row(x.begin() + static_cast<std::ptrdiff_t>(t * kK),
                                   x.begin() + static_cast<std::ptrdiff_t>((t + 1) * kK));
      const std::vector<float> alone = run(*backend, *weight, row, 1, pool);
      for (std::size_t n = 0; n < kN; ++n)
        EXPECT_EQ(alone[n], whole[t * kN + n]);
    }
  }
}

TEST(Linear, PartsStackAlongRowsWhateverTheirDType) {
  ThreadPool pool(2);
  constexpr std::size_t kK = 37;
  Rng rng(11);
  std::vector<float> w = rng.reals((5 + 20 + 9) * kK);
  for (float& value : w)
    value = bf16_to_f32(f32_to_bf16(value)) / 8;  // exact in every dtype but f16's range
  const Matrix a(5, kK, DType::kF32, w);
  const Matrix b(20, kK, DType::kBf16, {w.begin() + 5 * kK, w.end()}, true);
  const Matrix c(9, kK, DType::kF32, {w.begin() + 25 * kK, w.end()});
  const Matrix all(34, kK, DType::kF32, w);
  const MatrixView parts[] = {a.view(), b.view(), c.view()};
  const MatrixView whole = all.view();
  const std::vector<float> x = rng.reals(4 * kK);
  for (const Backend* backend : testing::vector_backends()) {
    SCOPED_TRACE(family_name(backend->family()));
    const auto stacked = backend->pack(parts, DType::kBf16, pool);
    const auto single = backend->pack({&whole, 1}, DType::kBf16, pool);
    ASSERT_EQ(stacked->n(), 34U);
    EXPECT_EQ(std::memcmp(stacked->data(), single->data(), stacked->bytes()), 0);
    EXPECT_TRUE(same_bits(run(*backend, *stacked, x, 4, pool), run(*backend, *single, x, 4, pool)));
  }
}

TEST(Linear, NanAndInfStayInTheirRowAndColumn) {
  ThreadPool pool(1);
  constexpr std::size_t kTokens = 14;
  constexpr std::size_t kN = 35;
  constexpr std::size_t kK = 33;
  for (const Backend* backend : testing::vector_backends()) {
    for (const DType dtype : kDTypes) {
      SCOPED_TRACE(std::string(family_name(backend->family())) + " " +
                   std::string(dtype_name(dtype)));
      Rng rng(5);
      std::vector<float> x = rng.reals(kTokens * kK);
      std::vector<float> w = rng.reals(kN * kK);
      x[3 * kK + 32] = kNan;
      x[9 * kK] = kInf;
      w[34 * kK + 1] = kNan;
      const Matrix source(kN, kK, DType::kF32, w);
      const MatrixView part = source.view();
      const auto weight = backend->pack({&part, 1}, dtype, pool);
      const std::vector<float> y = run(*backend, *weight, x, kTokens, pool);
      for (std::size_t t = 0; t < kTokens; ++t) {
        for (std::size_t n = 0; n < kN; ++n) {
          const float value = y[t * kN + n];
          if (t == 3 || n == 34) {
            EXPECT_TRUE(std::isnan(value)) << t << " " << n;
          } else if (t == 9) {
            EXPECT_TRUE(std::isinf(value)) << t << " " << n;
          } else {
            EXPECT_TRUE(std::isfinite(value)) << t << " " << n;
          }
        }
      }
    }
  }
}

// linear and silu_mul in one: the same bits, also where up does not begin with a panel, and with
// more rows and columns than one task keeps at a time.
TEST(GatedLinear, IsLinearAndSiluMul) {
  struct Case {
    std::size_t tokens;
    std::size_t dim;
    std::size_t k;
    WeightFormat format;
    bool bias;
  };

  const Case cases[] = {{1, 64, 40, DType::kBf16, false},
                        {1, 5, 40, DType::kBf16, true},
                        {3, 300, 33, DType::kF32, true},
                        {17, 36, 130, WeightScheme::kInt4Group128, false},
                        {33, 200, 64, WeightScheme::kInt8Dynamic, true},
                        {40, 160, 50, WeightScheme::kInt8, false},
                        {410, 176, 24, DType::kBf16, true},
                        {200, 150, 24, DType::kF16, false},
                        {0, 16, 16, DType::kBf16, false}};
  ThreadPool one(1);
  ThreadPool three(3);
  std::vector<const Backend*> backends = testing::vector_backends();
  backends.push_back(&testing::reference());
  for (const Backend* backend : backends) {
    for (const Case& c : cases) {
      SCOPED_TRACE(std::string(family_name(backend->family())) + " T=" + std::to_string(c.tokens) +
                   " dim=" + std::to_string(c.dim) + " K=" + std::to_string(c.k));
      Rng rng(c.tokens + c.dim);
      const std::vector<float> x = rng.reals(c.tokens * c.k);
      const std::vector<float> bias = rng.reals(2 * c.dim);
      const Matrix source(2 * c.dim, c.k, DType::kF32, rng.reals(2 * c.dim * c.k));
      const MatrixView part = source.view();
      const auto weight = backend->pack({&part, 1}, c.format, one);
      const float* added = c.bias ? bias.data() : nullptr;
      const std::vector<float> both = run(*backend, *weight, x, c.tokens, one, added);
      const std::size_t stride = c.dim + 3;
      std::vector<float> want(c.tokens * stride, 7.0F);
      backend->silu_mul({.gate = both.data(),
                         .up = both.data() + c.dim,
                         .in_stride = 2 * c.dim,
                         .out = want.data(),
                         .out_stride = stride,
                         .tokens = c.tokens,
                         .dim = c.dim},
                        one);
      for (ThreadPool* pool : {&one, &three}) {
        std::vector<float> y(c.tokens * stride, 7.0F);
        backend->gated_linear({.x = x.data(),
                               .weight = weight.get(),
                               .bias = added,
                               .y = y.data(),
                               .y_stride = stride,
                               .tokens = c.tokens},
                              *pool);
        EXPECT_TRUE(same_bits(y, want));
      }
    }
  }
}

// Tiles take two panels of either weight side by side; the last one of a task goes alone.
TEST(GatedLinear, OfSomeRowsIsLinearAndSiluMul) {
  ThreadPool one(1);
  ThreadPool two(2);
  for (const Backend* backend : testing::vector_backends()) {
    for (const WeightFormat& format : {WeightFormat(DType::kBf16),
                                       testing::had(*backend, WeightScheme::kShortBf16, 64),
                                       WeightFormat(WeightScheme::kInt8),
                                       WeightFormat(WeightScheme::kInt8Dynamic),
                                       WeightFormat(WeightScheme::kInt4Group128)}) {
      for (const std::size_t k : {64U, 100U, 328U}) {
        for (std::size_t panels = 1; panels <= 8; ++panels) {
          const std::size_t dim = panels * 16;
          Rng rng(k + panels);
          const Matrix source(2 * dim, k, DType::kF32, rng.reals(2 * dim * k));
          const MatrixView part = source.view();
          const auto weight = backend->pack({&part, 1}, format, one);
          const std::vector<float> bias = rng.reals(2 * dim);
          for (const std::size_t tokens : {1U, 2U, 5U, 15U, 16U, 17U, 32U, 33U}) {
            SCOPED_TRACE(std::string(family_name(backend->family())) +
                         " T=" + std::to_string(tokens) + " dim=" + std::to_string(dim) +
                         " K=" + std::to_string(k));
            const std::vector<float> x = rng.reals(tokens * k);
            const std::vector<float> both = run(*backend, *weight, x, tokens, one, bias.data());
            std::vector<float> want(tokens * dim);
            backend->silu_mul({.gate = both.data(),
                               .up = both.data() + dim,
                               .in_stride = 2 * dim,
                               .out = want.data(),
                               .tokens = tokens,
                               .dim = dim},
                              one);
            std::vector<float> y(tokens * dim, 7.0F);
            backend->gated_linear({.x = x.data(),
                                   .weight = weight.get(),
                                   .bias = bias.data(),
                                   .y = y.data(),
                                   .tokens = tokens},
                                  two);
            ASSERT_TRUE(same_bits(y, want));
          }
        }
      }
    }
  }
}

// generic, avx2 and avx512 are one; where there are tiles or products of pairs, the unit and its
// emulation are one, too.
TEST(Linear, FamiliesOfOneNumericsAgreeBitForBit) {
  ThreadPool pool(2);
  constexpr std::size_t kN = 50;
  constexpr std::size_t kK = 177;
  Rng rng(13);
  std::vector<float> x = rng.reals(39 * kK);
  for (std::size_t i = 0; i < x.size(); i += 5)
    x[i] *= 1e-38F;  // subnormals too
  const Matrix source(kN, kK, DType::kF32, rng.reals(kN * kK));
  const MatrixView part = source.view();
  const std::vector<const Backend*> backends = testing::vector_backends();
  for (const DType dtype : kDTypes) {
    for (const Backend* backend : backends) {
      const auto weight = backend->pack({&part, 1}, dtype, pool);
      const std::vector<float> want = run(*backend, *weight, x, 39, pool);
      for (const Backend* other : backends) {
        // But for products of bf16 by bf16, all families compute alike.
        if (other->numerics() != backend->numerics() && dtype == DType::kBf16) continue;
        SCOPED_TRACE(std::string(family_name(backend->family())) + " against " +
                     std::string(family_name(other->family())) + " " +
                     std::string(dtype_name(dtype)));
        const auto same = other->pack({&part, 1}, dtype, pool);
        EXPECT_EQ(std::memcmp(same->data(), weight->data(), weight->bytes()), 0);
        EXPECT_TRUE(same_bits(run(*other, *same, x, 39, pool), want));
      }
    }
  }
}

// What the numerics of amx say: per 32 k a chain over the even k and one over the odd k, added to
// each other, then to the sum so far. Rows and k enough for several blocks, tiles
// and cuts of k.
TEST(Linear, TilesSumInTheDocumentedOrder) {
  constexpr std::size_t kTokens = 420;
  constexpr std::size_t kN = 21;
  constexpr std::size_t kK = 1130;
  ThreadPool pool(2);
  Rng rng(17);
  const std::vector<float> x = rng.reals(kTokens * kK);
  const std::vector<float> w = rng.reals(kN * kK);
  const Matrix source(kN, kK, DType::kF32, w);
  const MatrixView part = source.view();
  const auto rounded = [](const std::vector<float>& from) {
    std::vector<float> to(from);
    for (float& value : to)
      value = bf16_to_f32(f32_to_bf16(value));
    return to;
  };
  const std::vector<float> a = rounded(x);
  const std::vector<float> b = rounded(w);
  std::vector<float> want(kTokens * kN);
  for (std::size_t i = 0; i < want.size(); ++i) {
    float sum = 0;
    for (std::size_t begin = 0; begin < kK; begin += 32) {
      float chain[2] = {0, 0};
      for (std::size_t k = begin; k < std::min(begin + 32, kK); ++k)
        chain[k % 2] = std::fma(a[i / kN * kK + k], b[i % kN * kK + k], chain[k % 2]);
      sum = sum + (chain[0] + chain[1]);
    }
    want[i] = sum;
  }
  for (const Backend* backend : testing::vector_backends()) {
    if (backend->family() != Family::kAmx) continue;
    const auto weight = backend->pack({&part, 1}, DType::kBf16, pool);
    for (const std::size_t tokens : {1U, 16U, 17U, 33U, 75U, 420U}) {
      const auto count = static_cast<std::ptrdiff_t>(tokens);
      const std::vector<float> some(x.begin(), x.begin() + count * static_cast<std::ptrdiff_t>(kK));
      EXPECT_TRUE(same_bits(run(*backend, *weight, some, tokens, pool),
                            {want.begin(), want.begin() + count * static_cast<std::ptrdiff_t>(kN)}))
          << tokens;
    }
  }
}

// Sums a hair below the smallest normal number: fmaf alone rounds them up to it, the bf16 units
// make them zero, as does silicon with VDPBF16PS.
TEST(Linear, TinySumsOfBf16UnitsAreZeroAsRoundedTo24Bits) {
  constexpr std::size_t kK = 4;
  ThreadPool pool(1);
  const std::vector<float> x = {0x1p-63F, 0, 0x1p-75F, 0};

  const struct {
    float second;  // the weight of x[2], which takes from the sum of 2^-126
    float want;
  } cases[] = {{0, 0x1p-126F},
               {-0x1p-76F, 0x1p-126F},  // a tie, and even numbers win
               {-0x1.02p-76F, 0},
               {-0x1.fep-76F, 0},
               {-0x1p-75F, 0},
               {0x1p-75F, 0x1p-126F}};

  for (const Backend* backend : testing::vector_backends()) {
    if (!testing::rounds_inputs(*backend)) continue;
    for (const auto& c : cases) {
      SCOPED_TRACE(std::string(family_name(backend->family())) + " " + std::to_string(&c - cases));
      for (const float sign : {1.0F, -1.0F}) {
        const Matrix source(1, kK, DType::kF32, {sign * 0x1p-63F, 0, sign * c.second, 0});
        const MatrixView part = source.view();
        const auto weight = backend->pack({&part, 1}, DType::kBf16, pool);
        EXPECT_EQ(run(*backend, *weight, x, 1, pool)[0], sign * c.want);
      }
    }
  }
}

// What features() asks of a unit before it takes the name of its numerics.
TEST(Linear, UnitsThatComputeOtherwiseAreFoundOut) {
  const cpu::Kernels tiles = cpu::emulated_amx_kernels();
  const cpu::Kernels pairs = cpu::emulated_bf16_kernels();
  cpu::Kernels broken = tiles;
  // Only of tiles, and only of a row alone.
  for (const bool alone : {false, true}) {
    static bool of_a_row_alone;
    of_a_row_alone = alone;
    broken.linear = [](const cpu::LinearBlock& block) {
      cpu::emulated_amx_kernels().linear(block);
      if ((block.rows == 1) == of_a_row_alone) block.y[0] += 1;
    };
    for (const WeightScheme scheme : {WeightScheme::kFloat, WeightScheme::kInt8Dynamic}) {
      EXPECT_TRUE(cpu::same_products(tiles, tiles, scheme));
      // One row of 8-bit inputs goes to no tiles.
      const bool asked = !alone || scheme != WeightScheme::kInt8Dynamic;
      EXPECT_EQ(cpu::same_products(tiles, broken, scheme), !asked);
    }
  }
  EXPECT_TRUE(cpu::same_products(pairs, pairs, WeightScheme::kFloat));
  EXPECT_FALSE(cpu::same_products(tiles, pairs, WeightScheme::kFloat));

  EXPECT_TRUE(cpu::same_attention(tiles, tiles));
  if (cpu::features().avx512_vbmi) {
    EXPECT_TRUE(cpu::same_attention(tiles, cpu::emulated_amx_avx512_kernels()));
  }
  // Only of many rows, and only of a token alone.
  for (const bool alone : {false, true}) {
    static bool of_a_token_alone;
    of_a_token_alone = alone;
    broken.attention = [](const cpu::AttentionTile& tile) {
      cpu::emulated_amx_kernels().attention(tile);
      if ((tile.tokens == 1) == of_a_token_alone) tile.out[tile.tokens * tile.out_stride - 1] += 1;
    };
    EXPECT_FALSE(cpu::same_attention(tiles, broken));
  }
}

TEST(Linear, PairUnitIsHere) {
  std::string reason;
  if (select(Family::kAvx512Bf16, &reason) == nullptr)
    GTEST_SKIP() << "skipped: " << reason << "; tested in plain code only";
}

TEST(Linear, TileUnitIsHere) {
  std::string reason;
  if (select(Family::kAmx, &reason) == nullptr)
    GTEST_SKIP() << "skipped: " << reason << "; tested on emulated tiles only";
}

}  // namespace
}  // namespace tandem::kernels
