// Kinds of weights on AMX tiles (tiles.h), and which weights go there.
//
// A kind packs rows of x, names the product, and makes outputs of sums. kMakesTiles: its panels are
// smaller than B tiles, which are made of them; kGroupSteps: so many steps along k have sums of
// their own, which are joined to totals.
#pragma once

#include "kernels/cpu/amx/tiles.h"

namespace tandem::kernels::cpu {

/// bf16 weights: x is rounded to bf16, products and sums are f32. Per 32 k, one chain of FMAs over
/// the even and one over the odd k, added to each other and then to C (Intel SDM, TDPBF16PS;
/// subnormals count as zero).
template <class V, class T>
struct Bf16Kind {
  static constexpr bool kMakesTiles = false;
  static constexpr std::size_t kGroupSteps = 0;
  static constexpr std::size_t kStepK = 32;
  static constexpr std::size_t kHeaderBytes = 0;

  static void pack(const LinearBlock& block, std::size_t row, std::size_t steps, TileLine<V> to) {
    const float* x = Linear<V>::x_row(block, row);
    for (std::size_t step = 0; step < steps; ++step) {
      const std::size_t i = step * kStepK;
      std::byte* line = to.at(step);
      V::store_bf16(line, Rows<V>::load_within(x, i, block.k));
      V::store_bf16(line + 32, Rows<V>::load_within(x, i + 16, block.k));
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
};

/// WeightScheme::kInt8Dynamic: four k to a word on both sides, signed bytes, exact sums of 32 bits;
/// outputs are scaled as Int8DynamicTile does.
template <class V, class T>
struct Int8DynamicKind {
  static constexpr bool kMakesTiles = false;
  static constexpr std::size_t kGroupSteps = 0;
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
  static float* scales(const LinearBlock& block) { return row_floats(block); }
};

/// WeightScheme::kInt8 by bf16, in which all values of q are exact; the sums are scaled at the end.
template <class V, class T>
struct Int8Kind : Bf16Kind<V, T> {
  static constexpr bool kMakesTiles = true;
  static constexpr std::size_t kWordsPerStep = Bf16Kind<V, T>::kStepK / 4;

  static const std::byte* weights(const LinearBlock& block, std::size_t panel, std::size_t step) {
    return block.weight + panel * block.panel_bytes + kInt8HeaderBytes + step * kWordsPerStep * 64;
  }

  static constexpr std::size_t lines(std::size_t steps) { return steps * kWordsPerStep; }

  /// As Int4Kind::make.
  static void make(const std::byte* from, std::size_t count, std::size_t ahead, std::byte* to) {
    for (std::size_t i = 0; i < count; i += 4) {
      __builtin_prefetch(from + ahead);
      typename V::Int rows[2];
      V::byte_pairs(V::int_load(from), &rows[0], &rows[1]);
      V::int_store(to, rows[0]);
      V::int_store(to + 64, rows[1]);
      from += 64;
      to += 128;
    }
    for (std::size_t i = (count + 3) / 4; i % kWordsPerStep != 0; ++i) {
      __builtin_memset(to, 0, 128);
      to += 128;
    }
  }

  static typename V::Vec outputs(const LinearBlock& block,
                                 std::size_t /*row*/,
                                 std::size_t panel,
                                 const std::byte* c) {
    const auto* scale = reinterpret_cast<const float*>(block.weight + panel * block.panel_bytes);
    return V::mul(V::load(reinterpret_cast<const float*>(c)), V::load(scale));
  }
};

/// WeightScheme::kInt4Group128 by bf16: all 16 values of q are exact in it. A look-up widens two q
/// of a word of eight at a time, k and k + 4, so x lies in that order too. Per group of 128 k the
/// tile unit's sums; then total = fma(sum, scale, total), then total = fma(sum of the group's
/// rounded x, zero, total).
template <class V, class T>
struct Int4Kind {
  using Vec = typename V::Vec;

  static constexpr bool kMakesTiles = true;
  static constexpr std::size_t kStepK = 32;
  static constexpr std::size_t kGroupSteps = kInt4Group / kStepK;

  static void pack(const LinearBlock& block, std::size_t row, std::size_t steps, TileLine<V> to) {
    const float* x = Linear<V>::x_row(block, row);
    float* sums = x_sums(block, row);
    Vec sum = V::zero();
    for (std::size_t step = 0; step < steps; ++step) {
      std::byte* line = to.at(step);
      for (std::size_t half = 0; half < 2; ++half) {
        const Vec v = Rows<V>::load_within(x, step * kStepK + half * 16, block.k);
        V::store_bf16(line + half * 32, V::mix_eights(v));
        sum = V::add(sum, V::load_bf16(line + half * 32));
      }
      if ((step + 1) % kGroupSteps != 0 && step + 1 != steps) continue;
      sums[step / kGroupSteps] = V::sum(sum);
      sum = V::zero();
    }
  }

  static std::size_t tail_bytes(std::size_t /*k*/) { return 0; }

  template <int C, int A, int B>
  static inline __attribute__((always_inline)) void multiply(T& tiles) {
    tiles.template multiply_bf16<C, A, B>();
  }

  /// The group that begins at a step.
  static const std::byte* weights(const LinearBlock& block, std::size_t panel, std::size_t step) {
    return block.weight + panel * block.panel_bytes + step / kGroupSteps * kInt4GroupBytes;
  }

  static constexpr std::size_t lines(std::size_t steps) {
    return steps / kGroupSteps * (kInt4GroupBytes / 64);
  }

  /// B tiles of `count` k, zeros up to a whole one. Asks for what lies `ahead` bytes on.
  static void make(const std::byte* from, std::size_t count, std::size_t ahead, std::byte* to) {
    for (std::size_t i = 0; i < count; i += 8) {
      if (i % kInt4Group == 0) {
        __builtin_prefetch(from + ahead);
        from += kInt4HeaderBytes;
      }
      __builtin_prefetch(from + ahead);
      const typename V::Int raw = V::int_load(from);
      V::int_store(to, V::template nibble_pair<0>(raw));
      V::int_store(to + 64, V::template nibble_pair<1>(raw));
      V::int_store(to + 128, V::template nibble_pair<2>(raw));
      V::int_store(to + 192, V::template nibble_pair<3>(raw));
      from += 64;
      to += 256;
    }
    for (std::size_t i = (count + 7) / 8; i % 4 != 0; ++i) {
      __builtin_memset(to, 0, 256);
      to += 256;
    }
  }

  /// `sums` and `totals` are tiles of [row][16 outputs].
  static void fold(const LinearBlock& block,
                   const TileGroup& at,
                   const float* sums,
                   float* totals) {
    Vec scale;
    Vec zero;
    V::load_pairs(weights(block, at.panel, at.group * kGroupSteps), &scale, &zero);
    for (std::size_t r = 0; r < at.rows; ++r) {
      const Vec total = at.group == 0 ? V::zero() : V::load(totals + r * kPanel);
      const Vec scaled = V::fma(V::load(sums + r * kPanel), scale, total);
      const Vec x_sum = V::broadcast(x_sums(block, at.row + r)[at.group]);
      V::store(totals + r * kPanel, V::fma(x_sum, zero, scaled));
    }
  }

 private:
  /// Of each group of a row, the sum of its rounded x.
  static float* x_sums(const LinearBlock& block, std::size_t row) {
    return row_floats(block) + row * Int4Tile<V>::group_count(block);
  }
};

/// What goes to tiles; everything else is for the family beneath.
template <class V, class T>
struct AmxLinear {
  /// As many rows of 8 bit read the weight at memory bandwidth without tiles, and with the same
  /// bits.
  static constexpr std::size_t kFewRows = 3;

  /// False: not here.
  static bool run(const LinearBlock& block) {
    if (block.k == 0) return false;
    if (block.scheme == WeightScheme::kFloat && block.dtype == DType::kBf16) {
      TileLinear<V, T, Bf16Kind>::run(block);
      return true;
    }
    if (block.scheme == WeightScheme::kInt8Dynamic && block.rows > kFewRows) {
      TileLinear<V, T, Int8DynamicKind>::run(block);
      return true;
    }
    if (block.scheme == WeightScheme::kInt8) {
      TileLinear<V, T, Int8Kind>::run(block);
      return true;
    }
    if (block.scheme == WeightScheme::kInt4Group128) {
      TileLinear<V, T, Int4Kind>::run(block);
      return true;
    }
    return false;
  }

  /// See Kernels.
  static bool shares_rows(std::size_t rows, WeightScheme scheme, DType dtype) {
    return rows > 2 * kTileHeight && ((scheme == WeightScheme::kFloat && dtype == DType::kBf16) ||
                                      scheme == WeightScheme::kInt8Dynamic);
  }

  /// See Kernels.
  static void pack_rows(const LinearBlock& block, std::size_t begin, std::size_t end) {
    if (block.scheme == WeightScheme::kInt8Dynamic) {
      TileLinear<V, T, Int8DynamicKind>::pack_rows(block, begin, end);
    } else {
      TileLinear<V, T, Bf16Kind>::pack_rows(block, begin, end);
    }
  }

  /// See Kernels.
  static std::size_t most_rows(std::size_t k, WeightScheme scheme, DType dtype) {
    if (scheme == WeightScheme::kFloat && dtype == DType::kBf16)
      return TileLinear<V, T, Bf16Kind>::most_rows(k);
    if (scheme == WeightScheme::kInt8Dynamic)
      return TileLinear<V, T, Int8DynamicKind>::most_rows(k);
    if (scheme == WeightScheme::kInt8) return TileLinear<V, T, Int8Kind>::most_rows(k);
    if (scheme == WeightScheme::kInt4Group128) return TileLinear<V, T, Int4Kind>::most_rows(k);
    return 0;
  }
};

}  // namespace tandem::kernels::cpu
