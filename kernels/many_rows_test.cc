// Products of so many rows that threads share them and outputs go past the caches: each row has the
// bits that it has alone.
#include "kernels/test_util.h"

#include <gtest/gtest.h>

#include <memory>
#include <new>
#include <vector>

namespace tandem::kernels {
namespace {

using testing::Matrix;
using testing::Rng;

/// Floats on a line of memory, as the workspace has them.
class Lines {
 public:
  explicit Lines(std::size_t count)
      : data_(static_cast<float*>(::operator new[](count * sizeof(float), std::align_val_t{64}))) {
    std::fill_n(data_.get(), count, 0.0F);
  }

  [[nodiscard]] float* data() const { return data_.get(); }

 private:
  struct Free {
    void operator()(float* floats) const { ::operator delete[](floats, std::align_val_t{64}); }
  };

  std::unique_ptr<float, Free> data_;
};

struct Case {
  std::size_t tokens;
  std::size_t n;
  std::size_t k;
  std::size_t threads;
  bool accumulate;
  std::size_t between = 0;  ///< floats from the end of a row of outputs to the next one
};

// Blocks of rows that are whole, and that are not; outputs of more and of less than 2 MiB, with a
// last panel alone; k of several cuts, with a last tile that is not whole; more threads than
// blocks; few rows with large outputs; panels that rows of outputs end within.
constexpr Case kCases[] = {
    {300, 1808, 64, 2, false},
    {300, 1808, 64, 2, true},
    {97, 5600, 72, 3, false},
    {530, 1040, 1100, 4, false},
    {40, 48, 600, 2, false},
    {33, 40, 20, 3, true},
    {40, 64, 0, 2, false},
    {20, 26400, 40, 2, false},
    {12, 44000, 40, 2, false},
    {31, 18012, 24, 3, false, 4},
    {300, 1805, 64, 2, false, 3},
};

struct Format {
  const char* name;
  std::unique_ptr<PackedWeight> (*pack)(const Backend&, const MatrixView&, ThreadPool&);
};

constexpr Format kFormats[] = {
    {"bf16",
     [](const Backend& backend, const MatrixView& part, ThreadPool& pool) {
       return backend.pack({&part, 1}, DType::kBf16, pool);
     }},
    {"short bf16",
     [](const Backend& backend, const MatrixView& part, ThreadPool& pool) {
       const WeightFormat format = testing::had(backend, WeightScheme::kShortBf16, part.cols);
       return backend.pack({&part, 1}, format, pool);
     }},
    {"w8a8_int8",
     [](const Backend& backend, const MatrixView& part, ThreadPool& pool) {
       return backend.pack({&part, 1}, WeightScheme::kInt8Dynamic, pool);
     }},
    {"int4wo-128",
     [](const Backend& backend, const MatrixView& part, ThreadPool& pool) {
       return backend.pack({&part, 1}, WeightScheme::kInt4Group128, pool);
     }},
};

void expect_rows_as_alone(const Backend& backend, const Format& format, const Case& c) {
  ThreadPool pool(c.threads);
  ThreadPool single(1);
  Rng rng(c.tokens + c.n);
  const Matrix source(c.n, c.k, DType::kF32, rng.reals(c.n * c.k));
  const auto weight = format.pack(backend, source.view(), pool);
  ASSERT_NE(weight, nullptr);
  const std::vector<float> x = rng.reals(c.tokens * c.k);
  const std::vector<float> bias = rng.reals(c.n);
  const std::size_t stride = c.n + c.between;
  Lines whole(c.tokens * stride);
  backend.linear({.x = x.data(),
                  .weight = weight.get(),
                  .bias = bias.data(),
                  .y = whole.data(),
                  .y_stride = stride,
                  .tokens = c.tokens,
                  .accumulate = c.accumulate},
                 pool);
  const std::size_t inner = c.n / 2;
  Lines gated(c.tokens * inner);
  backend.gated_linear({.x = x.data(),
                        .weight = weight.get(),
                        .bias = bias.data(),
                        .y = gated.data(),
                        .tokens = c.tokens},
                       pool);
  std::vector<float> row(c.n);
  for (std::size_t t = 0; t < c.tokens; t += t % 16 == 15 ? 1 : 31) {
    std::fill(row.begin(), row.end(), 0.0F);
    backend.linear({.x = x.data() + t * c.k,
                    .weight = weight.get(),
                    .bias = bias.data(),
                    .y = row.data(),
                    .tokens = 1,
                    .accumulate = c.accumulate},
                   single);
    const float* own = whole.data() + t * stride;
    EXPECT_TRUE(testing::same_bits({own, own + c.n}, row)) << "row " << t;
    for (std::size_t i = 0; i < c.between; ++i)
      EXPECT_EQ(own[c.n + i], 0.0F) << "behind row " << t;
    backend.gated_linear({.x = x.data() + t * c.k,
                          .weight = weight.get(),
                          .bias = bias.data(),
                          .y = row.data(),
                          .tokens = 1},
                         single);
    EXPECT_TRUE(testing::same_bits({gated.data() + t * inner, gated.data() + (t + 1) * inner},
                                   {row.begin(), row.begin() + static_cast<std::ptrdiff_t>(inner)}))
        << "gated row " << t;
  }
}

TEST(ManyRows, HaveTheBitsOfEachRowAlone) {
  for (const Backend* backend : testing::vector_backends()) {
    for (const Format& format : kFormats) {
      for (const Case& c : kCases) {
        // The large ones are for stores and threads, of which plain code knows nothing.
        if (testing::in_plain_code(*backend) && c.tokens * c.n > 100000) continue;
        SCOPED_TRACE(std::string(family_name(backend->family())) + " " + format.name +
                     " T=" + std::to_string(c.tokens) + " N=" + std::to_string(c.n) +
                     " K=" + std::to_string(c.k) + " threads " + std::to_string(c.threads));
        expect_rows_as_alone(*backend, format, c);
      }
    }
  }
}

}  // namespace
}  // namespace tandem::kernels
