// Panels of small integers that are multiplied with bytes: how 8 bit and 4 bit lie in memory, word
// by word of four k, and what a product with few rows makes of half bytes.
#pragma once

#include "kernels/cpu/simd/linear.h"

namespace tandem::kernels::cpu {

/// A panel's integers of 8 bit in memory, for ByteTile.
template <class V>
struct PanelBytes {
  using Int = typename V::Int;

  /// See Linear::FloatTile; maddubs takes longer.
  static constexpr std::size_t kStreamRows = V::kOffsetBytes ? 4 : 1;

  /// See PanelNibbles.
  template <int R>
  static constexpr bool kSumsGroups = false;

  /// fn(word of k, P words of four bytes) for all words of P panels at `weight`, in order.
  template <int R, int P, class A, class Fn>
  static inline __attribute__((always_inline)) void for_words(const LinearBlock& block,
                                                              const std::byte* weight,
                                                              const A& ahead,
                                                              Fn fn) {
    const std::size_t words = (block.k + 3) / 4;
    for (std::size_t word = 0; word < words; ++word) {
      const std::size_t at = kByteHeaderBytes + word * 64;
      PanelAsks<V>::template ask<R, P>(ahead, word, Linear<V>::apart(block), weight, at);
      Int w[P];
      Linear<V>::load_panels(weight, at, Linear<V>::apart(block), w);
      fn(word, w);
    }
  }
};

/// Those that half bytes stand for: step * q - offset.
template <class V>
struct PanelNibbles {
  using Int = typename V::Int;

  /// Of more rows the sums of one panel take longer than its lines.
  static constexpr std::size_t kStreamRows = 1;

  /// Bytes from a panel's beginning to steps and offsets of a group.
  static constexpr std::size_t affine_at(std::size_t group) {
    return header_at(group) + group % kInt4HeaderGroups * (kInt4HeaderBytes / kInt4HeaderGroups);
  }

  /// To k, a multiple of 8.
  static constexpr std::size_t at(std::size_t k) {
    return header_at(k / kInt4Group) + kInt4HeaderBytes +
           k % (kInt4HeaderGroups * kInt4Group) / 8 * 64;
  }

  /// As of PanelBytes.
  template <int R, int P, class A, class Fn>
  static inline __attribute__((always_inline)) void for_words(const LinearBlock& block,
                                                              const std::byte* weight,
                                                              const A& ahead,
                                                              Fn fn) {
    // In memory: the sums of many rows need the registers.
    alignas(64) std::byte affine[2 * P][64];
    for_groups<R, P>(
        block,
        weight,
        ahead,
        [&](const std::byte* from) __attribute__((always_inline)) {
#pragma GCC unroll 8
          for (int p = 0; p < P; ++p) {
            Int step;
            Int offset;
            V::load_affine(
                from + static_cast<std::size_t>(p) * Linear<V>::apart(block), &step, &offset);
            V::int_store(affine[2 * p], step);
            V::int_store(affine[2 * p + 1], offset);
          }
        },
        [&](std::size_t word, const Int(&nibbles)[P]) __attribute__((always_inline)) {
          Int w[P];
#pragma GCC unroll 8
          for (int p = 0; p < P; ++p)
            w[p] = integers(nibbles[p], affine[2 * p]);
          fn(word, w);
        },
        [](const std::byte*) {});
  }

  /// Whether R rows have their products with half bytes summed by group: fewer operations for each
  /// line, and as many registers again. The sums are the same integers.
  template <int R>
  static constexpr bool kSumsGroups = V::kOffsetBytes && (R <= PanelAsks<V>::kFewRows);

  /// acc += step * (sum of q x) - offset * (sum of x) of each group. x_bytes(word, row) are those
  /// of a word of k, as V::bytes_of makes them.
  template <int R, int P, class A, class X>
  static inline __attribute__((always_inline)) void add_groups(const LinearBlock& block,
                                                               const std::byte* weight,
                                                               const A& ahead,
                                                               X x_bytes,
                                                               Int (&acc)[R][P]) {
    const Int ones = V::byte_ones();
    // The halves of a line, where one panel's sums would wait for each other.
    constexpr std::size_t kChains = P == 1 ? 2 : 1;
    Int sums[kChains][R][P];
    Int x_sums[kChains][R];
    for_groups<R, P>(
        block,
        weight,
        ahead,
        [&](const std::byte*) __attribute__((always_inline)) {
#pragma GCC unroll 2
          for (std::size_t chain = 0; chain < kChains; ++chain) {
#pragma GCC unroll 4
            for (int r = 0; r < R; ++r) {
              x_sums[chain][r] = V::int_zero();
#pragma GCC unroll 8
              for (int p = 0; p < P; ++p)
                sums[chain][r][p] = V::int_zero();
            }
          }
        },
        [&](std::size_t word, const Int(&nibbles)[P]) __attribute__((always_inline)) {
          const std::size_t chain = word % kChains;
#pragma GCC unroll 4
          for (int r = 0; r < R; ++r) {
            const auto four = x_bytes(word, r);
            x_sums[chain][r] = V::dot4(x_sums[chain][r], four, ones);
#pragma GCC unroll 8
            for (int p = 0; p < P; ++p)
              sums[chain][r][p] = V::dot4(sums[chain][r][p], four, nibbles[p]);
          }
        },
        [&](const std::byte* from) __attribute__((always_inline)) {
          if constexpr (kChains == 2) {
#pragma GCC unroll 4
            for (int r = 0; r < R; ++r) {
              x_sums[0][r] = V::int_add(x_sums[0][r], x_sums[1][r]);
              sums[0][r][0] = V::int_add(sums[0][r][0], sums[1][r][0]);
            }
          }
#pragma GCC unroll 8
          for (int p = 0; p < P; ++p) {
            Int step;
            Int offset;
            V::load_affine_words(
                from + static_cast<std::size_t>(p) * Linear<V>::apart(block), &step, &offset);
#pragma GCC unroll 4
            for (int r = 0; r < R; ++r)
              acc[r][p] = V::add_affine(acc[r][p], step, sums[0][r][p], offset, x_sums[0][r]);
          }
        });
  }

 private:
  static constexpr std::size_t kGroupLines = kInt4Group / 8;

  static constexpr std::size_t header_at(std::size_t group) {
    return kByteHeaderBytes +
           group / kInt4HeaderGroups * (kInt4HeaderBytes + kInt4HeaderGroups * kInt4Group / 8 * 64);
  }

  /// For all groups, in order, begin(steps and offsets of the first panel) and end(the same) around
  /// fn(word of k, P words of four half bytes, a byte each).
  template <int R, int P, class A, class Begin, class Fn, class End>
  static inline __attribute__((always_inline)) void for_groups(const LinearBlock& block,
                                                               const std::byte* weight,
                                                               const A& ahead,
                                                               Begin begin_group,
                                                               Fn fn,
                                                               End end_group) {
    const std::size_t words = (block.k + 3) / 4;
    const std::size_t lines = (words + 1) / 2;
    for (std::size_t group = 0; group * kInt4Group < block.k; ++group) {
      const std::byte* affine = weight + affine_at(group);
      begin_group(affine);
      const std::size_t first = group * kGroupLines;
      if (group % kInt4HeaderGroups == 0) {
        PanelAsks<V>::template ask_header<R, P>(ahead,
                                                lines + group / kInt4HeaderGroups,
                                                Linear<V>::apart(block),
                                                weight,
                                                affine_at(group));
      }
      const std::size_t begin = at(group * kInt4Group);
      for (std::size_t line = 0; line < kGroupLines; ++line) {
        const std::size_t word = (first + line) * 2;
        if (word >= words) break;
        const std::size_t here = begin + line * 64;
        PanelAsks<V>::template ask<R, P>(
            ahead, first + line, Linear<V>::apart(block), weight, here);
        Int raw[P];
        Int nibbles[P];
        Linear<V>::load_panels(weight, here, Linear<V>::apart(block), raw);
#pragma GCC unroll 8
        for (int p = 0; p < P; ++p)
          nibbles[p] = V::low_nibbles(raw[p]);
        fn(word, nibbles);
        if (word + 1 >= words) break;
#pragma GCC unroll 8
        for (int p = 0; p < P; ++p)
          nibbles[p] = V::high_nibbles(raw[p]);
        fn(word + 1, nibbles);
      }
      end_group(affine);
    }
  }

  static inline __attribute__((always_inline)) Int integers(Int nibbles, const std::byte* affine) {
    return V::scaled_bytes(nibbles, V::int_load(affine), V::int_load(affine + 64));
  }
};

}  // namespace tandem::kernels::cpu
