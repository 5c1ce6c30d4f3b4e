// Activations on their way to a product, as that product rounds them: row behind row, bf16, or
// bytes of whole rows and their scales. Each worker brings them to an order of its own then, from a
// half or a quarter of the bytes that f32 has, half of which lie in another processor's caches.
#pragma once

#include "kernels/cpu/simd/quant.h"

namespace tandem::kernels::cpu {

template <class V>
struct NarrowRows {
  /// See Kernels. Up to kFew rows stay f32: they are packed in no time.
  static bool takes_packed(std::size_t rows, std::size_t k, WeightScheme scheme, DType dtype) {
    if (rows <= kFew || k == 0) return false;
    if (rounds_to_bytes(scheme)) return k % kLine == 0;
    const bool pairs = scheme == WeightScheme::kShortBf16
                           ? V::kShortBf16
                           : scheme == WeightScheme::kFloat && dtype == DType::kBf16;
    return V::kBf16Pairs && pairs && k % kPackedColumns == 0;
  }

  /// See Kernels.
  static void pack_part(const PackedPart& part) {
    for (std::size_t r = 0; r < part.rows; ++r) {
      const float* x = part.x + r * part.x_stride;
      const std::size_t row = part.row + r;
      if (part.scales != nullptr) {
        part.scales[row] = ByteRow<V>::pack(x, part.k, part.to + row * part.k);
        continue;
      }
      std::byte* to = part.to + (row * part.k + part.column) * 2;
      Rows<V>::narrow_row(x, DType::kBf16, to, part.columns);
    }
  }

 private:
  static constexpr std::size_t kFew = 8;
  static constexpr std::size_t kLine = 64;  ///< of bytes; of bf16 kPackedColumns are one
};

}  // namespace tandem::kernels::cpu
