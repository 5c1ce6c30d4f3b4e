// Where the elements of a packed weight lie (WeightLayout::kPanel16).
#pragma once

#include "kernels/api/thread_pool.h"
#include "kernels/api/weight.h"
#include "kernels/cpu/simd/table.h"

#include <memory>
#include <span>

namespace tandem::kernels::cpu {

constexpr std::size_t round_up(std::size_t value, std::size_t step) {
  return (value + step - 1) / step * step;
}

constexpr std::size_t panel_count(std::size_t n) {
  return round_up(n, kPanel) / kPanel;
}

/// bf16 panels are padded to whole AMX tiles of 32 k.
constexpr std::size_t panel_bytes(std::size_t k, DType dtype) {
  return (dtype == DType::kBf16 ? round_up(k, 32) : k) * kPanel * dtype_bytes(dtype);
}

/// Index of element (lane, k) in its panel, in elements.
constexpr std::size_t panel_index(std::size_t lane, std::size_t k, DType dtype) {
  return dtype == DType::kBf16 ? (k / 2 * kPanel + lane) * 2 + k % 2 : k * kPanel + lane;
}

/// Packs `parts` stacked along rows; null without memory.
std::unique_ptr<PackedWeight> pack_panels(std::span<const MatrixView> parts,
                                          DType store,
                                          const Kernels& kernels,
                                          ThreadPool& pool);

}  // namespace tandem::kernels::cpu
