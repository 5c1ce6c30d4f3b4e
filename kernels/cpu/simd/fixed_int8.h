// Y = X W^T for WeightScheme::kInt8 with products of bytes: x as integers of 16 bits.
//
// Idea: a row of x becomes integers of up to 32,511 with a power of 2 that they share, and these
// two bytes each, 256 upper + lower. Then weights need not be widened, and a product of four bytes
// at a time does the work of two of bf16 pairs. Sums of upper and of lower bytes are exact, so the
// rows and panels of a tile do not matter: y = (256 upper + lower, one fused multiply-add) times
// the output's scale, times the row's power. What is lost of a value is at most 2^-15 of the row's
// largest. A row that holds inf or NaN gives NaN.
//
// Bound: as quant.h, at half of the peak of kInt8Dynamic. V::dot4 is what it stands on.
#pragma once

#include "kernels/cpu/simd/quant.h"

namespace tandem::kernels::cpu {

/// What values and sums are, of whatever multiplies bytes.
template <class V>
struct FixedInt8 {
  using Vec = typename V::Vec;
  using Int = typename V::Int;

  /// Bytes as whole numbers: 256 upper + lower.
  struct Parts {
    Vec upper;
    Vec lower;
  };

  /// Of values divided by their row's unit (Quantize::fixed_unit).
  static inline __attribute__((always_inline)) Parts split(Vec in_units) {
    const Vec fixed = whole(in_units);
    // A quarter more, so that none lies in the middle: 128 is the next one's -128.
    const Vec upper = whole(V::mul(V::add(fixed, V::broadcast(0.25F)), V::broadcast(0x1p-8F)));
    return {upper, V::sub(fixed, V::mul(upper, V::broadcast(256.0F)))};
  }

  /// What a row's sums with `panel` stand for.
  static inline __attribute__((always_inline)) Vec output(Int upper,
                                                          Int lower,
                                                          const std::byte* panel,
                                                          float unit) {
    return output(V::to_float(upper), V::to_float(lower), panel, unit);
  }

  static inline __attribute__((always_inline)) Vec output(Vec upper,
                                                          Vec lower,
                                                          const std::byte* panel,
                                                          float unit) {
    const Vec sum = V::fma(upper, V::broadcast(256.0F), lower);
    const Vec scaled = V::mul(sum, V::load(reinterpret_cast<const float*>(panel)));
    return V::mul(scaled, V::broadcast(unit));
  }

 private:
  /// The nearest integer, even of two, of magnitudes below 2^22.
  static inline __attribute__((always_inline)) Vec whole(Vec v) {
    const Vec shift = V::broadcast(0x1.8p23F);
    return V::sub(V::add(v, shift), shift);
  }
};

/// As a tile of Linear.
template <class V>
struct FixedInt8Tile {
  using Vec = typename V::Vec;
  using Int = typename V::Int;
  using Fixed = FixedInt8<V>;

  static constexpr bool kCuts = false;
  /// Each row has two chains.
  static constexpr std::size_t kStreamRows = 2;

  /// Rows to bytes, four k to a word: [k / 4][upper, lower][rows of the tile]; what an integer of a
  /// row stands for behind them.
  static void pack(const LinearBlock& block) {
    const std::size_t words = 2 * Int8DynamicTile<V>::word_count(block);
    float* units = block.scratch + kPackedFloats;
    Linear<V>::for_groups(block, [&](std::size_t row, std::size_t rows) {
      for (std::size_t r = 0; r < rows; ++r)
        units[row + r] = Quantize<V>::fixed_unit(Linear<V>::x_row(block, row + r), block.k);
      std::uint32_t* to = Linear<V>::words_of(block) + row * words;
      Linear<V>::pack_group(
          block, row, rows, words, to, [&](std::size_t r, std::size_t word, std::byte* line) {
            const float* x = Linear<V>::x_row(block, row + r);
            split(x, word * 2, block.k, V::broadcast(1.0F / units[row + r]), line);
            return const_cast<const std::byte*>(line);
          });
    });
  }

  template <int R, int P, class A>
  static inline __attribute__((always_inline)) void sums(
      const LinearBlock& block, std::size_t row, std::size_t panel, const A& ahead, Vec* out) {
    using Bytes = Int8DynamicTile<V>;
    const std::uint32_t* x = Linear<V>::words_of(block) + row * 2 * Bytes::word_count(block);
    const std::byte* weight = block.weight + panel * block.panel_bytes;
    const float* units = block.scratch + kPackedFloats + row;
    if constexpr (2 * R * P <= kSumsAtOnce) {
      Int acc[2 * R][P];
      Bytes::template products<2 * R, P, 2 * R>(block, x, weight, ahead, acc);
#pragma GCC unroll 16
      for (int r = 0; r < R; ++r) {
#pragma GCC unroll 8
        for (int p = 0; p < P; ++p) {
          out[r * P + p] =
              Fixed::output(acc[r][p],
                            acc[R + r][p],
                            weight + static_cast<std::size_t>(p) * Linear<V>::apart(block),
                            units[r]);
        }
      }
    } else {
      alignas(64) float upper[R * P * 16];
      Int acc[R][P];
      Bytes::template products<R, P, 2 * R>(block, x, weight, ahead, acc);
#pragma GCC unroll 32
      for (int i = 0; i < R * P; ++i)
        V::store(upper + i * 16, V::to_float(acc[i / P][i % P]));
      Bytes::template products<R, P, 2 * R>(block, x + R, weight, ahead, acc);
#pragma GCC unroll 32
      for (int i = 0; i < R * P; ++i) {
        const std::byte* header =
            weight + static_cast<std::size_t>(i % P) * Linear<V>::apart(block);
        out[i] = Fixed::output(
            V::load(upper + i * 16), V::to_float(acc[i / P][i % P]), header, units[i / P]);
      }
    }
  }

 private:
  /// Vectors of sums that fit beside what they are made of.
  static constexpr int kSumsAtOnce = 24;

  /// 32 values from `at` on, zeros behind k, to words of four upper and of four lower bytes.
  static void split(const float* x, std::size_t at, std::size_t k, Vec per_unit, std::byte* line) {
    Vec upper[2];
    Vec lower[2];
#pragma GCC unroll 2
    for (std::size_t i = 0; i < 2; ++i) {
      const Vec values = Rows<V>::load_within(x, at + i * 16, k);
      const typename Fixed::Parts parts = Fixed::split(V::mul(values, per_unit));
      upper[i] = parts.upper;
      lower[i] = parts.lower;
    }
    if constexpr (V::kOffsetBytes) {
      V::store_offset_pairs(line, upper[0], lower[0], upper[1], lower[1]);
    } else {
      alignas(64) std::int8_t upper_bytes[32];
      alignas(64) std::int8_t lower_bytes[32];
      for (std::size_t i = 0; i < 2; ++i) {
        V::store_int8(upper_bytes + i * 16, upper[i]);
        V::store_int8(lower_bytes + i * 16, lower[i]);
      }
      for (std::size_t word = 0; word < 8; ++word) {
        __builtin_memcpy(line + word * 8, upper_bytes + word * 4, 4);
        __builtin_memcpy(line + word * 8 + 4, lower_bytes + word * 4, 4);
      }
    }
  }
};

}  // namespace tandem::kernels::cpu
