// Kinds of weights on AMX tiles (tiles.h), and which weights go there.
#pragma once

#include "kernels/cpu/amx/tiles.h"

namespace tandem::kernels::cpu {

/// bf16 weights: x is rounded to bf16, products and sums are f32. Per 32 k, one chain of FMAs over
/// the even and one over the odd k, added to each other and then to C (Intel SDM, TDPBF16PS;
/// subnormals count as zero).
template <class V, class T>
struct Bf16Kind {
  static constexpr std::size_t kStepK = 32;
  static constexpr std::size_t kHeaderBytes = 0;

  static void pack(const LinearBlock& block, std::size_t row, std::size_t steps, TileLine<V> to) {
    const float* x = Linear<V>::x_row(block, row);
    for (std::size_t step = 0; step < steps; ++step) {
      const std::size_t i = step * kStepK;
      std::byte* line = to.at(step);
      V::store_bf16(line, load(x, i, block.k));
      V::store_bf16(line + 32, load(x, i + 16, block.k));
    }
  }

  template <int C, int A, int B>
  static inline __attribute__((always_inline)) void multiply(T& tiles) {
    tiles.template multiply_bf16<C, A, B>();
  }

  /// The sums of a row in a C tile.
  static typename V::Vec outputs(const LinearBlock& /*block*/,
                                 std::size_t /*row*/,
                                 std::size_t /*panel*/,
                                 const std::byte* c) {
    return V::load(reinterpret_cast<const float*>(c));
  }

 private:
  static typename V::Vec load(const float* x, std::size_t i, std::size_t k) {
    if (i + 16 <= k) return V::load(x + i);
    return i < k ? Rows<V>::load_part(x + i, k - i) : V::zero();
  }
};

/// What goes to tiles; everything else is for the family beneath.
template <class V, class T>
struct AmxLinear {
  /// False: not here.
  static bool run(const LinearBlock& block) {
    if (block.scheme == WeightScheme::kFloat && block.dtype == DType::kBf16) {
      TileLinear<V, T, Bf16Kind>::run(block);
      return true;
    }
    return false;
  }

  /// See Kernels.
  static std::size_t most_rows(std::size_t k, WeightScheme scheme, DType dtype) {
    if (scheme == WeightScheme::kFloat && dtype == DType::kBf16)
      return TileLinear<V, T, Bf16Kind>::most_rows(k);
    return 0;
  }
};

}  // namespace tandem::kernels::cpu
