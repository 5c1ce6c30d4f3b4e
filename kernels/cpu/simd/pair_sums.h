// Scores and sums of attention by bf16 pairs, for rows that share the keys or values that are read.
// In which order: attention.h.
#pragma once

#include "kernels/cpu/simd/table.h"

#include <cstddef>
#include <cstdint>

namespace tandem::kernels::cpu {

/// Scores. Lines: how keys lie in memory and become bf16, PairSums or ByteSums.
template <class V, class Lines>
struct PairDots {
  /// The products of R rows of q, `q_stride` elements apart, with C keys. kDim: the number of
  /// dimensions where it is a common one, or 0. Key by key, for memory is fastest in its own order.
  /// ask(key, byte): for a line with each that is read.
  template <int R, int C, std::size_t kDim, class Ask>
  static inline __attribute__((always_inline)) void dot(const std::byte* const* keys,
                                                        std::size_t offset,
                                                        const std::byte* q,
                                                        std::size_t q_stride,
                                                        std::size_t dim,
                                                        Ask ask,
                                                        typename V::Vec (&acc)[R][C]) {
    constexpr std::size_t kDims = Lines::kLineParts * 32;
#pragma GCC unroll 16
    for (int c = 0; c < C; ++c) {
#pragma GCC unroll 16
      for (int r = 0; r < R; ++r)
        acc[r][c] = V::zero();
      const std::byte* key = keys[c] + offset;
      const auto step = [&](std::size_t i, std::size_t left) __attribute__((always_inline)) {
        ask(c, i * Lines::kBytes);
        typename V::Int halves[Lines::kLineParts];
        Lines::load_line(key + i * Lines::kBytes, left, halves);
#pragma GCC unroll 2
        for (std::size_t part = 0; part < Lines::kLineParts; ++part) {
#pragma GCC unroll 16
          for (int r = 0; r < R; ++r) {
            const std::size_t at = static_cast<std::size_t>(r) * q_stride + i + part * 32;
            acc[r][c] = V::dot2(acc[r][c], V::int_load(q + at * 2), halves[part]);
          }
        }
      };
      if constexpr (kDim != 0) {
#pragma GCC unroll 16
        for (std::size_t i = 0; i < kDim; i += kDims)
          step(i, kDims);
      } else {
        for (std::size_t i = 0; i < dim; i += kDims)
          step(i, dim - i);
      }
    }
  }
};

/// V with dot2(), as of bf16.h.
template <class V>
struct PairSums : PairDots<V, PairSums<V>> {
  using Vec = typename V::Vec;

  static constexpr std::size_t kBytes = 2;      ///< of a value
  static constexpr std::size_t kLineParts = 1;  ///< times 32 dimensions that come together
  static constexpr std::size_t kMixed = 32;     ///< how add() leaves dimensions: mixed.h

  /// Weights from one row to the next: a block and a tile of keys.
  static constexpr std::size_t kWeightStride = kKeyBlock + 16;

  /// 32 dimensions of a row, of which `left` are there.
  static inline __attribute__((always_inline)) void load_line(const std::byte* from,
                                                              std::size_t left,
                                                              typename V::Int (&halves)[1]) {
    halves[0] = load_halves(from, left);
  }

  /// Lanes of a pair of weights whose positions are seen.
  static constexpr std::uint32_t kEven = 0xffffU;
  static constexpr std::uint32_t kOdd = 0xffff0000U;
  static constexpr std::uint32_t kBoth = kEven | kOdd;

  /// Two positions' weights of row r, in all lanes.
  template <std::uint32_t kSeen>
  static inline __attribute__((always_inline)) auto weight_of(const std::byte* weights, int r) {
    std::uint32_t two = 0;
    __builtin_memcpy(&two, weights + static_cast<std::size_t>(r) * kWeightStride * 2, sizeof(two));
    return V::int_broadcast(two & kSeen);
  }

  /// Adds two positions' values, C times 32 dimensions of which `count` are there, times the
  /// weights of R rows. Of a position that is not seen the weight may be another row's, and its
  /// value is not there, so both sides are zero.
  template <int R, int C, std::uint32_t kSeen>
  static inline __attribute__((always_inline)) void add(const std::byte* even,
                                                        const std::byte* odd,
                                                        const std::byte* weights,
                                                        std::size_t count,
                                                        Vec (&acc)[R][2 * C]) {
    const std::size_t left = C == 1 ? count : 32;
    typename V::Int first[C];
    typename V::Int low[C];
    typename V::Int high[C];
#pragma GCC unroll 8
    for (int c = 0; c < C; ++c) {
      first[c] = V::int_zero();
      if constexpr ((kSeen & kEven) != 0)
        first[c] = load_halves(even + static_cast<std::size_t>(c) * 64, left);
    }
#pragma GCC unroll 8
    for (int c = 0; c < C; ++c) {
      auto second = V::int_zero();
      if constexpr ((kSeen & kOdd) != 0)
        second = load_halves(odd + static_cast<std::size_t>(c) * 64, left);
      V::interleave(first[c], second, &low[c], &high[c]);
    }
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r) {
      const auto weight = weight_of<kSeen>(weights, r);
#pragma GCC unroll 8
      for (int c = 0; c < C; ++c) {
        acc[r][2 * c] = V::dot2(acc[r][2 * c], weight, low[c]);
        acc[r][2 * c + 1] = V::dot2(acc[r][2 * c + 1], weight, high[c]);
      }
    }
  }

 private:
  static inline __attribute__((always_inline)) auto load_halves(const std::byte* from,
                                                                std::size_t count) {
    return count >= 32 ? V::int_load(from) : V::int_load_part(from, count);
  }
};

}  // namespace tandem::kernels::cpu
