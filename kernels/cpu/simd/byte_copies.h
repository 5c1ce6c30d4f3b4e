// Rows of keys or values of 8 bit that were made bf16 for a while.
#pragma once

#include "kernels/cpu/simd/byte_rows.h"
#include "kernels/cpu/simd/key_rows.h"

namespace tandem::kernels::cpu {

/// Of positions of a block of KeyRows. Without make() there are none.
template <class V>
class ByteCopies {
 public:
  using Range = typename KeyRows<V>::Range;

  /// A block, and how far tiles of keys may reach over its end.
  static constexpr std::size_t kRows = kKeyBlock + KeyRows<V>::kOver;
  static constexpr std::size_t kPointerBytes = kRows * sizeof(std::byte*);

  /// `pointers`: kPointerBytes. `rows`: `different` rows of `row_bytes`, in whole lines; positions
  /// that are so many apart share one.
  void make(const AttentionTile& tile,
            std::byte* pointers,
            std::byte* rows,
            std::size_t row_bytes,
            std::size_t different) {
    tile_ = &tile;
    to_ = reinterpret_cast<std::byte**>(pointers);
    for (std::size_t j = 0; j < kRows; ++j)
      to_[j] = rows + j % different * row_bytes;
  }

  [[nodiscard]] bool are_there() const { return tile_ != nullptr; }

  /// [kRows], by position.
  [[nodiscard]] const std::byte* const* rows() const { return to_; }

  /// The rows `offset` behind those of `keys`. asked(j): the row to ask for meanwhile.
  template <class Asked>
  void copy(const KeyRows<V>& keys, Range positions, std::size_t offset, Asked asked) const {
    if (tile_->dtype == DType::kFp8E5m2) copy_as<DType::kFp8E5m2>(keys, positions, offset, asked);
    if (tile_->dtype == DType::kFp8E4m3) copy_as<DType::kFp8E4m3>(keys, positions, offset, asked);
  }

 private:
  template <DType D, class Asked>
  void copy_as(const KeyRows<V>& keys, Range positions, std::size_t offset, Asked asked) const {
    const std::size_t dim = tile_->head_dim;
    for (std::size_t j = positions.begin; j < positions.end; ++j) {
      const std::byte* row = asked(j);
      for (std::size_t at = 0; at < dim; at += 64)
        KeyRows<V>::ask(row + at);
      ByteRows<V>::template widen_as<D>(keys.row[j] + offset, dim, to_[j]);
    }
  }

  const AttentionTile* tile_ = nullptr;
  std::byte** to_ = nullptr;
};

}  // namespace tandem::kernels::cpu
