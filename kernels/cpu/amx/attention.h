// Causal attention over paged bf16 keys and values on AMX tiles: up to kRows query rows of one kv
// head, or one token's rows of several.
//
// Idea: keys lie in memory as rows of A tiles do (a position a row, 32 dimensions in 64 bytes), so
// scores come out as [position][row]: queries, turned once, are the B tiles. Rows are lanes then,
// and maximum, exp and sum need nothing across lanes. Weights are rounded to bf16, two positions to
// a word, and turned 16 by 16 into A tiles. Values are B tiles once two positions are interleaved,
// which all rows share. 16 rows make a group; two groups and two tiles of positions or dimensions
// are four products for four loads.
//
// The arithmetic of one row, whatever tile it is in (this order is part of the numerics family):
// for each block of 256 absolute positions that the row sees any of,
//   c[j] = the tile unit's sum over head_dim of bf16(q) K[j], 32 dimensions a step
//   s = |scale| / ln 2 (a negative scale negates q), m = max c[j]
//   e[j] = 2^-((m - c[j]) s): the difference is rounded, so that no score is too large for it
//   l = sum by position % 4 in order, then (0 + 1) + (2 + 3)
//   o = the tile unit's sum of e[j] V[j], 32 positions a step, -0 as 0; e[j] rounded to the nearest
//   bf16, up in the middle
//   merge (M, L, O) with (m, l, o), rescaled by powers of 2 to the larger of M and m
// and out = O / L. A position that a row does not see has no weight, and no value that the tile
// does not see is read. Where rows see different positions, a value that is not finite must not
// reach those that do not see it, not even times zero: such a row is summed again alone
// (sum_alone).
//
// Tokens alone (decode): token_attention.h, the same arithmetic. Bound of many rows: 64 rows and a
// block of 128 dimensions take 8,192 cycles of products, and 1,024 vectors of exp, sum and rounding
// with about 18 instructions each. Beside products floating point has one port of two, and 13 of
// the 18 are that: 13,300 cycles.
#pragma once

#include "kernels/cpu/amx/tile_products.h"
#include "kernels/cpu/amx/token_attention.h"
#include "kernels/cpu/amx/weights.h"
#include "kernels/cpu/simd/lane_sums.h"

namespace tandem::kernels::cpu {

template <class V, class T>
class TileAttention {
 public:
  /// Query rows of a tile at most.
  static constexpr std::size_t kRows = 256;

  /// See Kernels.
  static std::size_t most_rows(DType dtype, std::size_t head_dim) {
    if (dtype != DType::kBf16) return kTileRows;
    return head_dim <= kRowsDim ? kRows : head_dim <= 2 * kRowsDim ? kRows / 2 : kRows / 4;
  }

  /// Of DType::kBf16.
  static void run(const AttentionTile& tile) {
    if (tile.tokens == 1) return TokenAttention<V, T>::run(tile);
    TileAttention(tile).run_all();
  }

 private:
  using Vec = typename V::Vec;
  using Keys = KeyRows<V>;
  using Range = typename Keys::Range;
  using Weights = TileWeights<V>;
  using Sums = typename Weights::Sums;
  using Lanes = LaneRows<V>;

  static constexpr std::size_t kLanes = Weights::kLanes;
  static constexpr std::size_t kStep = Weights::kStep;
  static constexpr std::size_t kBlockSteps = kKeyBlock / kStep;
  /// head_dim for which kRows rows and what they need fit the second level of caches.
  static constexpr std::size_t kRowsDim = 128;
  static constexpr std::size_t kScoreBytes = kKeyBlock * kTileRowBytes;  ///< of a group
  static constexpr std::size_t kWeightBytes = kBlockSteps * kTileBytes;

  /// Scratch in tiles, of so many rows and steps of dimensions: queries and what is merged; keys
  /// and values of a block; scores and weights of two pairs of groups; sums of one.
  static constexpr std::size_t room(std::size_t rows, std::size_t steps) {
    return rows / kLanes * 3 * steps + 2 * kKeyBlock / kLanes * steps +
           4 * (kScoreBytes + kWeightBytes) / kTileBytes + 2 * 2 * steps;
  }

  static constexpr std::size_t kRoom =
      (kPackedFloats * sizeof(float) - Keys::kPointers * sizeof(void*)) / kTileBytes - 1;
  // CpuBackend keeps the rows of a tile in 128 KiB where they go on packed.
  static_assert(kRows * kRowsDim * sizeof(float) <= 128 * 1024);
  static_assert(room(kRows, kRowsDim / 32) <= kRoom);
  static_assert(room(kRows / 2, 2 * kRowsDim / 32) <= kRoom);
  static_assert(room(kRows / 4, kMaxHeadDim / 32) <= kRoom);

  explicit TileAttention(const AttentionTile& tile)
      : tile_(tile),
        steps_((tile.head_dim + 31) / 32),
        columns_(2 * steps_),
        rows_(tile),
        sums_(rows_),
        keys_(tile, reinterpret_cast<const std::byte**>(tile.scratch)),
        values_of_(keys_, tile.head_dim, tile.value_offset),
        ahead_(tile, rows_.first(), rows_.last()) {
    falling_ = Weights::falling_at(tile.scale);
    q_ = tile.scratch + (Keys::kPointers * sizeof(void*) + 63) / 64 * 64;
    key_tiles_ = q_ + rows_.group_count() * steps_ * kTileBytes;
    values_ = key_tiles_ + kKeyBlock / kLanes * steps_ * kTileBytes;
    scores_ = values_ + kBlockSteps * columns_ * kTileBytes;
    weights_ = scores_ + 4 * kScoreBytes;
    part_ = weights_ + 4 * kWeightBytes;
    merged_ = reinterpret_cast<float*>(part_ + 2 * columns_ * kTileBytes);
  }

  void run_all() {
    const std::size_t last = rows_.last();
    std::size_t base = rows_.first() / kKeyBlock * kKeyBlock;
    ahead_.stop_at(base + kKeyBlock);
    ahead_.template ask<256>();
    rows_.load_queries(steps_ * kTileHeight, tile_.scale < 0, key_tiles_, q_);
    tiles_.configure(whole_tiles());  // C is 0 to 3, A 4 and 5, B 6 and 7
    for (; base < last; base += kKeyBlock) {
      rows_.enter(base);
      block_ = rows_.block();
      keys_.find(base, block_.begin, last);
      copy_keys();
      const Pair first = pair_from(0, 0);
      products_.begin(scores_of(first), {});
      copy_values([&] { products_.make_step(); });
      products_.finish();
      ahead_.stop_at(base + 2 * kKeyBlock);
      run_pairs(first);
    }
    tiles_.release();
    rows_.write(merged_, columns_ * kLanes, sums_.sums());
  }

  /// Keys of the block to A tiles, [16 positions][step], zeros for positions that nobody sees.
  void copy_keys() {
    const Range steps = Weights::steps_of(block_);
    for (std::size_t j = steps.begin * kStep; j < steps.end * kStep; ++j) {
      std::byte* to =
          key_tiles_ + j / kTileHeight * steps_ * kTileBytes + j % kTileHeight * kTileRowBytes;
      const std::byte* from = j >= block_.begin && j < block_.end ? keys_.row[j] : nullptr;
      for (std::size_t i = 0; i < steps_; ++i, to += kTileBytes) {
        ahead_.template ask<1>();
        V::int_store(to, values_of_.load_halves(from, i * 32));
      }
    }
  }

  template <class Between>
  void copy_values(Between between) {
    const Range steps = Weights::steps_of(block_);
    for (std::size_t step = steps.begin; step < steps.end; ++step)
      values_of_.interleave(step * kStep, block_, values_ + step * columns_ * kTileBytes, between);
  }

  /// Two groups, or one, and what of the block they see.
  struct Pair {
    std::size_t group;
    std::size_t count;
    std::size_t side;  ///< of what there is twice
    Range steps;
  };

  /// The pair from group g on that sees any of the block.
  Pair pair_from(std::size_t g, std::size_t side) const {
    for (; g < rows_.group_count(); g += 2) {
      const std::size_t count = g + 2 <= rows_.group_count() ? 2 : 1;
      const Range steps = Weights::steps_of(rows_.some_of(g, count));
      if (steps.begin < steps.end) return {g, count, side, steps};
    }
    return {g, 0, side, {0, 0}};
  }

  /// While a pair's scores become weights, the tile unit sums the weighted values of the pair
  /// before and makes the scores of the next one. The first one's are there.
  void run_pairs(Pair pair) {
    Pair before{};
    while (pair.count > 0) {
      const Pair next = pair_from(pair.group + 2, 1 - pair.side);
      products_.begin(sums_of(before), scores_of(next));
      for (std::size_t i = 0; i < pair.count; ++i)
        weigh(pair, i);
      products_.finish();
      merge_pair(before);
      before = pair;
      pair = next;
    }
    products_.begin(sums_of(before), {});
    products_.finish();
    merge_pair(before);
  }

  /// Scores, [group][position][row], before their scale. What a second group gets that is not there
  /// is not used.
  [[nodiscard]] TileChains scores_of(const Pair& pair) const {
    const auto steps = static_cast<std::ptrdiff_t>(steps_);
    return {.a = key_tiles_ + pair.steps.begin * 2 * steps_ * kTileBytes,
            .b = q_ + pair.group * steps_ * kTileBytes,
            .to = scores_ + pair.side * 2 * kScoreBytes + pair.steps.begin * 2 * kTileBytes,
            .a_step = 1,
            .b_step = 1,
            .a_chain = 2 * steps,
            .b_chain = 0,
            .to_chain = 2,
            .a_second = steps,
            .b_second = steps,
            .to_a_second = 1,
            .to_b_second = kScoreBytes / kTileBytes,
            .length = steps_,
            .count = pair.count == 0 ? 0 : pair.steps.end - pair.steps.begin};
  }

  /// Sums of weighted values, [group][column][row].
  [[nodiscard]] TileChains sums_of(const Pair& pair) const {
    const auto columns = static_cast<std::ptrdiff_t>(columns_);
    return {.a = weights_ + pair.side * 2 * kWeightBytes + pair.steps.begin * kTileBytes,
            .b = values_ + pair.steps.begin * columns_ * kTileBytes,
            .to = part_,
            .a_step = 1,
            .b_step = columns,
            .a_chain = 0,
            .b_chain = 2,
            .to_chain = 2,
            .a_second = kWeightBytes / kTileBytes,
            .b_second = 1,
            .to_a_second = columns,
            .to_b_second = 1,
            .length = pair.steps.end - pair.steps.begin,
            .count = pair.count == 0 ? 0 : steps_};
  }

  /// Scores of group i of a pair to A tiles of weights, [step][row][position], with maximum and
  /// sum.
  void weigh(const Pair& pair, std::size_t i) {
    const std::size_t g = pair.group + i;
    const std::size_t at = pair.side * 2 + i;
    const Weights weights(
        reinterpret_cast<const float*>(scores_ + at * kScoreBytes), falling_, rows_.seen_by(g));
    const Sums sums = weights.make(
        Weights::steps_of(rows_.group(g).some),
        pair.steps,
        weights_ + at * kWeightBytes,
        [&] { ahead_.template ask<16>(); },
        [&]<int kQuarter>() { products_.template make<kQuarter>(); });
    sums_.note(g, sums.max, sums.sum);
  }

  void merge_pair(const Pair& pair) {
    for (std::size_t i = 0; i < pair.count; ++i) {
      const std::size_t g = pair.group + i;
      const auto part = [&](std::size_t lane, std::size_t column) {
        return sum_of(i, lane, column);
      };
      bool again = false;
      sums_.mend(g, columns_, part, [&](std::size_t lane) {
        sum_alone(pair, i, lane);
        again = true;
      });
      if (again) copy_values([] {});
      sums_.merge(g, columns_, merged_, part, [&](Vec score, Vec largest) {
        return Rows<V>::exp2_down(V::sub(largest, score), falling_);
      });
    }
  }

  /// Sums again what a row sees, with the other values 0; the other rows' sums stay.
  void sum_alone(const Pair& pair, std::size_t i, std::size_t lane) {
    const Range seen = rows_.seen(rows_.group(pair.group + i).row + lane);
    const Range steps = Weights::steps_of(seen);
    for (std::size_t step = steps.begin; step < steps.end; ++step)
      values_of_.interleave(step * kStep, seen, values_ + step * columns_ * kTileBytes, [] {});
    const std::byte* weights = weights_ + (pair.side * 2 + i) * kWeightBytes;
    std::byte* part = part_ + i * columns_ * kTileBytes;
    alignas(64) std::byte sums[kTileBytes];
    for (std::size_t column = 0; column < columns_; ++column, part += kTileBytes) {
      tiles_.template zero<0>();
      for (std::size_t step = steps.begin; step < steps.end; ++step) {
        tiles_.template load<4>(weights + step * kTileBytes, kTileRowBytes);
        tiles_.template load<6>(values_ + (step * columns_ + column) * kTileBytes, kTileRowBytes);
        tiles_.template multiply_bf16<0, 4, 6>();
      }
      tiles_.template store<0>(sums, kTileRowBytes);
      __builtin_memcpy(part + lane * kTileRowBytes, sums + lane * kTileRowBytes, kTileRowBytes);
    }
  }

  /// The unit may leave -0 (of what was too small) where a step without weights makes it 0: which
  /// steps those are depends on the tile.
  [[nodiscard]] Vec sum_of(std::size_t i, std::size_t lane, std::size_t column) const {
    const std::byte* part = part_ + (i * columns_ + column) * kTileBytes + lane * kTileRowBytes;
    return V::add(V::load(reinterpret_cast<const float*>(part)), V::zero());
  }

  const AttentionTile& tile_;
  std::size_t steps_;    ///< of 32 dimensions
  std::size_t columns_;  ///< of 16 dimensions
  Lanes rows_;
  LaneSums<V> sums_;
  typename Rows<V>::Falling falling_;  ///< at rate s
  Keys keys_;
  TileValues<V> values_of_;
  KeysAhead<V> ahead_;
  Range block_{};         ///< what the tile sees of the block
  std::byte* q_;          // [group][step], B tiles
  std::byte* key_tiles_;  // [16 positions of the block][step], A tiles
  std::byte* values_;     // [step of the block][column], B tiles
  std::byte* scores_;     // [side][group of the pair][position][row] f32
  std::byte* weights_;    // [side][group of the pair][step of the block], A tiles
  std::byte* part_;       // [group of the pair][column], C tiles: o
  float* merged_;         // [row][column][16], O
  T tiles_;
  TileProducts<V, T> products_{tiles_};
};

}  // namespace tandem::kernels::cpu
