// Logits (api/logits.h) over vectors of V's size. GCC's vectors instead of a class for each
// instruction set: plain sums, products, comparisons and shifts are all that is needed, and none of
// them may differ. `V` is local to the including file, so that no instantiation leaves it (see
// table.h).
//
// Bound: reading the row once for the maxima; some 35 operations for 8 doubles for the weights.
#pragma once

#include "kernels/api/logits.h"

#include <cstddef>
#include <cstdint>

namespace tandem::kernels::cpu {

const LogitKernels& generic_logits();
const LogitKernels& avx2_logits();
const LogitKernels& avx512_logits();

// What a family's V has, besides widen(): doubles from as many floats. (GCC 12 takes no vector_size
// that depends on a template's parameter).
#define TANDEM_LOGIT_VECTORS(BYTES)                               \
  typedef float Floats __attribute__((vector_size(BYTES)));       \
  typedef std::int32_t Ints __attribute__((vector_size(BYTES)));  \
  typedef double Doubles __attribute__((vector_size(BYTES)));     \
  typedef std::int64_t Longs __attribute__((vector_size(BYTES))); \
  typedef std::uint64_t Words __attribute__((vector_size(BYTES)))

template <class V>
struct Logits {
  using Floats = typename V::Floats;
  using Ints = typename V::Ints;
  using Doubles = typename V::Doubles;
  using Longs = typename V::Longs;
  using Words = typename V::Words;
  static constexpr int kFloats = sizeof(Floats) / sizeof(float);
  static constexpr int kDoubles = kFloats / 2;
  static constexpr int kSums = 16 / kDoubles;

  template <class T>
  static T load(const float* from) {
    T out;
    __builtin_memcpy(&out, from, sizeof(out));
    return out;
  }

  static float largest_lane(Floats v) {
    float lane[kFloats];
    __builtin_memcpy(lane, &v, sizeof(lane));
#pragma GCC unroll 4
    for (int step = kFloats / 2; step > 0; step /= 2) {
#pragma GCC unroll 8
      for (int i = 0; i < step; ++i)
        lane[i] = lane[i + step] > lane[i] ? lane[i + step] : lane[i];
    }
    return lane[0];
  }

  /// The largest of one block; NaNs are marked in *bad.
  static float block_maximum(const float* values, Ints* bad) {
    Floats best = load<Floats>(values);
    *bad |= best != best;
#pragma GCC unroll 16
    for (int i = kFloats; i < static_cast<int>(kLogitBlock); i += kFloats) {
      const Floats v = load<Floats>(values + i);
      *bad |= v != v;
      best = v > best ? v : best;
    }
    return largest_lane(best);
  }

  /// The last block, filled up.
  struct Padded {
    Padded(const float* values, std::size_t count) {
      for (std::size_t i = 0; i < kLogitBlock; ++i)
        lane[i] = i < count ? values[i] : -__builtin_inff();
    }

    float lane[kLogitBlock];
  };

  /// Floats between asking for a line and its use: hardware alone follows no further than to the
  /// end of a page of 4 KiB.
  static constexpr std::size_t kAhead = 1024;

  static bool block_maxima(const float* values, std::size_t count, float* maxima) {
    const std::size_t whole = count / kLogitBlock;
    const std::size_t rest = count % kLogitBlock;
    Ints bad = {};
    for (std::size_t b = 0; b < whole; ++b) {
      const float* block = values + b * kLogitBlock;
      for (std::size_t i = 0; i < kLogitBlock; i += 16)
        __builtin_prefetch(block + kAhead + i);
      maxima[b] = block_maximum(block, &bad);
    }
    if (rest > 0) {
      const Padded last(values + whole * kLogitBlock, rest);
      maxima[whole] = block_maximum(last.lane, &bad);
    }
    std::int32_t any = 0;
    for (int i = 0; i < kFloats; ++i)
      any |= bad[i];
    return any == 0;
  }

  /// 2^f for f in [-1/2, 1/2]: 1 + f q(f) with q of degree 10 through the Chebyshev nodes, 8.5e-18
  /// off. Even and odd powers apart: two short chains instead of one.
  static Doubles power_of_fraction(Doubles f) {
    constexpr double kEven[] = {1.0,
                                0x1.ebfbdff82c598p-3,
                                0x1.3b2ab6fba1ddap-7,
                                0x1.430913096fd9fp-13,
                                0x1.62bfd47773353p-20,
                                0x1.e6063f7217bc6p-28};
    constexpr double kOdd[] = {0x1.62e42fefa39efp-1,
                               0x1.c6b08d704a0c2p-5,
                               0x1.5d87fe78a5276p-10,
                               0x1.ffcbfc670dcd4p-17,
                               0x1.b524fae627834p-24,
                               0x1.e9d3fe3952179p-32};
    const Doubles square = f * f;
    Doubles even = Doubles{} + kEven[5];
    Doubles odd = Doubles{} + kOdd[5];
#pragma GCC unroll 5
    for (int i = 4; i >= 0; --i) {
      even = even * square + kEven[i];
      odd = odd * square + kOdd[i];
    }
    return odd * f + even;
  }

  /// Weights of kDoubles logits.
  static Doubles weigh(const float* values, double largest, double scale) {
    const Doubles t = (V::widen(values) - largest) * scale;
    // What is too small (also -inf) makes no sense below, and counts as zero.
    const Longs counts = t >= kLeastWeight;
    // Rounds to an integer, which then stands in the lowest bits.
    constexpr double kShift = 0x1.8p52;
    const Doubles shifted = t + kShift;
    const Doubles p = power_of_fraction(t - (shifted - kShift));
    const Words bits = reinterpret_cast<Words>(p) + (reinterpret_cast<Words>(shifted) << 52);
    return reinterpret_cast<Doubles>(bits & reinterpret_cast<Words>(counts));
  }

  static double block_sum(const float* values, double largest, double scale) {
    Doubles sum[kSums] = {};
#pragma GCC unroll 4
    for (std::size_t at = 0; at < kLogitBlock; at += 16) {
#pragma GCC unroll 8
      for (int i = 0; i < kSums; ++i)
        sum[i] += weigh(values + at + static_cast<std::size_t>(i * kDoubles), largest, scale);
    }
#pragma GCC unroll 4
    for (int step = kSums / 2; step > 0; step /= 2) {
#pragma GCC unroll 4
      for (int i = 0; i < step; ++i)
        sum[i] += sum[i + step];
    }
    double lane[kDoubles];
    __builtin_memcpy(lane, &sum[0], sizeof(lane));
#pragma GCC unroll 4
    for (int step = kDoubles / 2; step > 0; step /= 2) {
#pragma GCC unroll 4
      for (int i = 0; i < step; ++i)
        lane[i] += lane[i + step];
    }
    return lane[0];
  }

  static void weight_sums(const float* values,
                          std::size_t count,
                          const float* maxima,
                          float largest,
                          double scale,
                          double* sums) {
    const std::size_t whole = count / kLogitBlock;
    const std::size_t rest = count % kLogitBlock;
    const double top = largest;
    for (std::size_t b = 0; b < whole; ++b) {
      const bool all_zero = (maxima[b] - top) * scale < kLeastWeight;
      sums[b] = all_zero ? 0 : block_sum(values + b * kLogitBlock, top, scale);
    }
    if (rest > 0) {
      const Padded last(values + whole * kLogitBlock, rest);
      sums[whole] = block_sum(last.lane, top, scale);
    }
  }

  static void weights(
      const float* values, std::size_t count, float largest, double scale, double* out) {
    std::size_t i = 0;
    for (; i + kDoubles <= count; i += kDoubles) {
      const Doubles w = weigh(values + i, largest, scale);
      __builtin_memcpy(out + i, &w, sizeof(w));
    }
    if (i == count) return;
    float last[kDoubles] = {};
    for (std::size_t j = 0; i + j < count; ++j)
      last[j] = values[i + j];
    const Doubles w = weigh(last, largest, scale);
    for (std::size_t j = 0; i + j < count; ++j)
      out[i + j] = w[j];
  }

  static constexpr LogitKernels kKernels = {
      .block_maxima = &block_maxima,
      .weight_sums = &weight_sums,
      .weights = &weights,
  };
};

}  // namespace tandem::kernels::cpu
