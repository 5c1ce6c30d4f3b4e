// Weighted values of rows that are lanes, from block to block: what simd/attention.h does to one
// row at a time.
#pragma once

#include "kernels/cpu/simd/lane_rows.h"

namespace tandem::kernels::cpu {

template <class V>
class LaneSums {
 public:
  using Vec = typename V::Vec;

  explicit LaneSums(const LaneRows<V>& rows) : rows_(rows) {}

  /// Of the block in progress: what scores of a group, [position][row], weigh, zero where a row
  /// does not see one. put(j, even, odd) takes the weights of positions j and j + 1.
  template <class Put>
  inline __attribute__((always_inline)) void weigh(std::size_t g, const float* scores, Put put) {
    const typename LaneRows<V>::Seen seen = rows_.seen_by(g);
    const auto& some = rows_.group(g).some;
    const std::size_t begin = some.begin / 16 * 16;
    const std::size_t end = (some.end + 15) / 16 * 16;
    const Vec lowest = V::broadcast(-__builtin_inff());
    const Vec max = seen.largest(scores, begin, end);
    const Vec anchor = V::select_greater(max, lowest, max, V::zero());
    const auto weight_of = [&](std::size_t j) __attribute__((always_inline)) {
      const Vec below = V::sub(V::load(scores + j * kLanes), anchor);
      return seen.hide(Rows<V>::exp_down(below), j, V::zero());
    };
    Vec sums[16];
    for (Vec& sum : sums)
      sum = V::zero();
    for (std::size_t j = begin; j < end; j += 16) {
#pragma GCC unroll 8
      for (std::size_t i = 0; i < 16; i += 2) {
        const Vec even = weight_of(j + i);
        const Vec odd = weight_of(j + i + 1);
        sums[i] = V::add(sums[i], even);
        sums[i + 1] = V::add(sums[i + 1], odd);
        put(j + i, even, odd);
      }
    }
    // The tree that others have within a vector.
    for (std::size_t width = 8; width >= 1; width /= 2) {
      for (std::size_t i = 0; i < width; ++i)
        sums[i] = V::add(sums[i], sums[i + width]);
    }
    V::store(part_max_ + g * kLanes, max);
    V::store(part_sum_ + g * kLanes, sums[0]);
  }

  /// Rows of the group whose sums are NaN, and which see less than others: alone(lane) sums them
  /// again, for it may be a value that they do not see. part(lane, column) are 16 sums.
  template <class Part, class Alone>
  void mend(std::size_t g, std::size_t columns, Part part, Alone alone) const {
    const auto& group = rows_.group(g);
    for (std::size_t lane = 0; lane < group.rows; ++lane) {
      if (!rows_.sees_less(group.row + lane)) continue;
      bool broken = false;
      for (std::size_t column = 0; column < columns; ++column)
        broken |= V::any_nan(part(lane, column));
      if (broken) alone(lane);
    }
  }

  /// Joins the block's sums to `merged`, [row][columns][16], rescaled to the larger maximum:
  /// weight(score, largest) is that of a score.
  template <class Part, class Weight>
  void merge(std::size_t g, std::size_t columns, float* merged, Part part, Weight weight) {
    const auto& group = rows_.group(g);
    float* max = max_ + g * kLanes;
    float* sum = sums_ + g * kLanes;
    const float* part_max = part_max_ + g * kLanes;
    const float* part_sum = part_sum_ + g * kLanes;
    alignas(64) float keep[kLanes];
    alignas(64) float take[kLanes];
    find_factors(max, part_max, weight, keep, take);
    for (std::size_t lane = 0; lane < group.rows; ++lane) {
      const std::size_t row = group.row + lane;
      const auto seen = rows_.seen(row);
      if (seen.begin >= seen.end) continue;
      float* to = merged + row * columns * kLanes;
      if (rows_.begins(row)) {
        max[lane] = part_max[lane];
        sum[lane] = part_sum[lane];
        for (std::size_t column = 0; column < columns; ++column)
          V::store(to + column * kLanes, part(lane, column));
        continue;
      }
      max[lane] = part_max[lane] > max[lane] ? part_max[lane] : max[lane];
      sum[lane] = sum[lane] * keep[lane] + part_sum[lane] * take[lane];
      const Vec keep_all = V::broadcast(keep[lane]);
      const Vec take_all = V::broadcast(take[lane]);
      for (std::size_t column = 0; column < columns; ++column, to += kLanes)
        V::store(to, V::fma(V::load(to), keep_all, V::mul(part(lane, column), take_all)));
    }
  }

  /// Sums of weights so far, [group][lane].
  [[nodiscard]] const float* sums() const {
    return sums_;
  }

 private:
  static constexpr std::size_t kLanes = LaneRows<V>::kLanes;
  static constexpr std::size_t kMaxRows = LaneRows<V>::kMaxGroups * kLanes;

  /// Of what is merged already, and of the block's sums.
  template <class Weight>
  static void find_factors(
      const float* max, const float* part_max, Weight weight, float* keep, float* take) {
    const Vec before = V::load(max);
    const Vec now = V::load(part_max);
    const Vec most = V::select_greater(now, before, now, before);
    const Vec anchor = V::select_greater(most, V::broadcast(-__builtin_inff()), most, V::zero());
    V::store(keep, weight(before, anchor));
    V::store(take, weight(now, anchor));
  }

  const LaneRows<V>& rows_;
  float max_[kMaxRows] = {};
  float sums_[kMaxRows] = {};
  float part_max_[kMaxRows];
  float part_sum_[kMaxRows];
};

}  // namespace tandem::kernels::cpu
