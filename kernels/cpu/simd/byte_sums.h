// Scores and sums of attention by bf16 pairs, of keys and values of 8 bit that become bf16 in
// registers. The order of sums is that of pair_sums.h.
#pragma once

#include "kernels/cpu/simd/pair_sums.h"

namespace tandem::kernels::cpu {

/// V with widen_fp8_pairs(), as of vbmi.h; D: kFp8E5m2 or kFp8E4m3. Dimensions are whole lines.
template <class V, DType D>
struct ByteSums : PairDots<V, ByteSums<V, D>> {
  using Vec = typename V::Vec;
  using Int = typename V::Int;
  using Pairs = PairSums<V>;

  static constexpr std::size_t kBytes = 1;
  static constexpr std::size_t kLineParts = 2;
  static constexpr std::size_t kMixed = 64;

  /// 64 dimensions of a row, all of which are there.
  static inline __attribute__((always_inline)) void load_line(const std::byte* from,
                                                              std::size_t /*left*/,
                                                              Int (&halves)[2]) {
    V::template widen_fp8<D>(from, &halves[0], &halves[1]);
  }

  /// As PairSums::add, of whole lines: C is even.
  template <int R, int C, std::uint32_t kSeen>
  static inline __attribute__((always_inline)) void add(const std::byte* even,
                                                        const std::byte* odd,
                                                        const std::byte* weights,
                                                        std::size_t /*count*/,
                                                        Vec (&acc)[R][2 * C]) {
    Int weight[R];
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r)
      weight[r] = Pairs::template weight_of<kSeen>(weights, r);
#pragma GCC unroll 4
    for (int line = 0; line < C / 2; ++line) {
      const std::size_t at = static_cast<std::size_t>(line) * 64;
      Int first = V::int_zero();
      Int second = V::int_zero();
      if constexpr ((kSeen & Pairs::kEven) != 0) first = V::int_load(even + at);
      if constexpr ((kSeen & Pairs::kOdd) != 0) second = V::int_load(odd + at);
      Int pairs[4];
      V::template widen_fp8_pairs<D>(first, second, pairs);
#pragma GCC unroll 8
      for (int r = 0; r < R; ++r) {
#pragma GCC unroll 4
        for (int i = 0; i < 4; ++i)
          acc[r][line * 4 + i] = V::dot2(acc[r][line * 4 + i], weight[r], pairs[i]);
      }
    }
  }
};

/// Of keys and values of type D.
template <class V, DType D>
struct PairSumsOf : ByteSums<V, D> {};

template <class V>
struct PairSumsOf<V, DType::kBf16> : PairSums<V> {};

}  // namespace tandem::kernels::cpu
