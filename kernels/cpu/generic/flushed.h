// Arithmetic of the bf16 units (VDPBF16PS, TDPBF16PS) in plain code: subnormal inputs count as
// zero, tiny results become zero, with their sign.
#pragma once

#include "kernels/api/dtype.h"

#include <cstdint>

namespace tandem::kernels::cpu {

/// V only keeps instruction-set files apart (table.h).
template <class V>
struct Flushed {
  static float value(float value) {
    return __builtin_fabsf(value) < 0x1p-126F ? __builtin_copysignf(0.0F, value) : value;
  }

  /// a b + c of bf16 a and b, all of them flushed before. x86 asks whether a result is tiny after
  /// rounding it to 24 bits as if the exponent had no end; fmaf rounds to fewer bits down there,
  /// and so makes the smallest normal number of some results that are tiny.
  static float fma(float a, float b, float c) {
    const float rounded = __builtin_fmaf(a, b, c);
    if (__builtin_fabsf(rounded) != 0x1p-126F) return value(rounded);
    // Exact near that border, where c is a multiple of 2^-149 and a b has 16 bits. The border is
    // halfway to the 24-bit number below, and even numbers win ties.
    const double exact = static_cast<double>(a) * static_cast<double>(b) + static_cast<double>(c);
    constexpr double kBorder = 0x1p-126 - 0x1p-151;
    return __builtin_fabs(exact) < kBorder ? __builtin_copysignf(0.0F, rounded) : rounded;
  }

  /// A lane of VDPBF16PS: a sum and two pairs of bf16, the upper ones first.
  static float dot2(float acc, std::uint32_t x, std::uint32_t w) {
    const float odd = fma(half(x >> 16), half(w >> 16), value(acc));
    return fma(half(x), half(w), odd);
  }

 private:
  static float half(std::uint32_t word) {
    return value(bf16_to_f32(static_cast<std::uint16_t>(word)));
  }
};

}  // namespace tandem::kernels::cpu
