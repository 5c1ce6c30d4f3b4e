// Y = X W^T for every scheme.
#pragma once

#include "kernels/cpu/simd/byte_cuts.h"

namespace tandem::kernels::cpu {

/// Linear for every scheme.
template <class V>
struct AnyLinear {
  static void run(const LinearBlock& block) {
    switch (block.scheme) {
      case WeightScheme::kFloat:
        return Linear<V>::run(block);
      case WeightScheme::kInt8:
        return Linear<V>::template run_tiles<Int8Tile<V>>(block);
      case WeightScheme::kInt4Group128:
        if constexpr (V::kByteCuts) {
          if (ByteCuts<V, NibbleWords<V>>::takes(block))
            return ByteCuts<V, NibbleWords<V>>::run(block);
        }
        return Linear<V>::template run_tiles<Int4Tile<V>>(block);
      case WeightScheme::kInt8Dynamic:
        if constexpr (V::kByteCuts) {
          if (ByteCuts<V, OffsetBytes<V>>::takes(block))
            return ByteCuts<V, OffsetBytes<V>>::run(block);
        }
        return Linear<V>::template run_tiles<Int8DynamicTile<V>>(block);
      case WeightScheme::kShortBf16:
        if constexpr (V::kShortBf16) {
          return ShortTile<V, typename Linear<V>::template FloatTile<DType::kBf16>>::run(block);
        }
        __builtin_trap();  // nobody packs it without Kernels::shorten
    }
  }
};

}  // namespace tandem::kernels::cpu
