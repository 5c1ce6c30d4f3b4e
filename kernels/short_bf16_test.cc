// Weights of bf16 that are kept in 12 bits each: every bit of every weight is there, whatever it
// is, and products are those of plain bf16.
#include "kernels/cpu/simd/short_bf16.h"

#include "kernels/cpu/panels.h"
#include "kernels/test_util.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <functional>
#include <memory>
#include <string>
#include <vector>

namespace tandem::kernels {
namespace {

using testing::Rng;

/// Those that keep bf16 so.
std::vector<const Backend*> backends() {
  std::vector<const Backend*> all;
  for (const Backend* backend : testing::vector_backends()) {
    if (backend->kept_format(DType::kBf16, 64) == WeightFormat(WeightScheme::kShortBf16))
      all.push_back(backend);
  }
  return all;
}

MatrixView view_of(const std::vector<std::uint16_t>& bits, std::size_t rows, std::size_t cols) {
  return {.data = bits.data(), .dtype = DType::kBf16, .rows = rows, .cols = cols};
}

/// As weights of models are: most within some powers of 2 of each other, some zero.
std::uint16_t usual(Rng& rng) {
  const float sum = rng.real() + rng.real() + rng.real() + rng.real();
  return rng.below(50) == 0 ? std::uint16_t{0} : f32_to_bf16(sum * 0.02F);
}

struct Kind {
  const char* name;
  std::function<std::uint16_t(Rng&)> bits;
};

const Kind kKinds[] = {
    {"usual", usual},
    {"none is zero",
     [](Rng& rng) {
       std::uint16_t bits = usual(rng);
       while ((bits & 0x7f80U) == 0)
         bits = usual(rng);
       return bits;
     }},
    {"few are -0 and negative subnormals",
     [](Rng& rng) {
       return rng.below(1500) == 0 ? static_cast<std::uint16_t>(0x8000U | rng.below(128))
                                   : usual(rng);
     }},
    {"one in 1500 is anything",
     [](Rng& rng) {
       return rng.below(1500) == 0 ? static_cast<std::uint16_t>(rng.next()) : usual(rng);
     }},
    {"zeros and subnormals",
     [](Rng& rng) { return static_cast<std::uint16_t>(rng.next() & 0x807fU); }},
    {"the smallest exponents",
     [](Rng& rng) { return static_cast<std::uint16_t>(rng.next() & 0x87ffU); }},
    {"the largest exponents, infinity and NaN",
     [](Rng& rng) { return static_cast<std::uint16_t>(rng.next() | 0x7c00U); }},
};

std::vector<std::uint16_t> bits_of(const Kind& kind, Rng& rng, std::size_t count) {
  std::vector<std::uint16_t> bits(count);
  for (std::uint16_t& each : bits)
    each = kind.bits(rng);
  return bits;
}

/// What a panel says of element `at` of the plain one, read as short_bf16.h describes it.
std::uint16_t element(const std::byte* panel, std::size_t steps, std::size_t at) {
  const std::byte* patches = panel + 64 + steps * 768;
  for (std::size_t i = 0;; ++i) {
    cpu::ShortPatch patch{};
    std::memcpy(&patch, patches + i * sizeof patch, sizeof patch);
    if (patch.at == at) return patch.bits;
    if (patch.at > at) break;
  }
  const std::size_t unit = at / 128;
  const std::size_t half = at % 128 / 64;
  // Of 16 bytes that lie together the first 8 are of the first line.
  const std::size_t line = at % 64 / 32;
  const std::size_t byte = at % 32 / 8 * 16 + line * 8 + at % 8;
  const std::byte* bytes = panel + 64 + unit * 192;
  const auto lower = std::to_integer<unsigned>(bytes[half * 64 + byte]);
  const auto names = std::to_integer<unsigned>(bytes[128 + byte]);
  const unsigned name = half == 0 ? names & 15U : names >> 4;
  return static_cast<std::uint16_t>(std::to_integer<unsigned>(panel[name]) << 8 | lower);
}

TEST(ShortBf16, EveryBitOfEveryWeightIsThere) {
  constexpr std::size_t kRows = 40;
  ThreadPool pool(2);
  for (const Backend* backend : backends()) {
    for (const Kind& kind : kKinds) {
      for (const std::size_t k : {1U, 31U, 32U, 72U, 1024U, 3000U}) {
        SCOPED_TRACE(std::string(kind.name) + " K=" + std::to_string(k));
        Rng rng(k);
        const std::vector<std::uint16_t> bits = bits_of(kind, rng, kRows * k);
        const MatrixView view = view_of(bits, kRows, k);
        const auto weight = backend->pack({&view, 1}, WeightScheme::kShortBf16, pool);
        ASSERT_NE(weight, nullptr);
        ASSERT_EQ(weight->scheme(), WeightScheme::kShortBf16);
        const std::size_t bytes = cpu::panel_bytes(k, weight->format());
        std::size_t wrong = 0;
        for (std::size_t row = 0; row < kRows; ++row) {
          for (std::size_t i = 0; i < k; ++i) {
            const std::size_t at = cpu::panel_index(row % 16, i, DType::kBf16);
            const std::byte* panel = weight->data() + row / 16 * bytes;
            wrong += element(panel, cpu::short_steps(k), at) == bits[row * k + i] ? 0 : 1;
          }
        }
        EXPECT_EQ(wrong, 0U);
      }
    }
  }
}

TEST(ShortBf16, TakesThreeQuartersOfTheMemory) {
  for (const Backend* backend : backends()) {
    const double share =
        static_cast<double>(backend->packed_bytes(4096, 1024, WeightScheme::kShortBf16)) /
        static_cast<double>(backend->packed_bytes(4096, 1024, DType::kBf16));
    EXPECT_LT(share, 0.77);
  }
}

// Without them no test here would say anything of a family.
TEST(ShortBf16, AllFamiliesButThePlainOnesKeepIt) {
  for (const Family family : available_families()) {
    const bool plain = family == Family::kReference || family == Family::kGeneric;
    const WeightFormat kept = select(family, nullptr)->kept_format(DType::kBf16, 64);
    EXPECT_EQ(kept == WeightFormat(WeightScheme::kShortBf16), !plain) << family_name(family);
  }
}

/// Weights, plain and in 12 bits.
struct Both {
  std::unique_ptr<PackedWeight> plain;
  std::unique_ptr<PackedWeight> shorter;

  Both(const Backend& backend, const MatrixView& view, ThreadPool& pool)
      : plain(backend.pack({&view, 1}, DType::kBf16, pool)),
        shorter(backend.pack({&view, 1}, WeightScheme::kShortBf16, pool)) {}

  void expect_same_products(const Backend& backend,
                            std::size_t rows,
                            Rng& rng,
                            ThreadPool& pool) const {
    ASSERT_TRUE(plain != nullptr && shorter != nullptr);
    ASSERT_EQ(shorter->scheme(), WeightScheme::kShortBf16);
    const std::vector<float> x = rng.reals(rows * plain->k());
    const auto product = [&](const PackedWeight& weight) {
      std::vector<float> y(rows * weight.n(), 1.0F);
      backend.linear(
          {.x = x.data(), .weight = &weight, .y = y.data(), .tokens = rows, .accumulate = true},
          pool);
      return y;
    };
    const std::vector<float> got = product(*shorter);
    EXPECT_TRUE(testing::same_or_nan(got.data(), product(*plain).data(), got.size()))
        << rows << " rows";
  }
};

// Rows that go by vectors, in groups of every size, by one tile, by two, and by many; parts of
// tiles, panels and steps.
TEST(ShortBf16, ProductsAreThoseOfPlainBf16) {
  struct Size {
    std::size_t n;
    std::size_t k;
  };

  constexpr Size kSizes[] = {{16, 32}, {50, 31}, {112, 328}, {64, 1024}, {80, 4100}};
  ThreadPool pool(2);
  for (const Backend* backend : backends()) {
    for (const Kind& kind : kKinds) {
      for (const Size& size : kSizes) {
        if (testing::in_plain_code(*backend) && size.k > 400) continue;
        SCOPED_TRACE(std::string(kind.name) + " N=" + std::to_string(size.n) +
                     " K=" + std::to_string(size.k));
        Rng rng(size.n);
        const std::vector<std::uint16_t> bits = bits_of(kind, rng, size.n * size.k);
        const Both both(*backend, view_of(bits, size.n, size.k), pool);
        for (std::size_t rows = 1; rows <= 13; ++rows)
          both.expect_same_products(*backend, rows, rng, pool);
        for (const std::size_t rows : {16U, 17U, 32U, 33U, 70U, 300U})
          both.expect_same_products(*backend, rows, rng, pool);
      }
    }
  }
}

// At every place of two lines, at the ends of cuts, of steps, and in a step that is not whole.
TEST(ShortBf16, PatchesAreWhereverTheyAre) {
  constexpr std::size_t kN = 32;
  constexpr std::size_t kK = 327;
  constexpr std::size_t kFours[] = {0, 28, 252, 256, 316, 320, 324};
  ThreadPool pool(1);
  for (const Backend* backend : backends()) {
    const std::size_t turns = testing::in_plain_code(*backend) ? 8 : 64;
    for (std::size_t turn = 0; turn < turns; ++turn) {
      SCOPED_TRACE(turn);
      Rng rng(turn);
      std::vector<std::uint16_t> bits(kN * kK);
      for (std::uint16_t& each : bits)
        each = static_cast<std::uint16_t>(0x3f00U | (rng.next() & 0x80ffU));
      for (std::size_t i = 0; i < std::size(kFours); ++i) {
        // Two lines are four k of 16 outputs.
        const std::size_t place = (turn + i * 9) % 64;
        const std::size_t k = kFours[i] + place / 32 * 2 + place % 2;
        if (k >= kK) continue;
        for (const std::size_t panel : {0U, 1U})
          bits[(panel * 16 + place % 32 / 2) * kK + k] = 0x4f80U;
      }
      const Both both(*backend, view_of(bits, kN, kK), pool);
      for (const std::size_t rows : {1U, 2U, 3U, 4U, 5U, 8U, 9U, 11U, 17U, 40U})
        both.expect_same_products(*backend, rows, rng, pool);
    }
  }
}

// Exponents all over, in one panel of many: the whole weight becomes plain.
TEST(ShortBf16, WeightsThatDoNotFitBecomePlain) {
  constexpr std::size_t kN = 96;
  constexpr std::size_t kK = 256;
  ThreadPool pool(2);
  for (const Backend* backend : backends()) {
    Rng rng(3);
    std::vector<std::uint16_t> bits = bits_of(kKinds[0], rng, kN * kK);
    for (std::size_t i = 80 * kK; i < 81 * kK; ++i)
      bits[i] = static_cast<std::uint16_t>(rng.next() & 0xbfffU);
    const MatrixView view = view_of(bits, kN, kK);
    const auto filled = backend->allocate(kN, kK, WeightScheme::kShortBf16, 1);
    PackJob job{.to = filled.get(), .parts = {view}};
    backend->fill({&job, 1}, pool);
    EXPECT_TRUE(job.misfit);
    const auto plain = backend->pack({&view, 1}, DType::kBf16, pool);
    const auto packed = backend->pack({&view, 1}, WeightScheme::kShortBf16, pool);
    ASSERT_EQ(packed->format(), WeightFormat(DType::kBf16));
    EXPECT_EQ(std::memcmp(packed->data(), plain->data(), plain->bytes()), 0);
    // Of a stack too: all of it.
    const MatrixView both[] = {
        view_of(bits, kN / 2, kK),
        {.data = bits.data() + kN / 2 * kK, .dtype = DType::kBf16, .rows = kN / 2, .cols = kK}};
    const auto stack = backend->pack_stack(both, WeightScheme::kShortBf16, pool);
    const auto plain_stack = backend->pack_stack(both, DType::kBf16, pool);
    ASSERT_EQ(stack->format(), WeightFormat(DType::kBf16));
    EXPECT_EQ(std::memcmp(stack->data(), plain_stack->data(), plain_stack->bytes()), 0);
  }
}

/// Of a panel of those, the number of patches, or -1 where it is kept plain.
int patches_of(const Backend& backend, const std::vector<std::uint16_t>& bits, std::size_t k) {
  ThreadPool pool(1);
  const MatrixView view = view_of(bits, 16, k);
  const auto packed = backend.pack({&view, 1}, WeightScheme::kShortBf16, pool);
  if (packed->scheme() != WeightScheme::kShortBf16) return -1;
  const std::size_t steps = cpu::short_steps(k);
  for (std::size_t row = 0; row < 16; ++row) {
    for (std::size_t i = 0; i < k; ++i) {
      EXPECT_EQ(element(packed->data(), steps, cpu::panel_index(row, i, DType::kBf16)),
                bits[row * k + i]);
    }
  }
  for (int count = 0;; ++count) {
    cpu::ShortPatch patch{};
    const auto at = static_cast<std::size_t>(count) * sizeof patch;
    std::memcpy(&patch, packed->data() + 64 + steps * 768 + at, sizeof patch);
    if (patch.at == cpu::kNoPatch) return count;
  }
}

/// Of 16 exponents from `least` on, with either sign.
std::vector<std::uint16_t> sixteen_exponents(std::size_t k, unsigned least) {
  Rng rng(least);
  std::vector<std::uint16_t> bits(16 * k);
  for (std::uint16_t& each : bits)
    each = static_cast<std::uint16_t>((rng.next() & 0x807fU) | (least + rng.below(16)) << 7U);
  return bits;
}

// Eight upper bytes with either sign; where zeros are many, one with a sign less.
TEST(ShortBf16, SixteenUpperBytesHaveNames) {
  constexpr std::size_t kK = 512;
  for (const Backend* backend : backends()) {
    for (const unsigned least : {0U, 2U, 100U, 112U, 240U}) {
      SCOPED_TRACE(least);
      std::vector<std::uint16_t> bits = sixteen_exponents(kK, least);
      EXPECT_EQ(patches_of(*backend, bits, kK), 0);
      // One below the sixteen, and one above.
      for (const unsigned other : {least - 1, least + 16}) {
        if (other > 255) continue;
        const std::uint16_t before = bits[7];
        bits[7] = static_cast<std::uint16_t>(other << 7U);
        EXPECT_EQ(patches_of(*backend, bits, kK), 1) << other;
        bits[7] = before;
      }
      // One zero takes nobody's name from him, where that would be dear.
      bits[kK] = 0;
      EXPECT_EQ(patches_of(*backend, bits, kK), least == 0 ? 0 : 1);
      for (std::uint16_t& each : bits) {
        if (each >= 0x8000U && (each >> 8U & 0x7fU) == least / 2) each ^= 0x8000U;
      }
      EXPECT_EQ(patches_of(*backend, bits, kK), 0);
    }
    // From an odd one on they have nine.
    EXPECT_EQ(patches_of(*backend, sixteen_exponents(kK, 101), kK), -1);
  }
}

// As many patches as there is room for, and one more.
TEST(ShortBf16, PatchesFillTheirRoom) {
  constexpr std::size_t kK = 512;
  const auto most =
      static_cast<int>(cpu::short_patch_bytes(cpu::short_steps(kK)) / sizeof(cpu::ShortPatch)) - 1;
  for (const Backend* backend : backends()) {
    std::vector<std::uint16_t> bits = sixteen_exponents(kK, 100);
    for (int i = 0; i < most; ++i)
      bits[static_cast<std::size_t>(i) * 331] = 0x7f80U;
    EXPECT_EQ(patches_of(*backend, bits, kK), most);
    bits.back() = 0x7f80U;
    EXPECT_EQ(patches_of(*backend, bits, kK), -1);
  }
}

// Whoever packs, by vectors of any kind or by plain code, the panels are the same bytes.
TEST(ShortBf16, AllFamiliesMakeTheSamePanels) {
  constexpr std::size_t kK = 1024;
  ThreadPool pool(1);
  for (const Kind& kind : kKinds) {
    SCOPED_TRACE(kind.name);
    Rng rng(8);
    const std::vector<std::uint16_t> bits = bits_of(kind, rng, 32 * kK);
    const MatrixView view = view_of(bits, 32, kK);
    std::vector<std::byte> first;
    for (const Backend* backend : backends()) {
      const auto packed = backend->pack({&view, 1}, WeightScheme::kShortBf16, pool);
      ASSERT_EQ(packed->scheme(), WeightScheme::kShortBf16);
      const std::size_t bytes = cpu::short_panel_bytes(cpu::short_steps(kK));
      const std::vector<std::byte> panel(packed->data(), packed->data() + bytes);
      if (first.empty()) first = panel;
      EXPECT_TRUE(panel == first);
    }
  }
}

// Some weights far above the others get the patches, not all the others.
TEST(ShortBf16, FewLargeWeightsFit) {
  constexpr std::size_t kK = 512;
  ThreadPool pool(1);
  for (const Backend* backend : backends()) {
    for (const int largest : {10, 40, 120}) {
      Rng rng(4);
      std::vector<std::uint16_t> bits = bits_of(kKinds[0], rng, 16 * kK);
      for (int i = 0; i < 5; ++i)
        bits[rng.below(bits.size())] = f32_to_bf16(std::ldexp(1.0F, largest));
      const MatrixView view = view_of(bits, 16, kK);
      const auto packed = backend->pack({&view, 1}, WeightScheme::kShortBf16, pool);
      EXPECT_EQ(packed->scheme(), WeightScheme::kShortBf16) << largest;
    }
  }
}

TEST(ShortBf16, OnlyBf16IsKeptSo) {
  for (const Backend* backend : backends()) {
    for (const WeightFormat other : {WeightFormat(DType::kF32),
                                     WeightFormat(DType::kF16),
                                     WeightFormat(WeightScheme::kInt8),
                                     WeightFormat(WeightScheme::kInt8Dynamic)})
      EXPECT_EQ(backend->kept_format(other, 64), other);
    EXPECT_EQ(backend->kept_format(DType::kBf16, cpu::kMostShortK + 1), WeightFormat(DType::kBf16));
  }
  EXPECT_EQ(testing::reference().kept_format(DType::kBf16, 64), WeightFormat(DType::kBf16));
}

}  // namespace
}  // namespace tandem::kernels
