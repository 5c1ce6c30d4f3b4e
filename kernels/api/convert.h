// Reads and writes of single elements and rows of any DType. Portable scalar code for packing and
// the reference.
#pragma once

#include "kernels/api/weight.h"

#include <cstring>

namespace tandem::kernels {

/// Element `index` of `data`, widened exactly; `data` needs no alignment.
inline float load_element(const void* data, DType dtype, std::size_t index) {
  const auto* bytes = static_cast<const std::byte*>(data) + index * dtype_bytes(dtype);
  if (dtype == DType::kF32) {
    float value = 0;
    std::memcpy(&value, bytes, sizeof(value));
    return value;
  }
  if (is_fp8(dtype)) return fp8_to_f32(std::to_integer<std::uint8_t>(*bytes), dtype);
  std::uint16_t bits = 0;
  std::memcpy(&bits, bytes, sizeof(bits));
  return dtype == DType::kBf16 ? bf16_to_f32(bits) : f16_to_f32(bits);
}

/// Stores `value` rounded to nearest even; `data` needs no alignment.
inline void store_element(void* data, DType dtype, std::size_t index, float value) {
  auto* bytes = static_cast<std::byte*>(data) + index * dtype_bytes(dtype);
  if (dtype == DType::kF32) {
    std::memcpy(bytes, &value, sizeof(value));
    return;
  }
  if (is_fp8(dtype)) {
    *bytes = std::byte{f32_to_fp8(value, dtype)};
    return;
  }
  const std::uint16_t bits = dtype == DType::kBf16 ? f32_to_bf16(value) : f32_to_f16(value);
  std::memcpy(bytes, &bits, sizeof(bits));
}

/// Element [row, col] of a matrix.
inline float load_element(const MatrixView& matrix, std::size_t row, std::size_t col) {
  const std::size_t stride = matrix.row_stride != 0 ? matrix.row_stride : matrix.cols;
  return load_element(matrix.data, matrix.dtype, row * stride + col);
}

/// A field where 0 means "dense": the dense value instead of 0.
inline std::size_t stride_or(std::size_t stride, std::size_t dense) {
  return stride != 0 ? stride : dense;
}

}  // namespace tandem::kernels
