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
};

// Blocks of rows that are whole, and that are not; outputs of more and of less than 2 MiB, with a
// last panel alone; k of several cuts, with a last tile that is not whole; more threads than
// blocks.
constexpr Case kCases[] = {
    {300, 1808, 64, 2, false},
    {300, 1808, 64, 2, true},
    {97, 5600, 72, 3, false},
    {530, 1040, 1100, 4, false},
    {40, 48, 600, 2, false},
    {33, 40, 20, 3, true},
    {40, 64, 0, 2, false},
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
  Lines whole(c.tokens * c.n);
  backend.linear({.x = x.data(),
                  .weight = weight.get(),
                  .bias = bias.data(),
                  .y = whole.data(),
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
    EXPECT_TRUE(testing::same_bits({whole.data() + t * c.n, whole.data() + (t + 1) * c.n}, row))
        << "row " << t;
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
