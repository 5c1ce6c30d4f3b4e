// Causal attention over paged keys and values, bf16 or of 8 bit (as bf16), on AMX tiles: up to
// kRows query rows of one kv head, or one token's rows of several.
//
// Idea: queries are A tiles, a row each, and keys are B tiles once they are turned, which all rows
// share. So scores come out as [row][position], and 32 of them become a line of an A tile of
// weights in a few instructions (weights.h). Values are B tiles once two positions are interleaved,
// which all rows share too. 16 rows make a group; two groups and two tiles of positions or
// dimensions are four products for four loads. Sums of weighted values are C tiles in memory, from
// block to block.
//
// The arithmetic of one row, whatever tile it is in (this order is part of the numerics family):
// for each block of 256 absolute positions that the row sees any of,
//   c[j] = the tile unit's sum over head_dim of bf16(q) K[j], 32 dimensions a step
//   s = |scale| / ln 2 (a negative scale negates q), m = max c[j]
//   M = m if (m - M) s > 16, M before: -inf; what is summed is rescaled by 2^-((m - M) s) then
//   e[j] = 2^(-16 - (M - c[j]) s) as bf16, by way of fixed point (weights.h): the difference is
//   rounded, so that no score is too large for it
//   l[i] += e[j] + e[j + 1] of each j % 32 = 2 i in order, the way of VDPBF16PS
//   o += the tile unit's sum of e[j] V[j], 32 positions a step
// and out = o / l, -0 as 0, l as one tree. A position that a row does not see has no weight, and no
// value that the tile does not see is read. Where rows see different positions, a value that is not
// finite must not reach those that do not see it, not even times zero: tokens whose sums are NaN
// are computed again alone.
//
// Tokens alone (decode): token_attention.h, the same arithmetic. Bound of many rows: 64 rows and a
// block of 128 dimensions take 8,192 cycles of products, and vector code 1,024 maxima and 512
// vectors of weights with about 13 instructions each.
#pragma once

#include "kernels/cpu/amx/tile_products.h"
#include "kernels/cpu/amx/token_attention.h"
#include "kernels/cpu/amx/weights.h"

namespace tandem::kernels::cpu {

template <class V, class T>
class TileAttention {
 public:
  /// Query rows of a tile at most.
  static constexpr std::size_t kRows = 1024;

  /// See Kernels.
  static std::size_t most_rows(DType dtype, std::size_t head_dim) {
    if (!takes(dtype)) return kTileRows;
    return head_dim <= kRowsDim ? kRows : head_dim <= 2 * kRowsDim ? kRows / 4 : kRows / 16;
  }

  /// bf16, and what is exact in it.
  static bool takes(DType dtype) { return dtype == DType::kBf16 || Rows<V>::is_fp8(dtype); }

  /// Of such a type.
  static void run(const AttentionTile& tile) {
    if (tile.tokens == 1) return TokenAttention<V, T>::run(tile);
    TileAttention(tile).run_all();
  }

 private:
  using Vec = typename V::Vec;
  using Int = typename V::Int;
  using Keys = KeyRows<V>;
  using Range = typename Keys::Range;
  using Weights = TileWeights<V>;

  static constexpr std::size_t kLanes = Weights::kLanes;
  using Sums = TileSums<V, kRows / kLanes>;
  using Lanes = LaneRows<V, kRows / kLanes>;
  static constexpr std::size_t kStep = Weights::kStep;
  static constexpr std::size_t kBlockSteps = kKeyBlock / kStep;
  static constexpr std::size_t kTileFloats = kTileBytes / sizeof(float);
  /// head_dim for which kRows rows and what they need fit the second level of caches.
  static constexpr std::size_t kRowsDim = 128;
  static constexpr std::size_t kScoreBytes = kKeyBlock * kTileRowBytes;  ///< of a group
  static constexpr std::size_t kWeightBytes = kBlockSteps * kTileBytes;
  /// Two bf16 of 2^70: what is finite times that, and summed, is below 2^59, so that no score of
  /// 512 dimensions is infinite.
  static constexpr std::uint32_t kHuge = 0x62806280U;
  static constexpr float kHugeFloat = 0x1p70F;

  /// Scratch in tiles, of so many rows and steps of dimensions: queries and sums; keys and values
  /// of a block; scores and weights of two pairs of groups; 16 keys as they are.
  static constexpr std::size_t room(std::size_t rows, std::size_t steps) {
    return rows / kLanes * 3 * steps + 2 * kKeyBlock / kLanes * steps +
           4 * (kScoreBytes + kWeightBytes) / kTileBytes + steps;
  }

  static constexpr std::size_t kRoom =
      (kAttentionRoom - Keys::kPointers * sizeof(void*)) / kTileBytes - 1;
  static_assert(kRows * kRowsDim * sizeof(float) <= kAttentionOut);
  static_assert(room(kRows, kRowsDim / 32) <= kRoom);
  static_assert(room(kRows / 4, 2 * kRowsDim / 32) <= kRoom);
  static_assert(room(kRows / 16, kMaxHeadDim / 32) <= kRoom);

  /// Two groups, or one, and what of the block they see.
  struct Pair {
    std::size_t group;
    std::size_t count;
    std::size_t side;  ///< of what there is twice
    Range steps;
    bool first;  ///< nothing is summed yet
    bool last;   ///< nothing will be
  };

  explicit TileAttention(const AttentionTile& tile)
      : tile_(tile),
        steps_((tile.head_dim + 31) / 32),
        columns_(2 * steps_),
        rows_(tile),
        weights_of_(tile.scale),
        sums_(weights_of_, rows_.group_count()),
        keys_(tile, reinterpret_cast<const std::byte**>(tile.scratch)),
        values_of_(keys_, tile.head_dim, tile.value_offset, tile.dtype),
        ahead_(tile, {rows_.first(), rows_.last()}),
        bytes_(Rows<V>::is_fp8(tile.dtype)) {
    q_ = tile.scratch + (Keys::kPointers * sizeof(void*) + 63) / 64 * 64;
    key_tiles_ = q_ + rows_.group_count() * steps_ * kTileBytes;
    values_ = key_tiles_ + kKeyBlock / kLanes * steps_ * kTileBytes;
    scores_ = values_ + kBlockSteps * columns_ * kTileBytes;
    weights_ = scores_ + 4 * kScoreBytes;
    copy_ = weights_ + 4 * kWeightBytes;
    summed_ = copy_ + steps_ * kTileBytes;
  }

  void run_all() {
    const std::size_t last = rows_.last();
    std::size_t base = rows_.first() / kKeyBlock * kKeyBlock;
    ahead_.stop_at(base + kKeyBlock);
    ahead_.template ask<256>();
    ask_queries(4);
    tiles_.configure(whole_tiles());  // C is 0 to 3, A 4 and 5, B 6 and 7
    Pair before{};
    for (; base < last; base += kKeyBlock) {
      rows_.enter(base);
      block_ = rows_.block();
      keys_.find(base, block_.begin, last);
      products_.begin(sums_of(before), {});
      copy_keys();
      finish(before);
      const Pair first = pair_from(0, 0);
      copy_queries(first);
      products_.begin(scores_of(first), {});
      copy_values();
      products_.finish();
      ahead_.stop_at(base + 2 * kKeyBlock);
      before = run_pairs(first);
    }
    products_.begin(sums_of(before), {});
    finish(before);
    tiles_.release();
    if (broken_) run_broken();
  }

  /// Asks at once for queries of the first groups, as far as that was not done.
  void ask_queries(std::size_t groups) {
    stop_queries_at(groups);
    while (queries_ahead_.begin < queries_ahead_.end)
      ask_row(rows_.query(queries_ahead_.begin++));
  }

  /// Asks for no others than those of the first groups.
  void stop_queries_at(std::size_t groups) {
    const std::size_t count = groups < rows_.group_count() ? groups : rows_.group_count();
    queries_ahead_.end = rows_.rows_of(0, count).end;
  }

  void ask_row(const float* row) const {
    for (std::size_t i = 0; i < tile_.head_dim; i += 16)
      __builtin_prefetch(row + i, 0, 2);
  }

  /// Queries as far as those of a pair to A tiles, [group][step][row][dimension], where they are
  /// not there yet. While this pair waits and another one is weighed, the next ones are asked for.
  void copy_queries(const Pair& pair) {
    if (pair.count == 0 || copied_ >= pair.group + pair.count) return;
    ask_queries(pair.group + pair.count);
    for (; copied_ < pair.group + pair.count; ++copied_)
      copy_group(copied_);
    stop_queries_at(copied_ + 2);
  }

  void copy_group(std::size_t g) {
    const Vec huge = V::broadcast(kHugeFloat);
    const bool negative = tile_.scale < 0;
    Vec sizes = V::zero();
    for (std::size_t lane = 0; lane < kLanes; ++lane) {
      std::byte* to = q_ + g * steps_ * kTileBytes + lane * kTileRowBytes;
      const bool none = lane >= rows_.group(g).rows;
      const float* q = none ? nullptr : rows_.query(rows_.group(g).row + lane);
      for (std::size_t i = 0; i < steps_ * kStep; i += kStep, to += kTileBytes) {
        if (none) {
          V::int_store(to, V::int_zero());
          continue;
        }
        const Vec low = Rows<V>::load_within(q, i, tile_.head_dim);
        const Vec high = Rows<V>::load_within(q, i + 16, tile_.head_dim);
        sizes = V::fma(high, huge, V::fma(low, huge, sizes));
        V::store_bf16(to, negative ? V::sub(V::zero(), low) : low);
        V::store_bf16(to + 32, negative ? V::sub(V::zero(), high) : high);
      }
    }
    wild_queries_ |= !finite(sizes);
  }

  /// Keys of the block to B tiles, [16 positions][step], zeros for positions that nobody sees. Of
  /// each 32 positions one tile has every other four, such that their weights come in order.
  void copy_keys() {
    alignas(64) static constexpr std::byte kNone[kTileRowBytes] = {};
    const Range steps = Weights::steps_of(block_);
    const bool whole = tile_.head_dim % 32 == 0 && !bytes_;
    const Int huge = V::int_broadcast(kHuge);
    Vec sizes = V::zero();
    std::byte* to = key_tiles_ + steps.begin * 2 * steps_ * kTileBytes;
    for (std::size_t at = steps.begin * 2; at < steps.end * 2; ++at) {
      const std::byte* lines[kLanes];
      std::size_t strides[kLanes];
      for (std::size_t i = 0; i < kLanes; ++i) {
        const std::size_t j = at / 2 * kStep + i / 4 * 8 + at % 2 * 4 + i % 4;
        const bool seen = j >= block_.begin && j < block_.end;
        lines[i] = !seen ? kNone : whole ? keys_.row[j] : copy_of_key(j, i);
        strides[i] = seen ? kTileRowBytes : 0;
      }
      for (std::size_t step = 0; step < steps_; ++step, to += kTileBytes) {
        bytes_ ? ahead_.template ask<kTileHeight / 2>() : ahead_.template ask<kTileHeight>();
        V::transpose_words(lines, 0, to);
        products_.make_step();
        for (std::size_t i = 0; i < kLanes; ++i) {
          sizes = V::dot2(sizes, V::int_load(to + i * kTileRowBytes), huge);
          lines[i] += strides[i];
        }
      }
    }
    wild_keys_ = !finite(sizes);
  }

  /// As bf16, zeros behind its last dimension.
  const std::byte* copy_of_key(std::size_t j, std::size_t i) {
    std::byte* copy = copy_ + i * steps_ * kTileRowBytes;
    if (bytes_) {
      ByteRows<V>::widen(keys_.row[j], tile_.dtype, tile_.head_dim, copy);
      return copy;
    }
    for (std::size_t step = 0; step < steps_; ++step)
      V::int_store(copy + step * kTileRowBytes, values_of_.load_halves(keys_.row[j], step * 32));
    return copy;
  }

  static bool finite(Vec sizes) { return !V::any_nan(V::mul(sizes, V::zero())); }

  void copy_values() {
    const Range steps = Weights::steps_of(block_);
    for (std::size_t step = steps.begin; step < steps.end; ++step) {
      values_of_.interleave(step * kStep, block_, values_ + step * columns_ * kTileBytes, [&] {
        products_.make_step();
      });
    }
  }

  /// The pair from group g on that sees any of the block.
  Pair pair_from(std::size_t g, std::size_t side) const {
    for (; g < rows_.group_count(); g += 2) {
      const std::size_t count = g + 2 <= rows_.group_count() ? 2 : 1;
      const Range steps = Weights::steps_of(rows_.some_of(g, count));
      if (steps.begin < steps.end)
        return {g, count, side, steps, rows_.begin_here(g, count), rows_.end_here(g, count)};
    }
    return {g, 0, side, {0, 0}, false, false};
  }

  /// While a pair's scores become weights, the tile unit sums the weighted values of the pair
  /// before and makes the scores of the next one. The first one's are there. Returns the last one,
  /// whose values are not summed.
  Pair run_pairs(Pair pair) {
    Pair before{};
    while (pair.count > 0) {
      const Pair next = pair_from(pair.group + 2, 1 - pair.side);
      copy_queries(next);
      if (before.last) outputs_ahead_ = rows_.rows_of(before.group, before.count);
      products_.begin(sums_of(before), scores_of(next));
      for (std::size_t i = 0; i < pair.count; ++i)
        weigh(pair, i);
      finish(before);
      before = pair;
      pair = next;
    }
    return before;
  }

  /// All products that were begun, sums of `before` among them.
  void finish(const Pair& before) {
    products_.finish();
    if (before.last) write(before);
  }

  /// Scores, [group][16 positions][row][position], before their scale. What a second group gets
  /// that is not there is not used.
  [[nodiscard]] TileChains scores_of(const Pair& pair) const {
    const auto steps = static_cast<std::ptrdiff_t>(steps_);
    return {.a = q_ + pair.group * steps_ * kTileBytes,
            .b = key_tiles_ + pair.steps.begin * 2 * steps_ * kTileBytes,
            .to = scores_ + pair.side * 2 * kScoreBytes + pair.steps.begin * 2 * kTileBytes,
            .a_step = 1,
            .b_step = 1,
            .a_chain = 0,
            .b_chain = 2 * steps,
            .to_chain = 2,
            .a_second = steps,
            .b_second = steps,
            .to_a_second = kScoreBytes / kTileBytes,
            .to_b_second = 1,
            .length = steps_,
            .count = pair.count == 0 ? 0 : pair.steps.end - pair.steps.begin,
            .onto = false};
  }

  /// Sums of weighted values, [group][column][row].
  [[nodiscard]] TileChains sums_of(const Pair& pair) const {
    const auto columns = static_cast<std::ptrdiff_t>(columns_);
    return {.a = weights_ + pair.side * 2 * kWeightBytes + pair.steps.begin * kTileBytes,
            .b = values_ + pair.steps.begin * columns_ * kTileBytes,
            .to = summed_ + pair.group * columns_ * kTileBytes,
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
            .count = pair.count == 0 ? 0 : steps_,
            .onto = !pair.first};
  }

  /// Scores of group i of a pair to A tiles of weights, [step][row][position].
  void weigh(const Pair& pair, std::size_t i) {
    const std::size_t g = pair.group + i;
    const auto* scores =
        reinterpret_cast<const float*>(scores_ + (pair.side * 2 + i) * kScoreBytes);
    std::byte* tiles = weights_ + (pair.side * 2 + i) * kWeightBytes;
    const Range some = Weights::steps_of(rows_.group(g).some);
    sums_.anchor(g, largest(g, some, scores), [&](std::size_t lane, Vec factor) {
      if (pair.first) return;
      float* sum = summed(g, lane);
      for (std::size_t column = 0; column < columns_; ++column, sum += kTileFloats)
        V::store(sum, V::mul(V::load(sum), factor));
    });
    for (std::size_t step = pair.steps.begin; step < pair.steps.end; ++step)
      if (step < some.begin || step >= some.end)
        __builtin_memset(tiles + step * kTileBytes, 0, kTileBytes);
    if (wild_keys_ || wild_queries_) {
      for (std::size_t row = 0; row < kLanes; row += 4)
        weigh_rows<true>(g, row, some, scores, tiles);
    } else {
      for (std::size_t row = 0; row < kLanes; row += 4)
        weigh_rows<false>(g, row, some, scores, tiles);
    }
  }

  /// Whether all rows of a group see all positions of a step.
  [[nodiscard]] bool all_see(std::size_t g, std::size_t step) const {
    const Range all = rows_.group(g).all;
    return step * kStep >= all.begin && (step + 1) * kStep <= all.end;
  }

  /// The largest score of each row of a group; -inf of rows that see none.
  [[nodiscard]] Vec largest(std::size_t g, Range steps, const float* scores) const {
    constexpr std::size_t kTogether = 8;
    const Vec lowest = V::broadcast(-__builtin_inff());
    Vec largest[kLanes];
    for (std::size_t row = 0; row < kLanes; row += kTogether) {
      Vec best[kTogether];
#pragma GCC unroll 8
      for (std::size_t i = 0; i < kTogether; ++i)
        best[i] = lowest;
      for (std::size_t step = steps.begin; step < steps.end; ++step) {
        const float* from = scores + (step * 2 * kTileHeight + row) * kLanes;
        const bool all = all_see(g, step);
#pragma GCC unroll 8
        for (std::size_t i = 0; i < kTogether; ++i) {
          Vec low = V::load(from + i * kLanes);
          Vec high = V::load(from + i * kLanes + kTileFloats);
          if (!all) {
            const Range seen = rows_.seen_of(g, row + i);
            low = Weights::hide(low, step * kStep, seen, lowest);
            high = Weights::hide(high, step * kStep + 4, seen, lowest);
          }
          best[i] = V::max(high, V::max(low, best[i]));
        }
      }
#pragma GCC unroll 8
      for (std::size_t i = 0; i < kTogether; ++i)
        largest[row + i] = best[i];
    }
    return V::max16(largest);
  }

  /// Four rows of a group.
  template <bool kWild>
  inline __attribute__((always_inline)) void weigh_rows(
      std::size_t g, std::size_t row, Range steps, const float* scores, std::byte* tiles) {
    const Weights weights = weights_of_;  // in registers, whatever the others write to memory
    const float* anchors = sums_.anchors(g) + row;
    const Vec anchor[4] = {V::broadcast(anchors[0]),
                           V::broadcast(anchors[1]),
                           V::broadcast(anchors[2]),
                           V::broadcast(anchors[3])};
    float* sums = sums_.of(g, row);
    Vec sum[4] = {V::load(sums),
                  V::load(sums + kLanes),
                  V::load(sums + 2 * kLanes),
                  V::load(sums + 3 * kLanes)};
    for (std::size_t step = steps.begin; step < steps.end; ++step) {
      const float* from = scores + (step * 2 * kTileHeight + row) * kLanes;
      std::byte* to = tiles + step * kTileBytes + row * kTileRowBytes;
      const bool all = all_see(g, step);
      const auto weigh_row = [&]<int kRow>() __attribute__((always_inline)) {
        const Vec low = V::load(from + kRow * kLanes);
        const Vec high = V::load(from + kRow * kLanes + kTileFloats);
        Int made =
            kWild ? weights.of_any(low, high, anchor[kRow]) : weights.of(low, high, anchor[kRow]);
        if (!all)
          made = V::keep_halves(made, Weights::mask(rows_.seen_of(g, row + kRow), step * kStep));
        sum[kRow] = Sums::add(sum[kRow], made);
        V::int_store(to + kRow * kTileRowBytes, made);
        products_.template make<kRow>();
      };
      weigh_row.template operator()<0>();
      weigh_row.template operator()<1>();
      weigh_row.template operator()<2>();
      weigh_row.template operator()<3>();
      ahead_.template ask<4>();
      ask_rows(step);
    }
#pragma GCC unroll 4
    for (std::size_t i = 0; i < 4; ++i)
      V::store(sums + i * kLanes, sum[i]);
  }

  /// The first column of a row's sums; the others follow tile by tile.
  [[nodiscard]] float* summed(std::size_t g, std::size_t lane) const {
    return reinterpret_cast<float*>(summed_ + g * columns_ * kTileBytes) + lane * kLanes;
  }

  /// For one row, if there is one to ask for.
  inline __attribute__((always_inline)) void ask_rows(std::size_t step) {
    if (step % 2 == 0) {
      if (queries_ahead_.begin < queries_ahead_.end) ask_row(rows_.query(queries_ahead_.begin++));
    } else if (outputs_ahead_.begin < outputs_ahead_.end) {
      const float* out = rows_.output(outputs_ahead_.begin++);
      for (std::size_t i = 0; i < tile_.head_dim; i += 16)
        __builtin_prefetch(out + i, 1);
    }
  }

  void write(const Pair& pair) {
    for (std::size_t g = pair.group; g < pair.group + pair.count; ++g) {
      for (std::size_t lane = 0; lane < rows_.group(g).rows; ++lane) {
        const std::size_t row = rows_.group(g).row + lane;
        const bool nan = Sums::write(summed(g, lane),
                                     kTileFloats,
                                     sums_.total(g, lane),
                                     tile_.head_dim,
                                     TileValues<V>::mixed(tile_.dtype, tile_.head_dim),
                                     rows_.output(row));
        broken_ |= nan && rows_.sees_part(row);
      }
    }
  }

  /// Tokens that may have the NaN of what they do not see.
  void run_broken() const {
    for (std::size_t token = 0; token < tile_.tokens; ++token) {
      if (!rows_.sees_part(token * tile_.heads) || !any_nan(token)) continue;
      AttentionTile alone = tile_;
      alone.q += token * tile_.q_stride;
      alone.out += token * tile_.out_stride;
      alone.position += token;
      alone.tokens = 1;
      run(alone);
    }
  }

  [[nodiscard]] bool any_nan(std::size_t token) const {
    const float* out = tile_.out + token * tile_.out_stride;
    for (std::size_t i = 0; i < tile_.heads * tile_.head_dim; ++i)
      if (out[i] != out[i]) return true;
    return false;
  }

  const AttentionTile& tile_;
  std::size_t steps_;    ///< of 32 dimensions
  std::size_t columns_;  ///< of 16 dimensions
  Lanes rows_;
  Weights weights_of_;
  Sums sums_;
  Keys keys_;
  TileValues<V> values_of_;
  KeysAhead<V, 1> ahead_;
  const bool bytes_;        ///< keys and values are of 8 bit
  Range block_{};           ///< what the tile sees of the block
  std::size_t copied_ = 0;  ///< groups of queries
  Range queries_ahead_{};   ///< rows that are to be asked for
  Range outputs_ahead_{};
  bool wild_queries_ = false;  ///< of which a score may be NaN
  bool wild_keys_ = false;     ///< the same of the block
  bool broken_ = false;        ///< some sum is NaN, perhaps of what its row does not see
  std::byte* q_;               // [group][step], A tiles
  std::byte* key_tiles_;       // [16 positions of the block][step], B tiles
  std::byte* values_;          // [step of the block][column], B tiles
  std::byte* scores_;          // [side][group of the pair][16 positions], C tiles
  std::byte* weights_;         // [side][group of the pair][step of the block], A tiles
  std::byte* copy_;            // [16 keys][step]
  std::byte* summed_;          // [group][column], C tiles: o
  T tiles_;
  TileProducts<V, T> products_{tiles_};
};

}  // namespace tandem::kernels::cpu
