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

  /// How many dimensions are mixed with each other (Mixed::scale_row).
  static std::size_t mixed(DType dtype, std::size_t dim) {
    return Rows<V>::is_fp8(dtype) && dim % 64 == 0 ? 64 : 32;
  }

  /// Of 32 positions from `first` on, [column][pair of positions][dimension], zeros for positions
  /// outside of `seen`; dimensions of columns are mixed. between() is called after every fourth
  /// pair.
  template <class Between>
  void interleave(std::size_t first, Range seen, std::byte* to, Between between) const {
    const std::size_t steps = (dim_ + 31) / 32;
    for (std::size_t pair = 0; pair < kTileHeight; ++pair) {
      const std::size_t j = first + 2 * pair;
      const std::byte* even = j >= seen.begin && j < seen.end ? keys_.row[j] + offset_ : nullptr;
      const std::byte* odd =
          j + 1 >= seen.begin && j + 1 < seen.end ? keys_.row[j + 1] + offset_ : nullptr;
      std::byte* line = to + pair * kTileRowBytes;
      if (mixed(dtype_, dim_) == 64) {
        for (std::size_t i = 0; i < dim_; i += 64, line += 4 * kTileBytes)
          put_bytes(load_bytes(even, i), load_bytes(odd, i), line);
      } else if (even != nullptr && odd != nullptr && !Rows<V>::is_fp8(dtype_) && dim_ % 32 == 0) {
        for (std::size_t i = 0; i < steps; ++i, line += 2 * kTileBytes)
          put(V::int_load(even + i * 64), V::int_load(odd + i * 64), line);
      } else {
        for (std::size_t i = 0; i < steps; ++i, line += 2 * kTileBytes)
          put(load_halves(even, i * 32), load_halves(odd, i * 32), line);
      }
      if (pair % 4 == 3) between();
    }
  }

  /// 32 dimensions of a row from `at` on, zeros behind the last; all zeros of no row.
  [[nodiscard]] typename V::Int load_halves(const std::byte* row, std::size_t at) const {
    if (row == nullptr) return V::int_zero();
    if (Rows<V>::is_fp8(dtype_)) {
      return at + 32 <= dim_ ? ByteRows<V>::halves(row + at, dtype_)
                             : ByteRows<V>::halves_of_part(row + at, dtype_, dim_ - at);
    }
    return at + 32 <= dim_ ? V::int_load(row + at * 2) : V::int_load_part(row + at * 2, dim_ - at);
  }

 private:
  using Int = typename V::Int;

  /// 32 dimensions of two positions to a line of each of two tiles.
  static inline __attribute__((always_inline)) void put(Int even, Int odd, std::byte* line) {
    Int low;
    Int high;
    V::interleave(even, odd, &low, &high);
    V::int_store(line, low);
    V::int_store(line + kTileBytes, high);
  }

  /// 64 dimensions of 8 bit; all zeros of no row.
  static Int load_bytes(const std::byte* row, std::size_t at) {
    return row == nullptr ? V::int_zero() : V::int_load(row + at);
  }

  /// 64 dimensions of two positions to a line of each of four tiles.
  void put_bytes(Int even, Int odd, std::byte* line) const {
    Int pairs[4];
    if (dtype_ == DType::kFp8E5m2) {
      V::template widen_fp8_pairs<DType::kFp8E5m2>(even, odd, pairs);
    } else {
      V::template widen_fp8_pairs<DType::kFp8E4m3>(even, odd, pairs);
    }
    for (std::size_t i = 0; i < 4; ++i)
      V::int_store(line + i * kTileBytes, pairs[i]);
  }

  const KeyRows<V>& keys_;
  std::size_t dim_;
  std::size_t offset_;
  DType dtype_;
};

}  // namespace tandem::kernels::cpu
