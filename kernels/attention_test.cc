#include "kernels/attention_world.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <map>
#include <string>

namespace tandem::kernels {
namespace {

using testing::Filled;
using testing::pick;
using testing::Rng;
using testing::same_bits;
using testing::World;

/// Families that round q and the weights, for keys and values that are bf16 or become it.
bool rounds(const Backend& backend, DType dtype) {
  const bool family = backend.family() == Family::kAvx512Bf16 || backend.family() == Family::kAmx;
  return family && (dtype == DType::kBf16 || is_fp8(dtype));
}

struct Row {
  std::string name;
  World world;
};

// Lengths around the block of 256 positions; head sizes around the vector; groups of 1 to 40 heads.
std::vector<Row> rows_in_whole() {
  return {
      {"one token",
       {.heads = 2, .kv = {.page_size = 1, .kv_heads = 2, .head_dim = 16, .lengths = {1}}}},
      {"mha",
       {.heads = 2, .kv = {.page_size = 4, .kv_heads = 2, .head_dim = 32, .lengths = {5, 1, 17}}}},
      {"gqa 2",
       {.heads = 4, .kv = {.page_size = 16, .kv_heads = 2, .head_dim = 64, .lengths = {40, 3}}}},
      {"gqa 7 bf16",
       {.heads = 7,
        .kv = {.page_size = 3,
               .kv_heads = 1,
               .head_dim = 64,
               .dtype = DType::kBf16,
               .lengths = {33}}}},
      {"mqa 40 f16",
       {.heads = 40,
        .kv = {.page_size = 8,
               .kv_heads = 1,
               .head_dim = 16,
               .dtype = DType::kF16,
               .lengths = {19}}}},
      {"odd head 1",
       {.heads = 3, .kv = {.page_size = 2, .kv_heads = 3, .head_dim = 1, .lengths = {9}}}},
      {"odd head 15",
       {.heads = 2,
        .kv = {.page_size = 5,
               .kv_heads = 1,
               .head_dim = 15,
               .dtype = DType::kBf16,
               .lengths = {21}}}},
      {"odd head 80",
       {.heads = 2,
        .kv = {.page_size = 5,
               .kv_heads = 2,
               .head_dim = 80,
               .dtype = DType::kBf16,
               .lengths = {21}}}},
      {"odd head 97",
       {.heads = 2, .kv = {.page_size = 7, .kv_heads = 1, .head_dim = 97, .lengths = {21}}}},
      {"one block",
       {.heads = 2, .kv = {.page_size = 16, .kv_heads = 1, .head_dim = 16, .lengths = {256}}}},
      {"two blocks",
       {.heads = 2,
        .kv = {.page_size = 64,
               .kv_heads = 1,
               .head_dim = 16,
               .dtype = DType::kBf16,
               .lengths = {257, 2}}}},
      {"three blocks",
       {.heads = 4, .kv = {.page_size = 32, .kv_heads = 2, .head_dim = 32, .lengths = {530, 100}}}},
      {"window 1",
       {.heads = 2,
        .kv = {.page_size = 4, .kv_heads = 1, .head_dim = 16, .lengths = {40}},
        .window = 1}},
      {"window 10",
       {.heads = 2,
        .kv = {.page_size = 4, .kv_heads = 1, .head_dim = 16, .lengths = {40, 3}},
        .window = 10}},
      {"window 200",
       {.heads = 4,
        .kv = {.page_size = 16, .kv_heads = 2, .head_dim = 16, .lengths = {520}},
        .window = 200}},
      {"largest head",
       {.heads = 2,
        .kv = {.page_size = 16, .kv_heads = 1, .head_dim = kMaxHeadDim, .lengths = {20}}}},
      {"largest head bf16",
       {.heads = 2,
        .kv = {.page_size = 16,
               .kv_heads = 1,
               .head_dim = kMaxHeadDim,
               .dtype = DType::kBf16,
               .lengths = {290}}}},
      {"mqa 70 bf16",
       {.heads = 70,
        .kv = {.page_size = 32,
               .kv_heads = 1,
               .head_dim = 32,
               .dtype = DType::kBf16,
               .lengths = {45}}}},
      {"head 128 bf16",
       {.heads = 4,
        .kv = {.page_size = 16,
               .kv_heads = 2,
               .head_dim = 128,
               .dtype = DType::kBf16,
               .lengths = {300, 40}}}},
      {"window over blocks bf16",
       {.heads = 6,
        .kv = {.page_size = 16,
               .kv_heads = 2,
               .head_dim = 32,
               .dtype = DType::kBf16,
               .lengths = {600}},
        .window = 270}},
      {"mha 64 bf16",
       {.heads = 3,
        .kv = {.page_size = 16,
               .kv_heads = 3,
               .head_dim = 64,
               .dtype = DType::kBf16,
               .lengths = {70, 271}}}},
      {"gqa 3 with a window bf16",
       {.heads = 6,
        .kv = {.page_size = 16,
               .kv_heads = 2,
               .head_dim = 192,
               .dtype = DType::kBf16,
               .lengths = {310}},
        .window = 55}},
      {"gqa 4 with a window bf16",
       {.heads = 8,
        .kv = {.page_size = 32,
               .kv_heads = 2,
               .head_dim = 128,
               .dtype = DType::kBf16,
               .lengths = {300, 33}},
        .window = 90}},
      // One head more than keys of 8 bit are widened in registers for (of avx2: gqa 3).
      {"gqa 5 bf16",
       {.heads = 5,
        .kv = {.page_size = 16,
               .kv_heads = 1,
               .head_dim = 64,
               .dtype = DType::kBf16,
               .lengths = {130}}}},
      {"a whole tile bf16",
       {.heads = 32,
        .kv = {.page_size = 16,
               .kv_heads = 8,
               .head_dim = 64,
               .dtype = DType::kBf16,
               .lengths = {290, 31}}}},
      {"many kv heads bf16",
       {.heads = 16,
        .kv = {.page_size = 1,
               .kv_heads = 8,
               .head_dim = 32,
               .dtype = DType::kBf16,
               .lengths = {290, 31}}}},
      {"more rows than a tile",
       {.heads = 36,
        .kv = {.page_size = 16,
               .kv_heads = 12,
               .head_dim = 48,
               .dtype = DType::kBf16,
               .lengths = {263}}}},
      {"five kv heads",
       {.heads = 25, .kv = {.page_size = 6, .kv_heads = 5, .head_dim = 16, .lengths = {70, 5}}}},
      {"pages of some strides bf16",
       {.heads = 4,
        .kv = {.page_size = 48,
               .kv_heads = 2,
               .head_dim = 128,
               .dtype = DType::kBf16,
               .lengths = {330, 47}}}},
      {"strides over pages",
       {.heads = 4,
        .kv = {.page_size = 24, .kv_heads = 2, .head_dim = 64, .lengths = {270, 25}},
        .window = 100}},
      {"window over kv heads",
       {.heads = 12,
        .kv = {.page_size = 32,
               .kv_heads = 3,
               .head_dim = 64,
               .dtype = DType::kBf16,
               .lengths = {400}},
        .window = 101}},
      {"window over blocks f16",
       {.heads = 6,
        .kv = {.page_size = 16,
               .kv_heads = 2,
               .head_dim = 96,
               .dtype = DType::kF16,
               .lengths = {600}},
        .window = 270}},
      {"window over blocks",
       {.heads = 6,
        .kv = {.page_size = 16, .kv_heads = 2, .head_dim = 96, .lengths = {600}},
        .window = 270}},
      {"negative scale bf16",
       {.heads = 2,
        .kv = {.page_size = 16,
               .kv_heads = 1,
               .head_dim = 64,
               .dtype = DType::kBf16,
               .lengths = {300}},
        .scale = -1.0F}},
      {"zero scale bf16",
       {.heads = 2,
        .kv = {.page_size = 16,
               .kv_heads = 1,
               .head_dim = 64,
               .dtype = DType::kBf16,
               .lengths = {40}},
        .scale = 0.0F}},
      {"peaked scores",
       {.heads = 2,
        .kv = {.page_size = 16, .kv_heads = 1, .head_dim = 64, .lengths = {300}},
        .magnitude = 12.0F}},
  };
}

/// Those, and the ones of bf16 again with keys and values of 8 bit.
const std::vector<Row>& rows() {
  static const std::vector<Row> kTable = [] {
    std::vector<Row> table = rows_in_whole();
    for (const Row& row : rows_in_whole()) {
      if (row.world.kv.dtype != DType::kBf16) continue;
      for (const DType dtype : {DType::kFp8E5m2, DType::kFp8E4m3}) {
        table.push_back(row);
        table.back().world.kv.dtype = dtype;
        table.back().name += " as " + std::string(dtype_name(dtype));
      }
    }
    return table;
  }();
  return kTable;
}

TEST(Attention, MatchesTheReference) {
  ThreadPool threads(2);
  for (const Row& row : rows()) {
    const Filled filled(row.world);
    filled.write(testing::reference(), threads);
    const std::vector<float> want = filled.attend(testing::reference(), filled.all(), threads);
    // A score of magnitude S = m^2 sqrt(d) carries about S sqrt(d) 2^-24 of error, which exp makes
    // relative.
    const double m = static_cast<double>(row.world.magnitude);
    const double d = static_cast<double>(row.world.kv.head_dim);
    const double exact = m * (4.0 * m * m * d * 0x1p-24 + 64 * 0x1p-24);
    // On tiles and by pairs, q and the weights carry a rounding to bf16 each: the score an error of
    // S 2^-9 / 2, which grows with the root of d since signs differ, and the weight one of 2^-9.
    const double rounded = m * (m * m * 2 * 0x1p-9 + 2 * 0x1p-9);
    for (const Backend* backend : testing::vector_backends()) {
      SCOPED_TRACE(row.name + " " + std::string(family_name(backend->family())));
      const double limit = rounds(*backend, row.world.kv.dtype) ? exact + rounded : exact;
      const std::vector<float> got = filled.attend(*backend, filled.all(), threads);
      for (std::size_t i = 0; i < want.size(); ++i) {
        ASSERT_NEAR(static_cast<double>(got[i]), static_cast<double>(want[i]), limit) << i;
      }
    }
  }
}

TEST(Attention, FamiliesOfOneNumericsAgreeBitForBit) {
  ThreadPool threads(2);
  const Backend& generic = *select(Family::kGeneric, nullptr);
  for (const Row& row : rows()) {
    const Filled filled(row.world);
    filled.write(generic, threads);
    const std::vector<std::byte> memory = filled.pool.memory();
    const std::vector<float> want = filled.attend(generic, filled.all(), threads);
    std::map<Family, std::vector<float>> rounded;
    for (const Backend* backend : testing::vector_backends()) {
      SCOPED_TRACE(row.name + " " + std::string(family_name(backend->family())));
      filled.write(*backend, threads);
      EXPECT_EQ(filled.pool.memory(), memory);
      const std::vector<float> got = filled.attend(*backend, filled.all(), threads);
      if (!rounds(*backend, row.world.kv.dtype)) {
        EXPECT_TRUE(same_bits(got, want));
      } else if (!rounded.contains(backend->family())) {
        rounded[backend->family()] = got;
      } else {
        EXPECT_TRUE(same_bits(got, rounded[backend->family()])) << "the unit and its emulation";
      }
    }
  }
}

// Any chunking, any mixture with other sequences, any number of threads.
TEST(Attention, RowsAreTheSameBitsInEveryBatch) {
  constexpr std::uint64_t kSeed = 20240607;
  std::printf("seed %llu\n", static_cast<unsigned long long>(kSeed));
  ThreadPool one(1);
  ThreadPool two(2);
  ThreadPool three(3);
  for (const Row& row : rows()) {
    const Filled filled(row.world);
    for (const Backend* backend : testing::vector_backends()) {
      // Slow, and equal to the others by the test above.
      if (testing::in_plain_code(*backend)) continue;
      SCOPED_TRACE(row.name + " " + std::string(family_name(backend->family())));
      filled.write(*backend, one);
      const std::vector<float> whole = filled.attend(*backend, filled.all(), one);
      EXPECT_TRUE(same_bits(filled.attend(*backend, filled.all(), two), whole));
      EXPECT_TRUE(same_bits(filled.attend(*backend, filled.all(), three), whole));
      Rng rng(kSeed);
      const std::size_t total = filled.sequence.size();
      for (int round = 0; round < 12; ++round) {
        std::vector<std::size_t> index;
        const std::size_t count = 1 + rng.below(12);
        std::size_t at = rng.below(total);
        for (std::size_t i = 0; i < count; ++i) {
          index.push_back(at);
          // Mostly the next token (a chunk), sometimes a jump (another request).
          at = rng.below(4) == 0 ? rng.below(total) : (at + 1) % total;
        }
        ASSERT_TRUE(
            same_bits(filled.attend(*backend, index, two), pick(whole, index, filled.row())))
            << round;
      }
    }
  }
}

// Decode goes through the kv heads in another order than prefill does, by pages and by positions.
TEST(Attention, ATokenAloneHasTheBitsOfItsChunk) {
  ThreadPool one(1);
  ThreadPool two(2);
  ThreadPool three(3);
  for (const Row& row : rows()) {
    for (const Backend* backend : testing::vector_backends()) {
      if (testing::in_plain_code(*backend)) continue;  // slow
      for (const std::size_t page_size :
           {std::size_t{1}, row.world.kv.page_size, std::size_t{64}}) {
        SCOPED_TRACE(row.name + " " + std::string(family_name(backend->family())) + " page size " +
                     std::to_string(page_size));
        World world = row.world;
        world.kv.page_size = page_size;
        const Filled filled(world);
        filled.write(*backend, one);
        const std::vector<float> whole = filled.attend(*backend, filled.all(), one);
        std::vector<std::size_t> last;
        for (std::size_t i = 0; i < filled.sequence.size(); ++i) {
          const bool ends = i + 1 == filled.sequence.size() || filled.position[i + 1] == 0;
          if (ends) last.push_back(i);
          if (!ends && i % 37 != 0) continue;
          ASSERT_TRUE(same_bits(filled.attend(*backend, {i}, one), pick(whole, {i}, filled.row())))
              << i;
          ASSERT_TRUE(
              same_bits(filled.attend(*backend, {i}, three), pick(whole, {i}, filled.row())))
              << i;
        }
        for (ThreadPool* threads : {&one, &two, &three}) {
          ASSERT_TRUE(
              same_bits(filled.attend(*backend, last, *threads), pick(whole, last, filled.row())));
        }
      }
    }
  }
}

TEST(Attention, PageSizeDoesNotChangeBits) {
  ThreadPool threads(2);
  for (const Row& row : rows()) {
    for (const Backend* backend : testing::vector_backends()) {
      if (testing::in_plain_code(*backend)) continue;  // slow
      SCOPED_TRACE(row.name + " " + std::string(family_name(backend->family())));
      const Filled filled(row.world);
      filled.write(*backend, threads);
      const std::vector<float> want = filled.attend(*backend, filled.all(), threads);
      for (const std::size_t page_size : {1U, 7U, 64U, 1024U}) {
        World other = row.world;
        other.kv.page_size = page_size;
        other.kv.seed = page_size;
        const Filled moved(other);
        moved.write(*backend, threads);
        ASSERT_TRUE(same_bits(moved.attend(*backend, moved.all(), threads), want)) << page_size;
      }
    }
  }
}

void strides_leave_the_gaps_alone(const Backend& backend, DType dtype, std::size_t head_dim) {
  ThreadPool threads(2);
  const World world{
      .heads = 4,
      .kv = {.page_size = 4, .kv_heads = 2, .head_dim = head_dim, .dtype = dtype, .lengths = {11}}};
  const Filled filled(world);
  // A fused [q | k | v] row, as a model keeps it.
  const std::size_t row = filled.row();
  const std::size_t kv_row = 2 * head_dim;
  const std::size_t stride = row + 2 * kv_row + 3;
  std::vector<float> fused(11 * stride);
  for (std::size_t t = 0; t < 11; ++t) {
    std::memcpy(&fused[t * stride], &filled.q[t * row], row * sizeof(float));
    std::memcpy(&fused[t * stride + row], &filled.k[t * kv_row], kv_row * sizeof(float));
    std::memcpy(&fused[t * stride + row + kv_row], &filled.v[t * kv_row], kv_row * sizeof(float));
  }
  filled.write(backend, threads);
  const std::vector<std::byte> dense_memory = filled.pool.memory();
  const std::vector<float> want = filled.attend(backend, filled.all(), threads);
  backend.write_kv({.k = fused.data() + row,
                    .v = fused.data() + row + kv_row,
                    .k_stride = stride,
                    .v_stride = stride,
                    .batch = filled.pool.batch(filled.sequence, filled.position),
                    .kv = filled.pool.layer()},
                   threads);
  EXPECT_EQ(filled.pool.memory(), dense_memory);
  // All tokens at once, and each alone.
  std::vector<float> out(11 * (row + 5), 42.0F);
  const auto attend = [&](std::size_t first, std::size_t count) {
    const auto part = [&](const std::vector<std::int32_t>& all) {
      const auto begin = all.begin() + static_cast<std::ptrdiff_t>(first);
      return std::vector<std::int32_t>(begin, begin + static_cast<std::ptrdiff_t>(count));
    };
    const std::vector<std::int32_t> sequence = part(filled.sequence);
    const std::vector<std::int32_t> position = part(filled.position);
    backend.attention({.q = fused.data() + first * stride,
                       .q_stride = stride,
                       .out = out.data() + first * (row + 5),
                       .out_stride = row + 5,
                       .batch = filled.pool.batch(sequence, position),
                       .kv = filled.pool.layer(),
                       .heads = 4,
                       .scale = 1.0F / std::sqrt(static_cast<float>(head_dim))},
                      threads);
  };
  const auto check = [&] {
    for (std::size_t t = 0; t < 11; ++t) {
      EXPECT_EQ(std::memcmp(&out[t * (row + 5)], &want[t * row], row * sizeof(float)), 0) << t;
      for (std::size_t i = row; i < row + 5; ++i)
        EXPECT_EQ(out[t * (row + 5) + i], 42.0F) << t;
    }
  };
  attend(0, 11);
  check();
  std::fill(out.begin(), out.end(), 42.0F);
  for (std::size_t t = 11; t-- > 0;)
    attend(t, 1);
  check();
}

TEST(Attention, StridesLeaveTheGapsAlone) {
  for (const Backend* backend : testing::vector_backends()) {
    SCOPED_TRACE(family_name(backend->family()));
    strides_leave_the_gaps_alone(*backend, DType::kF32, 32);
    strides_leave_the_gaps_alone(*backend, DType::kBf16, 80);
    strides_leave_the_gaps_alone(*backend, DType::kFp8E4m3, 64);
  }
}

}  // namespace
}  // namespace tandem::kernels
