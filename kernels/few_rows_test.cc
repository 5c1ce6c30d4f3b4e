// Products of few rows, which may go another way than those of more: each row has the bits that it
// has among others, also where sums are tiny.
#include "kernels/test_util.h"

#include <gtest/gtest.h>

#include <sys/mman.h>
#include <unistd.h>

#include <bit>
#include <cstring>
#include <string>
#include <vector>

namespace tandem::kernels {
namespace {

using testing::kInf;
using testing::kNan;
using testing::Matrix;
using testing::Rng;
using testing::same_or_nan;

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
    {64, 28672, 1},
    {16, 28704, 1},
};

/// A weight and what x is multiplied with, such that sums lie on both sides of the smallest normal
/// f32.
struct Format {
  const char* name;
  WeightFormat store;
  float weights;
  float tiny;
};

constexpr Format kFormats[] = {
    {"bf16", DType::kBf16, 0x1p-62F, 0x1p-63F},
    {"short bf16", WeightScheme::kShortBf16, 0x1p-62F, 0x1p-63F},
    {"int8wo", WeightScheme::kInt8, 1.0F, 0x1p-86F},
};

/// kMany rows, half of them tiny, one with zeros of both signs, one with infinity, one with NaN.
std::vector<float> rows_of(Rng& rng, std::size_t k, float tiny) {
  std::vector<float> x = rng.reals(kMany * k);
  for (std::size_t t = 1; t < kMany; t += 2) {
    for (std::size_t i = 0; i < k; ++i)
      x[t * k + i] *= i % 3 == 0 ? tiny : tiny * 0x1p-6F;
  }
  for (std::size_t i = 0; i < k; ++i)
    x[2 * k + i] = i % 2 == 0 ? 0.0F : -0.0F;
  x[4 * k + k / 2] = kInf;
  x[6 * k + k / 3] = kNan;
  return x;
}

void expect_few_as_many(const Backend& backend, const Format& format, const Case& c) {
  ThreadPool pool(c.threads);
  Rng rng(c.n * 7 + c.k);
  const Matrix source(c.n, c.k, DType::kF32, rng.reals(c.n * c.k, format.weights));
  const MatrixView part = source.view();
  const auto weight = backend.pack({&part, 1}, testing::had(backend, format.store, c.k), pool);
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
        EXPECT_TRUE(same_or_nan(few.data(), many.data() + first * c.n, rows * c.n))
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
      const MatrixView part = source.view();
      const auto weight = backend->pack({&part, 1}, testing::had(*backend, format.store, kK), pool);
      ASSERT_NE(weight, nullptr);
      const std::vector<float> x = rng.reals(kMany * kK);
      std::vector<float> many(kMany * kInner);
      backend->gated_linear(
          {.x = x.data(), .weight = weight.get(), .y = many.data(), .tokens = kMany}, pool);
      for (std::size_t rows = 1; rows <= 5; ++rows) {
        std::vector<float> few(rows * kInner);
        backend->gated_linear(
            {.x = x.data(), .weight = weight.get(), .y = few.data(), .tokens = rows}, pool);
        EXPECT_TRUE(same_or_nan(few.data(), many.data(), few.size())) << rows << " rows";
      }
    }
  }
}

constexpr WeightFormat kBf16[] = {DType::kBf16, WeightScheme::kShortBf16};

/// One output of bf16 in all rows.
std::vector<float> outputs_of(const Backend& backend,
                              const std::vector<float>& x,
                              const std::vector<float>& w,
                              std::size_t rows,
                              WeightFormat format) {
  ThreadPool pool(1);
  const Matrix source(1, w.size(), DType::kF32, w);
  const MatrixView part = source.view();
  const auto weight = backend.pack({&part, 1}, testing::had(backend, format, w.size()), pool);
  std::vector<float> all;
  for (std::size_t row = 0; row < rows; ++row)
    all.insert(all.end(), x.begin(), x.end());
  std::vector<float> y(rows, kNan);
  backend.linear({.x = all.data(), .weight = weight.get(), .y = y.data(), .tokens = rows}, pool);
  return y;
}

// Sums that end at -0, and steps whose last k are not there: the unit multiplies zeros there, which
// make 0 of it. Other families do not flush.
TEST(FewRows, ZerosBehindTheLastInputTakeTheSignOfZeroAway) {
  constexpr std::size_t kK = 66;
  std::vector<float> x(kK, 0.0F);
  std::vector<float> w(kK, 0.0F);
  const auto set = [&](std::size_t k, float a, float b) {
    x[k] = a;
    w[k] = b;
  };
  set(0, 0x1p-63F, 0x1p-63F);
  set(32, 0x1p-63F, -0x1.02p-63F);
  set(64, 0x1p-100F, -0x1p-100F);
  set(65, 0x1p-100F, -0x1p-100F);
  for (const Backend* backend : testing::vector_backends()) {
    if (backend->family() != Family::kAmx) continue;
    SCOPED_TRACE(family_name(backend->family()));
    for (const WeightFormat& format : kBf16) {
      for (std::size_t rows = 1; rows <= kMany; ++rows) {
        for (const float y : outputs_of(*backend, x, w, rows, format))
          EXPECT_EQ(std::bit_cast<std::uint32_t>(y), 0U) << rows << " rows";
      }
    }
  }
}

TEST(FewRows, SubnormalInputsAndWeightsCountAsZero) {
  const std::vector<float> small(40, 0x1p-130F);
  const std::vector<float> large(40, 0x1p100F);
  for (const Backend* backend : testing::vector_backends()) {
    if (!testing::rounds_inputs(*backend)) continue;
    SCOPED_TRACE(family_name(backend->family()));
    for (const WeightFormat& format : kBf16) {
      for (std::size_t rows = 1; rows <= kMany; ++rows) {
        for (const float y : outputs_of(*backend, small, large, rows, format))
          EXPECT_EQ(std::bit_cast<std::uint32_t>(y), 0U) << rows << " rows";
        for (const float y : outputs_of(*backend, large, small, rows, format))
          EXPECT_EQ(std::bit_cast<std::uint32_t>(y), 0U) << rows << " rows";
      }
    }
  }
}

/// Memory that ends where none is.
class Guarded {
 public:
  explicit Guarded(std::size_t bytes) {
    const auto page = static_cast<std::size_t>(sysconf(_SC_PAGESIZE));
    const std::size_t whole = (bytes + page - 1) / page * page;
    all_ = whole + page;
    base_ = mmap(nullptr, all_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (base_ == MAP_FAILED) return;
    EXPECT_EQ(mprotect(static_cast<std::byte*>(base_) + whole, page, PROT_NONE), 0);
    data_ = static_cast<std::byte*>(base_) + whole - bytes;
  }

  ~Guarded() {
    if (base_ != MAP_FAILED) munmap(base_, all_);
  }

  Guarded(const Guarded&) = delete;
  Guarded& operator=(const Guarded&) = delete;

  [[nodiscard]] std::byte* data() const { return data_; }

 private:
  void* base_ = MAP_FAILED;
  std::size_t all_ = 0;
  std::byte* data_ = nullptr;
};

// All counts of panels that are left behind four.
TEST(FewRows, NothingBehindTheWeightIsRead) {
  constexpr WeightFormat kStores[] = {DType::kBf16,
                                      WeightScheme::kShortBf16,
                                      WeightScheme::kInt8,
                                      WeightScheme::kInt8Dynamic,
                                      WeightScheme::kInt4Group128};
  ThreadPool pool(1);
  for (const Backend* backend : testing::vector_backends()) {
    for (const WeightFormat& asked : kStores) {
      const WeightFormat store = testing::had(*backend, asked, 64);
      for (const std::size_t k : {3U, 8U, 32U, 63U, 64U, 128U, 132U}) {
        for (const std::size_t n : {16U, 32U, 48U, 64U, 80U}) {
          SCOPED_TRACE(std::string(family_name(backend->family())) + " scheme " +
                       std::to_string(static_cast<int>(store.scheme)) + " N=" + std::to_string(n) +
                       " K=" + std::to_string(k));
          Rng rng(k);
          const Matrix source(n, k, DType::kF32, rng.reals(n * k));
          const MatrixView part = source.view();
          const auto plain = backend->pack({&part, 1}, store, pool);
          ASSERT_NE(plain, nullptr);
          const Guarded memory(backend->packed_bytes(n, k, store));
          ASSERT_NE(memory.data(), nullptr);
          const PackedWeight weight = backend->over(memory.data(), n, k, store);
          std::memcpy(memory.data(), plain->data(), backend->packed_bytes(n, k, store));
          const std::vector<float> x = rng.reals(kMany * k);
          for (std::size_t rows = 1; rows <= 5; ++rows) {
            std::vector<float> want(rows * n);
            std::vector<float> got(rows * n);
            backend->linear(
                {.x = x.data(), .weight = plain.get(), .y = want.data(), .tokens = rows}, pool);
            backend->linear({.x = x.data(), .weight = &weight, .y = got.data(), .tokens = rows},
                            pool);
            EXPECT_TRUE(testing::same_bits(got, want)) << rows << " rows";
          }
        }
      }
    }
  }
}

}  // namespace
}  // namespace tandem::kernels
