// Keys and values of attention in f32 as vectors, and rows that are multiplied with them.
#pragma once

#include "kernels/cpu/simd/rows.h"

#include <cstddef>

namespace tandem::kernels::cpu {

/// Of type D. A vector has 16 dimensions: in order, or where V widens faster so, those that are
/// even before those that are odd. Who sums what does not depend on it.
template <class V, DType D>
struct KeyVectors {
  using Vec = typename V::Vec;
  using Int = typename V::Int;

  /// Whether D is one of 8 bit that V widens without making it bf16 before.
  static constexpr bool kWidens = Rows<V>::is_fp8(D) && requires {
    &V::template load_fp8_split<DType::kFp8E4m3>;
  };
  static constexpr bool kSplit =
      kWidens || (D == DType::kBf16 && requires { &V::load_bf16_split; });
  static constexpr std::size_t kBytes = kWidens ? 1 : D == DType::kF32 ? 4 : 2;
  /// Those that are loaded at once.
  static constexpr int kVectors = kWidens ? 2 : 1;
  static constexpr std::size_t kDims = kVectors * 16;
  /// Of sums of values, for Mixed.
  static constexpr std::size_t kMixed = kSplit ? 16 : 0;
  /// What widened values lack: a power of 2, which queries and weights have on top, so that
  /// products are what they are.
  static constexpr float kFactor = kWidens && D == DType::kFp8E4m3 ? 256.0F : 1.0F;

  /// kDims dimensions. With kWidens, *top keeps what V::met_nan() asks for.
  static inline __attribute__((always_inline)) void load(const std::byte* from,
                                                         Vec* out,
                                                         Int* top) {
    if constexpr (kWidens) {
      V::template load_fp8_split<D>(from, &out[0], &out[1], top);
    } else if constexpr (kSplit) {
      out[0] = V::load_bf16_split(from);
    } else {
      out[0] = Rows<V>::template load_as<D>(from);
    }
  }

  /// The first `count` (< 16) of a vector, zeros behind them.
  static Vec load_part(const std::byte* from, std::size_t count) {
    const Vec v = Rows<V>::template load_part_as<D>(from, count);
    if constexpr (kSplit) {
      return V::split(v);
    } else {
      return v;
    }
  }

  /// Makes `count` elements of queries, whole vectors in order, what keys are multiplied with.
  /// False: some are too large for kFactor.
  static bool make_queries(float* q, std::size_t count) {
    bool fit = true;
    if constexpr (kSplit) {
      const Vec factor = V::broadcast(kFactor);
      const Vec most = V::broadcast(0x1.fffffep+127F / kFactor);
      for (std::size_t i = 0; i < count; i += 16) {
        const Vec v = V::load(q + i);
        fit &= !V::any_above(v, most) && !V::any_above(V::sub(V::zero(), v), most);
        V::store(q + i, V::mul(V::split(v), factor));
      }
    }
    return fit;
  }

  /// As V::sum16, of vectors like these.
  static inline __attribute__((always_inline)) Vec sum16(const Vec* v) {
    if constexpr (kSplit) {
      return V::sum16_split(v);
    } else {
      return V::sum16(v);
    }
  }
};

}  // namespace tandem::kernels::cpu
