// Value rows of a step of positions as B tiles.
#pragma once

#include "kernels/cpu/amx/weights.h"
#include "kernels/cpu/simd/byte_rows.h"

namespace tandem::kernels::cpu {

template <class V>
class TileValues {
 public:
  using Range = typename KeyRows<V>::Range;

  /// `offset`: from a row of KeyRows to its value. `dtype`: of both, bf16 or of 8 bit.
  TileValues(const KeyRows<V>& keys, std::size_t dim, std::size_t offset, DType dtype)
      : keys_(keys), dim_(dim), offset_(offset), dtype_(dtype) {}

  /// Of 32 positions from `first` on, [column][pair of positions][dimension], zeros for positions
  /// outside of `seen`; columns are as V::interleave mixes dimensions. between() is called
  /// after every fourth pair.
  template <class Between>
  void interleave(std::size_t first, Range seen, std::byte* to, Between between) const {
    const std::size_t steps = (dim_ + 31) / 32;
    for (std::size_t pair = 0; pair < kTileHeight; ++pair) {
      const std::size_t j = first + 2 * pair;
      const std::byte* even = j >= seen.begin && j < seen.end ? keys_.row[j] + offset_ : nullptr;
      const std::byte* odd =
          j + 1 >= seen.begin && j + 1 < seen.end ? keys_.row[j + 1] + offset_ : nullptr;
      std::byte* line = to + pair * kTileRowBytes;
      const bool whole =
          even != nullptr && odd != nullptr && dim_ % 32 == 0 && !ByteRows<V>::are(dtype_);
      for (std::size_t i = 0; i < steps; ++i, line += 2 * kTileBytes) {
        typename V::Int low;
        typename V::Int high;
        if (whole) {
          V::interleave(V::int_load(even + i * 64), V::int_load(odd + i * 64), &low, &high);
        } else {
          V::interleave(load_halves(even, i * 32), load_halves(odd, i * 32), &low, &high);
        }
        V::int_store(line, low);
        V::int_store(line + kTileBytes, high);
      }
      if (pair % 4 == 3) between();
    }
  }

  /// 32 dimensions of a row from `at` on, zeros behind the last; all zeros of no row.
  [[nodiscard]] typename V::Int load_halves(const std::byte* row, std::size_t at) const {
    if (row == nullptr) return V::int_zero();
    if (ByteRows<V>::are(dtype_)) {
      return at + 32 <= dim_ ? ByteRows<V>::halves(row + at, dtype_)
                             : ByteRows<V>::halves_of_part(row + at, dtype_, dim_ - at);
    }
    return at + 32 <= dim_ ? V::int_load(row + at * 2) : V::int_load_part(row + at * 2, dim_ - at);
  }

 private:
  const KeyRows<V>& keys_;
  std::size_t dim_;
  std::size_t offset_;
  DType dtype_;
};

}  // namespace tandem::kernels::cpu
