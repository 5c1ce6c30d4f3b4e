// What query rows have of the blocks so far: (M, L, O) of attention.h, beside a block's (m, l, o).
#pragma once

#include "kernels/cpu/simd/mixed.h"
#include "kernels/cpu/simd/rows.h"

#include <cstddef>

namespace tandem::kernels::cpu {

/// Of up to kTileRows rows.
template <class V>
class MergedRows {
 public:
  /// `merged` and `part`: room for [kTileRows][stride] floats, stride a multiple of 16.
  MergedRows(float* merged, float* part, std::size_t stride)
      : merged_(merged), part_(part), stride_(stride) {}

  /// A row that has seen nothing.
  void clear(std::size_t row) { started_[row] = false; }

  /// o of a row.
  [[nodiscard]] float* part(std::size_t row) const { return part_ + row * stride_; }

  /// m and l of a row; o is zero.
  void begin_part(std::size_t row, float max, float sum) {
    part_max_[row] = max;
    part_sum_[row] = sum;
    for (std::size_t i = 0; i < stride_; ++i)
      part(row)[i] = 0;
  }

  /// kPairs: o was summed by pairs.
  template <bool kPairs>
  void merge(std::size_t row) {
    float* merged = merged_ + row * stride_;
    const float* from = part(row);
    if constexpr (kPairs) Rows<V>::make_zeros_positive(part(row), stride_);
    if (!started_[row]) {
      started_[row] = true;
      max_[row] = part_max_[row];
      sum_[row] = part_sum_[row];
      for (std::size_t i = 0; i < stride_; i += 16)
        V::store(merged + i, V::load(from + i));
      return;
    }
    const float max = part_max_[row] > max_[row] ? part_max_[row] : max_[row];
    const float anchor = max == -__builtin_inff() ? 0.0F : max;
    const float keep = Rows<V>::exp_one(max_[row] - anchor);
    const float take = Rows<V>::exp_one(part_max_[row] - anchor);
    max_[row] = max;
    sum_[row] = sum_[row] * keep + part_sum_[row] * take;
    const Vec keep_all = V::broadcast(keep);
    const Vec take_all = V::broadcast(take);
    for (std::size_t i = 0; i < stride_; i += 16) {
      V::store(merged + i,
               V::fma(V::load(merged + i), keep_all, V::mul(V::load(from + i), take_all)));
    }
  }

  /// O / L; kMixed: mixed.h.
  template <std::size_t kMixed>
  void write(std::size_t row, std::size_t dim, float* out) const {
    Mixed<V>::template scale_row<kMixed>(merged_ + row * stride_, 1.0F / sum_[row], dim, out);
  }

 private:
  using Vec = typename V::Vec;

  float* merged_;  // O
  float* part_;    // o
  std::size_t stride_;
  bool started_[kTileRows];
  float max_[kTileRows];
  float sum_[kTileRows];
  float part_max_[kTileRows];
  float part_sum_[kTileRows];
};

}  // namespace tandem::kernels::cpu
