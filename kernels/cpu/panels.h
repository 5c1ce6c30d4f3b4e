// Where the elements of a packed weight lie (WeightLayout::kPanel16).
#pragma once

#include "kernels/api/backend.h"
#include "kernels/cpu/simd/short_bf16.h"
#include "kernels/cpu/simd/table.h"

#include <span>

namespace tandem::kernels::cpu {

constexpr std::size_t round_up(std::size_t value, std::size_t step) {
  return (value + step - 1) / step * step;
}

constexpr std::size_t panel_count(std::size_t n) {
  return round_up(n, kPanel) / kPanel;
}

/// bf16 panels are padded to whole AMX tiles of 32 k; kShortBf16: short_bf16.h. Quantised panels
/// are padded to whole words of 32 bits, and hold 16 f32 scales, 16 int32 (128 * sum of what stands
/// for weights), then
///   int8: [k/4][16] words of four bytes;
///   int4: per two groups of k their headers, 16 pairs of bytes each (step, offset), then [k/8][16]
///         words of eight half bytes: low in the four bytes of a word are those of the first four
///         k, high those of the next four.
constexpr std::size_t panel_bytes(std::size_t k, WeightFormat format) {
  switch (format.scheme) {
    case WeightScheme::kFloat:
      break;
    case WeightScheme::kShortBf16:
      return short_panel_bytes(short_steps(k));
    case WeightScheme::kInt8:
    case WeightScheme::kInt8Dynamic:
      return kByteHeaderBytes + round_up(k, 4) * kPanel;
    case WeightScheme::kInt4Group128:
      return kByteHeaderBytes +
             round_up(k, kInt4HeaderGroups * kInt4Group) / (kInt4HeaderGroups * kInt4Group) *
                 kInt4HeaderBytes +
             round_up(k, 8) / 8 * 64;
  }
  const std::size_t rows = format.dtype == DType::kBf16 ? round_up(k, 32) : k;
  return rows * kPanel * dtype_bytes(format.dtype) + kPanelGapBytes;
}

/// Index of element (lane, k) in its panel, in elements.
constexpr std::size_t panel_index(std::size_t lane, std::size_t k, DType dtype) {
  return dtype == DType::kBf16 ? (k / 2 * kPanel + lane) * 2 + k % 2 : k * kPanel + lane;
}

/// Inputs up to which weights are kept as kShortBf16: a plain panel lies in a thread's scratch
/// while it is made one.
inline constexpr std::size_t kMostShortK = 32 * 1024;
static_assert(kMostShortK * kPanel * 2 + kPanelGapBytes <= ThreadPool::kScratchBytes);

/// Backend::fill for WeightLayout::kPanel16.
void fill_panels(std::span<PackJob> jobs, const Kernels& kernels, ThreadPool& pool);

}  // namespace tandem::kernels::cpu
