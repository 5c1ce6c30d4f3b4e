#include "kernels/test_util.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <map>

namespace tandem::kernels {
namespace {

using testing::kInf;
using testing::kNan;
using testing::pick;
using testing::Pool;
using testing::Rng;
using testing::same_bits;

/// Families that round q and the weights, for bf16 keys and values.
bool rounds(const Backend& backend, DType dtype) {
  const bool family = backend.family() == Family::kAvx512Bf16 || backend.family() == Family::kAmx;
  return family && dtype == DType::kBf16;
}

struct World {
  std::size_t heads = 4;
  Pool::Options kv;
  std::int32_t window = 0;
  float magnitude = 2.0F;
  float scale = 1.0F;  ///< of the usual one
};

// K, V and queries of every position of every sequence; the same values whatever the pool looks
// like.
struct Filled {
  explicit Filled(const World& w) : world(w), pool(w.kv) {
    const std::size_t kv_row = w.kv.kv_heads * w.kv.head_dim;
    for (std::size_t s = 0; s < w.kv.lengths.size(); ++s) {
      for (std::size_t p = 0; p < w.kv.lengths[s]; ++p) {
        sequence.push_back(static_cast<std::int32_t>(s));
        position.push_back(static_cast<std::int32_t>(p));
      }
    }
    Rng rng(99);
    k = rng.reals(sequence.size() * kv_row, w.magnitude);
    v = rng.reals(sequence.size() * kv_row, w.magnitude);
    q = rng.reals(sequence.size() * row(), w.magnitude);
  }

  void write(const Backend& backend, ThreadPool& threads) const {
    backend.write_kv(
        {.k = k.data(), .v = v.data(), .batch = pool.batch(sequence, position), .kv = pool.layer()},
        threads);
  }

  [[nodiscard]] std::size_t row() const { return world.heads * world.kv.head_dim; }

  // Attention of the tokens at `index` (into all tokens) as one batch, returned in the same order.
  [[nodiscard]] std::vector<float> attend(const Backend& backend,
                                          const std::vector<std::size_t>& index,
                                          ThreadPool& threads) const {
    std::vector<std::int32_t> some_sequence;
    std::vector<std::int32_t> some_position;
    std::vector<float> some_q;
    for (const std::size_t i : index) {
      some_sequence.push_back(sequence[i]);
      some_position.push_back(position[i]);
      some_q.insert(some_q.end(),
                    q.begin() + static_cast<std::ptrdiff_t>(i * row()),
                    q.begin() + static_cast<std::ptrdiff_t>((i + 1) * row()));
    }
    std::vector<float> out(index.size() * row(), -7.0F);
    backend.attention({.q = some_q.data(),
                       .out = out.data(),
                       .batch = pool.batch(some_sequence, some_position),
                       .kv = pool.layer(),
                       .heads = world.heads,
                       .scale = world.scale / std::sqrt(static_cast<float>(world.kv.head_dim)),
                       .window = world.window},
                      threads);
    return out;
  }

  [[nodiscard]] std::vector<std::size_t> all() const {
    std::vector<std::size_t> index(sequence.size());
    for (std::size_t i = 0; i < index.size(); ++i)
      index[i] = i;
    return index;
  }

  World world;
  Pool pool;
  std::vector<std::int32_t> sequence;
  std::vector<std::int32_t> position;
  std::vector<float> k;
  std::vector<float> v;
  std::vector<float> q;
};

struct Row {
  const char* name;
  World world;
};

// Lengths around the block of 256 positions; head sizes around the vector; groups of 1 to 40 heads.
const std::vector<Row>& rows() {
  static const std::vector<Row> kTable = {
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
      {"window over kv heads",
       {.heads = 12,
        .kv = {.page_size = 32,
               .kv_heads = 3,
               .head_dim = 64,
               .dtype = DType::kBf16,
               .lengths = {400}},
        .window = 101}},
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
      SCOPED_TRACE(std::string(row.name) + " " + std::string(family_name(backend->family())));
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
      SCOPED_TRACE(std::string(row.name) + " " + std::string(family_name(backend->family())));
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
      SCOPED_TRACE(std::string(row.name) + " " + std::string(family_name(backend->family())));
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
        SCOPED_TRACE(std::string(row.name) + " " + std::string(family_name(backend->family())) +
                     " page size " + std::to_string(page_size));
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
      SCOPED_TRACE(std::string(row.name) + " " + std::string(family_name(backend->family())));
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

// fn(backend, dtype, page size) for float and bf16 keys, in pages that hold a tile of keys or not.
template <class Fn>
void for_each_kind(const std::vector<const Backend*>& backends, Fn fn) {
  for (const Backend* backend : backends) {
    for (const DType dtype : {DType::kF32, DType::kBf16}) {
      for (const std::size_t page_size : {std::size_t{4}, std::size_t{32}}) {
        SCOPED_TRACE(std::string(family_name(backend->family())) + " " +
                     std::string(dtype_name(dtype)) + " pages of " + std::to_string(page_size));
        fn(backend, dtype, page_size);
      }
    }
  }
}

// What a later position or another sequence holds (here: NaN, never written) must not reach a row.
TEST(Attention, NeverReadsWhatARowDoesNotSee) {
  ThreadPool threads(1);
  std::vector<const Backend*> backends = testing::vector_backends();
  backends.push_back(&testing::reference());
  for_each_kind(backends, [&](const Backend* backend, DType dtype, std::size_t page_size) {
    const World world{.heads = 4,
                      .kv = {.page_size = page_size,
                             .kv_heads = 2,
                             .head_dim = 32,
                             .dtype = dtype,
                             .lengths = {64}}};
    const Filled full(world);
    full.write(*backend, threads);
    std::vector<std::size_t> index;
    for (std::size_t p = 0; p < 21; ++p)
      index.push_back(p);
    const std::vector<float> want = full.attend(*backend, index, threads);
    const Filled partial(world);
    const std::vector<std::int32_t> sequence(21, 0);
    const std::vector<std::int32_t> position(full.position.begin(), full.position.begin() + 21);
    backend->write_kv({.k = full.k.data(),
                       .v = full.v.data(),
                       .batch = partial.pool.batch(sequence, position),
                       .kv = partial.pool.layer()},
                      threads);
    EXPECT_TRUE(same_bits(partial.attend(*backend, index, threads), want));
    EXPECT_TRUE(
        same_bits(partial.attend(*backend, {20}, threads), pick(want, {20}, partial.row())));
  });
}

TEST(Attention, PagesBehindTheWindowMayBeGone) {
  ThreadPool threads(1);
  std::vector<const Backend*> backends = testing::vector_backends();
  backends.push_back(&testing::reference());
  for_each_kind(backends, [&](const Backend* backend, DType dtype, std::size_t page_size) {
    const World world{.heads = 2,
                      .kv = {.page_size = page_size,
                             .kv_heads = 1,
                             .head_dim = 32,
                             .dtype = dtype,
                             .lengths = {600}},
                      .window = 20};
    Filled filled(world);
    filled.write(*backend, threads);
    const std::vector<std::size_t> index = {590, 591, 592, 599};
    const std::vector<float> want = filled.attend(*backend, index, threads);
    for (std::size_t page = 0; page < 571 / page_size; ++page)
      filled.pool.drop_page(0, page);
    EXPECT_TRUE(same_bits(filled.attend(*backend, index, threads), want));
  });
}

TEST(Attention, NanAndInfStayInTheRowsThatSeeThem) {
  ThreadPool threads(1);
  for_each_kind(
      testing::vector_backends(), [&](const Backend* backend, DType dtype, std::size_t page_size) {
        const World world{.heads = 4,
                          .kv = {.page_size = page_size,
                                 .kv_heads = 2,
                                 .head_dim = 32,
                                 .dtype = dtype,
                                 .lengths = {40}}};
        Filled filled(world);
        filled.write(*backend, threads);
        const std::vector<float> clean = filled.attend(*backend, filled.all(), threads);
        for (const float bad : {kNan, kInf}) {
          SCOPED_TRACE(bad);
          filled.k[(17 * 2 + 0) * 32 + 5] = 0;
          filled.v[(17 * 2 + 1) * 32 + 5] = bad;  // position 17, kv head 1, dimension 5
          filled.write(*backend, threads);
          const std::vector<float> out = filled.attend(*backend, filled.all(), threads);
          EXPECT_EQ(std::memcmp(out.data(), clean.data(), 17 * filled.row() * sizeof(float)), 0);
          for (std::size_t i = 0; i < out.size(); ++i) {
            const std::size_t position = i / filled.row();
            const std::size_t head = i / 32 % 4;
            EXPECT_EQ(std::isfinite(out[i]), !(position >= 17 && head >= 2 && i % 32 == 5)) << i;
          }
          for (const std::size_t position : {16U, 17U, 39U}) {
            EXPECT_TRUE(same_bits(filled.attend(*backend, {position}, threads),
                                  pick(out, {position}, filled.row())))
                << position;
          }
          filled.k[(17 * 2 + 0) * 32 + 5] = kNan;  // a NaN score makes all of the row NaN
          filled.write(*backend, threads);
          const std::vector<float> scores = filled.attend(*backend, filled.all(), threads);
          for (std::size_t i = 0; i < scores.size(); ++i) {
            const std::size_t position = i / filled.row();
            if (i / 32 % 4 < 2) {
              EXPECT_EQ(std::isnan(scores[i]), position >= 17) << i;
            }
          }
        }
      });
}

// Equal weights of values whose sum is negative and too small for a normal number: what a unit
// flushes it to must not depend on how many positions the others of a tile see.
TEST(Attention, TinySumsAreTheSameBitsInEveryBatch) {
  ThreadPool threads(1);
  const World world{
      .heads = 2,
      .kv = {
          .page_size = 16, .kv_heads = 1, .head_dim = 32, .dtype = DType::kBf16, .lengths = {100}}};
  for (const Backend* backend : testing::vector_backends()) {
    SCOPED_TRACE(family_name(backend->family()));
    Filled filled(world);
    std::fill(filled.q.begin(), filled.q.end(), 0.0F);
    std::fill(filled.v.begin(), filled.v.end(), 0.0F);
    filled.v[5] = 0x1.8p-126F;
    filled.v[32 * 32 + 5] = -0x1.82p-126F;
    filled.write(*backend, threads);
    std::vector<std::size_t> chunk;
    for (std::size_t position = 50; position < 82; ++position)
      chunk.push_back(position);
    const std::vector<float> whole = filled.attend(*backend, chunk, threads);
    for (std::size_t i = 0; i < chunk.size(); ++i) {
      EXPECT_TRUE(
          same_bits(filled.attend(*backend, {chunk[i]}, threads), pick(whole, {i}, filled.row())))
          << chunk[i];
    }
  }
}

// Scores so large that floats of their size are hundreds apart: the largest one takes all, and what
// rounding leaves of it must not become a power that no weight has.
TEST(Attention, HugeScoresAreOnlyPeaked) {
  ThreadPool threads(1);
  std::vector<const Backend*> backends = testing::vector_backends();
  backends.push_back(&testing::reference());
  for_each_kind(backends, [&](const Backend* backend, DType dtype, std::size_t page_size) {
    const World world{.heads = 2,
                      .kv = {.page_size = page_size,
                             .kv_heads = 1,
                             .head_dim = 32,
                             .dtype = dtype,
                             .lengths = {300}}};
    Filled filled(world);
    // Several sizes, since the last bits of a score decide how it is rounded.
    for (const float size : {0x1.2p11F, 0x1.5p14F, 0x1.6p15F, 0x1.9p16F, 0x1.bp20F, 0x1.3p28F}) {
      SCOPED_TRACE(size);
      for (std::size_t i = 0; i < filled.q.size(); ++i)
        filled.q[i] = size * (1.0F + static_cast<float>(i % 7) / 8.0F);
      for (std::size_t i = 0; i < filled.k.size(); ++i) {
        const std::size_t position = i / 32;
        filled.k[i] = position == 20 || position == 270 ? size * static_cast<float>(position)
                                                        : static_cast<float>(i % 5);
      }
      filled.write(*backend, threads);
      const std::vector<std::size_t> index = {25, 255, 256, 269, 270, 299};
      const std::vector<float> out = filled.attend(*backend, index, threads);
      for (std::size_t i = 0; i < out.size(); ++i) {
        const std::size_t position = index[i / filled.row()];
        const std::size_t largest = position < 270 ? 20 : 270;
        ASSERT_NEAR(out[i], filled.v[largest * 32 + i % 32], 0.02F) << position << " " << i;
      }
    }
  });
}

TEST(Attention, StridesLeaveTheGapsAlone) {
  ThreadPool threads(2);
  const World world{.heads = 4,
                    .kv = {.page_size = 4, .kv_heads = 2, .head_dim = 32, .lengths = {11}}};
  for (const Backend* backend : testing::vector_backends()) {
    SCOPED_TRACE(family_name(backend->family()));
    const Filled filled(world);
    // A fused [q | k | v] row, as a model keeps it.
    const std::size_t row = filled.row();
    const std::size_t kv_row = 64;
    const std::size_t stride = row + 2 * kv_row + 3;
    std::vector<float> fused(11 * stride);
    for (std::size_t t = 0; t < 11; ++t) {
      std::memcpy(&fused[t * stride], &filled.q[t * row], row * sizeof(float));
      std::memcpy(&fused[t * stride + row], &filled.k[t * kv_row], kv_row * sizeof(float));
      std::memcpy(&fused[t * stride + row + kv_row], &filled.v[t * kv_row], kv_row * sizeof(float));
    }
    const RaggedTokens batch = filled.pool.batch(filled.sequence, filled.position);
    filled.write(*backend, threads);
    const std::vector<std::byte> dense_memory = filled.pool.memory();
    const std::vector<float> want = filled.attend(*backend, filled.all(), threads);
    backend->write_kv({.k = fused.data() + row,
                       .v = fused.data() + row + kv_row,
                       .k_stride = stride,
                       .v_stride = stride,
                       .batch = batch,
                       .kv = filled.pool.layer()},
                      threads);
    EXPECT_EQ(filled.pool.memory(), dense_memory);
    std::vector<float> out(11 * (row + 5), 42.0F);
    backend->attention({.q = fused.data(),
                        .q_stride = stride,
                        .out = out.data(),
                        .out_stride = row + 5,
                        .batch = batch,
                        .kv = filled.pool.layer(),
                        .heads = 4,
                        .scale = 1.0F / std::sqrt(32.0F)},
                       threads);
    for (std::size_t t = 0; t < 11; ++t) {
      EXPECT_EQ(std::memcmp(&out[t * (row + 5)], &want[t * row], row * sizeof(float)), 0);
      for (std::size_t i = row; i < row + 5; ++i)
        EXPECT_EQ(out[t * (row + 5) + i], 42.0F);
    }
  }
}

}  // namespace
}  // namespace tandem::kernels
