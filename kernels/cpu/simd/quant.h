// Quantised weights: how floats become small integers, and Y = X W^T on panels of them.
//
// Layout of panels: kernels/cpu/panels.h. The order of sums of one output, whatever the tile:
//   kInt8          one chain of FMAs over k of x * q, then times the scale; by bytes: fixed_int8.h
//   kInt8Dynamic, kInt4Group128
//                  an exact integer sum, to float, times the output's scale, times the row's
// q are widened in registers, so that memory holds and moves the small ones only. Where products of
// bytes are maddubs, some rows take byte_cuts.h: the same sums.
#pragma once

#include "kernels/cpu/simd/byte_panels.h"
#include "kernels/cpu/simd/short_linear.h"

#include <cstdint>

namespace tandem::kernels::cpu {

template <class V>
struct Quantize {
  using Vec = typename V::Vec;

  /// Sixteen values from i on, zeros behind the last one: of weights as they are, of rows rounded
  /// to bf16, or of lines that hold bf16.
  struct Floats {
    const float* values;
    std::size_t count;

    Vec operator()(std::size_t i) const { return load(values, i, count); }
  };

  struct Rounded {
    const float* values;
    std::size_t count;

    Vec operator()(std::size_t i) const { return V::rounded_to_bf16(load(values, i, count)); }
  };

  struct Halves {
    const std::byte* lines;
    std::size_t line_step;  ///< bytes from one 32 values to the next

    Vec operator()(std::size_t i) const {
      return V::load_bf16(lines + i / 32 * line_step + i % 32 * 2);
    }
  };

  static float int8_scale(const float* values, std::size_t count) {
    const Extent extent = extent_of(values, count);
    return extent.largest / 127.0F + extent.poison;
  }

  /// Of a row of inputs (kInt8Dynamic). Rounding keeps the order of values, so only the largest one
  /// needs it.
  static float row_scale(const float* values, std::size_t count) {
    const Extent extent = extent_of(values, count);
    const Vec rounded = V::rounded_to_bf16(V::broadcast(extent.largest));
    return row_scale_of(V::max_lane(rounded)) + extent.poison;
  }

  /// The same of a row of bf16: of the lanes of V::max_magnitudes of all its values, where any NaN
  /// is larger than infinity.
  static float halves_scale(typename V::Int magnitudes) {
    alignas(64) std::uint16_t halves[32];
    V::int_store(halves, magnitudes);
    std::uint16_t largest_bits = 0;
    for (const std::uint16_t half : halves)
      largest_bits = half > largest_bits ? half : largest_bits;
    const std::uint32_t bits = static_cast<std::uint32_t>(largest_bits) << 16U;
    float largest = 0;
    __builtin_memcpy(&largest, &bits, sizeof(largest));
    return row_scale_of(largest);
  }

  /// What one of a row's integers stands for, a power of 2: none is more than 32,511. NaN when a
  /// value is not finite.
  static float fixed_unit(const float* values, std::size_t count) {
    const Extent extent = extent_of(values, count);
    const float above = extent.largest * 1.0079F;  // a little more than 2^15 / 32,512
    std::uint32_t bits = 0;
    __builtin_memcpy(&bits, &above, sizeof(bits));
    const std::uint32_t exponent = bits >> 23U;
    bits = (exponent > 15 ? exponent - 14 : 1) << 23U;  // its inverse is no subnormal, either
    float unit = 0;
    __builtin_memcpy(&unit, &bits, sizeof(unit));
    return unit + extent.poison;
  }

  /// Quotients. `scale` is int8_scale of what these are among, so that none is more than 127 of it.
  static void to_int8(const float* values, std::size_t count, float scale, std::int8_t* out) {
    if (has_inverse(scale) && store_by_inverse(values, count, scale, out)) return;
    store(Floats{values, count}, count, scale, out);
  }

  /// Powers of 2 for which 1 / scale is neither subnormal nor infinite.
  static bool has_inverse(float scale) { return scale >= 0x1p-100F && scale <= 0x1p100F; }

  /// Of a row, whose scale is row_scale: products with 1 / scale, or quotients if there is none.
  template <class Values>
  static void row_to_int8(Values values, std::size_t count, float scale, std::int8_t* out) {
    if (!has_inverse(scale)) return store(values, count, scale, out);
    const Vec inverse = V::broadcast(1.0F / scale);
    std::size_t i = 0;
    for (; i + 16 <= count; i += 16)
      V::store_int8(out + i, V::mul(values(i), inverse));
    if (i < count) store_rest(V::mul(values(i), inverse), count - i, out + i);
  }

  /// See Kernels. Scalars as the reference has them, operation by operation.
  static void to_int4(
      const float* values, std::size_t count, float scale, std::int8_t* out, std::int8_t* affine) {
    alignas(64) float units[kInt4Group];
    const Vec unit = V::broadcast(scale > 0.0F ? scale : 1.0F);
    Vec least = V::div(V::broadcast(values[0]), unit);
    Vec most = least;
    for (std::size_t i = 0; i < count; i += 16) {
      const std::size_t left = count - i;
      const Vec v =
          left < 16 ? Rows<V>::load_part(values + i, left, values[i]) : V::load(values + i);
      const Vec in_units = V::div(v, unit);
      V::store(units + i, in_units);
      least = V::min(in_units, least);
      most = V::max(in_units, most);
    }
    const float low = -V::max_lane(V::sub(V::zero(), least));
    const float high = V::max_lane(most);
    const float steps = (high - low) / 16.0F;
    // Comparisons are such that NaN becomes something; the scale of its output is NaN.
    const float step = steps > 1.0F ? (steps < 16.0F ? __builtin_ceilf(steps) : 16.0F) : 1.0F;
    Steps best = in_steps(units, count, low + high, step);
    if (step > 1.0F) {
      const Steps finer = in_steps(units, count, low + high, step - 1.0F);
      if (finer.error < best.error) best = finer;
    }
    affine[0] = static_cast<std::int8_t>(best.step);
    affine[1] = static_cast<std::int8_t>(best.offset);
    __builtin_memcpy(out, best.q, count);
  }

 private:
  /// A group of kInt4Group128 in steps of so many units, and what they leave of it.
  struct Steps {
    float step;
    float offset;
    float error;  ///< sum of squares, 16 chains and their tree
    alignas(16) std::int8_t q[kInt4Group];
  };

  static Steps in_steps(const float* units, std::size_t count, float ends, float step) {
    const float centred = 7.5F * step - 0.5F * ends;
    const float bottom = 15.0F * step - 127.0F;
    Steps out;
    out.step = step;
    out.offset =
        __builtin_roundf(centred > bottom ? (centred < 127.0F ? centred : 127.0F) : bottom);
    const Vec offset = V::broadcast(out.offset);
    const Vec width = V::broadcast(step);
    const Vec inverse = V::broadcast(1.0F / step);
    const Vec shift = V::broadcast(0x1.8p23F);  // below 2^22 the sum with it has no fraction
    Vec error = V::zero();
    for (std::size_t i = 0; i < count; i += 16) {
      const Vec v = V::load(units + i);
      const Vec at = V::mul(V::add(v, offset), inverse);
      const Vec q = V::min(V::max(at, V::zero()), V::broadcast(15.0F));
      V::store_int8(out.q + i, q);
      const Vec whole = V::sub(V::add(q, shift), shift);
      const Vec off = V::sub(V::sub(V::mul(whole, width), offset), v);
      const Vec square = V::mul(off, off);
      if (count - i >= 16) {
        error = V::add(error, square);
      } else {
        alignas(64) float lanes[16];
        V::store(lanes, square);
        error = V::add(error, Rows<V>::load_part(lanes, count - i));
      }
    }
    out.error = V::sum(error);
    return out;
  }

  struct Extent {
    float largest;  ///< magnitude
    float poison;   ///< NaN if a value is not finite, else 0
  };

  static Extent extent_of(const float* values, std::size_t count) {
    constexpr std::size_t kChains = 4;  // of FMAs, each of which waits for the one before
    Vec largest[kChains];
    Vec poison[kChains];
    for (std::size_t c = 0; c < kChains; ++c)
      largest[c] = poison[c] = V::zero();
    const auto add = [&](std::size_t c, Vec v) __attribute__((always_inline)) {
      largest[c] = V::max(V::max(v, V::sub(V::zero(), v)), largest[c]);
      poison[c] = V::fma(v, V::zero(), poison[c]);
    };
    std::size_t i = 0;
    for (; i + kChains * 16 <= count; i += kChains * 16) {
#pragma GCC unroll 4
      for (std::size_t c = 0; c < kChains; ++c)
        add(c, V::load(values + i + c * 16));
    }
    for (; i < count; i += 16)
      add(0, load(values, i, count));
    for (std::size_t c = 1; c < kChains; ++c) {
      largest[0] = V::max(largest[0], largest[c]);
      poison[0] = V::add(poison[0], poison[c]);
    }
    return {V::max_lane(largest[0]), V::sum(poison[0])};
  }

  /// NaN of what is not finite, also of what rounding made so.
  static float row_scale_of(float largest) {
    return largest / 127.0F + largest * 0.0F;
  }

  static Vec load(const float* values, std::size_t i, std::size_t count) {
    return count - i < 16 ? Rows<V>::load_part(values + i, count - i) : V::load(values + i);
  }

  /// What store() does of values of magnitude up to 127 scale, by a product where that takes a
  /// division of many cycles. Either is less than kNear from the true quotient, so both round to
  /// the same integer, unless that is as near to the middle of two: false then, of some value, and
  /// what is in `out` means nothing.
  static bool store_by_inverse(const float* values,
                               std::size_t count,
                               float scale,
                               std::int8_t* out) {
    constexpr float kNear = 0x1p-14F;
    if (count % 16 != 0) return false;
    const Vec inverse = V::broadcast(1.0F / scale);
    const Vec shift = V::broadcast(0x1.8p23F);  // below 2^22 the sum with it has no fraction
    Vec farthest = V::zero();
    for (std::size_t i = 0; i < count; i += 16) {
      const Vec v = V::mul(V::load(values + i), inverse);
      const Vec whole = V::sub(V::add(v, shift), shift);
      const Vec off = V::sub(v, whole);
      farthest = V::max(V::max(off, V::sub(V::zero(), off)), farthest);
      V::store_int8(out + i, whole);
    }
    return !V::any_above(farthest, V::broadcast(0.5F - kNear));
  }

  /// out = clamp(value / scale), rounded to nearest even. NaN becomes -127.
  template <class Values>
  static void store(Values values, std::size_t count, float scale, std::int8_t* out) {
    const Vec divisor = V::broadcast(scale == 0.0F ? 1.0F : scale);
    const Vec least = V::broadcast(-127.0F);
    const Vec most = V::broadcast(127.0F);
    for (std::size_t i = 0; i < count; i += 16) {
      const Vec v = V::div(values(i), divisor);
      const Vec clamped = V::min(V::max(v, least), most);
      if (count - i >= 16) {
        V::store_int8(out + i, clamped);
      } else {
        store_rest(clamped, count - i, out + i);
      }
    }
  }

  static void store_rest(Vec v, std::size_t count, std::int8_t* out) {
    alignas(16) std::int8_t rest[16];
    V::store_int8(rest, v);
    for (std::size_t i = 0; i < count; ++i)
      out[i] = rest[i];
  }
};

/// WeightScheme::kInt8 as a tile of Linear.
template <class V>
struct Int8Tile {
  using Vec = typename V::Vec;
  using Int = typename V::Int;

  static constexpr bool kCuts = true;
  static constexpr std::size_t kStreamRows = 0;

  static void pack(const LinearBlock& block) { Linear<V>::pack_rows(block); }

  /// As of Linear::FloatTile.
  static constexpr std::size_t at(std::size_t k) { return kByteHeaderBytes + k * kPanel; }

  static constexpr bool kLines = false;
  static constexpr std::size_t kFewRows = V::kRowStep + 1;

  /// [k][16] floats of `count` k of a panel; may write up to a multiple of 4.
  static const std::byte* make(const LinearBlock& /*block*/,
                               const std::byte* panel,
                               std::size_t begin,
                               std::size_t count,
                               std::byte* room) {
    const std::byte* from = panel + at(begin);
    auto* to = reinterpret_cast<float*>(room);
    for (std::size_t i = 0; i < count; i += 4) {
      const Int raw = V::int_load(from + i * kPanel);
      V::store(to + i * kPanel, V::template byte_of<0>(raw));
      V::store(to + (i + 1) * kPanel, V::template byte_of<1>(raw));
      V::store(to + (i + 2) * kPanel, V::template byte_of<2>(raw));
      V::store(to + (i + 3) * kPanel, V::template byte_of<3>(raw));
    }
    return room;
  }

  static Vec output(const std::byte* panel, Vec sum) {
    return V::mul(sum, V::load(reinterpret_cast<const float*>(panel)));
  }

  template <int R, int P, class A>
  static inline __attribute__((always_inline)) void sums(
      const LinearBlock& block, std::size_t row, std::size_t panel, const A& ahead, Vec* out) {
    const float* x = block.scratch + row * block.k;
    const std::byte* weight = block.weight + panel * block.panel_bytes;
    Vec acc[R][P];
    Linear<V>::template clear<R, P>(acc);
    const std::size_t quads = block.k / 4;
    PanelAsks<V>::template ask_rest<R, P>(ahead, block.panel_bytes);
    for (std::size_t quad = 0; quad < quads; ++quad) {
      Int raw[P];
      const std::size_t at = kByteHeaderBytes + quad * 64;
      PanelAsks<V>::template ask<R, P>(ahead, quad, Linear<V>::apart(block), weight, at);
      Linear<V>::load_panels(weight, at, Linear<V>::apart(block), raw);
      step<0, R, P>(x + 4 * quad * R, raw, acc);
      step<1, R, P>(x + (4 * quad + 1) * R, raw, acc);
      step<2, R, P>(x + (4 * quad + 2) * R, raw, acc);
      step<3, R, P>(x + (4 * quad + 3) * R, raw, acc);
    }
    if (block.k % 4 != 0) {
      Int raw[P];
      Linear<V>::load_panels(weight, kByteHeaderBytes + quads * 64, Linear<V>::apart(block), raw);
      const float* rest = x + 4 * quads * R;
      step<0, R, P>(rest, raw, acc);
      if (block.k % 4 > 1) step<1, R, P>(rest + R, raw, acc);
      if (block.k % 4 > 2) step<2, R, P>(rest + 2 * R, raw, acc);
    }
#pragma GCC unroll 8
    for (int p = 0; p < P; ++p) {
      const Vec scale = V::load(reinterpret_cast<const float*>(
          weight + static_cast<std::size_t>(p) * Linear<V>::apart(block)));
#pragma GCC unroll 16
      for (int r = 0; r < R; ++r)
        out[r * P + p] = V::mul(acc[r][p], scale);
    }
  }

 private:
  template <int J, int R, int P>
  static inline __attribute__((always_inline)) void step(const float* x,
                                                         const Int (&raw)[P],
                                                         Vec (&acc)[R][P]) {
    Vec w[P];
#pragma GCC unroll 8
    for (int p = 0; p < P; ++p)
      w[p] = V::template byte_of<J>(raw[p]);
    Linear<V>::template step<R, P>(x, w, acc);
  }
};

/// A row of inputs as bytes of one scale, as dot4() takes them.
template <class V>
class ByteRow {
 public:
  ByteRow() = default;

  explicit ByteRow(float scale)
      : scale_(scale), inverse_(Quantize<V>::has_inverse(scale) ? 1.0F / scale : 0.0F) {}

  /// x[0..k) to as many bytes, k in whole lines. Returns the scale.
  static float pack(const float* x, std::size_t k, std::byte* to) {
    const float scale = Quantize<V>::row_scale(x, k);
    const ByteRow row(scale);
    for (std::size_t i = 0; i < k; i += 64)
      row.store(typename Quantize<V>::Rounded{x + i, 64}, 64, to + i);
    return scale;
  }

  /// A line of 64 bytes: `count` values, which `values` has rounded to bf16, and zeros.
  template <class Values>
  inline __attribute__((always_inline)) void store(Values values,
                                                   std::size_t count,
                                                   std::byte* line) const {
    if constexpr (V::kOffsetBytes) {
      // At once: what is loaded behind four stores of its parts waits until they are in the cache.
      if (count == 64 && inverse_ > 0.0F) {
        const typename V::Vec factor = V::broadcast(inverse_);
        return V::store_offset_bytes(line,
                                     V::mul(values(0), factor),
                                     V::mul(values(16), factor),
                                     V::mul(values(32), factor),
                                     V::mul(values(48), factor));
      }
    }
    store_slowly(values, count, line);
  }

 private:
  template <class Values>
  void store_slowly(Values values, std::size_t count, std::byte* line) const {
    auto* bytes = reinterpret_cast<std::int8_t*>(line);
    Quantize<V>::row_to_int8(values, count, scale_, bytes);
    for (std::size_t i = count; i < 64; ++i)
      bytes[i] = 0;
    if constexpr (V::kOffsetBytes) offset(line);
  }

  /// Adds 128 to each byte of a line, for V::kOffsetBytes.
  static void offset(std::byte* line) {
    for (std::size_t i = 0; i < 64; i += 4) {
      std::uint32_t four = 0;
      __builtin_memcpy(&four, line + i, sizeof(four));
      four ^= 0x80808080U;
      __builtin_memcpy(line + i, &four, sizeof(four));
    }
  }

  float scale_ = 0;
  float inverse_ = 0;  ///< 0: none
};

/// Weights whose inputs become bytes (rounds_to_bytes) as a tile of Linear; Panel says how those
/// are kept.
template <class V, class Panel>
struct ByteTile {
  using Vec = typename V::Vec;
  using Int = typename V::Int;

  static constexpr bool kCuts = false;
  static constexpr std::size_t kStreamRows = Panel::kStreamRows;

  /// Rows to 8 bit, four k to a word: [k / 4][rows of the tile]; their scales behind them.
  template <int kMost = V::kRowStep>
  static void pack(const LinearBlock& block) {
    const std::size_t words = word_count(block);
    float* scales = block.scratch + kPackedFloats;
    Linear<V>::template for_groups<kMost>(block, [&](std::size_t row, std::size_t rows) {
      std::uint32_t* to = Linear<V>::words_of(block) + row * words;
      if (block.x_bytes != nullptr) {
        for (std::size_t r = 0; r < rows; ++r)
          scales[row + r] = block.x_scales[row + r];
        return Linear<V>::pack_group(
            block, row, rows, words, to, [&](std::size_t r, std::size_t word, std::byte*) {
              return block.x_bytes + (row + r) * block.k + word * 4;
            });
      }
      ByteRow<V> bytes[kPanel];
      for (std::size_t r = 0; r < rows; ++r) {
        const float scale = block.x_halves != nullptr
                                ? half_scale(block, row + r)
                                : Quantize<V>::row_scale(Linear<V>::x_row(block, row + r), block.k);
        scales[row + r] = scale;
        bytes[r] = ByteRow<V>(scale);
      }
      Linear<V>::pack_group(
          block, row, rows, words, to, [&](std::size_t r, std::size_t word, std::byte* line) {
            const std::size_t left = block.k - word * 4;
            const std::size_t count = left < 64 ? left : 64;
            if (block.x_halves != nullptr) {
              const std::byte* from = Rows<V>::half_row(block, row + r) + word * 8;
              bytes[r].store(typename Quantize<V>::Halves{from, 64}, count, line);
            } else {
              const float* from = Linear<V>::x_row(block, row + r) + word * 4;
              bytes[r].store(typename Quantize<V>::Rounded{from, count}, count, line);
            }
            return const_cast<const std::byte*>(line);
          });
    });
  }

  template <int R, int P, class A>
  static inline __attribute__((always_inline)) void sums(
      const LinearBlock& block, std::size_t row, std::size_t panel, const A& ahead, Vec* out) {
    const std::uint32_t* x = Linear<V>::words_of(block) + row * word_count(block);
    const std::byte* weight = block.weight + panel * block.panel_bytes;
    Int acc[R][P];
    products<R, P, R>(block, x, weight, ahead, acc);
#pragma GCC unroll 8
    for (int p = 0; p < P; ++p) {
      const std::byte* own = weight + static_cast<std::size_t>(p) * Linear<V>::apart(block);
#pragma GCC unroll 16
      for (int r = 0; r < R; ++r)
        out[r * P + p] = output(block, row + static_cast<std::size_t>(r), own, acc[r][p]);
    }
  }

  /// What the sums of a row with a panel stand for.
  static inline __attribute__((always_inline)) Vec output(const LinearBlock& block,
                                                          std::size_t row,
                                                          const std::byte* panel,
                                                          Int sum) {
    const Vec scale = V::load(reinterpret_cast<const float*>(panel));
    const float row_scale = (block.scratch + kPackedFloats)[row];
    return V::mul(V::mul(V::to_float(sum), scale), V::broadcast(row_scale));
  }

  static std::size_t word_count(const LinearBlock& block) {
    return (block.k + 3) / 4;
  }

  /// The exact sums of R rows of bytes, kStep words apart from one word of k to the next, with the
  /// panels at `weight`.
  template <int R, int P, int kStep, class A>
  static inline __attribute__((always_inline)) void products(const LinearBlock& block,
                                                             const std::uint32_t* x,
                                                             const std::byte* weight,
                                                             const A& ahead,
                                                             Int (&acc)[R][P]) {
#pragma GCC unroll 8
    for (int p = 0; p < P; ++p) {
      // Bytes of x that carry + 128 count 128 * sum of weights too much.
      const std::byte* header = weight + static_cast<std::size_t>(p) * Linear<V>::apart(block);
      const Int start = V::kOffsetBytes ? V::int_negate(V::int_load(header + 64)) : V::int_zero();
#pragma GCC unroll 16
      for (int r = 0; r < R; ++r)
        acc[r][p] = start;
    }
    PanelAsks<V>::template ask_rest<R, P>(ahead, block.panel_bytes);
    const auto x_bytes = [&](std::size_t word, int r) __attribute__((always_inline)) {
      return V::bytes_of(x[word * kStep + static_cast<std::size_t>(r)]);
    };
    if constexpr (Panel::template kSumsGroups<R>) {
      Panel::template add_groups<R, P>(block, weight, ahead, x_bytes, acc);
    } else {
      Panel::template for_words<R, P>(
          block,
          weight,
          ahead,
          [&](std::size_t word, const Int(&w)[P]) __attribute__((always_inline)) {
#pragma GCC unroll 16
            for (int r = 0; r < R; ++r) {
              const auto four = x_bytes(word, r);
#pragma GCC unroll 8
              for (int p = 0; p < P; ++p)
                acc[r][p] = V::dot4(acc[r][p], four, w[p]);
            }
          });
    }
  }

 private:
  static float half_scale(const LinearBlock& block, std::size_t row) {
    const std::byte* halves = Rows<V>::half_row(block, row);
    Int most = V::int_zero();
    for (std::size_t i = 0; i < block.k * 2; i += 64)
      most = V::max_magnitudes(most, V::int_load(halves + i));
    return Quantize<V>::halves_scale(most);
  }
};

/// WeightScheme::kInt8Dynamic and kInt4Group128 as tiles of Linear.
template <class V>
using Int8DynamicTile = ByteTile<V, PanelBytes<V>>;
template <class V>
using Int4Tile = ByteTile<V, PanelNibbles<V>>;

}  // namespace tandem::kernels::cpu
