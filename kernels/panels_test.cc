// What packed panels hold, byte by byte: the same in every family, element by element where the
// layout says, zeros where it pads, and whatever a batch of jobs is cut into.
#include "kernels/cpu/panels.h"

#include "kernels/test_util.h"

#include <algorithm>
#include <atomic>

namespace tandem::kernels {
namespace {

using testing::kInf;
using testing::kNan;
using testing::Matrix;
using testing::Rng;

constexpr DType kTypes[] = {DType::kF32, DType::kF16, DType::kBf16};

std::vector<WeightFormat> formats() {
  return {DType::kF32,
          DType::kF16,
          DType::kBf16,
          WeightScheme::kInt8,
          WeightScheme::kInt8Dynamic,
          WeightScheme::kInt4Group128};
}

std::string name_of(WeightFormat format) {
  const char* names[] = {"", "int8", "int4", "int8 dynamic"};
  return format.scheme == WeightScheme::kFloat ? std::string(dtype_name(format.dtype))
                                               : names[static_cast<int>(format.scheme)];
}

// Filled memory that was not zero before.
std::vector<std::byte> packed(const Backend& backend,
                              const std::vector<MatrixView>& parts,
                              WeightFormat format,
                              ThreadPool& pool) {
  std::size_t rows = 0;
  for (const MatrixView& part : parts)
    rows += part.rows;
  const auto weight = backend.allocate(rows, parts[0].cols, format, 1);
  std::fill_n(weight->mutable_data(), weight->bytes(), std::byte{0xa5});
  PackJob job{.to = weight.get(), .parts = parts};
  backend.fill({&job, 1}, pool);
  return {weight->data(), weight->data() + weight->bytes()};
}

std::vector<float> values_with_oddities(Rng& rng, std::size_t count) {
  std::vector<float> values = rng.reals(count);
  if (count > 40) {
    values[7] = kInf;
    values[20] = kNan;
    values[33] = -0.0F;
    values[40] = 1e-41F;
  }
  return values;
}

TEST(Panels, FloatsLieWhereTheLayoutSays) {
  ThreadPool pool(2);
  Rng rng(1);
  const std::size_t sizes[][2] = {
      {1, 1}, {15, 3}, {16, 31}, {17, 32}, {16, 64}, {33, 255}, {48, 257}, {20, 600}};
  for (const auto& [n, k] : sizes) {
    const std::vector<float> values = values_with_oddities(rng, n * k);
    for (const DType from : kTypes) {
      const Matrix source(n, k, from, values, true);
      for (const DType store : kTypes) {
        const std::size_t panel_bytes = cpu::panel_bytes(k, store);
        std::vector<std::byte> want(cpu::panel_count(n) * panel_bytes);
        for (std::size_t row = 0; row < n; ++row) {
          for (std::size_t i = 0; i < k; ++i) {
            std::byte* panel = want.data() + row / cpu::kPanel * panel_bytes;
            const std::size_t index = cpu::panel_index(row % cpu::kPanel, i, store);
            const std::size_t bytes = dtype_bytes(store);
            if (from == store) {
              const auto* data = static_cast<const std::byte*>(source.view().data);
              std::memcpy(panel + index * bytes, data + (row * k + i) * bytes, bytes);
            } else {
              store_element(panel, store, index, load_element(source.view(), row, i));
            }
          }
        }
        for (const Backend* backend : testing::vector_backends()) {
          SCOPED_TRACE(std::string(family_name(backend->family())) + " " +
                       std::string(dtype_name(from)) + " to " + std::string(dtype_name(store)) +
                       " N=" + std::to_string(n) + " K=" + std::to_string(k));
          EXPECT_EQ(packed(*backend, {source.view()}, store, pool), want);
        }
      }
    }
  }
}

// The small integers of the reference, which keeps them row by row.
TEST(Panels, Int8LiesWhereTheLayoutSays) {
  ThreadPool pool(2);
  Rng rng(2);
  const std::size_t sizes[][2] = {{1, 1}, {15, 6}, {16, 128}, {17, 255}, {33, 515}};
  for (const auto& [n, k] : sizes) {
    const Matrix source(n, k, DType::kBf16, rng.reals(n * k), true);
    const MatrixView view = source.view();
    const auto rows = testing::reference().pack({&view, 1}, WeightScheme::kInt8, pool);
    const auto* scales = reinterpret_cast<const float*>(rows->data());
    const auto* q = reinterpret_cast<const std::int8_t*>(rows->data() + n * sizeof(float));
    const std::size_t panel_bytes = cpu::panel_bytes(k, WeightScheme::kInt8);
    std::vector<std::byte> want(cpu::panel_count(n) * panel_bytes);
    for (std::size_t row = 0; row < n; ++row) {
      std::byte* panel = want.data() + row / cpu::kPanel * panel_bytes;
      const std::size_t lane = row % cpu::kPanel;
      std::int32_t sum = 0;
      for (std::size_t i = 0; i < k; ++i) {
        std::memcpy(panel + 128 + (i / 4 * cpu::kPanel + lane) * 4 + i % 4, q + row * k + i, 1);
        sum += q[row * k + i] * 128;
      }
      std::memcpy(panel + lane * 4, scales + row, 4);
      std::memcpy(panel + 64 + lane * 4, &sum, 4);
    }
    for (const Backend* backend : testing::vector_backends()) {
      SCOPED_TRACE(std::string(family_name(backend->family())) + " N=" + std::to_string(n) +
                   " K=" + std::to_string(k));
      EXPECT_EQ(packed(*backend, {view}, WeightScheme::kInt8, pool), want);
    }
  }
}

// The same integers, of half a byte, a step and an offset each.
TEST(Panels, Int4LiesWhereTheLayoutSays) {
  ThreadPool pool(2);
  Rng rng(3);
  const std::size_t sizes[][2] = {{1, 1}, {15, 6}, {16, 128}, {17, 255}, {5, 256}, {33, 517}};
  for (const auto& [n, k] : sizes) {
    const Matrix source(n, k, DType::kBf16, rng.reals(n * k), true);
    const MatrixView view = source.view();
    const auto rows = testing::reference().pack({&view, 1}, WeightScheme::kInt4Group128, pool);
    const auto* q = reinterpret_cast<const std::int8_t*>(rows->data() + n * sizeof(float));
    const std::size_t panel_bytes = cpu::panel_bytes(k, WeightScheme::kInt4Group128);
    for (const Backend* backend : testing::vector_backends()) {
      SCOPED_TRACE(std::string(family_name(backend->family())) + " N=" + std::to_string(n) +
                   " K=" + std::to_string(k));
      const std::vector<std::byte> got =
          packed(*backend, {view}, WeightScheme::kInt4Group128, pool);
      ASSERT_EQ(got.size(), cpu::panel_count(n) * panel_bytes);
      for (std::size_t row = 0; row < n; ++row) {
        const std::byte* panel = got.data() + row / cpu::kPanel * panel_bytes;
        const std::size_t lane = row % cpu::kPanel;
        std::int32_t sum = 0;
        for (std::size_t i = 0; i < (k + 3) / 4 * 4; ++i) {
          const std::byte* groups = panel + 128 + i / 256 * (64 + 2048);
          const std::byte* affine = groups + i / 128 % 2 * 32 + lane * 2;
          const std::byte two = groups[64 + i % 256 / 8 * 64 + lane * 4 + i % 4];
          const int half = std::to_integer<int>(two) >> (i % 8 < 4 ? 0 : 4) & 15;
          const int integer = half * std::to_integer<std::int8_t>(affine[0]) -
                              std::to_integer<std::int8_t>(affine[1]);
          if (i < k) {
            ASSERT_EQ(integer, q[row * k + i]) << "row " << row << " k " << i;
          }
          sum += integer * 128;
        }
        std::int32_t kept = 0;
        std::memcpy(&kept, panel + 64 + lane * 4, 4);
        EXPECT_EQ(kept, sum) << "row " << row;
        EXPECT_EQ(std::memcmp(panel + lane * 4, rows->data() + row * 4, 4), 0) << "row " << row;
      }
    }
  }
}

TEST(Panels, AreTheSameInEveryFamily) {
  ThreadPool pool(3);
  Rng rng(3);
  const std::size_t sizes[][2] = {{1, 1}, {16, 7}, {17, 130}, {40, 256}, {31, 900}};
  for (const auto& [n, k] : sizes) {
    const Matrix a(n, k, DType::kBf16, values_with_oddities(rng, n * k), true);
    const Matrix b(5, k, DType::kF32, rng.reals(5 * k));
    for (const WeightFormat format : formats()) {
      const auto want =
          packed(*select(Family::kGeneric, nullptr), {a.view(), b.view()}, format, pool);
      for (const Backend* backend : testing::vector_backends()) {
        SCOPED_TRACE(std::string(family_name(backend->family())) + " " + name_of(format) +
                     " N=" + std::to_string(n) + " K=" + std::to_string(k));
        EXPECT_EQ(packed(*backend, {a.view(), b.view()}, format, pool), want);
      }
    }
  }
}

// Weights of several tasks, small ones between them, a stack: all at once and one by one.
TEST(Panels, ManyJobsAtOnceAreWhatEachIsAlone) {
  ThreadPool one(1);
  ThreadPool three(3);
  Rng rng(4);
  const Matrix big(2100, 1030, DType::kBf16, rng.reals(2100 * 1030));
  const Matrix small(3, 5, DType::kF32, rng.reals(15));
  std::vector<Matrix> experts;
  for (int i = 0; i < 5; ++i)
    experts.emplace_back(24, 40, DType::kF16, rng.reals(24 * 40));
  std::vector<MatrixView> views;
  for (const Matrix& expert : experts)
    views.push_back(expert.view());
  for (const Backend* backend : {select(Family::kAuto, nullptr), &testing::reference()}) {
    for (const WeightFormat format : formats()) {
      SCOPED_TRACE(std::string(family_name(backend->family())) + " " + name_of(format));
      const std::unique_ptr<PackedWeight> together[] = {backend->allocate(2100, 1030, format, 1),
                                                        backend->allocate(3, 5, format, 1),
                                                        backend->allocate(24, 40, format, 5)};
      std::vector<PackJob> jobs = {{.to = together[0].get(), .parts = {big.view()}},
                                   {.to = together[1].get(), .parts = {small.view()}},
                                   {.to = together[2].get(), .parts = views}};
      backend->fill(jobs, three);
      const MatrixView big_view = big.view();
      const MatrixView small_view = small.view();
      const std::unique_ptr<PackedWeight> alone[] = {backend->pack({&big_view, 1}, format, one),
                                                     backend->pack({&small_view, 1}, format, one),
                                                     backend->pack_stack(views, format, one)};
      for (std::size_t i = 0; i < std::size(alone); ++i) {
        ASSERT_EQ(together[i]->bytes(), alone[i]->bytes());
        for (std::size_t w = 0; w < alone[i]->count(); ++w) {
          const std::size_t bytes = backend->packed_bytes(alone[i]->n(), alone[i]->k(), format);
          EXPECT_EQ(std::memcmp(together[i]->data(w), alone[i]->data(w), bytes), 0)
              << "weight " << w << " of job " << i;
        }
      }
    }
  }
}

// Elements that are elsewhere: views are names of places then, not memory.
class ShiftedReader final : public ElementReader {
 public:
  explicit ShiftedReader(std::ptrdiff_t shift) : shift_(shift) {}

  void read(const std::byte* from, std::size_t bytes, std::byte* to) override {
    std::memcpy(to, from + shift_, bytes);
    ++calls;
  }

  std::atomic<int> calls{0};

 private:
  std::ptrdiff_t shift_;
};

TEST(Panels, ElementsComeFromTheReader) {
  constexpr std::size_t kRows = 40;
  constexpr std::size_t kCols = 70;
  ThreadPool pool(2);
  Rng rng(5);
  for (const DType dtype : kTypes) {
    const Matrix a(kRows, kCols, dtype, rng.reals(kRows * kCols));
    // Every second row of a wider matrix, beside one that lies in one piece.
    MatrixView every_second = a.view();
    every_second.rows = kRows / 2;
    every_second.row_stride = 2 * kCols;
    std::vector<std::byte> hidden(2 * kRows * kCols * sizeof(float));
    const auto size = static_cast<std::ptrdiff_t>(hidden.size() / 2);
    const auto hide = [&](MatrixView view) {
      std::memcpy(hidden.data() + size, view.data, kRows * kCols * dtype_bytes(dtype));
      view.data = hidden.data();
      return view;
    };
    for (const Backend* backend : {select(Family::kAuto, nullptr), &testing::reference()}) {
      for (const MatrixView& view : {a.view(), every_second}) {
        for (const WeightFormat format : formats()) {
          SCOPED_TRACE(std::string(family_name(backend->family())) + " " + name_of(format));
          const auto want = backend->pack({&view, 1}, format, pool);
          const auto got = backend->allocate(view.rows, view.cols, format, 1);
          ShiftedReader reader(size);
          PackJob job{.to = got.get(), .parts = {hide(view)}, .reader = &reader};
          backend->fill({&job, 1}, pool);
          EXPECT_EQ(std::memcmp(got->data(), want->data(), want->bytes()), 0);
          EXPECT_GT(reader.calls, 0);
        }
      }
    }
  }
}

// Rows that follow each other come in one piece, whatever matrix they belong to.
TEST(Panels, NeighbouringRowsAreReadAtOnce) {
  ThreadPool pool(1);
  Rng rng(6);
  const Matrix source(32, 64, DType::kBf16, rng.reals(32 * 64));
  const auto weight =
      select(Family::kAuto, nullptr)->allocate(32, 64, WeightFormat(DType::kBf16), 1);
  ShiftedReader reader(0);
  PackJob job{.to = weight.get(), .parts = {source.view()}, .reader = &reader};
  select(Family::kAuto, nullptr)->fill({&job, 1}, pool);
  EXPECT_EQ(reader.calls, 2);
}

TEST(Panels, NothingToFillIsFine) {
  ThreadPool pool(2);
  for (const Backend* backend : testing::vector_backends())
    backend->fill({}, pool);
}

}  // namespace
}  // namespace tandem::kernels
