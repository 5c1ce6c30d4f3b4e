// Kinds of weights on AMX tiles, and which products go where.
//
// A kind packs rows of x, says what lines of a panel become in a B tile, names the product, and
// makes outputs of sums. Up to two tiles of rows are in some_rows.h, more in many_rows.h. A row of
// bf16, and up to kVnniRows rows of 8-bit inputs, go by vectors, with the same bits: what is the
// fastest way to read a weight.
#pragma once

#include "kernels/cpu/amx/one_row.h"
#include "kernels/cpu/amx/some_rows.h"
#include "kernels/cpu/simd/fixed_int8.h"
#include "kernels/cpu/simd/short_bf16.h"

namespace tandem::kernels::cpu {

/// bf16 weights: x is rounded to bf16, products and sums are f32. Per 32 k, one chain of FMAs over
/// the even and one over the odd k, added to each other and then to C (Intel SDM, TDPBF16PS;
/// subnormals count as zero).
template <class V, class T>
struct Bf16Kind {
  static constexpr std::size_t kStepK = 32;
  /// Bytes that a B tile is made of.
  static constexpr std::size_t kMadeOf = kTileBytes;
  /// A tiles, and sums, of a tile of rows: those of its inputs' parts.
  static constexpr std::size_t kRowParts = 1;
  /// Whether sums are exact, so that the order along k does not matter.
  static constexpr bool kExactSums = false;

  /// Whether panels end with whole steps.
  static constexpr bool kWholeSteps = true;
  /// Lines of memory that become rows of a B tile together.
  static constexpr std::size_t kUnitLines = 1;
  /// Steps behind a line that says what they become; 0: there is no such line.
  static constexpr std::size_t kHeaderSteps = 0;
  /// Whether a panel has patches, see short_bf16.h.
  static constexpr bool kPatches = false;

  /// Bytes from a panel's beginning to a step.
  static constexpr std::size_t at(std::size_t step) { return step * kMadeOf; }

  /// What lines of a step of a panel become: rows of its B tile.
  struct Lines {
    const std::byte* panel;
    std::size_t step;

    inline __attribute__((always_inline)) void make(const std::byte* line, std::byte* to) const {
      V::int_store(to, V::int_load(line));
    }
  };

  /// A row; its second part goes `part_bytes` behind the first one.
  static void pack(const LinearBlock& block,
                   std::size_t row,
                   std::size_t steps,
                   TileLine<V> to,
                   std::size_t /*part_bytes*/) {
    pack_part(Linear<V>::x_row(block, row), block.k, steps, to);
  }

  /// The same of `columns` values: lines of 32, zeros behind the last one.
  static void pack_part(const float* x, std::size_t columns, std::size_t steps, TileLine<V> to) {
    for (std::size_t step = 0; step < steps; ++step) {
      const std::size_t i = step * kStepK;
      std::byte* line = to.at(step);
      V::store_bf16(line, Rows<V>::load_within(x, i, columns));
      V::store_bf16(line + 32, Rows<V>::load_within(x, i + 16, columns));
    }
  }

  template <int C, int A, int B>
  static inline __attribute__((always_inline)) void multiply(T& tiles) {
    tiles.template multiply_bf16<C, A, B>();
  }

  /// Of the sums of a row in a C tile; those of its second part are `parts_apart` bytes behind.
  static typename V::Vec outputs(const LinearBlock& /*block*/,
                                 std::size_t /*row*/,
                                 std::size_t /*panel*/,
                                 const std::byte* c,
                                 std::size_t /*parts_apart*/) {
    return V::load(reinterpret_cast<const float*>(c));
  }
};

/// WeightScheme::kShortBf16: the B tiles of Bf16Kind, made of less.
template <class V, class T>
struct ShortBf16Kind : Bf16Kind<V, T> {
  static_assert(Bf16Kind<V, T>::kStepK == kShortStepK && kPlainStepBytes == kTileBytes);
  static constexpr std::size_t kMadeOf = kShortStepBytes;
  static constexpr std::size_t kUnitLines = kShortUnitLines;
  static constexpr std::size_t kHeaderSteps = kMaxK / kShortStepK;  // all
  static constexpr bool kPatches = true;

  static constexpr std::size_t at(std::size_t step) { return kShortHeaderBytes + step * kMadeOf; }

  /// As of Bf16Kind: four rows of a unit.
  struct Lines : ShortBf16<V>::Table {
    inline __attribute__((always_inline)) Lines(const std::byte* panel, std::size_t /*step*/)
        : ShortBf16<V>::Table(panel) {}
  };
};

/// Weights and inputs that are bytes: four k to a word on both sides, signed, exact sums of 32
/// bits.
template <class V, class T>
struct ByteKind {
  static constexpr std::size_t kVnniRows = 3;  ///< of the family beneath
  static constexpr std::size_t kStepK = 64;
  static constexpr std::size_t kMadeOf = kTileBytes;
  static constexpr std::size_t kRowParts = 1;
  static constexpr bool kExactSums = true;
  static constexpr bool kWholeSteps = false;
  static constexpr std::size_t kUnitLines = 1;
  static constexpr std::size_t kHeaderSteps = 0;
  static constexpr bool kPatches = false;
  using Lines = typename Bf16Kind<V, T>::Lines;

  static constexpr std::size_t at(std::size_t step) { return kByteHeaderBytes + step * kMadeOf; }

  template <int C, int A, int B>
  static inline __attribute__((always_inline)) void multiply(T& tiles) {
    tiles.template multiply_int8<C, A, B>();
  }

  /// What the integers of a block's rows stand for.
  static const float* scales(const LinearBlock& block) {
    return block.x_scales != nullptr ? block.x_scales : row_floats(block);
  }
};

/// WeightScheme::kInt8Dynamic; outputs are scaled as Int8DynamicTile does.
template <class V, class T>
struct Int8DynamicKind : ByteKind<V, T> {
  using ByteKind<V, T>::kStepK;

  static void pack(const LinearBlock& block,
                   std::size_t row,
                   std::size_t steps,
                   TileLine<V> to,
                   std::size_t /*part_bytes*/) {
    row_floats(block)[row] = pack_row(Linear<V>::x_row(block, row), block.k, steps, to);
  }

  /// Returns the row's scale.
  static float pack_row(const float* x, std::size_t k, std::size_t steps, TileLine<V> to) {
    const float scale = Quantize<V>::row_scale(x, k);
    for (std::size_t step = 0; step < steps; ++step) {
      const std::size_t left = k - step * kStepK;
      const std::size_t count = left < kStepK ? left : kStepK;
      auto* line = reinterpret_cast<std::int8_t*>(to.at(step));
      const typename Quantize<V>::Rounded values{x + step * kStepK, count};
      Quantize<V>::row_to_int8(values, count, scale, line);
      for (std::size_t i = count; i < kStepK; ++i)
        line[i] = 0;
    }
    return scale;
  }

  /// The first `rows` rows of a tile of rows that came as bf16, as Bf16Kind packs them, to tiles.
  /// Both are gone through in the order of memory.
  static void pack_tile(
      const std::byte* halves, std::size_t rows, std::size_t steps, float* scales, std::byte* to) {
    constexpr std::size_t kHalfTiles = kStepK / kPackedColumns;
    typename V::Int largest[kTileHeight];
    for (auto& each : largest)
      each = V::int_zero();
    for (std::size_t tile = 0; tile < steps * kHalfTiles; ++tile) {
      const std::byte* line = halves + tile * kTileBytes;
#pragma GCC unroll 16
      for (std::size_t row = 0; row < kTileHeight; ++row)
        largest[row] = V::max_magnitudes(largest[row], V::int_load(line + row * kTileRowBytes));
    }
    for (std::size_t row = 0; row < rows; ++row)
      scales[row] = Quantize<V>::halves_scale(largest[row]);
    for (std::size_t step = 0; step < steps; ++step) {
      for (std::size_t row = 0; row < rows; ++row) {
        const std::size_t at = row * kTileRowBytes;
        const typename Quantize<V>::Halves values{halves + step * kHalfTiles * kTileBytes + at,
                                                  kTileBytes};
        Quantize<V>::row_to_int8(values,
                                 kStepK,
                                 scales[row],
                                 reinterpret_cast<std::int8_t*>(to + step * kTileBytes + at));
      }
    }
  }

  static typename V::Vec outputs(const LinearBlock& block,
                                 std::size_t row,
                                 std::size_t panel,
                                 const std::byte* c,
                                 std::size_t /*parts_apart*/) {
    const auto* scale = reinterpret_cast<const float*>(block.weight + panel * block.panel_bytes);
    return V::mul(V::mul(V::to_float(V::int_load(c)), V::load(scale)),
                  V::broadcast(ByteKind<V, T>::scales(block)[row]));
  }
};

/// WeightScheme::kInt8 with inputs of two bytes, see fixed_int8.h: an A tile of upper and one of
/// lower ones.
template <class V, class T>
struct FixedInt8Kind : ByteKind<V, T> {
  using ByteKind<V, T>::kStepK;
  static constexpr std::size_t kRowParts = 2;

  static void pack(const LinearBlock& block,
                   std::size_t row,
                   std::size_t steps,
                   TileLine<V> to,
                   std::size_t part_bytes) {
    row_floats(block)[row] = pack_row(Linear<V>::x_row(block, row), block.k, steps, to, part_bytes);
  }

  /// Returns the row's unit.
  static float pack_row(
      const float* x, std::size_t k, std::size_t steps, TileLine<V> to, std::size_t part_bytes) {
    const float unit = Quantize<V>::fixed_unit(x, k);
    const typename V::Vec per_unit = V::broadcast(1.0F / unit);
    for (std::size_t step = 0; step < steps; ++step) {
      auto* upper = reinterpret_cast<std::int8_t*>(to.at(step));
      auto* lower = reinterpret_cast<std::int8_t*>(to.at(step) + part_bytes);
      for (std::size_t i = 0; i < kStepK; i += 16) {
        const typename V::Vec values = Rows<V>::load_within(x, step * kStepK + i, k);
        const auto parts = FixedInt8<V>::split(V::mul(values, per_unit));
        V::store_int8(upper + i, parts.upper);
        V::store_int8(lower + i, parts.lower);
      }
    }
    return unit;
  }

  static typename V::Vec outputs(const LinearBlock& block,
                                 std::size_t row,
                                 std::size_t panel,
                                 const std::byte* c,
                                 std::size_t parts_apart) {
    return FixedInt8<V>::output(V::int_load(c),
                                V::int_load(c + parts_apart),
                                block.weight + panel * block.panel_bytes,
                                ByteKind<V, T>::scales(block)[row]);
  }
};

/// WeightScheme::kInt4Group128: the B tiles of Int8DynamicKind, made of half bytes.
template <class V, class T>
struct Int4Kind : Int8DynamicKind<V, T> {
  using Int8DynamicKind<V, T>::kStepK;
  static constexpr std::size_t kMadeOf = kStepK * kPanel / 2;
  static constexpr std::size_t kHeaderSteps = kInt4HeaderGroups * kInt4Group / kStepK;

  /// As of Bf16Kind.
  static constexpr std::size_t at(std::size_t step) { return PanelNibbles<V>::at(step * kStepK); }

  /// Two rows of a line; the group that a step lies in has one step and offset for an output.
  struct Lines {
    typename V::Int step;
    typename V::Int offset;

    inline __attribute__((always_inline)) Lines(const std::byte* panel, std::size_t at) {
      V::load_affine(panel + PanelNibbles<V>::affine_at(at * kStepK / kInt4Group), &step, &offset);
    }

    inline __attribute__((always_inline)) void make(const std::byte* line, std::byte* to) const {
      const typename V::Int raw = V::int_load(line);
      V::int_store(to, V::scaled_bytes(V::low_nibbles(raw), step, offset));
      V::int_store(to + 64, V::scaled_bytes(V::high_nibbles(raw), step, offset));
    }
  };
};

/// What goes to tiles, or to vectors with their bits; everything else is for the family beneath.
template <class V, class T>
struct AmxLinear {
  /// False: not here.
  static bool run(const LinearBlock& block) {
    if (block.k == 0) return false;
    if (block.scheme == WeightScheme::kFloat && block.dtype == DType::kBf16) {
      if (!run_one_row<Bf16Kind>(block)) run_tiles<Bf16Kind>(block);
      return true;
    }
    if (block.scheme == WeightScheme::kShortBf16) {
      if (!run_one_row<ShortBf16Kind>(block)) run_tiles<ShortBf16Kind>(block);
      return true;
    }
    if (!is_quantized(block.scheme)) return false;
    if (block.rows <= ByteKind<V, T>::kVnniRows && !comes_packed<V>(block)) return false;
    if (block.scheme == WeightScheme::kInt8Dynamic) {
      run_tiles<Int8DynamicKind>(block);
    } else if (block.scheme == WeightScheme::kInt8) {
      run_tiles<FixedInt8Kind>(block);
    } else {
      run_tiles<Int4Kind>(block);
    }
    return true;
  }

  /// See Kernels.
  static bool shares_rows(std::size_t rows, WeightScheme scheme, DType dtype) {
    if (scheme == WeightScheme::kInt8) return rows > kTileHeight;
    return rows > 2 * kTileHeight && (scheme != WeightScheme::kFloat || dtype == DType::kBf16);
  }

  /// See Kernels.
  static bool takes_gated(std::size_t rows, WeightScheme scheme, DType dtype) {
    if (shares_rows(rows, scheme, dtype)) return true;
    if (holds_bf16(scheme, dtype)) return rows > 1;
    return is_quantized(scheme) && rows > ByteKind<V, T>::kVnniRows;
  }

  /// See Kernels.
  static void pack_rows(const LinearBlock& block, std::size_t begin, std::size_t end) {
    switch (block.scheme) {
      case WeightScheme::kFloat:
      case WeightScheme::kShortBf16:
        return TileLinear<V, T, Bf16Kind>::pack_rows(block, begin, end);
      case WeightScheme::kInt8Dynamic:
      case WeightScheme::kInt4Group128:
        return TileLinear<V, T, Int8DynamicKind>::pack_rows(block, begin, end);
      case WeightScheme::kInt8:
        return TileLinear<V, T, FixedInt8Kind>::pack_rows(block, begin, end);
    }
  }

  /// See Kernels. A single tile of rows is packed by each worker for itself, in its own caches.
  static bool takes_packed(std::size_t rows, std::size_t k, WeightScheme scheme, DType dtype) {
    const bool bytes = is_quantized(scheme);
    if (rows <= kTileHeight || k == 0) return false;
    if (!bytes && !holds_bf16(scheme, dtype)) return false;
    return k % (bytes ? ByteKind<V, T>::kStepK : kPackedColumns) == 0 &&
           most_rows(k, scheme, dtype) >= 2 * kTileHeight;
  }

  /// See Kernels.
  static void pack_part(const PackedPart& part) {
    static_assert(kPackedRows == kTileHeight && kPackedColumns == Bf16Kind<V, T>::kStepK);
    if (part.scales != nullptr) return pack_bytes(part);
    const std::size_t tile_row_bytes = part.k / kPackedColumns * kTileBytes;
    for (std::size_t r = 0; r < part.rows; ++r) {
      const std::size_t row = part.row + r;
      std::byte* to = part.to + row / kTileHeight * tile_row_bytes +
                      row % kTileHeight * kTileRowBytes + part.column / kPackedColumns * kTileBytes;
      Bf16Kind<V, T>::pack_part(part.x + r * part.x_stride,
                                part.columns,
                                part.columns / kPackedColumns,
                                {to, kTileBytes});
    }
  }

  /// See Kernels.
  static std::size_t most_rows(std::size_t k, WeightScheme scheme, DType dtype) {
    if (holds_bf16(scheme, dtype)) return TileLinear<V, T, Bf16Kind>::most_rows(k);
    if (rounds_to_bytes(scheme)) return TileLinear<V, T, Int8DynamicKind>::most_rows(k);
    if (scheme == WeightScheme::kInt8) return TileLinear<V, T, FixedInt8Kind>::most_rows(k);
    return 0;
  }

  /// See Kernels.
  static std::size_t rows_in_parts(std::size_t k, WeightScheme scheme, DType dtype) {
    return holds_bf16(scheme, dtype) ? TileLinear<V, T, Bf16Kind>::rows_in_parts(k) : 0;
  }

 private:
  static void pack_bytes(const PackedPart& part) {
    const std::size_t steps = part.k / ByteKind<V, T>::kStepK;
    const bool fixed = part.scheme == WeightScheme::kInt8;
    const std::size_t lines = steps * (fixed ? FixedInt8Kind<V, T>::kRowParts : 1);
    for (std::size_t r = 0; r < part.rows; ++r) {
      const float* x = part.x + r * part.x_stride;
      const std::size_t row = part.row + r;
      const TileLine<V> to{
          part.to + row / kTileHeight * lines * kTileBytes + row % kTileHeight * kTileRowBytes,
          kTileBytes};
      part.scales[row] =
          fixed ? FixedInt8Kind<V, T>::pack_row(x, part.k, steps, to, steps * kTileBytes)
                : Int8DynamicKind<V, T>::pack_row(x, part.k, steps, to);
    }
  }

  template <template <class, class> class Kind>
  static void run_tiles(const LinearBlock& block) {
    using W = Kind<V, T>;
    if (block.rows == 0) return;
    if (!block.packed) TileLinear<V, T, Kind>::pack_rows(block, 0, block.rows);
    if (block.rows <= SomeRows<V, T, W>::kMostRows) return SomeRows<V, T, W>::run(block);
    TileLinear<V, T, Kind>::run(block);
  }

  /// False: not one row, or only tiles here.
  template <template <class, class> class Kind>
  static bool run_one_row(const LinearBlock& block) {
    if constexpr (requires { V::begin_flushing(); }) {
      using One = OneRow<V, Kind<V, T>>;
      if (block.rows != 1 || comes_packed<V>(block) || block.k > One::kMostK) return false;
      One::run(block);
      return true;
    }
    return false;
  }
};

}  // namespace tandem::kernels::cpu
