// Element types of weights and KV, and exact scalar conversions. kernels/ stands alone, so it has
// its own DType; common/tensor uses the same numbers, so a room above may cast.
#pragma once

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <string_view>

namespace tandem::kernels {

enum class DType : std::uint8_t {
  kF32 = 0,
  kF16 = 1,
  kBf16 = 2,
  // 8 bit: only of KvLayer, never of weights.
  kFp8E5m2 = 3,
  kFp8E4m3 = 4,
};

constexpr bool is_fp8(DType dtype) {
  return dtype == DType::kFp8E5m2 || dtype == DType::kFp8E4m3;
}

/// Bytes of one element.
constexpr std::size_t dtype_bytes(DType dtype) {
  if (is_fp8(dtype)) return 1;
  return dtype == DType::kF32 ? 4 : 2;
}

/// "f32", "f16", "bf16", "fp8_e5m2", "fp8_e4m3".
constexpr std::string_view dtype_name(DType dtype) {
  switch (dtype) {
    case DType::kF32:
      return "f32";
    case DType::kF16:
      return "f16";
    case DType::kBf16:
      return "bf16";
    case DType::kFp8E5m2:
      return "fp8_e5m2";
    case DType::kFp8E4m3:
      return "fp8_e4m3";
  }
  return "?";
}

/// Exact.
constexpr float bf16_to_f32(std::uint16_t bits) {
  return std::bit_cast<float>(static_cast<std::uint32_t>(bits) << 16);
}

/// Round to nearest, ties to even; NaN stays NaN (quiet, sign kept); too large becomes inf.
constexpr std::uint16_t f32_to_bf16(float value) {
  const auto bits = std::bit_cast<std::uint32_t>(value);
  if ((bits & 0x7fffffffu) > 0x7f800000u) {
    return static_cast<std::uint16_t>((bits >> 16) | 0x0040u);
  }
  return static_cast<std::uint16_t>((bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16);
}

/// Exact (IEEE 754 binary16, with subnormals).
constexpr float f16_to_f32(std::uint16_t bits) {
  const std::uint32_t sign = static_cast<std::uint32_t>(bits & 0x8000u) << 16;
  const std::uint32_t exponent = (bits >> 10) & 0x1fu;
  std::uint32_t mantissa = bits & 0x3ffu;
  if (exponent == 0x1fu) {
    // A signalling NaN becomes quiet, as the hardware conversion does.
    const std::uint32_t quiet = mantissa != 0 ? 0x00400000u : 0u;
    return std::bit_cast<float>(sign | 0x7f800000u | (mantissa << 13) | quiet);
  }
  if (exponent != 0)
    return std::bit_cast<float>(sign | ((exponent + 112u) << 23) | (mantissa << 13));
  if (mantissa == 0) return std::bit_cast<float>(sign);
  std::uint32_t shift = 0;
  while ((mantissa & 0x400u) == 0) {
    mantissa <<= 1;
    ++shift;
  }
  return std::bit_cast<float>(sign | ((113u - shift) << 23) | ((mantissa & 0x3ffu) << 13));
}

/// Round to nearest, ties to even; subnormals kept; NaN stays NaN; too large becomes inf.
constexpr std::uint16_t f32_to_f16(float value) {
  const auto bits = std::bit_cast<std::uint32_t>(value);
  const auto sign = static_cast<std::uint16_t>((bits >> 16) & 0x8000u);
  const std::uint32_t magnitude = bits & 0x7fffffffu;
  if (magnitude > 0x7f800000u) {
    return static_cast<std::uint16_t>(sign | 0x7e00u | ((magnitude >> 13) & 0x3ffu));
  }
  if (magnitude >= 0x477ff000u) return static_cast<std::uint16_t>(sign | 0x7c00u);  // >= 65520
  if (magnitude >= 0x38800000u) {                                                   // normal in f16
    const std::uint32_t rebased = magnitude - 0x38000000u;
    return static_cast<std::uint16_t>(sign | ((rebased + 0xfffu + ((rebased >> 13) & 1u)) >> 13));
  }
  if (magnitude < 0x33000000u) return sign;  // below half of the smallest subnormal
  const std::uint32_t shift = 126u - (magnitude >> 23);
  const std::uint32_t mantissa = (magnitude & 0x7fffffu) | 0x800000u;
  const std::uint32_t half = mantissa >> shift;
  const std::uint32_t rest = mantissa & ((1u << shift) - 1u);
  const std::uint32_t middle = 1u << (shift - 1);
  const bool up = rest > middle || (rest == middle && (half & 1u) != 0);
  return static_cast<std::uint16_t>(sign | (half + (up ? 1u : 0u)));
}

/// Micikevicius et al. 2022 ("FP8 Formats for Deep Learning", arXiv 2209.05433).
struct Fp8Format {
  int mantissa;        ///< bits
  int bias;            ///< of the exponent
  std::uint32_t most;  ///< code of the largest finite value
};

constexpr Fp8Format fp8_format(DType dtype) {
  if (dtype == DType::kFp8E5m2) return {.mantissa = 2, .bias = 15, .most = 0x7b};
  return {.mantissa = 3, .bias = 7, .most = 0x7e};
}

/// Exact. E5M2 is the upper half of a binary16, E4M3 has no infinities and one NaN.
constexpr float fp8_to_f32(std::uint8_t bits, DType dtype) {
  const auto word = static_cast<std::uint32_t>(bits);
  if (dtype == DType::kFp8E5m2) return f16_to_f32(static_cast<std::uint16_t>(word << 8));
  const std::uint32_t sign = (word & 0x80u) << 8;
  if ((word & 0x7fu) == 0x7fu) return std::bit_cast<float>(sign << 16 | 0x7fe00000u);
  // As a binary16, whose exponents are 8 less.
  return f16_to_f32(static_cast<std::uint16_t>(sign | (word & 0x7fu) << 7)) * 256.0F;
}

/// Round to nearest, ties to even; subnormals kept; NaN stays NaN; too large becomes the largest
/// finite value, as what quantises KV elsewhere does.
constexpr std::uint8_t f32_to_fp8(float value, DType dtype) {
  const auto bits = std::bit_cast<std::uint32_t>(value);
  const std::uint32_t sign = (bits >> 24) & 0x80u;
  const std::uint32_t magnitude = bits & 0x7fffffffu;
  if (magnitude > 0x7f800000u) return static_cast<std::uint8_t>(sign | 0x7fu);
  const Fp8Format format = fp8_format(dtype);
  const auto mantissa = static_cast<std::uint32_t>(format.mantissa);
  const auto bias = static_cast<std::uint32_t>(format.bias);
  const std::uint32_t shift = 23 - mantissa;
  std::uint32_t code = 0;
  if (magnitude >= (128u - bias) << 23) {  // normal there
    const std::uint32_t rebased = magnitude - ((127u - bias) << 23);
    code = (rebased + (1u << (shift - 1)) - 1u + ((rebased >> shift) & 1u)) >> shift;
  } else {
    // The last bit of this is the smallest subnormal.
    const auto large = std::bit_cast<float>((151u - bias - mantissa) << 23);
    code = std::bit_cast<std::uint32_t>(std::bit_cast<float>(magnitude) + large) -
           std::bit_cast<std::uint32_t>(large);
  }
  return static_cast<std::uint8_t>(sign | std::min(code, format.most));
}

}  // namespace tandem::kernels
