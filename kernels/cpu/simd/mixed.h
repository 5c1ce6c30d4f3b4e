// Rows whose dimensions interleaving mixed.
#pragma once

#include "kernels/cpu/simd/table.h"

namespace tandem::kernels::cpu {

template <class V>
struct Mixed {
  /// out[i] = factor * row[i] for `dim` dimensions; `row` is padded to whole kMixed (or 32), which
  /// says of how many dimensions at a time the vectors mix them: of 32 as V::interleave does, of 64
  /// as V::widen_fp8_pairs(); none where it is 0.
  template <std::size_t kMixed>
  static void scale_row(const float* row, float factor, std::size_t dim, float* out) {
    constexpr std::size_t kOnce = kMixed == 0 ? 32 : kMixed;
    const auto factors = V::broadcast(factor);
    for (std::size_t i = 0; i < dim; i += kOnce) {
      const bool whole = dim - i >= kOnce;
      alignas(64) float values[kOnce];
      float* to = kMixed == 0 && whole ? out + i : values;
      for (std::size_t j = 0; j < kOnce; j += 16)
        V::store(to + j, V::mul(V::load(row + i + j), factors));
      if (!whole) {
        for (std::size_t j = 0; i + j < dim; ++j)
          out[i + j] = values[place_of<kMixed>(j)];
      } else if (kMixed != 0) {
        for (std::size_t j = 0; j < kOnce; j += 4)
          __builtin_memcpy(out + i + j, values + place_of<kMixed>(j), 4 * sizeof(float));
      }
    }
  }

  /// Where dimension i of kMixed is: of every quarter of these, four in each vector of 16.
  template <std::size_t kMixed>
  static std::size_t place_of(std::size_t i) {
    if constexpr (kMixed == 0) return i;
    constexpr std::size_t kQuarter = kMixed == 0 ? 1 : kMixed / 4;
    return i % kQuarter / 4 * 16 + i / kQuarter * 4 + i % 4;
  }
};

}  // namespace tandem::kernels::cpu
