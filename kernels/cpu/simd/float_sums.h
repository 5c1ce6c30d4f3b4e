// Scores of attention in f32, for rows that share the keys that are read. In which order:
// attention.h.
#pragma once

#include "kernels/cpu/simd/rows.h"

#include <cstddef>

namespace tandem::kernels::cpu {

/// Of keys of type D.
template <class V, DType D>
struct FloatSums {
  using Vec = typename V::Vec;

  /// sums[r * S + c]: the products of R rows of q, `q_stride` elements apart, with C keys; as many
  /// as there are registers for. ask(key, byte): for a line with each that is read.
  template <int R, int C, int S, class Ask>
  static inline __attribute__((always_inline)) void dot(const std::byte* const* keys,
                                                        std::size_t offset,
                                                        const float* q,
                                                        std::size_t q_stride,
                                                        std::size_t dim,
                                                        Ask ask,
                                                        Vec* sums) {
    constexpr std::size_t kBytes = D == DType::kF32 ? 4 : 2;
    Vec acc[R][C];
#pragma GCC unroll 16
    for (int r = 0; r < R; ++r) {
#pragma GCC unroll 16
      for (int c = 0; c < C; ++c)
        acc[r][c] = V::zero();
    }
    std::size_t i = 0;
    for (; i + 16 <= dim; i += 16) {
      if (i * kBytes % 64 == 0) {
#pragma GCC unroll 16
        for (int c = 0; c < C; ++c)
          ask(c, i * kBytes);
      }
#pragma GCC unroll 16
      for (int c = 0; c < C; ++c) {
        const Vec key = Rows<V>::template load_as<D>(keys[c] + offset + i * kBytes);
#pragma GCC unroll 16
        for (int r = 0; r < R; ++r) {
          acc[r][c] =
              V::fma(V::load(q + static_cast<std::size_t>(r) * q_stride + i), key, acc[r][c]);
        }
      }
    }
    if (i < dim) {
      // Unrolled although it is cold: an index that is not a constant would put the sums into
      // memory.
#pragma GCC unroll 16
      for (int c = 0; c < C; ++c) {
        const Vec key = Rows<V>::template load_part_as<D>(keys[c] + offset + i * kBytes, dim - i);
#pragma GCC unroll 16
        for (int r = 0; r < R; ++r) {
          acc[r][c] =
              V::fma(V::load(q + static_cast<std::size_t>(r) * q_stride + i), key, acc[r][c]);
        }
      }
    }
#pragma GCC unroll 16
    for (int r = 0; r < R; ++r) {
#pragma GCC unroll 16
      for (int c = 0; c < C; ++c)
        sums[r * S + c] = acc[r][c];
    }
  }
};

}  // namespace tandem::kernels::cpu
