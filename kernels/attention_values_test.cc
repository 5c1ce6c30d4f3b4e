// What attention must not read, and values that are not finite, tiny or huge.
#include "kernels/attention_world.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <string>

namespace tandem::kernels {
namespace {

using testing::Filled;
using testing::kInf;
using testing::kNan;
using testing::pick;
using testing::same_bits;
using testing::World;

// fn(backend, dtype, page size, head_dim) for float, bf16 and fp8 keys, in pages that hold a tile
// of keys or not, of heads that are whole lines of fp8 or not.
template <class Fn>
void for_each_kind(const std::vector<const Backend*>& backends, Fn fn) {
  for (const Backend* backend : backends) {
    for (const DType dtype : {DType::kF32, DType::kBf16, DType::kFp8E5m2, DType::kFp8E4m3}) {
      for (const std::size_t page_size : {std::size_t{4}, std::size_t{32}}) {
        for (const std::size_t head_dim : {std::size_t{32}, std::size_t{64}}) {
          SCOPED_TRACE(std::string(family_name(backend->family())) + " " +
                       std::string(dtype_name(dtype)) + " pages of " + std::to_string(page_size) +
                       " heads of " + std::to_string(head_dim));
          fn(backend, dtype, page_size, head_dim);
        }
      }
    }
  }
}

// What a later position or another sequence holds (here: NaN, never written) must not reach a row.
TEST(Attention, NeverReadsWhatARowDoesNotSee) {
  ThreadPool threads(1);
  std::vector<const Backend*> backends = testing::vector_backends();
  backends.push_back(&testing::reference());
  for_each_kind(
      backends,
      [&](const Backend* backend, DType dtype, std::size_t page_size, std::size_t head_dim) {
        const World world{.heads = 4,
                          .kv = {.page_size = page_size,
                                 .kv_heads = 2,
                                 .head_dim = head_dim,
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
  for_each_kind(
      backends,
      [&](const Backend* backend, DType dtype, std::size_t page_size, std::size_t head_dim) {
        const World world{.heads = 2,
                          .kv = {.page_size = page_size,
                                 .kv_heads = 1,
                                 .head_dim = head_dim,
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
        // What was in the scratch memory is not even asked for (UndefinedBehaviorSanitizer tells).
        for (const std::size_t i : {0U, 3U}) {
          std::memset(threads.scratch(0), 0xff, ThreadPool::kScratchBytes);
          EXPECT_TRUE(same_bits(filled.attend(*backend, {index[i]}, threads),
                                pick(want, {i}, filled.row())));
        }
      });
}

void expect_bad_values_stay(const Backend* backend,
                            DType dtype,
                            std::size_t page_size,
                            std::size_t head_dim,
                            std::int32_t window) {
  ThreadPool threads(1);
  // Of position 17, in a prompt of 40.
  const auto sees = [&](std::size_t position) {
    return position >= 17 && (window == 0 || position < 17 + static_cast<std::size_t>(window));
  };
  const World world{.heads = 4,
                    .kv = {.page_size = page_size,
                           .kv_heads = 2,
                           .head_dim = head_dim,
                           .dtype = dtype,
                           .lengths = {40}},
                    .window = window};
  Filled filled(world);
  filled.write(*backend, threads);
  const std::vector<float> clean = filled.attend(*backend, filled.all(), threads);
  for (const float bad : {kNan, kInf}) {
    if (is_fp8(dtype) && bad == kInf) continue;  // stored as the largest finite value
    SCOPED_TRACE(bad);
    filled.k[(17 * 2 + 0) * head_dim + 5] = 0;
    filled.v[(17 * 2 + 1) * head_dim + 5] = bad;  // position 17, kv head 1, dimension 5
    filled.write(*backend, threads);
    const std::vector<float> out = filled.attend(*backend, filled.all(), threads);
    EXPECT_EQ(std::memcmp(out.data(), clean.data(), 17 * filled.row() * sizeof(float)), 0);
    for (std::size_t i = 17 * filled.row(); i < out.size(); ++i) {
      if (!sees(i / filled.row())) {
        EXPECT_EQ(out[i], clean[i]) << i;
      }
    }
    for (std::size_t i = 0; i < out.size(); ++i) {
      const std::size_t position = i / filled.row();
      const std::size_t head = i / head_dim % 4;
      EXPECT_EQ(std::isfinite(out[i]), !(sees(position) && head >= 2 && i % head_dim == 5)) << i;
    }
    for (const std::size_t position : {16U, 17U, 39U}) {
      EXPECT_TRUE(same_bits(filled.attend(*backend, {position}, threads),
                            pick(out, {position}, filled.row())))
          << position;
    }
    filled.v[(17 * 2 + 1) * head_dim + 5] = 0;
    filled.k[(17 * 2 + 0) * head_dim + 5] = kNan;  // a NaN score makes all of the row NaN
    filled.write(*backend, threads);
    const std::vector<float> scores = filled.attend(*backend, filled.all(), threads);
    for (std::size_t i = 0; i < scores.size(); ++i) {
      const std::size_t position = i / filled.row();
      if (i / head_dim % 4 < 2) {
        EXPECT_EQ(std::isnan(scores[i]), sees(position)) << i;
      }
    }
    for (const std::size_t position : {16U, 17U, 39U}) {
      EXPECT_TRUE(same_bits(filled.attend(*backend, {position}, threads),
                            pick(scores, {position}, filled.row())))
          << position;
    }
  }
}

TEST(Attention, NanAndInfStayInTheRowsThatSeeThem) {
  for_each_kind(
      testing::vector_backends(),
      [&](const Backend* backend, DType dtype, std::size_t page_size, std::size_t head_dim) {
        for (const std::int32_t window : {0, 9}) {
          SCOPED_TRACE(window);
          expect_bad_values_stay(backend, dtype, page_size, head_dim, window);
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
  for_each_kind(
      backends,
      [&](const Backend* backend, DType dtype, std::size_t page_size, std::size_t head_dim) {
        if (is_fp8(dtype)) return;  // no such keys
        const World world{.heads = 2,
                          .kv = {.page_size = page_size,
                                 .kv_heads = 1,
                                 .head_dim = head_dim,
                                 .dtype = dtype,
                                 .lengths = {300}}};
        Filled filled(world);
        // Several sizes, since the last bits of a score decide how it is rounded.
        for (const float size :
             {0x1.2p11F, 0x1.5p14F, 0x1.6p15F, 0x1.9p16F, 0x1.bp20F, 0x1.3p28F}) {
          SCOPED_TRACE(size);
          for (std::size_t i = 0; i < filled.q.size(); ++i)
            filled.q[i] = size * (1.0F + static_cast<float>(i % 7) / 8.0F);
          for (std::size_t i = 0; i < filled.k.size(); ++i) {
            const std::size_t position = i / head_dim;
            filled.k[i] = position == 20 || position == 270 ? size * static_cast<float>(position)
                                                            : static_cast<float>(i % 5);
          }
          filled.write(*backend, threads);
          const std::vector<std::size_t> index = {25, 255, 256, 269, 270, 299};
          const std::vector<float> out = filled.attend(*backend, index, threads);
          for (std::size_t i = 0; i < out.size(); ++i) {
            const std::size_t position = index[i / filled.row()];
            const std::size_t largest = position < 270 ? 20 : 270;
            ASSERT_NEAR(out[i], filled.v[largest * head_dim + i % head_dim], 0.02F)
                << position << " " << i;
          }
        }
      });
}

// Scores that grow along the positions, by more or less than what weights may be above those of the
// blocks before: each row's are about those of its last positions, however it is summed.
TEST(Attention, GrowingScoresAreWeightedByTheirLast) {
  ThreadPool threads(1);
  for_each_kind(
      testing::vector_backends(),
      [&](const Backend* backend, DType dtype, std::size_t page_size, std::size_t head_dim) {
        for (const float growth : {0.01F, 0.03F, 0.1F, -0.1F}) {
          SCOPED_TRACE(growth);
          const World world{.heads = 2,
                            .kv = {.page_size = page_size,
                                   .kv_heads = 1,
                                   .head_dim = head_dim,
                                   .dtype = dtype,
                                   .lengths = {900}}};
          Filled filled(world);
          std::fill(filled.q.begin(), filled.q.end(), 1.0F);
          std::fill(filled.k.begin(), filled.k.end(), 0.0F);
          // In two dimensions, such that bf16 holds them: 64 and less.
          for (std::size_t p = 0; p < 900; ++p) {
            const float scaled = std::sqrt(static_cast<float>(head_dim)) * growth;
            filled.k[p * head_dim] = static_cast<float>(p / 64) * 64 * scaled;
            filled.k[p * head_dim + 1] = static_cast<float>(p % 64) * scaled;
          }
          filled.write(*backend, threads);
          const std::vector<std::size_t> index = {3, 255, 256, 400, 511, 512, 899};
          const std::vector<float> got = filled.attend(*backend, index, threads);
          const std::vector<float> want = filled.attend(testing::reference(), index, threads);
          for (std::size_t i = 0; i < got.size(); ++i)
            ASSERT_NEAR(got[i], want[i], 0.01F) << index[i / filled.row()] << " " << i;
        }
      });
}

}  // namespace
}  // namespace tandem::kernels
