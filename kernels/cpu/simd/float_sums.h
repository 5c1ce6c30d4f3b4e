// Scores and weighted sums of attention in f32, for rows that share the keys and values that are
// read. In which order: attention.h.
#pragma once

#include "kernels/cpu/simd/key_vectors.h"

#include <cstddef>

namespace tandem::kernels::cpu {

/// Of keys of type D.
template <class V, DType D>
struct FloatSums {
  using Vec = typename V::Vec;
  using Keys = KeyVectors<V, D>;

  /// sums[r * S + c]: the products of R rows of q (Keys::make_queries), `q_stride` elements apart,
  /// with C keys; as many as there are registers for. `top`: see Keys::load. ask(key, byte): for a
  /// line with each that is read.
  template <int R, int C, int S, class Ask>
  static inline __attribute__((always_inline)) void dot(const std::byte* const* keys,
                                                        std::size_t offset,
                                                        const float* q,
                                                        std::size_t q_stride,
                                                        std::size_t dim,
                                                        Ask ask,
                                                        typename V::Int* top,
                                                        Vec* sums) {
    constexpr std::size_t kBytes = Keys::kBytes;
    typename V::Int largest = *top;
    Vec acc[R][C];
#pragma GCC unroll 16
    for (int r = 0; r < R; ++r) {
#pragma GCC unroll 16
      for (int c = 0; c < C; ++c)
        acc[r][c] = V::zero();
    }
    std::size_t i = 0;
    for (; i + Keys::kDims <= dim; i += Keys::kDims) {
      if (i * kBytes % 64 == 0) {
#pragma GCC unroll 16
        for (int c = 0; c < C; ++c)
          ask(c, i * kBytes);
      }
#pragma GCC unroll 16
      for (int c = 0; c < C; ++c) {
        Vec key[Keys::kVectors];
        Keys::load(keys[c] + offset + i * kBytes, key, &largest);
#pragma GCC unroll 16
        for (int r = 0; r < R; ++r) {
          const float* row = q + static_cast<std::size_t>(r) * q_stride + i;
#pragma GCC unroll 2
          for (int v = 0; v < Keys::kVectors; ++v)
            acc[r][c] = V::fma(V::load(row + v * 16), key[v], acc[r][c]);
        }
      }
    }
    if constexpr (!Keys::kWidens) {
      if (i < dim) {
        // Unrolled although it is cold: an index that is not a constant would put the sums into
        // memory.
#pragma GCC unroll 16
        for (int c = 0; c < C; ++c) {
          const Vec key = Keys::load_part(keys[c] + offset + i * kBytes, dim - i);
#pragma GCC unroll 16
          for (int r = 0; r < R; ++r) {
            acc[r][c] =
                V::fma(V::load(q + static_cast<std::size_t>(r) * q_stride + i), key, acc[r][c]);
          }
        }
      }
    }
    *top = largest;
#pragma GCC unroll 16
    for (int r = 0; r < R; ++r) {
#pragma GCC unroll 16
      for (int c = 0; c < C; ++c)
        sums[r * S + c] = acc[r][c];
    }
  }

  /// sums[r][c], `sum_stride` elements from row to row, plus C vectors of each value in [begin,
  /// end) times its weight in R rows, in this order. kPart: of the one vector there are `count`
  /// dimensions. ask(position, byte): as above.
  template <int R, int C, bool kPart, class Ask>
  static inline __attribute__((always_inline)) void add(const std::byte* const* values,
                                                        std::size_t begin,
                                                        std::size_t end,
                                                        std::size_t offset,
                                                        const float* weights,
                                                        std::size_t weight_stride,
                                                        std::size_t count,
                                                        Ask ask,
                                                        typename V::Int* top,
                                                        float* sums,
                                                        std::size_t sum_stride) {
    static_assert(C % Keys::kVectors == 0);
    Vec acc[R][C];
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r) {
#pragma GCC unroll 8
      for (int c = 0; c < C; ++c)
        acc[r][c] = V::load(sums + static_cast<std::size_t>(r) * sum_stride + c * 16);
    }
    // A copy, so that it need not be in memory.
    typename V::Int largest = *top;
    for (std::size_t j = begin; j < end; ++j) {
      const std::byte* from = values[j] + offset;
      Vec value[C];
#pragma GCC unroll 8
      for (int c = 0; c < C; c += Keys::kVectors) {
        const std::size_t line = static_cast<std::size_t>(c) * 16 * Keys::kBytes;
        if (line % 64 == 0) ask(j, line);
        if constexpr (kPart) {
          value[c] = Keys::load_part(from, count);
        } else {
          Keys::load(from + line, &value[c], &largest);
        }
      }
#pragma GCC unroll 8
      for (int r = 0; r < R; ++r) {
        const Vec weight = V::broadcast(weights[static_cast<std::size_t>(r) * weight_stride + j]);
#pragma GCC unroll 8
        for (int c = 0; c < C; ++c)
          acc[r][c] = V::fma(weight, value[c], acc[r][c]);
      }
    }
    *top = largest;
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r) {
#pragma GCC unroll 8
      for (int c = 0; c < C; ++c)
        V::store(sums + static_cast<std::size_t>(r) * sum_stride + c * 16, acc[r][c]);
    }
  }
};

}  // namespace tandem::kernels::cpu
