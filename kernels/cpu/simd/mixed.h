// Rows whose dimensions interleaving mixed.
#pragma once

#include "kernels/cpu/simd/rows.h"

namespace tandem::kernels::cpu {

template <class V>
struct Mixed {
  /// out[i] = factor * row[i] for `dim` dimensions. kMixed: how many of them are mixed with each
  /// other, 16 as V::split() does, 32 as V::interleave(), 64 as V::widen_fp8_pairs(), or none (0).
  /// `row` is padded to whole kMixed, or 32.
  template <std::size_t kMixed>
  static void scale_row(const float* row, float factor, std::size_t dim, float* out) {
    static_assert(kMixed == 0 || kMixed == 16 || kMixed == 32 || kMixed == 64);
    constexpr std::size_t kOnce = kMixed < 32 ? 32 : kMixed;
    const auto factors = V::broadcast(factor);
    typename V::Vec values[kOnce / 16];
    for (std::size_t i = 0; i < dim; i += kOnce) {
      for (std::size_t j = 0; j < kOnce / 16; ++j)
        values[j] = V::mul(V::load(row + i + j * 16), factors);
      put_in_order<kMixed>(values);
      for (std::size_t j = 0; j < kOnce / 16 && i + j * 16 < dim; ++j) {
        float* to = out + i + j * 16;
        const std::size_t left = dim - i - j * 16;
        left < 16 ? Rows<V>::store_part(to, values[j], left) : V::store(to, values[j]);
      }
    }
  }

  /// Of kMixed dimensions the vectors (of 16 two at once). With 32 and 64, each has four of every
  /// quarter of the dimensions.
  template <std::size_t kMixed, class Values>
  static inline __attribute__((always_inline)) void put_in_order(Values& v) {
    if constexpr (kMixed == 16) {
      v[0] = V::joined(v[0]);
      v[1] = V::joined(v[1]);
    }
    if constexpr (kMixed == 32) V::interleave_quarters(v[0], v[1], &v[0], &v[1]);
    if constexpr (kMixed == 64) {
      Values pairs;
      V::interleave_quarters(v[0], v[2], &pairs[0], &pairs[1]);
      V::interleave_quarters(v[1], v[3], &pairs[2], &pairs[3]);
      V::interleave_quarters(pairs[0], pairs[2], &v[0], &v[1]);
      V::interleave_quarters(pairs[1], pairs[3], &v[2], &v[3]);
    }
  }
};

}  // namespace tandem::kernels::cpu
