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
// A token alone goes through the kv heads 32 positions at a time, since memory is fast along runs
// of KiB only, and asks for what it reads some KiB on. Bound: decode by memory; many rows by exp
// and the tile unit: 64 rows and a block of 128 dimensions take 8,192 cycles of products, and 1,024
// vectors of exp, sum and rounding with about 18 instructions each.
#pragma once

#include "kernels/cpu/amx/weights.h"
#include "kernels/cpu/simd/lane_sums.h"

namespace tandem::kernels::cpu {

template <class V, class T>
class TileAttention {
 public:
  /// Query rows of a tile at most.
  static constexpr std::size_t kRows = 64;

  /// See Kernels.
  static std::size_t most_rows(DType dtype, std::size_t /*head_dim*/) {
    return dtype == DType::kBf16 ? kRows : kTileRows;
  }

  /// Of DType::kBf16.
  static void run(const AttentionTile& tile) {
    const std::size_t groups = (tile.heads + kLanes - 1) / kLanes;
    const std::size_t most = tile.tokens == 1 ? kMaxGroups / groups : 1;
    for (std::size_t head = 0; head < tile.kv_heads; head += most) {
      AttentionTile part = tile;
      part.q += head * tile.heads * tile.head_dim;
      part.out += head * tile.heads * tile.head_dim;
      part.keys += head * tile.kv_head_stride;
      part.kv_heads = tile.kv_heads - head < most ? tile.kv_heads - head : most;
      TileAttention(part).run_all();
    }
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
  static constexpr std::size_t kMaxGroups = Lanes::kMaxGroups;
  static constexpr std::size_t kBlockSteps = kKeyBlock / kStep;
  /// Between a prefetch and its use, at most.
  static constexpr std::size_t kAheadBytes = 32 * 1024;

  /// Scratch in tiles, without pointers: queries, scores, weights and sums of each group, then
  /// values, copies, and what is merged.
  static constexpr std::size_t room(std::size_t groups, std::size_t value_steps) {
    constexpr std::size_t kSteps = kMaxHeadDim / 32;
    return groups * (kSteps + kKeyBlock / kLanes + kBlockSteps + 2 * kSteps) +
           (value_steps + 1) * 2 * kSteps + kRows * kMaxHeadDim * sizeof(float) / kTileBytes;
  }

  static constexpr std::size_t kRoom = kPackedFloats * sizeof(float) / kTileBytes - 8;
  static_assert(Keys::kPointers * sizeof(void*) <= 8 * kTileBytes);
  static_assert(room(kMaxGroups, 1) <= kRoom, "one token: more than the scratch of a thread");
  static_assert(room(kRows / kLanes, kBlockSteps) <= kRoom, "several tokens");

  struct KeyTile {
    const std::byte* from;
    std::size_t stride;
  };

  explicit TileAttention(const AttentionTile& tile)
      : tile_(tile),
        dim_(tile.head_dim),
        steps_((tile.head_dim + 31) / 32),
        columns_(2 * steps_),
        rows_(tile),
        sums_(rows_),
        group_count_(rows_.group_count()),
        keys_(tile, reinterpret_cast<const std::byte**>(tile.scratch)) {
    // 1 / ln 2
    const float rate = (tile.scale < 0 ? -tile.scale : tile.scale) * 0x1.715476p+0F;
    falling_ = Rows<V>::falling(rate);
    q_ = tile.scratch + (Keys::kPointers * sizeof(void*) + 63) / 64 * 64;
    scores_ = q_ + group_count_ * steps_ * kTileBytes;
    weights_ = scores_ + group_count_ * (kKeyBlock / 16) * kTileBytes;
    values_ = weights_ + group_count_ * kBlockSteps * kTileBytes;
    part_ = values_ + (tile.tokens == 1 ? 1 : kBlockSteps) * columns_ * kTileBytes;
    copies_ = part_ + group_count_ * columns_ * kTileBytes;
    merged_ = reinterpret_cast<float*>(copies_ + 2 * steps_ * kTileBytes);
    const std::size_t unit = kStep * tile.row_bytes;
    units_ahead_ = tile.tokens == 1 ? (kAheadBytes + unit - 1) / unit : 2;
  }

  void run_all() {
    rows_.load_queries(steps_ * kTileHeight, tile_.scale < 0, copies_, q_);
    const std::size_t last = rows_.last();
    configure();
    for (std::size_t base = rows_.first() / kKeyBlock * kKeyBlock; base < last; base += kKeyBlock) {
      rows_.enter(base);
      block_ = rows_.block();
      keys_.find(base, block_.begin, last);
      score();
      for (std::size_t g = 0; g < group_count_; ++g)
        weigh(g);
      tile_.tokens == 1 ? sum_in_turn() : sum_block();
      for (std::size_t g = 0; g < group_count_; ++g)
        merge(g);
    }
    tiles_.release();
    rows_.write(merged_, columns_ * kLanes, sums_.sums());
  }

  /// C is 0 to 3, A 4 and 5, B 6 and 7.
  void configure() {
    TileConfig config{};
    config.palette = 1;
    for (std::size_t tile = 0; tile < 8; ++tile) {
      config.row_bytes[tile] = kTileRowBytes;
      config.rows[tile] = kTileHeight;
    }
    tiles_.configure(config);
  }

  /// Scores of the block, [group][position][row], before their scale.
  void score() {
    const Range steps = Weights::steps_of(block_);
    const std::size_t units = (steps.end - steps.begin) * tile_.kv_heads;
    std::size_t unit = 0;
    for (std::size_t step = steps.begin; step < steps.end; ++step) {
      for (std::size_t head = 0; head < tile_.kv_heads; ++head, ++unit) {
        aim(steps, unit + units_ahead_, units);
        const KeyTile first = key_tile(step * kStep, head, copies_);
        const KeyTile second =
            key_tile(step * kStep + kTileHeight, head, copies_ + steps_ * kTileBytes);
        bool asks = true;
        for_groups(head, [&]<int kGroups>(std::size_t g) {
          const Range wanted = Weights::steps_of(rows_.some_of(g, kGroups));
          if (step < wanted.begin || step >= wanted.end) return;
          score_step<kGroups>(g, step * kStep, first, second, asks);
          asks = false;
        });
      }
    }
  }

  /// fn.operator()<1 or 2>(g) for the groups of a kv head, g and g + 1 together.
  template <class Fn>
  void for_groups(std::size_t head, Fn fn) {
    const std::size_t each = group_count_ / tile_.kv_heads;
    std::size_t g = head * each;
    const std::size_t end = g + each;
    for (; g + 2 <= end; g += 2)
      fn.template operator()<2>(g);
    if (g < end) fn.template operator()<1>(g);
  }

  /// 16 keys from `position` on: where they are if one page holds them, or a copy, zeros for
  /// positions that nobody sees.
  KeyTile key_tile(std::size_t position, std::size_t head, std::byte* copy) {
    const std::size_t offset = head * tile_.kv_head_stride;
    const bool whole = position >= block_.begin && position + kTileHeight <= block_.end &&
                       (rows_.base() + position) % tile_.page_size + kTileHeight <= tile_.page_size;
    if (whole && dim_ % 32 == 0) return {keys_.row[position] + offset, tile_.row_bytes};
    const std::size_t line = steps_ * kTileRowBytes;
    for (std::size_t i = 0; i < kTileHeight; ++i) {
      const std::size_t j = position + i;
      std::byte* to = copy + i * line;
      const bool seen = j >= block_.begin && j < block_.end;
      const std::size_t bytes = seen ? dim_ * 2 : 0;
      if (seen) __builtin_memcpy(to, keys_.row[j] + offset, bytes);
      __builtin_memset(to + bytes, 0, line - bytes);
    }
    return {copy, line};
  }

  template <int kGroups>
  void score_step(std::size_t g, std::size_t position, KeyTile first, KeyTile second, bool asks) {
    const std::byte* q = q_ + g * steps_ * kTileBytes;
    tiles_.template zero<0>();
    tiles_.template zero<2>();
    if constexpr (kGroups == 2) {
      tiles_.template zero<1>();
      tiles_.template zero<3>();
    }
    for (std::size_t step = 0; step < steps_; ++step) {
      if (asks) ask(step * kTileRowBytes);
      tiles_.template load<4>(first.from + step * kTileRowBytes, first.stride);
      tiles_.template load<6>(q + step * kTileBytes, kTileRowBytes);
      tiles_.template multiply_bf16<0, 4, 6>();
      tiles_.template load<5>(second.from + step * kTileRowBytes, second.stride);
      tiles_.template multiply_bf16<2, 5, 6>();
      if constexpr (kGroups == 2) {
        tiles_.template load<7>(q + (steps_ + step) * kTileBytes, kTileRowBytes);
        tiles_.template multiply_bf16<1, 4, 7>();
        tiles_.template multiply_bf16<3, 5, 7>();
      }
    }
    std::byte* to = scores_ + (g * kKeyBlock + position) * kTileRowBytes;
    tiles_.template store<0>(to, kTileRowBytes);
    tiles_.template store<2>(to + kTileBytes, kTileRowBytes);
    if constexpr (kGroups == 2) {
      to += kKeyBlock * kTileRowBytes;
      tiles_.template store<1>(to, kTileRowBytes);
      tiles_.template store<3>(to + kTileBytes, kTileRowBytes);
    }
  }

  /// Scores of a group to A tiles of weights, [step][row][position], with maximum and sum.
  void weigh(std::size_t g) {
    const Weights weights(reinterpret_cast<const float*>(scores_ + g * kKeyBlock * kTileRowBytes),
                          falling_,
                          rows_.seen_by(g));
    const Sums sums = weights.make(Weights::steps_of(rows_.group(g).some),
                                   Weights::steps_of(block_),
                                   weights_ + g * kBlockSteps * kTileBytes);
    sums_.note(g, sums.max, sums.sum);
  }

  /// Values of a step to B tiles, [column][pair of positions][dimension], zeros for positions
  /// outside of `seen`. Columns are as V::interleave mixes dimensions.
  void interleave(std::size_t step, std::size_t head, Range seen, bool asks, std::byte* to) {
    const std::size_t offset = head * tile_.kv_head_stride + tile_.value_offset;
    for (std::size_t pair = 0; pair < kTileHeight; ++pair) {
      const std::size_t j = step * kStep + 2 * pair;
      const std::byte* even = j >= seen.begin && j < seen.end ? keys_.row[j] + offset : nullptr;
      const std::byte* odd =
          j + 1 >= seen.begin && j + 1 < seen.end ? keys_.row[j + 1] + offset : nullptr;
      if (asks) {
        for (std::size_t i = 0; i < steps_; ++i) {
          __builtin_prefetch(ahead_[2 * pair] + i * 64);
          __builtin_prefetch(ahead_[2 * pair + 1] + i * 64);
        }
      }
      std::byte* line = to + pair * kTileRowBytes;
      const bool whole = even != nullptr && odd != nullptr && dim_ % 32 == 0;
      for (std::size_t i = 0; i < steps_; ++i, line += 2 * kTileBytes) {
        typename V::Int low;
        typename V::Int high;
        if (whole) {
          V::interleave(V::int_load(even + i * 64), V::int_load(odd + i * 64), &low, &high);
        } else {
          V::interleave(load_halves(even, i * 32), load_halves(odd, i * 32), &low, &high);
        }
        V::int_store(line, low);
        V::int_store(line + kTileBytes, high);
      }
    }
  }

  /// 32 dimensions of a value row from `at` on, zeros behind the last.
  [[nodiscard]] typename V::Int load_halves(const std::byte* row, std::size_t at) const {
    if (row == nullptr) return V::int_zero();
    return at + 32 <= dim_ ? V::int_load(row + at * 2) : V::int_load_part(row + at * 2, dim_ - at);
  }

  /// Weighted values of several tokens: all of the block's first become B tiles.
  void sum_block() {
    const Range steps = Weights::steps_of(block_);
    const std::size_t units = steps.end - steps.begin;
    for (std::size_t step = steps.begin; step < steps.end; ++step) {
      aim(steps, units + step - steps.begin + units_ahead_, units);
      interleave(step, 0, block_, true, values_ + step * columns_ * kTileBytes);
    }
    for_groups(0, [&]<int kGroups>(std::size_t g) {
      const Range wanted = Weights::steps_of(rows_.some_of(g, kGroups));
      sum_steps<kGroups>(g, wanted, values_ + wanted.begin * columns_ * kTileBytes, true);
    });
    for (std::size_t g = 0; g < group_count_; ++g) {
      sums_.mend(
          g,
          columns_,
          [&](std::size_t lane, std::size_t column) { return sums_of(g, lane, column); },
          [&](std::size_t lane) { sum_alone(g, lane); });
    }
  }

  /// Weighted values of one token, head by head over each step.
  void sum_in_turn() {
    const Range steps = Weights::steps_of(block_);
    const std::size_t units = (steps.end - steps.begin) * tile_.kv_heads;
    std::size_t unit = 0;
    for (std::size_t step = steps.begin; step < steps.end; ++step) {
      for (std::size_t head = 0; head < tile_.kv_heads; ++head, ++unit) {
        aim(steps, units + unit + units_ahead_, units);
        interleave(step, head, block_, true, values_);
        for_groups(head, [&]<int kGroups>(std::size_t g) {
          sum_steps<kGroups>(g, {step, step + 1}, values_, step == steps.begin);
        });
      }
    }
  }

  /// Products of weights and values over some steps, onto what there is unless `first`. `values`:
  /// B tiles of the first step. No step: nothing is written, and nobody looks.
  template <int kGroups>
  void sum_steps(std::size_t g, Range steps, const std::byte* values, bool first) {
    const std::size_t group_bytes = columns_ * kTileBytes;
    for (std::size_t column = 0; column < columns_; column += 2) {
      std::byte* part = part_ + g * group_bytes + column * kTileBytes;
      start_sums<kGroups>(part, group_bytes, first);
      for (std::size_t step = steps.begin; step < steps.end; ++step) {
        const std::byte* weights = weights_ + (g * kBlockSteps + step) * kTileBytes;
        const std::byte* value = values + ((step - steps.begin) * columns_ + column) * kTileBytes;
        tiles_.template load<4>(weights, kTileRowBytes);
        tiles_.template load<6>(value, kTileRowBytes);
        tiles_.template multiply_bf16<0, 4, 6>();
        tiles_.template load<7>(value + kTileBytes, kTileRowBytes);
        tiles_.template multiply_bf16<1, 4, 7>();
        if constexpr (kGroups == 2) {
          tiles_.template load<5>(weights + kBlockSteps * kTileBytes, kTileRowBytes);
          tiles_.template multiply_bf16<2, 5, 6>();
          tiles_.template multiply_bf16<3, 5, 7>();
        }
      }
      tiles_.template store<0>(part, kTileRowBytes);
      tiles_.template store<1>(part + kTileBytes, kTileRowBytes);
      if constexpr (kGroups == 2) {
        tiles_.template store<2>(part + group_bytes, kTileRowBytes);
        tiles_.template store<3>(part + group_bytes + kTileBytes, kTileRowBytes);
      }
    }
  }

  template <int kGroups>
  void start_sums(const std::byte* part, std::size_t group_bytes, bool first) {
    if (first) {
      tiles_.template zero<0>();
      tiles_.template zero<1>();
      if constexpr (kGroups == 2) {
        tiles_.template zero<2>();
        tiles_.template zero<3>();
      }
      return;
    }
    tiles_.template load<0>(part, kTileRowBytes);
    tiles_.template load<1>(part + kTileBytes, kTileRowBytes);
    if constexpr (kGroups == 2) {
      tiles_.template load<2>(part + group_bytes, kTileRowBytes);
      tiles_.template load<3>(part + group_bytes + kTileBytes, kTileRowBytes);
    }
  }

  void sum_alone(std::size_t g, std::size_t lane) {
    const Range seen = rows_.seen(rows_.group(g).row + lane);
    const Range steps = Weights::steps_of(seen);
    for (std::size_t step = steps.begin; step < steps.end; ++step)
      interleave(step, 0, seen, false, values_ + step * columns_ * kTileBytes);
    // The other rows' sums stay: they wait where keys are copied to.
    const std::size_t bytes = columns_ * kTileBytes;
    std::byte* part = part_ + g * bytes;
    __builtin_memcpy(copies_, part, bytes);
    sum_steps<1>(g, steps, values_ + steps.begin * columns_ * kTileBytes, true);
    for (std::size_t i = 0; i < bytes; i += kTileRowBytes) {
      if (i / kTileRowBytes % kLanes != lane)
        __builtin_memcpy(part + i, copies_ + i, kTileRowBytes);
    }
  }

  void merge(std::size_t g) {
    sums_.merge(
        g,
        columns_,
        merged_,
        [&](std::size_t lane, std::size_t column) { return sums_of(g, lane, column); },
        [&](Vec score, Vec largest) {
          return Rows<V>::exp2_down(V::sub(largest, score), falling_);
        });
  }

  /// The unit may leave -0 (of what was too small) where a step without weights makes it 0: which
  /// steps those are depends on the tile.
  [[nodiscard]] Vec sums_of(std::size_t g, std::size_t lane, std::size_t column) const {
    const std::byte* part = part_ + (g * columns_ + column) * kTileBytes + lane * kTileRowBytes;
    return V::add(V::load(reinterpret_cast<const float*>(part)), V::zero());
  }

  /// Lets the positions of a unit (a step of a kv head) ask for another one: `unit` counts those of
  /// the block's keys, behind them those of its values, and behind these the next block's keys.
  void aim(Range steps, std::size_t unit, std::size_t units) {
    const std::size_t left = rows_.last() - rows_.base();
    const std::size_t known = left < kKeyBlock + Keys::kAhead ? left : kKeyBlock + Keys::kAhead;
    const std::size_t at = unit < units ? unit : unit < 2 * units ? unit - units : unit - 2 * units;
    const std::size_t first = unit < 2 * units ? steps.begin * kStep : kKeyBlock;
    const std::size_t position = first + at / tile_.kv_heads * kStep;
    const std::size_t offset = at % tile_.kv_heads * tile_.kv_head_stride +
                               (unit >= units && unit < 2 * units ? tile_.value_offset : 0);
    for (std::size_t i = 0; i < kStep; ++i) {
      std::size_t j = position + i;
      j = j < known ? j : known - 1;
      ahead_[i] = keys_.row[j > block_.begin ? j : block_.begin] + offset;
    }
  }

  /// For the line at byte `at` of the rows that were aimed at.
  inline __attribute__((always_inline)) void ask(std::size_t at) const {
#pragma GCC unroll 32
    for (std::size_t i = 0; i < kStep; ++i)
      __builtin_prefetch(ahead_[i] + at);
  }

  const AttentionTile& tile_;
  std::size_t dim_;
  std::size_t steps_;    ///< of 32 dimensions
  std::size_t columns_;  ///< of 16 dimensions
  Lanes rows_;
  LaneSums<V> sums_;
  std::size_t group_count_;
  typename Rows<V>::Falling falling_;  ///< at rate s
  Keys keys_;
  Range block_{};       ///< what the tile sees of the block
  std::byte* q_;        // [group][step], B tiles
  std::byte* scores_;   // [group][position][row] f32
  std::byte* weights_;  // [group][step of the block], A tiles
  std::byte* values_;   // [step of the block][column], B tiles
  std::byte* part_;     // [group][column], C tiles: o
  std::byte* copies_;   // two tiles of keys
  float* merged_;       // [row][column][16], O
  std::size_t units_ahead_ = 0;
  const std::byte* ahead_[kStep];
  T tiles_;
};

}  // namespace tandem::kernels::cpu
