// Row-wise ops over the 16-lane vector V (generic/vec.h says what V provides). Each instruction-set
// file instantiates these with its own V, so no two files share an instantiation. Tails go through
// the same arithmetic as full vectors, on zero-padded copies.
#pragma once

#include "kernels/cpu/simd/table.h"

#include <cstddef>

namespace tandem::kernels::cpu {

template <class V>
struct Rows {
  using Vec = typename V::Vec;

  /// Row `row` of those that came as bf16.
  static const std::byte* half_row(const LinearBlock& block, std::size_t row) {
    return block.x_halves + row * block.k * 2;
  }

  /// The first `count` (< 16) floats, the other lanes `fill`.
  static Vec load_part(const float* from, std::size_t count, float fill = 0.0F) {
    alignas(64) float padded[16];
    for (std::size_t i = 0; i < 16; ++i)
      padded[i] = i < count ? from[i] : fill;
    return V::load(padded);
  }

  /// row[i, i + 16), zero from `end` on.
  static Vec load_within(const float* row, std::size_t i, std::size_t end) {
    if (i + 16 <= end) return V::load(row + i);
    return i < end ? load_part(row + i, end - i) : V::zero();
  }

  static void store_part(float* to, Vec v, std::size_t count) {
    alignas(64) float padded[16];
    V::store(padded, v);
    for (std::size_t i = 0; i < count; ++i)
      to[i] = padded[i];
  }

  /// kernels::is_fp8, which is no template over V (see table.h).
  static constexpr bool is_fp8(DType dtype) {
    return dtype == DType::kFp8E5m2 || dtype == DType::kFp8E4m3;
  }

  template <DType D>
  static Vec load_as(const std::byte* from) {
    if constexpr (D == DType::kBf16) {
      return V::load_bf16(from);
    } else if constexpr (D == DType::kF16) {
      return V::load_f16(from);
    } else {
      static_assert(D == DType::kF32);
      return V::load(reinterpret_cast<const float*>(from));
    }
  }

  /// Out of line: it is unrolled into places where it is never called for usual head sizes.
  template <DType D>
  static __attribute__((noinline)) Vec load_part_as(const std::byte* from, std::size_t count) {
    constexpr std::size_t kBytes = D == DType::kF32 ? 4 : 2;
    alignas(64) std::byte padded[64];
    for (std::size_t i = 0; i < 64; ++i)
      padded[i] = i < count * kBytes ? from[i] : std::byte{0};
    return load_as<D>(padded);
  }

  /// e^x to about 1 ulp: x = n ln2 + r with |r| <= ln2 / 2 (Cody and Waite), a degree-7 polynomial
  /// of r, times 2^n. Below -87.33 (the smallest normal result) exactly 0, above 88.72 inf, NaN
  /// stays NaN.
  static Vec exp(Vec x) {
    const Vec low = V::broadcast(kExpLeast);
    const Vec high = V::broadcast(0x1.62e42ep+6F);
    // The constant comes first: max and min return their second operand when one is NaN.
    const Vec clamped = V::min(high, V::max(low, x));
    const Vec shifted = shifted_power(clamped);
    const Vec value = V::scale_by_power(exp_rest(clamped, shifted), shifted);
    const Vec not_under = V::select_greater(low, x, V::zero(), value);
    return V::select_greater(x, high, V::broadcast(__builtin_inff()), not_under);
  }

  /// The same bits for x <= 0 or NaN, sooner.
  static Vec exp_down(Vec x) {
    const Vec low = V::broadcast(kExpLeast);
    const Vec clamped = V::max(low, x);
    const Vec shifted = shifted_power(clamped);
    const Vec value = V::scale_by_normal_power(exp_rest(clamped, shifted), shifted);
    return V::select_greater(low, x, V::zero(), value);
  }

  /// What exp2_down needs of a rate.
  struct Falling {
    Vec rate;  ///< negated
    Vec far;   ///< distance from which on all is 0
  };

  /// Of a rate that is finite and >= 0.
  static Falling falling(float rate) {
    const float far = 127.0F / rate;
    // Not inf, times which a rate of 0 would be NaN.
    constexpr float kMost = 0x1.fffffep+127F;
    return {V::broadcast(-rate), V::broadcast(far < kMost ? far : kMost)};
  }

  /// 2^-(rate x) to about 1 ulp, for x >= 0 or NaN: -(rate x) = n + f with |f| <= 1/2, a polynomial
  /// of degree 6 in f, times 2^n. 0 where n is below -126.
  static Vec exp2_down(Vec x, const Falling& falling) {
    // In the lowest bits n + 127, which is the exponent of 2^n, or 0 where that is too small.
    const Vec shift = V::broadcast(kExpShift + 127.0F);
    const Vec clamped = V::min(falling.far, x);
    const Vec shifted = V::fma(clamped, falling.rate, shift);
    const Vec f = V::fms(clamped, falling.rate, V::sub(shifted, shift));
    Vec p = V::broadcast(0x1.430912p-13F);  // ln(2)^k / k!
    p = V::fma(p, f, V::broadcast(0x1.5d87fep-10F));
    p = V::fma(p, f, V::broadcast(0x1.3b2ab6p-7F));
    p = V::fma(p, f, V::broadcast(0x1.c6b08ep-5F));
    p = V::fma(p, f, V::broadcast(0x1.ebfbep-3F));
    p = V::fma(p, f, V::broadcast(0x1.62e43p-1F));
    p = V::fma(p, f, V::broadcast(1.0F));
    return V::mul(p, V::exponent_of(shifted));
  }

  static constexpr float kExpLeast = -0x1.5d589ep+6F;
  static constexpr float kExpShift = 0x1.8p23F;

  /// n of exp() in the lowest bits.
  static Vec shifted_power(Vec x) {
    return V::fma(x, V::broadcast(0x1.715476p+0F), V::broadcast(kExpShift));
  }

  /// e^r of exp().
  static Vec exp_rest(Vec clamped, Vec shifted) {
    const Vec n = V::sub(shifted, V::broadcast(kExpShift));
    Vec r = V::fma(n, V::broadcast(-0x1.62e4p-1F), clamped);
    r = V::fma(n, V::broadcast(-0x1.7f7d1cp-20F), r);
    Vec p = V::broadcast(1.0F / 5040.0F);
    p = V::fma(p, r, V::broadcast(1.0F / 720.0F));
    p = V::fma(p, r, V::broadcast(1.0F / 120.0F));
    p = V::fma(p, r, V::broadcast(1.0F / 24.0F));
    p = V::fma(p, r, V::broadcast(1.0F / 6.0F));
    p = V::fma(p, r, V::broadcast(0.5F));
    p = V::fma(p, r, V::broadcast(1.0F));
    return V::fma(p, r, V::broadcast(1.0F));
  }

  static float exp_one(float x) {
    alignas(64) float lanes[16];
    V::store(lanes, exp(V::broadcast(x)));
    return lanes[0];
  }

  /// -0 to 0; `count` is a multiple of 16.
  static void make_zeros_positive(float* values, std::size_t count) {
    for (std::size_t i = 0; i < count; i += 16)
      V::store(values + i, V::add(V::load(values + i), V::zero()));
  }

  /// What is read or written after a row of x: asked for line by line while x is read. Null where
  /// there is nothing to ask for.
  struct Later {
    const float* next;  ///< row of x
    const float* y;     ///< whose lines would else be waited for when they are written
  };

  /// Four chains of squares (vectors i, i+4, ... each), so that the sum is not bound by latency.
  static float square_sum(const float* x, std::size_t dim, const Later& later) {
    Vec sums[4] = {V::zero(), V::zero(), V::zero(), V::zero()};
    std::size_t i = 0;
    for (; i + 16 <= dim; i += 16) {
      if (later.next != nullptr) __builtin_prefetch(later.next + i);
      if (later.y != nullptr) __builtin_prefetch(later.y + i, 1);
      const Vec v = V::load(x + i);
      Vec& sum = sums[(i / 16) % 4];
      sum = V::fma(v, v, sum);
    }
    if (i < dim) {
      const Vec v = load_part(x + i, dim - i);
      Vec& sum = sums[(i / 16) % 4];
      sum = V::fma(v, v, sum);
    }
    return V::sum(V::add(V::add(sums[0], sums[2]), V::add(sums[1], sums[3])));
  }

  static void norm(const NormRow& row) {
    const float* x = row.x;
    if (row.residual != nullptr) {
      std::size_t i = 0;
      for (; i + 16 <= row.dim; i += 16) {
        V::store(row.residual + i, V::add(V::load(row.residual + i), V::load(x + i)));
      }
      for (; i < row.dim; ++i)
        row.residual[i] = row.residual[i] + x[i];
      x = row.residual;
    }
    const Later later = {.next = row.next, .y = row.y == row.x ? nullptr : row.y};
    const float mean = square_sum(x, row.dim, later) / static_cast<float>(row.dim);
    const Vec inverse = V::broadcast(1.0F / __builtin_sqrtf(mean + row.eps));
    std::size_t i = 0;
    for (; i + 16 <= row.dim; i += 16) {
      V::store(row.y + i, V::mul(V::mul(V::load(x + i), inverse), V::load(row.weight + i)));
    }
    if (i < row.dim) {
      const std::size_t rest = row.dim - i;
      const Vec scaled = V::mul(load_part(x + i, rest), inverse);
      store_part(row.y + i, V::mul(scaled, load_part(row.weight + i, rest)), rest);
    }
  }

  struct Rotated {
    Vec a;
    Vec b;
  };

  static Rotated rotate(Vec a, Vec b, Vec c, Vec s) {
    return {V::fms(a, c, V::mul(b, s)), V::fma(b, c, V::mul(a, s))};
  }

  static void rope(const RopeHead& head) {
    float* a = head.x;
    float* b = head.x + head.half;
    std::size_t i = 0;
    for (; i + 16 <= head.half; i += 16) {
      const Rotated out =
          rotate(V::load(a + i), V::load(b + i), V::load(head.cos + i), V::load(head.sin + i));
      V::store(a + i, out.a);
      V::store(b + i, out.b);
    }
    if (i == head.half) return;
    const std::size_t rest = head.half - i;
    const Rotated out = rotate(load_part(a + i, rest),
                               load_part(b + i, rest),
                               load_part(head.cos + i, rest),
                               load_part(head.sin + i, rest));
    store_part(a + i, out.a, rest);
    store_part(b + i, out.b, rest);
  }

  static Vec silu_mul(Vec gate, Vec up) {
    const Vec denominator = V::add(V::broadcast(1.0F), exp(V::sub(V::zero(), gate)));
    return V::mul(V::div(gate, denominator), up);
  }

  static void silu_mul_row(const float* gate, const float* up, float* out, std::size_t dim) {
    std::size_t i = 0;
    for (; i + 16 <= dim; i += 16)
      V::store(out + i, silu_mul(V::load(gate + i), V::load(up + i)));
    if (i < dim) {
      const std::size_t rest = dim - i;
      store_part(out + i, silu_mul(load_part(gate + i, rest), load_part(up + i, rest)), rest);
    }
  }

  template <DType D>
  static void widen(const std::byte* from, float* to, std::size_t count) {
    constexpr std::size_t kBytes = D == DType::kF32 ? 4 : 2;
    std::size_t i = 0;
    for (; i + 16 <= count; i += 16)
      V::store(to + i, load_as<D>(from + i * kBytes));
    if (i < count) store_part(to + i, load_part_as<D>(from + i * kBytes, count - i), count - i);
  }

  static void widen_row(const void* from, DType dtype, float* to, std::size_t count) {
    const auto* bytes = static_cast<const std::byte*>(from);
    if (dtype == DType::kF32) widen<DType::kF32>(bytes, to, count);
    if (dtype == DType::kF16) widen<DType::kF16>(bytes, to, count);
    if (dtype == DType::kBf16) widen<DType::kBf16>(bytes, to, count);
  }

  static void store_as(std::byte* to, DType dtype, Vec v) {
    if (dtype == DType::kF32) V::store(reinterpret_cast<float*>(to), v);
    if (dtype == DType::kF16) V::store_f16(to, v);
    if (dtype == DType::kBf16) V::store_bf16(to, v);
    if (dtype == DType::kFp8E5m2) V::template store_fp8<DType::kFp8E5m2>(to, v);
    if (dtype == DType::kFp8E4m3) V::template store_fp8<DType::kFp8E4m3>(to, v);
  }

  static void narrow_row(const float* from, DType dtype, void* to, std::size_t count) {
    const std::size_t element_bytes = is_fp8(dtype) ? 1 : dtype == DType::kF32 ? 4 : 2;
    auto* bytes = static_cast<std::byte*>(to);
    std::size_t i = 0;
    for (; i + 16 <= count; i += 16)
      store_as(bytes + i * element_bytes, dtype, V::load(from + i));
    if (i == count) return;
    alignas(64) std::byte padded[64];
    store_as(padded, dtype, load_part(from + i, count - i));
    for (std::size_t b = 0; b < (count - i) * element_bytes; ++b)
      bytes[i * element_bytes + b] = padded[b];
  }

  static float max(const float* values, std::size_t count) {
    const float lowest = -__builtin_inff();
    Vec best = V::broadcast(lowest);
    std::size_t i = 0;
    for (; i + 16 <= count; i += 16)
      best = V::max(V::load(values + i), best);
    if (i < count) best = V::max(load_part(values + i, count - i, lowest), best);
    return V::max_lane(best);
  }

  /// f32 lanes over 256 values, then double: the vocabulary is long and the result is compared to
  /// 1e-5.
  static double exp_sum(const float* values, std::size_t count, float max_value) {
    const Vec max = V::broadcast(max_value);
    double total = 0;
    for (std::size_t begin = 0; begin < count; begin += 256) {
      const std::size_t end = begin + 256 < count ? begin + 256 : count;
      Vec sum = V::zero();
      std::size_t i = begin;
      for (; i + 16 <= end; i += 16)
        sum = V::add(sum, exp(V::sub(V::load(values + i), max)));
      if (i < end) {
        sum = V::add(sum, exp(V::sub(load_part(values + i, end - i, -__builtin_inff()), max)));
      }
      total += static_cast<double>(V::sum(sum));
    }
    return total;
  }
};

}  // namespace tandem::kernels::cpu
