// Attention by how many query rows a tile has: the same bits either way.
#pragma once

#include "kernels/cpu/simd/attention.h"
#include "kernels/cpu/simd/lane_attention.h"
#include "kernels/cpu/simd/pair_attention.h"

namespace tandem::kernels::cpu {

/// Rows are lanes where they fill a group and more.
template <class V>
struct AttentionByRows {
  static void run(const AttentionTile& tile) {
    const bool many = tile.tokens > 1 && tile.tokens * tile.heads > LaneRows<V>::kLanes;
    if (!many || !takes(tile.head_dim)) return Attention<V>::run(tile);
    if constexpr (V::kBf16Pairs) {
      if (tile.dtype == DType::kBf16 || Rows<V>::is_fp8(tile.dtype))
        return PairAttention<V>::run(tile);
    }
    LaneAttention<V>::run(tile);
  }

  /// See Kernels.
  static std::size_t most_rows(DType /*dtype*/, std::size_t head_dim) {
    static_assert(PairAttention<V>::kRows == LaneAttention<V>::kRows);
    return takes(head_dim) ? LaneAttention<V>::kRows : kTileRows;
  }

 private:
  static bool takes(std::size_t head_dim) { return head_dim % 32 == 0; }
};

}  // namespace tandem::kernels::cpu
