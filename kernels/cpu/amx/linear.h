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

  /// Panels are padded to whole tiles.
  static std::size_t tail_bytes(std::size_t /*k*/) { return 0; }

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

/// WeightScheme::kInt8Dynamic: four k to a word on both sides, signed bytes, exact sums of 32 bits;
/// outputs are scaled as Int8DynamicTile does.
template <class V, class T>
struct Int8DynamicKind {
  static constexpr std::size_t kStepK = 64;
  static constexpr std::size_t kHeaderBytes = kInt8HeaderBytes;

  static void pack(const LinearBlock& block, std::size_t row, std::size_t steps, TileLine<V> to) {
    const float* x = Linear<V>::x_row(block, row);
    const float scale = Quantize<V>::int8_scale(x, block.k);
    scales(block)[row] = scale;
    for (std::size_t step = 0; step < steps; ++step) {
      const std::size_t left = block.k - step * kStepK;
      const std::size_t count = left < kStepK ? left : kStepK;
      auto* line = reinterpret_cast<std::int8_t*>(to.at(step));
      Quantize<V>::to_int8(x + step * kStepK, count, scale, line);
      for (std::size_t i = count; i < kStepK; ++i)
        line[i] = 0;
    }
  }

  /// Panels are padded to words of four k.
  static std::size_t tail_bytes(std::size_t k) { return (k % kStepK + 3) / 4 * 64; }

  template <int C, int A, int B>
  static inline __attribute__((always_inline)) void multiply(T& tiles) {
    tiles.template multiply_int8<C, A, B>();
  }

  static typename V::Vec outputs(const LinearBlock& block,
                                 std::size_t row,
                                 std::size_t panel,
                                 const std::byte* c) {
    const auto* scale = reinterpret_cast<const float*>(block.weight + panel * block.panel_bytes);
    return V::mul(V::mul(V::to_float(V::int_load(c)), V::load(scale)),
                  V::broadcast(scales(block)[row]));
  }

 private:
  static float* scales(const LinearBlock& block) { return block.scratch + kPackedFloats; }
};

/// What goes to tiles; everything else is for the family beneath.
template <class V, class T>
struct AmxLinear {
  /// As many rows of 8 bit read the weight at memory bandwidth without tiles, and with the same
  /// bits.
  static constexpr std::size_t kFewRows = 3;

  /// False: not here.
  static bool run(const LinearBlock& block) {
    if (block.scheme == WeightScheme::kFloat && block.dtype == DType::kBf16) {
      TileLinear<V, T, Bf16Kind>::run(block);
      return true;
    }
    if (block.scheme == WeightScheme::kInt8Dynamic && block.rows > kFewRows) {
      TileLinear<V, T, Int8DynamicKind>::run(block);
      return true;
    }
    return false;
  }

  /// See Kernels.
  static std::size_t most_rows(std::size_t k, WeightScheme scheme, DType dtype) {
    if (scheme == WeightScheme::kFloat && dtype == DType::kBf16)
      return TileLinear<V, T, Bf16Kind>::most_rows(k);
    if (scheme == WeightScheme::kInt8Dynamic)
      return TileLinear<V, T, Int8DynamicKind>::most_rows(k);
    return 0;
  }
};

}  // namespace tandem::kernels::cpu
