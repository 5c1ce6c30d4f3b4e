// Y = X W^T for WeightScheme::kInt4Group128 with products of bf16 pairs: half as many instructions
// to widen and to multiply as with floats.
//
// Idea: all 16 values of a weight's q are exact in bf16, and so is every product with a bf16 of x.
// Of a word with eight q, a shift and a look-up in a table of 16-bit lanes widen two: q[j] and
// q[j + 4]. So x is packed in these pairs. Order of sums of one output: per group one chain over
// the pairs, of each word (0, 4), (1, 5), (2, 6), (3, 7), as bf16.h has it; then total = fma(chain,
// scale, total), then total = fma(sum of the group's x, zero, total). That sum is of the rounded x:
// the error of rounding x is then that of a product with the weight itself, not with its q.
#pragma once

#include "kernels/cpu/simd/bf16.h"
#include "kernels/cpu/simd/quant.h"

namespace tandem::kernels::cpu {

template <class V>
struct Bf16Int4Tile {
  using Vec = typename V::Vec;
  using Int = typename V::Int;

  static constexpr bool kCuts = false;

  /// Rows as pairs of bf16: [round_up(k, 8) / 2][rows of the tile], zero behind k; and behind all
  /// of them the sums of x per group: [group][rows of the tile].
  static void pack(const LinearBlock& block) {
    const std::size_t eights = eight_count(block);
    const std::size_t groups = Int4Tile<V>::group_count(block);
    Linear<V>::for_groups(block, [&](std::size_t row, std::size_t rows) {
      std::uint32_t* to = Linear<V>::words_of(block) + row * eights * 4;
      float* sums = block.scratch + kPackedFloats + row * groups;
      alignas(64) float lanes[kPanel * 16];
      Linear<V>::pack_group(
          block, row, rows, eights * 4, to, [&](std::size_t r, std::size_t word, std::byte* line) {
            const std::size_t k = word * 2;
            const float* x = Linear<V>::x_row(block, row + r);
            Vec sum = k % kInt4Group == 0 ? V::zero() : V::load(lanes + r * 16);
            sum = pack_sixteen(Rows<V>::load_within(x, k, block.k), line, sum);
            sum = pack_sixteen(Rows<V>::load_within(x, k + 16, block.k), line + 32, sum);
            V::store(lanes + r * 16, sum);
            if (k % kInt4Group + 32 == kInt4Group || k + 32 >= block.k)
              sums[k / kInt4Group * rows + r] = V::sum(sum);
            return const_cast<const std::byte*>(line);
          });
    });
  }

  template <int R, int P>
  static inline __attribute__((always_inline)) void sums(const LinearBlock& block,
                                                         std::size_t row,
                                                         std::size_t panel,
                                                         const typename Linear<V>::Ahead& ahead,
                                                         Vec* out) {
    constexpr std::size_t kGroupLines = kInt4GroupBytes / 64;
    const std::size_t groups = Int4Tile<V>::group_count(block);
    const std::uint32_t* x = Linear<V>::words_of(block) + row * eight_count(block) * 4;
    const float* x_sums = block.scratch + kPackedFloats + row * groups;
    const std::byte* weight = block.weight + panel * block.panel_bytes;
    // In memory: they are touched once a group, and the chains need the registers.
    alignas(64) float totals[R * P * 16] = {};
    for (std::size_t g = 0; g < groups; ++g) {
      Vec acc[R][P];
      Linear<V>::template clear<R, P>(acc);
      const std::byte* group = weight + g * kInt4GroupBytes;
      const std::uint32_t* pairs = x + g * kInt4Group / 2 * R;
      const std::size_t eights = (Int4Tile<V>::count_of(block, g) + 7) / 8;
      const std::size_t own = bytes_ahead<V, P>((g + 1) * kInt4GroupBytes, block.panel_bytes);
      for (std::size_t eight = 0; eight < eights; ++eight) {
        const std::byte* line = group + kInt4HeaderBytes + eight * 64;
        Linear<V>::template ask<R, P>(
            ahead, g * kGroupLines + eight, block.panel_bytes, line + own);
        Int raw[P];
#pragma GCC unroll 8
        for (int p = 0; p < P; ++p)
          raw[p] = V::int_load(line + static_cast<std::size_t>(p) * block.panel_bytes);
        const std::uint32_t* four = pairs + eight * 4 * R;
        step<0, R, P>(four, raw, acc);
        step<1, R, P>(four + R, raw, acc);
        step<2, R, P>(four + 2 * R, raw, acc);
        step<3, R, P>(four + 3 * R, raw, acc);
      }
      Int4Tile<V>::template add_group<R, P>(group, block.panel_bytes, x_sums + g * R, acc, totals);
    }
#pragma GCC unroll 32
    for (int i = 0; i < R * P; ++i)
      out[i] = V::load(totals + i * 16);
  }

 private:
  static std::size_t eight_count(const LinearBlock& block) {
    return (block.k + 7) / 8;
  }

  /// 16 k to 8 pairs (j, j + 4); adds what they hold to `sum`.
  static Vec pack_sixteen(Vec v, std::byte* to, Vec sum) {
    V::store_bf16(to, v);
    const Vec rounded = V::load_bf16(to);
    V::store_bf16(to, V::mix_eights(rounded));
    return V::add(sum, rounded);
  }

  /// Pair J of a word.
  template <int J, int R, int P>
  static inline __attribute__((always_inline)) void step(const std::uint32_t* x,
                                                         const Int (&raw)[P],
                                                         Vec (&acc)[R][P]) {
    Int w[P];
#pragma GCC unroll 8
    for (int p = 0; p < P; ++p)
      w[p] = V::template nibble_pair<J>(raw[p]);
    Bf16Tile<V>::template step<R, P>(x, w, acc);
  }
};

}  // namespace tandem::kernels::cpu
