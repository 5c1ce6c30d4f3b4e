// Softmax of attention on tiles: sums of the tile unit, [position][row], become weights of 2^x in
// bf16, in A tiles. Rows are lanes, so nothing crosses lanes until 16 of them are turned.
#pragma once

#include "kernels/cpu/amx/tiles.h"
#include "kernels/cpu/simd/lane_rows.h"

namespace tandem::kernels::cpu {

/// Of one group of rows and one block of positions.
template <class V>
class TileWeights {
 public:
  using Vec = typename V::Vec;
  using Range = typename KeyRows<V>::Range;
  using Seen = typename LaneRows<V>::Seen;

  static constexpr std::size_t kLanes = LaneRows<V>::kLanes;
  /// Positions of a step: two tiles of keys, one of weights.
  static constexpr std::size_t kStep = 32;

  /// Of each row: the largest of its sums, and the total of weights before they are rounded.
  struct Sums {
    Vec max;
    Vec sum;
  };

  /// Steps that hold a range of positions.
  static Range steps_of(Range positions) {
    if (positions.begin >= positions.end) return {0, 0};
    return {positions.begin / kStep, (positions.end + kStep - 1) / kStep};
  }

  using Falling = typename Rows<V>::Falling;

  /// Of scores times |scale|: at rate |scale| / ln 2.
  static Falling falling_at(float scale) {
    return Rows<V>::falling((scale < 0 ? -scale : scale) * 0x1.715476p+0F);
  }

  /// `sums`: [kKeyBlock][kLanes]; weights are 2^-(rate (largest - sum)).
  TileWeights(const float* sums, const Falling& falling, const Seen& seen)
      : sums_(sums), falling_(falling), seen_(seen) {}

  /// Tiles of the steps `all`, of which any row sees `some`; `tiles` is that of step 0.
  template <class Between, class Quarter>
  [[nodiscard]] Sums make(
      Range some, Range all, std::byte* tiles, Between between, Quarter quarter) const {
    const Vec lowest = V::broadcast(-__builtin_inff());
    const Vec most = seen_.largest(sums_, some.begin * kStep, some.end * kStep);
    const Vec anchor = V::select_greater(most, lowest, most, V::zero());
    Vec totals[4] = {V::zero(), V::zero(), V::zero(), V::zero()};
    for (std::size_t step = all.begin; step < all.end; ++step) {
      std::byte* tile = tiles + step * kTileBytes;
      if (step >= some.begin && step < some.end) {
        const std::size_t j = step * kStep;
        if (j >= seen_.all.begin && j + kStep <= seen_.all.end) {
          make_tile<true>(j, anchor, totals, tile, quarter);
        } else {
          make_tile<false>(j, anchor, totals, tile, quarter);
        }
        between();
      } else {
        __builtin_memset(tile, 0, kTileBytes);
      }
    }
    return {most, V::add(V::add(totals[0], totals[1]), V::add(totals[2], totals[3]))};
  }

 private:
  template <bool kAllSeen>
  [[nodiscard]] inline __attribute__((always_inline)) Vec weight_of(std::size_t j,
                                                                    Vec anchor,
                                                                    const Falling& falling) const {
    const Vec below = V::sub(anchor, V::load(sums_ + j * kLanes));
    const Vec weight = Rows<V>::exp2_down(below, falling);
    return kAllSeen ? weight : seen_.hide(weight, j, V::zero());
  }

  /// Of 32 positions from j on; adds to the totals of j % 4.
  template <bool kAllSeen, class Quarter>
  inline __attribute__((always_inline)) void make_tile(
      std::size_t j, Vec anchor, Vec (&totals)[4], std::byte* tile, Quarter quarter) const {
    alignas(64) std::byte words[kTileBytes];
    const Falling falling = falling_;  // in registers, whatever the others write to memory
    for (std::size_t i = 0; i < kTileHeight; i += 4) {
      make_pair<kAllSeen>(j + 2 * i, anchor, falling, totals, words + i * kTileRowBytes);
      quarter.template operator()<0>();
      make_pair<kAllSeen>(
          j + 2 * i + 2, anchor, falling, totals + 2, words + (i + 1) * kTileRowBytes);
      quarter.template operator()<1>();
      make_pair<kAllSeen>(j + 2 * i + 4, anchor, falling, totals, words + (i + 2) * kTileRowBytes);
      quarter.template operator()<2>();
      make_pair<kAllSeen>(
          j + 2 * i + 6, anchor, falling, totals + 2, words + (i + 3) * kTileRowBytes);
      quarter.template operator()<3>();
    }
    const std::byte* lines[kTileHeight];
    for (std::size_t i = 0; i < kTileHeight; ++i)
      lines[i] = words + i * kTileRowBytes;
    V::transpose_words(lines, 0, tile);
  }

  /// Of two positions, to a word of each row.
  template <bool kAllSeen>
  inline __attribute__((always_inline)) void make_pair(
      std::size_t j, Vec anchor, const Falling& falling, Vec* totals, std::byte* words) const {
    const Vec even = weight_of<kAllSeen>(j, anchor, falling);
    const Vec odd = weight_of<kAllSeen>(j + 1, anchor, falling);
    totals[0] = V::add(totals[0], even);
    totals[1] = V::add(totals[1], odd);
    V::int_store(words, V::half_words_up(even, odd));
  }

  const float* sums_;
  Falling falling_;
  Seen seen_;
};

}  // namespace tandem::kernels::cpu
