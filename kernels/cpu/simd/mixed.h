// Rows whose dimensions V::interleave mixed.
#pragma once

#include "kernels/cpu/simd/table.h"

namespace tandem::kernels::cpu {

template <class V>
struct Mixed {
  /// out[i] = factor * row[i] for `dim` dimensions; `row` is padded to whole 32, and kMixed says
  /// that these lie as V::interleave left them.
  template <bool kMixed>
  static void scale_row(const float* row, float factor, std::size_t dim, float* out) {
    const auto factors = V::broadcast(factor);
    for (std::size_t i = 0; i < dim; i += 32) {
      const bool whole = dim - i >= 32;
      if (!kMixed && whole) {
        V::store(out + i, V::mul(V::load(row + i), factors));
        V::store(out + i + 16, V::mul(V::load(row + i + 16), factors));
        continue;
      }
      alignas(64) float values[32];
      V::store(values, V::mul(V::load(row + i), factors));
      V::store(values + 16, V::mul(V::load(row + i + 16), factors));
      if (!whole) {
        for (std::size_t j = 0; i + j < dim; ++j)
          out[i + j] = values[kMixed ? place_of(j) : j];
        continue;
      }
      for (std::size_t j = 0; j < 32; j += 4)
        __builtin_memcpy(out + i + j, values + place_of(j), 4 * sizeof(float));
    }
  }

  /// Where dimension i of 32 is: of every 8, four in the first vector of 16 and four in the second.
  static std::size_t place_of(std::size_t i) { return i % 8 / 4 * 16 + i / 8 * 4 + i % 4; }
};

}  // namespace tandem::kernels::cpu
