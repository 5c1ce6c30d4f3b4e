#include "common/tensor/dtype.h"

#include <string>

namespace tandem::tensor {
namespace {

struct Spelling {
  std::string_view name;
  DType dtype;
};

constexpr Spelling kSpellings[] = {
    {"f32", DType::kF32},
    {"F32", DType::kF32},
    {"float", DType::kF32},
    {"float32", DType::kF32},
    {"f16", DType::kF16},
    {"F16", DType::kF16},
    {"half", DType::kF16},
    {"float16", DType::kF16},
    {"bf16", DType::kBf16},
    {"BF16", DType::kBf16},
    {"bfloat16", DType::kBf16},
};

}  // namespace

Result<DType> parse_dtype(std::string_view name) {
  for (const Spelling& row : kSpellings) {
    if (row.name == name) return row.dtype;
  }
  return invalid_argument("dtype '" + std::string(name.substr(0, 64)) +
                          "' is not supported: expected float32, float16 or bfloat16");
}

float f16_to_f32(std::uint16_t bits) {
  const std::uint32_t sign = static_cast<std::uint32_t>(bits & 0x8000u) << 16;
  const std::uint32_t exponent = (bits >> 10) & 0x1fu;
  const std::uint32_t mantissa = bits & 0x3ffu;
  if (exponent == 0) {
    // Subnormal or zero: mantissa * 2^-24 is exact in f32.
    const float magnitude = static_cast<float>(mantissa) * 0x1p-24F;
    return std::bit_cast<float>(std::bit_cast<std::uint32_t>(magnitude) | sign);
  }
  if (exponent == 0x1fu) {
    const std::uint32_t quiet = mantissa != 0 ? 0x00400000u : 0u;
    return std::bit_cast<float>(sign | 0x7f800000u | (mantissa << 13) | quiet);
  }
  return std::bit_cast<float>(sign | ((exponent + 112u) << 23) | (mantissa << 13));
}

std::uint16_t f32_to_f16(float value) {
  const auto bits = std::bit_cast<std::uint32_t>(value);
  const std::uint32_t sign = (bits >> 16) & 0x8000u;
  const std::uint32_t magnitude = bits & 0x7fffffffu;
  if (magnitude > 0x7f800000u) {
    return static_cast<std::uint16_t>(sign | 0x7e00u | ((magnitude >> 13) & 0x3ffu));
  }
  if (magnitude >= 0x477ff000u)
    return static_cast<std::uint16_t>(sign | 0x7c00u);  // 65520 rounds to inf
  if (magnitude < 0x38800000u) {
    // Below the smallest normal: adding 0.5 puts the f16 subnormal's last bit at the f32 mantissa's
    // last bit, so the FPU does the rounding.
    const float shifted = std::bit_cast<float>(magnitude) + 0.5F;
    return static_cast<std::uint16_t>(sign | (std::bit_cast<std::uint32_t>(shifted) - 0x3f000000u));
  }
  const std::uint32_t rebased = magnitude - 0x38000000u;
  return static_cast<std::uint16_t>(sign | ((rebased + 0xfffu + ((rebased >> 13) & 1u)) >> 13));
}

}  // namespace tandem::tensor
