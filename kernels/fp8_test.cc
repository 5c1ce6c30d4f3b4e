// Keys and values of 8 bit: the formats, and attention over them.
#include "kernels/attention_world.h"
#include "kernels/cpu/cpu_backend.h"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>
#include <string>
#include <vector>

namespace tandem::kernels {
namespace {

using testing::Filled;
using testing::Rng;
using testing::same_bits;
using testing::World;

constexpr DType kBoth[] = {DType::kFp8E5m2, DType::kFp8E4m3};

struct Known {
  DType dtype;
  std::uint8_t bits;
  float value;
};

// Table 1 of arXiv 2209.05433, and neighbours.
constexpr Known kKnown[] = {
    {DType::kFp8E4m3, 0x00, 0.0F},
    {DType::kFp8E4m3, 0x01, 0x1p-9F},
    {DType::kFp8E4m3, 0x07, 0x1.cp-7F},
    {DType::kFp8E4m3, 0x08, 0x1p-6F},
    {DType::kFp8E4m3, 0x38, 1.0F},
    {DType::kFp8E4m3, 0xb9, -1.125F},
    {DType::kFp8E4m3, 0x7e, 448.0F},
    {DType::kFp8E4m3, 0xfe, -448.0F},
    {DType::kFp8E5m2, 0x00, 0.0F},
    {DType::kFp8E5m2, 0x01, 0x1p-16F},
    {DType::kFp8E5m2, 0x03, 0x1.8p-15F},
    {DType::kFp8E5m2, 0x04, 0x1p-14F},
    {DType::kFp8E5m2, 0x3c, 1.0F},
    {DType::kFp8E5m2, 0xbd, -1.25F},
    {DType::kFp8E5m2, 0x7b, 57344.0F},
    {DType::kFp8E5m2, 0xfb, -57344.0F},
};

TEST(Fp8, KnownValues) {
  for (const Known& known : kKnown) {
    EXPECT_EQ(fp8_to_f32(known.bits, known.dtype), known.value) << int{known.bits};
    EXPECT_EQ(f32_to_fp8(known.value, known.dtype), known.bits) << known.value;
  }
  EXPECT_TRUE(std::signbit(fp8_to_f32(0x80, DType::kFp8E4m3)));
  EXPECT_EQ(f32_to_fp8(-0.0F, DType::kFp8E5m2), 0x80);
  EXPECT_TRUE(std::isinf(fp8_to_f32(0x7c, DType::kFp8E5m2)));
  EXPECT_TRUE(std::isnan(fp8_to_f32(0x7d, DType::kFp8E5m2)));
  EXPECT_TRUE(std::isnan(fp8_to_f32(0xff, DType::kFp8E4m3)));
}

bool is_finite(std::uint8_t bits, DType dtype) {
  return (bits & 0x7fU) <= (dtype == DType::kFp8E5m2 ? 0x7bU : 0x7eU);
}

TEST(Fp8, EveryFiniteValueComesBack) {
  for (const DType dtype : kBoth) {
    for (unsigned bits = 0; bits < 256; ++bits) {
      const auto byte = static_cast<std::uint8_t>(bits);
      if (is_finite(byte, dtype)) {
        EXPECT_EQ(f32_to_fp8(fp8_to_f32(byte, dtype), dtype), byte);
      }
    }
  }
}

// Between two neighbours: the nearer one, of the middle the even one.
TEST(Fp8, RoundsToNearestEven) {
  for (const DType dtype : kBoth) {
    for (unsigned bits = 0; is_finite(static_cast<std::uint8_t>(bits + 1), dtype); ++bits) {
      const auto below = static_cast<std::uint8_t>(bits);
      const auto above = static_cast<std::uint8_t>(bits + 1);
      const float low = fp8_to_f32(below, dtype);
      const float high = fp8_to_f32(above, dtype);
      const float middle = (low + high) / 2;  // exact
      EXPECT_EQ(f32_to_fp8(middle, dtype), bits % 2 == 0 ? below : above) << middle;
      EXPECT_EQ(f32_to_fp8(std::nextafter(middle, low), dtype), below) << middle;
      EXPECT_EQ(f32_to_fp8(std::nextafter(middle, high), dtype), above) << middle;
      EXPECT_EQ(f32_to_fp8(-middle, dtype), 0x80U | (bits % 2 == 0 ? below : above)) << middle;
    }
  }
}

TEST(Fp8, WhatIsTooLargeIsTheLargest) {
  constexpr float kInf = std::numeric_limits<float>::infinity();
  for (const float value : {465.0F, 1e6F, std::numeric_limits<float>::max(), kInf}) {
    EXPECT_EQ(f32_to_fp8(value, DType::kFp8E4m3), 0x7e) << value;
    EXPECT_EQ(f32_to_fp8(-value, DType::kFp8E4m3), 0xfe) << value;
  }
  EXPECT_EQ(f32_to_fp8(61441.0F, DType::kFp8E5m2), 0x7b);
  EXPECT_EQ(f32_to_fp8(-kInf, DType::kFp8E5m2), 0xfb);
  for (const DType dtype : kBoth) {
    EXPECT_EQ(f32_to_fp8(std::numeric_limits<float>::quiet_NaN(), dtype) & 0x7fU, 0x7fU);
    EXPECT_EQ(f32_to_fp8(std::numeric_limits<float>::denorm_min(), dtype), 0);
  }
}

/// Values of every size that a float has, NaN and infinities among them.
std::vector<float> all_sizes() {
  std::vector<float> values;
  Rng rng(7);
  for (std::uint32_t exponent = 0; exponent < 256; ++exponent) {
    for (int i = 0; i < 64; ++i) {
      const auto sign = static_cast<std::uint32_t>(rng.below(2)) << 31U;
      std::uint32_t mantissa = static_cast<std::uint32_t>(rng.below(1U << 23U));
      // Every other one is near the middle between two neighbours.
      if (i % 2 == 0) mantissa = (mantissa & 0x780000U) + (i % 4 == 0 ? 0x80000U : 0x7ffffU);
      values.push_back(std::bit_cast<float>(sign | exponent << 23U | (mantissa & 0x7fffffU)));
    }
  }
  return values;
}

// Rows of any length, so that some end within a vector.
TEST(Fp8, EveryFamilyStoresTheSameBytes) {
  ThreadPool threads(1);
  const std::vector<float> values = all_sizes();
  for (const std::size_t head_dim : {64U, 24U, 7U, 33U}) {
    for (const DType dtype : kBoth) {
      World world{.heads = 1,
                  .kv = {.page_size = 8,
                         .kv_heads = 1,
                         .head_dim = head_dim,
                         .dtype = dtype,
                         .lengths = {values.size() / head_dim}}};
      Filled filled(world);
      std::copy_n(values.begin(), filled.k.size(), filled.k.begin());
      std::reverse_copy(filled.k.begin(), filled.k.end(), filled.v.begin());
      filled.write(testing::reference(), threads);
      const std::vector<std::byte> want = filled.pool.memory();
      for (const Backend* backend : testing::vector_backends()) {
        SCOPED_TRACE(std::string(family_name(backend->family())) + " " +
                     std::string(dtype_name(dtype)) + " " + std::to_string(head_dim));
        const Filled again(world);
        backend->write_kv({.k = filled.k.data(),
                           .v = filled.v.data(),
                           .batch = again.pool.batch(again.sequence, again.position),
                           .kv = again.pool.layer()},
                          threads);
        EXPECT_EQ(again.pool.memory(), want);
      }
    }
  }
}

// A key or a value is what its byte means: attention has the bits that it has over bf16 that hold
// the same values. By one token, by many, in pages that hold a tile and that do not; of every code
// that is finite.
TEST(Fp8, AttentionIsThatOverTheSameValuesInBf16) {
  ThreadPool threads(2);
  for (const DType dtype : kBoth) {
    for (const std::size_t page_size : {4U, 16U, 64U}) {
      for (const std::size_t head_dim : {32U, 64U, 128U, 192U, 40U, 96U, 112U}) {
        World world{.heads = 4,
                    .kv = {.page_size = page_size,
                           .kv_heads = 2,
                           .head_dim = head_dim,
                           .dtype = dtype,
                           .lengths = {300, 70}}};
        Filled bytes(world);
        world.kv.dtype = DType::kBf16;
        Filled halves(world);
        Rng rng(5);
        for (std::vector<float>* rows : {&bytes.k, &bytes.v}) {
          for (float& value : *rows) {
            auto bits = static_cast<std::uint8_t>(rng.below(256));
            // With many of the largest ones one position would win all.
            if (rng.below(8) != 0) bits &= 0xbfU;
            value = fp8_to_f32(is_finite(bits, dtype) ? bits : 0x38, dtype);
          }
        }
        halves.k = bytes.k;
        halves.v = bytes.v;
        const std::vector<std::size_t> alone = {299, 369, 0, 255, 256};
        for (const Backend* backend : testing::vector_backends()) {
          SCOPED_TRACE(std::string(family_name(backend->family())) + " " +
                       std::string(dtype_name(dtype)) + " pages of " + std::to_string(page_size) +
                       ", heads of " + std::to_string(head_dim));
          bytes.write(*backend, threads);
          halves.write(*backend, threads);
          EXPECT_TRUE(same_bits(bytes.attend(*backend, bytes.all(), threads),
                                halves.attend(*backend, halves.all(), threads)));
          EXPECT_TRUE(same_bits(bytes.attend(*backend, alone, threads),
                                halves.attend(*backend, alone, threads)));
        }
      }
    }
  }
}

/// Queries so large that a factor which makes up for what widened keys lack would be too much.
TEST(Fp8, LargeQueriesAreThatOfTheSameValuesInBf16) {
  ThreadPool threads(1);
  for (const DType dtype : kBoth) {
    World world{
        .heads = 2,
        .kv = {.page_size = 16, .kv_heads = 1, .head_dim = 64, .dtype = dtype, .lengths = {40}}};
    Filled bytes(world);
    world.kv.dtype = DType::kBf16;
    Filled halves(world);
    std::fill(bytes.k.begin(), bytes.k.end(), 0.5F);
    for (float& value : bytes.v)
      value = fp8_to_f32(f32_to_fp8(value, dtype), dtype);
    for (const float large : {0x1p122F, -0x1p122F, 0x1.fffffep119F, 0x1p120F}) {
      bytes.q[39 * bytes.row() + 5] = large;
      halves.k = bytes.k;
      halves.v = bytes.v;
      halves.q = bytes.q;
      for (const Backend* backend : testing::vector_backends()) {
        SCOPED_TRACE(std::string(family_name(backend->family())) + " " +
                     std::string(dtype_name(dtype)) + " " + std::to_string(large));
        bytes.write(*backend, threads);
        halves.write(*backend, threads);
        const std::vector<float> out = bytes.attend(*backend, {39}, threads);
        EXPECT_TRUE(std::ranges::all_of(out, [](float value) { return std::isfinite(value); }));
        EXPECT_TRUE(same_bits(out, halves.attend(*backend, {39}, threads)));
      }
    }
  }
}

// A token that sees NaN does not keep those that its thread comes to then (in which order is open)
// from what is theirs.
TEST(Fp8, NanIsOfItsTokenAlone) {
  const std::vector<std::size_t> last = {299, 369, 439, 509, 809, 879};
  const auto is_nan = [](float x) { return std::isnan(x); };
  for (const DType dtype : kBoth) {
    for (const std::size_t heads : {1U, 2U, 4U}) {
      for (std::size_t bad = 0; bad < last.size(); ++bad) {
        for (const bool in_key : {true, false}) {
          const World world{.heads = heads,
                            .kv = {.page_size = 32,
                                   .kv_heads = 1,
                                   .head_dim = 64,
                                   .dtype = dtype,
                                   .lengths = {300, 70, 70, 70, 300, 70}}};
          Filled filled(world);
          std::vector<float>& rows = in_key ? filled.k : filled.v;
          rows[(last[bad] - 40) * 64 + 5] = std::numeric_limits<float>::quiet_NaN();
          for (const Backend* backend : testing::vector_backends()) {
            SCOPED_TRACE(std::string(family_name(backend->family())) + " " +
                         std::string(dtype_name(dtype)) + ", " + std::to_string(heads) +
                         " heads, NaN in " + std::to_string(bad));
            ThreadPool threads(1);
            filled.write(*backend, threads);
            const std::vector<float> out = filled.attend(*backend, last, threads);
            for (std::size_t i = 0; i < last.size(); ++i) {
              const std::vector<float> own = testing::pick(out, {i}, filled.row());
              EXPECT_EQ(std::ranges::any_of(own, is_nan), i == bad) << i;
              EXPECT_TRUE(i == bad || same_bits(own, filled.attend(*backend, {last[i]}, threads)))
                  << i;
            }
          }
        }
      }
    }
  }
}

/// Memory that ends where nothing may be read.
class Fenced {
 public:
  explicit Fenced(const std::vector<std::byte>& bytes) {
    const auto page = static_cast<std::size_t>(::sysconf(_SC_PAGESIZE));
    whole_ = (bytes.size() + page - 1) / page * page;
    size_ = whole_ + page;
    all_ = static_cast<std::byte*>(
        ::mmap(nullptr, size_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
    EXPECT_NE(all_, MAP_FAILED);
    EXPECT_EQ(::mprotect(all_ + whole_, page, PROT_NONE), 0);
    begin_ = all_ + whole_ - bytes.size();
    std::copy(bytes.begin(), bytes.end(), begin_);
  }

  ~Fenced() { ::munmap(all_, size_); }

  Fenced(const Fenced&) = delete;
  Fenced& operator=(const Fenced&) = delete;

  [[nodiscard]] std::byte* begin() const { return begin_; }

 private:
  std::size_t whole_ = 0;
  std::size_t size_ = 0;
  std::byte* all_ = nullptr;
  std::byte* begin_ = nullptr;
};

TEST(Fp8, NothingBehindTheLastRowIsRead) {
  ThreadPool threads(1);
  for (const std::size_t head_dim : {16U, 32U, 64U, 96U, 128U, 40U}) {
    const World world{.heads = 4,
                      .kv = {.page_size = 16,
                             .kv_heads = 2,
                             .head_dim = head_dim,
                             .dtype = DType::kFp8E4m3,
                             .lengths = {64, 32}}};
    const Filled filled(world);
    filled.write(testing::reference(), threads);
    KvLayer layer = filled.pool.layer();
    std::vector<std::byte> bytes = filled.pool.memory();
    bytes.resize(bytes.size() / layer.page_stride_bytes * layer.page_stride_bytes);
    const Fenced memory(bytes);
    layer.base = memory.begin();
    for (const Backend* backend : testing::vector_backends()) {
      SCOPED_TRACE(std::string(family_name(backend->family())) + " " + std::to_string(head_dim));
      for (const std::vector<std::size_t>& index :
           {filled.all(), std::vector<std::size_t>{63, 95}}) {
        EXPECT_TRUE(same_bits(filled.attend(*backend, index, threads, layer),
                              filled.attend(*backend, index, threads)));
      }
    }
  }
}

}  // namespace
}  // namespace tandem::kernels
