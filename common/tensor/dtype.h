// Element types and exact conversions.
#pragma once

#include "common/base/status.h"

#include <bit>
#include <cstddef>
#include <cstdint>
#include <string_view>

namespace tandem::tensor {

/// The numbers are those of tandem::kernels::DType, so a room that uses both may cast.
enum class DType : std::uint8_t {
  kF32 = 0,
  kF16 = 1,
  kBf16 = 2,
};

/// Bytes of one element.
constexpr std::size_t dtype_bytes(DType dtype) {
  return dtype == DType::kF32 ? 4 : 2;
}

/// "f32", "f16", "bf16".
constexpr std::string_view dtype_name(DType dtype) {
  switch (dtype) {
    case DType::kF32:
      return "f32";
    case DType::kF16:
      return "f16";
    case DType::kBf16:
      return "bf16";
  }
  return "?";
}

/// Takes the spellings of files and flags: f32 F32 float float32, f16 F16 half float16, bf16 BF16
/// bfloat16.
Result<DType> parse_dtype(std::string_view name);

/// Exact.
constexpr float bf16_to_f32(std::uint16_t bits) {
  return std::bit_cast<float>(static_cast<std::uint32_t>(bits) << 16);
}

/// Round to nearest, ties to even; NaN stays NaN; too large becomes inf.
constexpr std::uint16_t f32_to_bf16(float value) {
  const auto bits = std::bit_cast<std::uint32_t>(value);
  if ((bits & 0x7fffffffu) > 0x7f800000u) {
    return static_cast<std::uint16_t>((bits >> 16) | 0x0040u);
  }
  return static_cast<std::uint16_t>((bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16);
}

/// Exact (IEEE 754 binary16, with subnormals).
float f16_to_f32(std::uint16_t bits);

/// Round to nearest, ties to even; subnormals kept; NaN stays NaN; too large becomes inf.
std::uint16_t f32_to_f16(float value);

}  // namespace tandem::tensor
