// Softmax of attention on tiles: sums of the tile unit become weights of 2^x in bf16.
//
// Idea: weights have 8 bits, so x needs no more than 16, as a number of fixed point: 7 bits before
// the point and 9 behind it. That is the exponent of a bf16 and its mantissa already, but for
// 1 + f in place of 2^f: a look-up by the upper 6 bits of f says how much less that is. So 32
// weights take about 12 instructions, and of those only the first four are of floating point.
//
// Nothing is rescaled as long as scores stay near: weights are relative to an anchor, which is the
// largest score of the row at some time. It moves when a block's largest one is kHeadroom powers
// of 2 above it. Which blocks a row sees does not depend on its batch, so this does not either.
#pragma once

#include "kernels/cpu/amx/tiles.h"
#include "kernels/cpu/simd/lane_rows.h"
#include "kernels/cpu/simd/mixed.h"

namespace tandem::kernels::cpu {

/// Weights of a rate, 32 at a time.
template <class V>
class TileWeights {
 public:
  using Vec = typename V::Vec;
  using Int = typename V::Int;
  using Range = typename KeyRows<V>::Range;

  static constexpr std::size_t kLanes = 16;
  /// Positions of a step: two tiles of keys, one of weights.
  static constexpr std::size_t kStep = 32;

  /// Of scores times |scale|.
  explicit TileWeights(float scale) : table_(V::int_load(kLess)) {
    const float rate = (scale < 0 ? -scale : scale) * (kOne * 0x1.715476p+0F);
    // Such that an anchor of -inf is below all scores, even if they do not matter.
    const float some = rate > 0x1p-126F ? rate : 0x1p-126F;
    rate_ = V::broadcast(-some);
    falling_ = Rows<V>::falling(some * (1.0F / kOne));
  }

  /// Steps that hold a range of positions.
  static Range steps_of(Range positions) {
    if (positions.begin >= positions.end) return {0, 0};
    return {positions.begin / kStep, (positions.end + kStep - 1) / kStep};
  }

  /// Bit i: position first + i is seen.
  static std::uint32_t mask(Range seen, std::size_t first) {
    const auto below = [&](std::size_t end) {
      const std::size_t count = end > first ? end - first : 0;
      return count < kStep ? (std::uint32_t{1} << count) - 1 : ~std::uint32_t{0};
    };
    return below(seen.end) & ~below(seen.begin);
  }

  /// Of scores of positions first + {0 to 3, 8 to 11, 16 to 19, 24 to 27}.
  static Vec hide(Vec scores, std::size_t first, Range seen, Vec hidden) {
    alignas(64) static constexpr float kAt[kLanes] = {
        0, 1, 2, 3, 8, 9, 10, 11, 16, 17, 18, 19, 24, 25, 26, 27};
    const Vec at = V::add(V::load(kAt), V::broadcast(static_cast<float>(first)));
    const Vec begin = V::broadcast(static_cast<float>(seen.begin));
    const Vec end = V::broadcast(static_cast<float>(seen.end));
    return V::select_greater(begin, at, hidden, V::select_greater(end, at, scores, hidden));
  }

  /// Of two vectors of scores, mixed as V::powers does. NaN and what is far below the anchor have
  /// no weight.
  [[nodiscard]] inline __attribute__((always_inline)) Int of(Vec low, Vec high, Vec anchor) const {
    return V::powers(exponent(low, anchor), exponent(high, anchor), table_);
  }

  /// The same, but NaN of NaN.
  [[nodiscard]] inline __attribute__((always_inline)) Int of_any(Vec low,
                                                                 Vec high,
                                                                 Vec anchor) const {
    return V::int_or(of(low, high, anchor), V::nan_halves(low, high));
  }

  /// The anchor from now on, when `most` are the largest scores.
  [[nodiscard]] Vec move(Vec anchor, Vec most) const {
    return V::select_greater(exponent(most, anchor), V::broadcast(kHighest), most, anchor);
  }

  /// What has been weighted by `before` times this is weighted by `now`, which is no less.
  [[nodiscard]] Vec factor(Vec before, Vec now) const {
    return Rows<V>::exp2_down(V::sub(now, before), falling_);
  }

 private:
  static constexpr float kOne = 512;  ///< of fixed point
  static constexpr float kHeadroom = 16;
  /// Exponents are those of bf16, plus what makes the last shift round to nearest.
  static constexpr float kRound = 2;
  static constexpr float kHighest = 127 * kOne + kRound;
  static constexpr float kAtAnchor = kHighest - kHeadroom * kOne;

  /// 512 (1 + f - 2^f) for f = i / 64 and what lies behind it up to the next one: the number
  /// with the smallest sum of squared errors of weights, after all of their roundings.
  alignas(64) static constexpr std::uint8_t kLess[64] = {
      1,  4,  6,  8,  10, 12, 15, 16, 19, 20, 22, 24, 26, 28, 29, 31, 32, 33, 35, 36, 37, 38,
      39, 40, 41, 41, 42, 43, 43, 44, 44, 44, 44, 45, 45, 45, 44, 44, 44, 43, 43, 42, 42, 41,
      40, 39, 38, 37, 35, 34, 33, 31, 29, 27, 25, 23, 21, 19, 17, 14, 11, 9,  6,  3};

  /// The difference is rounded, so that no score is too large for it.
  [[nodiscard]] inline __attribute__((always_inline)) Vec exponent(Vec score, Vec anchor) const {
    return V::fma(V::sub(anchor, score), rate_, V::broadcast(kAtAnchor));
  }

  Int table_;
  Vec rate_;  ///< negated
  typename Rows<V>::Falling falling_;
};

/// Of each row of a tile: its anchor, and the sum of its weights, of which lane i has those of
/// positions 2 i and 2 i + 1 of each 32. At most kGroups groups.
template <class V, std::size_t kGroups>
class TileSums {
 public:
  using Vec = typename V::Vec;
  using Int = typename V::Int;

  TileSums(const TileWeights<V>& weights, std::size_t groups) : weights_(weights) {
    for (std::size_t g = 0; g < groups; ++g) {
      V::store(anchors_ + g * kLanes, V::broadcast(-__builtin_inff()));
      for (std::size_t lane = 0; lane < kLanes; ++lane)
        V::store(of(g, lane), V::zero());
    }
  }

  /// Of the rows of a group.
  [[nodiscard]] const float* anchors(std::size_t g) const { return anchors_ + g * kLanes; }

  /// `most`: the largest scores of a block; -inf of rows that see none of it. rescale(lane, factor)
  /// what is summed already.
  template <class Rescale>
  void anchor(std::size_t g, Vec most, Rescale rescale) {
    float* anchors = anchors_ + g * kLanes;
    const Vec before = V::load(anchors);
    const Vec now = weights_.move(before, most);
    const std::uint32_t moved = V::greater_mask(now, before);
    if (moved == 0) return;
    alignas(64) float factors[kLanes];
    V::store(factors, weights_.factor(before, now));
    V::store(anchors, now);
    for (std::size_t lane = 0; lane < kLanes; ++lane) {
      if ((moved >> lane & 1U) == 0) continue;
      const Vec factor = V::broadcast(factors[lane]);
      float* sum = of(g, lane);
      V::store(sum, V::mul(V::load(sum), factor));
      rescale(lane, factor);
    }
  }

  /// 16 parts of a row's sum.
  [[nodiscard]] float* of(std::size_t g, std::size_t lane) {
    return sums_ + (g * kLanes + lane) * kLanes;
  }

  /// `sum` and 32 weights.
  static inline __attribute__((always_inline)) Vec add(Vec sum, Int weights) {
    return V::dot2(sum, weights, V::int_broadcast(0x3f803f80U));
  }

  [[nodiscard]] float total(std::size_t g, std::size_t lane) {
    return V::sum(V::load(of(g, lane)));
  }

  /// Weighted values of a row over `total`; columns of 16 are `stride` apart, with so many
  /// dimensions `mixed` as TileValues says. The unit may leave -0 (of what was too small) where a
  /// step without weights makes it 0: which steps those are depends on the tile. Whether any is
  /// NaN.
  static bool write(const float* row,
                    std::size_t stride,
                    float total,
                    std::size_t dim,
                    std::size_t mixed,
                    float* out) {
    return mixed == 64 ? write_as<64>(row, stride, total, dim, out)
                       : write_as<32>(row, stride, total, dim, out);
  }

 private:
  static constexpr std::size_t kLanes = LaneRows<V>::kLanes;
  static constexpr std::size_t kMaxRows = kGroups * kLanes;

  template <std::size_t kMixed>
  static bool write_as(
      const float* row, std::size_t stride, float total, std::size_t dim, float* out) {
    constexpr std::size_t kColumns = kMixed / kLanes;
    const Vec inverse = V::broadcast(1.0F / total);
    bool nan = false;
    for (std::size_t i = 0; i < dim; i += kMixed) {
      Vec values[kColumns];
      for (std::size_t j = 0; j < kColumns; ++j, row += stride)
        values[j] = V::load(row);
      Mixed<V>::template put_in_order<kMixed>(values);
      for (std::size_t j = 0; j < kColumns; ++j) {
        values[j] = V::mul(V::add(values[j], V::zero()), inverse);
        nan |= store(out, i + j * kLanes, dim, values[j]);
      }
    }
    return nan;
  }

  /// What there is of 16 values from i on. Whether any is NaN.
  static bool store(float* out, std::size_t i, std::size_t dim, Vec values) {
    if (i + kLanes <= dim) {
      V::store(out + i, values);
      return V::any_nan(values);
    }
    if (i >= dim) return false;
    alignas(64) float lanes[kLanes];
    V::store(lanes, values);
    bool nan = false;
    for (std::size_t j = i; j < dim; ++j) {
      out[j] = lanes[j - i];
      nan |= out[j] != out[j];
    }
    return nan;
  }

  const TileWeights<V>& weights_;
  float anchors_[kMaxRows];
  alignas(64) float sums_[kMaxRows * kLanes];
};

}  // namespace tandem::kernels::cpu
