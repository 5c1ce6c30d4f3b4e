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

  /// The rows `offset` behind those of `keys`; asks for as many lines as it reads.
  void copy(const KeyRows<V>& keys, Range positions, std::size_t offset) const {
    for (std::size_t j = positions.begin; j < positions.end; ++j) {
      for (std::size_t at = 0; at < tile_->row_bytes; at += 64)
        keys.template ask<1>(keys.ahead + j, at);
      ByteRows<V>::widen(keys.row[j] + offset, tile_->dtype, tile_->head_dim, to_[j]);
    }
  }

 private:
  const AttentionTile* tile_ = nullptr;
  std::byte** to_ = nullptr;
};

}  // namespace tandem::kernels::cpu
