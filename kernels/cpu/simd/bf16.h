// Y = X W^T for bf16 weights with products of bf16 pairs: x is rounded to bf16, sums are f32.
//
// Idea: a packed panel already holds k in pairs, so one instruction takes two k of 16 outputs.
// Order of sums of one output, the same for every row count: one chain over the pairs, and in a
// pair first the odd k, then the even one, a fused multiply-add each (Intel SDM, VDPBF16PS;
// subnormal inputs count as zero, subnormal results become zero). Bound: as linear.h, at twice its
// FMA peak.
//
// V is a vector with dot2(): Avx512Bf16Vec (avx512/bf16.cc) or EmulatedBf16Vec
// (generic/bf16.cc), which runs anywhere and is the oracle of the instruction.
#pragma once

#include "kernels/cpu/simd/linear.h"

namespace tandem::kernels::cpu {

template <class V>
struct Bf16Tile {
  using Vec = typename V::Vec;
  using Int = typename V::Int;

  static constexpr bool kCuts = false;
  static constexpr std::size_t kStreamRows = 0;

  /// Rows to bf16, two k to a word: [(k + 1) / 2][rows of the tile], zero behind an odd k.
  static void pack(const LinearBlock& block) {
    const std::size_t pairs = pair_count(block);
    Linear<V>::for_groups(block, [&](std::size_t row, std::size_t rows) {
      std::uint32_t* to = Linear<V>::words_of(block) + row * pairs;
      if (block.x_halves != nullptr) {
        return Linear<V>::pack_group(
            block, row, rows, pairs, to, [&](std::size_t r, std::size_t pair, std::byte*) {
              return Rows<V>::half_row(block, row + r) + pair * 4;
            });
      }
      Linear<V>::pack_group(
          block, row, rows, pairs, to, [&](std::size_t r, std::size_t pair, std::byte* line) {
            const float* x = Linear<V>::x_row(block, row + r);
            V::store_bf16(line, Rows<V>::load_within(x, pair * 2, block.k));
            V::store_bf16(line + 32, Rows<V>::load_within(x, pair * 2 + 16, block.k));
            return const_cast<const std::byte*>(line);
          });
    });
  }

  template <int R, int P, class A>
  static inline __attribute__((always_inline)) void sums(
      const LinearBlock& block, std::size_t row, std::size_t panel, const A& ahead, Vec* out) {
    const std::byte* weight = block.weight + panel * block.panel_bytes;
    const auto ask = [&](std::size_t line, std::size_t at) __attribute__((always_inline)) {
      PanelAsks<V>::template ask<R, P>(ahead, line, Linear<V>::apart(block), weight, at);
    };
    Vec acc[R][P];
    Linear<V>::template clear<R, P>(acc);
    PanelAsks<V>::template ask_rest<R, P>(ahead, block.panel_bytes);
    add<R, P>(x_at<R>(block, row, 0), weight, Linear<V>::apart(block), block.k, ask, acc);
    Linear<V>::template put<R, P>(acc, out);
  }

  // As Linear::FloatTile has them, for panels of kShortBf16.

  static constexpr std::size_t kRowFloats = (kPackedFloats + kMostRows) / 2;

  template <int R>
  static const std::uint32_t* x_at(const LinearBlock& block, std::size_t row, std::size_t k) {
    return Linear<V>::words_of(block) + row * pair_count(block) + k / 2 * R;
  }

  template <int R>
  static const std::uint32_t* x_behind(const std::uint32_t* x, std::size_t count) {
    return x + count / 2 * R;
  }

  template <int R, int P, class Ask>
  static inline __attribute__((always_inline)) void add(const std::uint32_t* x,
                                                        const std::byte* weight,
                                                        std::size_t apart,
                                                        std::size_t k,
                                                        Ask ask,
                                                        Vec (&acc)[R][P]) {
    const std::size_t pairs = (k + 1) / 2;
    for (std::size_t pair = 0; pair < pairs; ++pair) {
      ask(pair, pair * 64);
      Int w[P];
      Linear<V>::load_panels(weight, pair * 64, apart, w);
      add_line<R, P>(x + pair * R, w, acc);
    }
  }

  /// A pair of k: x of R rows with the words of P panels.
  template <int R, int P>
  static inline __attribute__((always_inline)) void add_line(const std::uint32_t* x,
                                                             const Int (&w)[P],
                                                             Vec (&acc)[R][P]) {
#pragma GCC unroll 16
    for (int r = 0; r < R; ++r) {
      const Int two = V::int_broadcast(x[r]);
#pragma GCC unroll 8
      for (int p = 0; p < P; ++p)
        acc[r][p] = V::dot2(acc[r][p], two, w[p]);
    }
  }

 private:
  static std::size_t pair_count(const LinearBlock& block) {
    return (block.k + 1) / 2;
  }
};

}  // namespace tandem::kernels::cpu
