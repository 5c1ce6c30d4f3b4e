// Scores and sums of attention by bf16 pairs, for rows that share the keys or values that are read.
// In which order: attention.h.
#pragma once

#include "kernels/cpu/simd/key_rows.h"

#include <cstddef>
#include <cstdint>
#include <utility>

namespace tandem::kernels::cpu {

/// V with dot2(), as of bf16.h.
template <class V>
struct PairSums {
  using Vec = typename V::Vec;

  /// Weights from one row to the next: a block and a tile of keys.
  static constexpr std::size_t kWeightStride = kKeyBlock + 16;

  /// Adds the products of R rows of q, `q_stride` elements apart, with the C keys from `position`
  /// on, of which `key_rows` says where they are. kDim: the number of dimensions where it is a
  /// common one, or 0. Some keys at a time: their lines are read and asked for nearly in the order
  /// of memory, and one load of q serves them.
  template <int R, int C, bool kAsk, std::size_t kDim, int kFirst = 0>
  static inline __attribute__((always_inline)) void dot(const KeyRows<V>& keys,
                                                        const std::byte* const* key_rows,
                                                        const std::byte* q,
                                                        std::size_t q_stride,
                                                        std::size_t position,
                                                        std::size_t offset,
                                                        std::size_t dim,
                                                        Vec (&acc)[R][C]) {
    constexpr int kAtOnce = C < 4 ? C : 4;
    const std::byte* const* rows = key_rows + position + kFirst;
    const std::byte* const* ahead = keys.ahead + position + kFirst;
    const auto step = [&](std::size_t i, std::size_t left) __attribute__((always_inline)) {
      if constexpr (kAsk) keys.template ask<kAtOnce>(ahead, i * 2);
#pragma GCC unroll 4
      for (int c = 0; c < kAtOnce; ++c) {
        const auto key = load_halves(rows[c] + offset + i * 2, left);
#pragma GCC unroll 16
        for (int r = 0; r < R; ++r) {
          const auto pairs = V::int_load(q + (static_cast<std::size_t>(r) * q_stride + i) * 2);
          acc[r][kFirst + c] = V::dot2(acc[r][kFirst + c], pairs, key);
        }
      }
    };
    if constexpr (kDim != 0) {
      [&]<std::size_t... I>(std::index_sequence<I...>) __attribute__((always_inline)) {
        (step(I * 32, 32), ...);
      }
      (std::make_index_sequence<kDim / 32>());
    } else {
      for (std::size_t i = 0; i < dim; i += 32)
        step(i, dim - i);
    }
    if constexpr (kFirst + kAtOnce < C)
      dot<R, C, kAsk, kDim, kFirst + kAtOnce>(
          keys, key_rows, q, q_stride, position, offset, dim, acc);
  }

  /// Lanes of a pair of weights whose positions are seen.
  static constexpr std::uint32_t kEven = 0xffffU;
  static constexpr std::uint32_t kOdd = 0xffff0000U;
  static constexpr std::uint32_t kBoth = kEven | kOdd;

  /// Adds two positions' values, C times 32 dimensions of which `count` are there, times the
  /// weights of R rows. Of a position that is not seen the weight may be another row's, and its
  /// value is not there, so both sides are zero.
  template <int R, int C, std::uint32_t kSeen>
  static inline __attribute__((always_inline)) void add(const std::byte* even,
                                                        const std::byte* odd,
                                                        const std::byte* weights,
                                                        std::size_t count,
                                                        Vec (&acc)[R][2 * C]) {
    typename V::Int low[C];
    typename V::Int high[C];
#pragma GCC unroll 8
    for (int c = 0; c < C; ++c) {
      const std::size_t at = static_cast<std::size_t>(c) * 64;
      const std::size_t left = C == 1 ? count : 32;
      auto a = V::int_zero();
      auto b = V::int_zero();
      if constexpr ((kSeen & kEven) != 0) a = load_halves(even + at, left);
      if constexpr ((kSeen & kOdd) != 0) b = load_halves(odd + at, left);
      V::interleave(a, b, &low[c], &high[c]);
    }
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r) {
      std::uint32_t two = 0;
      __builtin_memcpy(
          &two, weights + static_cast<std::size_t>(r) * kWeightStride * 2, sizeof(two));
      const auto weight = V::int_broadcast(two & kSeen);
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
