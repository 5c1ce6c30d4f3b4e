// Attention of one token on AMX tiles (decode): what attention.h computes, read at the speed of
// memory.
//
// Idea: kv heads have few query heads each, but they share the lanes of a group, so that softmax
// costs the same for eight of them as for one. Queries of a kv head are a B tile as narrow as its
// heads, and its scores go to its lanes of the group's scores; weighted values are A and C tiles
// with as many rows as there are heads, so that a C tile waits in a few lines of memory from step
// to step. Everything is gone through in the order of memory, and KeysAhead asks for it early.
// Bound: memory.
#pragma once

#include "kernels/cpu/amx/tile_values.h"
#include "kernels/cpu/simd/keys_ahead.h"

namespace tandem::kernels::cpu {

template <class V, class T>
class TokenAttention {
 public:
  /// One token, DType::kBf16 or of 8 bit.
  static void run(const AttentionTile& tile) {
    const std::size_t most = most_kv_heads(tile.heads);
    for (std::size_t head = 0; head < tile.kv_heads; head += most) {
      AttentionTile part = tile;
      part.q += head * tile.heads * tile.head_dim;
      part.out += head * tile.heads * tile.head_dim;
      part.keys += head * tile.kv_head_stride;
      part.kv_heads = tile.kv_heads - head < most ? tile.kv_heads - head : most;
      // Whoever asks for the next tile's lines begins with its first part.
      if (most < tile.kv_heads) part.next = nullptr;
      TokenAttention(part).run_all();
    }
  }

 private:
  using Vec = typename V::Vec;
  using Keys = KeyRows<V>;
  using Range = typename Keys::Range;
  using Weights = TileWeights<V>;
  using Int = typename V::Int;

  static constexpr std::size_t kLanes = Weights::kLanes;
  static constexpr std::size_t kStep = Weights::kStep;
  static constexpr std::size_t kBlockSteps = kKeyBlock / kStep;
  /// Lines that are asked for while weights of a step are made.
  static constexpr std::size_t kWeighLines = 16;

  static constexpr std::size_t kMaxGroups = 8;
  using Sums = TileSums<V, kMaxGroups>;
  using Lanes = LaneRows<V, kMaxGroups>;
  static constexpr std::size_t kMostSteps = kMaxHeadDim / 32;
  /// Scratch in tiles: queries, scores and weights of each group; sums; values of two steps; keys
  /// of two steps.
  static constexpr std::size_t kRoom =
      kMaxGroups * (kMostSteps + kKeyBlock / kLanes + kBlockSteps + 2 * kMostSteps) +
      2 * 2 * kMostSteps + 2 * 2 * kMostSteps;
  static_assert(Keys::kPointers * sizeof(void*) + 64 + kRoom * kTileBytes <=
                    kPackedFloats * sizeof(float),
                "more than the scratch of a thread");

  /// As many as kMaxGroups groups hold.
  static std::size_t most_kv_heads(std::size_t heads) {
    if (heads > kLanes) return kMaxGroups / ((heads + kLanes - 1) / kLanes);
    return kMaxGroups * (kLanes / heads);
  }

  explicit TokenAttention(const AttentionTile& tile)
      : tile_(tile),
        steps_((tile.head_dim + 31) / 32),
        columns_(2 * steps_),
        rows_(tile),
        weights_of_(tile.scale),
        sums_(weights_of_, rows_.group_count()),
        keys_(tile, reinterpret_cast<const std::byte**>(tile.scratch)),
        ahead_(tile, {rows_.first(), rows_.last()}),
        bytes_(Rows<V>::is_fp8(tile.dtype)) {
    const std::size_t groups = rows_.group_count();
    q_ = tile.scratch + (Keys::kPointers * sizeof(void*) + 63) / 64 * 64;
    scores_ = q_ + groups * steps_ * kTileBytes;
    weights_ = scores_ + groups * (kKeyBlock / kLanes) * kTileBytes;
    part_ = weights_ + groups * kBlockSteps * kTileBytes;
    value_tiles_ = part_ + groups * columns_ * kTileBytes;
    copy_ = value_tiles_ + 2 * columns_ * kTileBytes;
    height_ = tile.heads < kLanes ? tile.heads : kLanes;
    slots_ = (tile.heads + kLanes - 1) / kLanes;
    together_ = kLanes / height_;
  }

  void run_all() {
    // Lines are asked for as long before their use as values of a step, or runs in turn, need. Keys
    // of 8 bit become bf16 a head before their products.
    const std::size_t step = (tile_.kv_heads + (bytes_ ? 1 : 0)) * step_lines();
    const std::size_t ahead = step > ahead_.group_lines() ? step : ahead_.group_lines();
    std::size_t asked = 0;
    if (tile_.next != nullptr) {
      asked = tile_.next->lines_asked;
      ahead_.go_on(*tile_.next, ahead);
    }
    for (; asked < ahead; asked += 16)
      ahead_.template ask<16>();
    rows_.load_queries(steps_ * kTileHeight, tile_.scale < 0, part_, q_);
    const std::size_t last = rows_.last();
    configure();
    for (std::size_t base = rows_.first() / kKeyBlock * kKeyBlock; base < last; base += kKeyBlock) {
      rows_.enter(base);
      block_ = rows_.block();
      keys_.find(base, block_.begin, last);
      score();
      for (std::size_t g = 0; g < rows_.group_count(); ++g)
        weigh(g);
      sum();
    }
    tiles_.release();
    ahead_.end();
    for (std::size_t g = 0; g < rows_.group_count(); ++g)
      for (std::size_t lane = 0; lane < rows_.group(g).rows; ++lane)
        Sums::write(summed(g, lane),
                    height_ * kLanes,
                    sums_.total(g, lane),
                    tile_.head_dim,
                    TileValues<V>::mixed(tile_.dtype, tile_.head_dim),
                    rows_.output(rows_.group(g).row + lane));
  }

  /// Keys or values of a step of one kv head.
  [[nodiscard]] std::size_t step_lines() const { return (kStep * tile_.row_bytes + 63) / 64; }

  /// Scores: C 0 and 1, A 4 and 6 (keys), B 5 (queries) as narrow as there are heads. Values: C 2
  /// and A 3 (weights), as high as there are heads, B 6.
  void configure() {
    TileConfig config = whole_tiles();
    for (const std::size_t tile : {0, 1, 5})
      config.row_bytes[tile] = static_cast<std::uint16_t>(height_ * sizeof(float));
    for (const std::size_t tile : {2, 3})
      config.rows[tile] = static_cast<std::uint8_t>(height_);
    tiles_.configure(config);
  }

  /// Where query heads of a kv head are, up to 16.
  struct Slot {
    std::size_t group;
    std::size_t lane;
  };

  [[nodiscard]] Slot slot(std::size_t head, std::size_t i) const {
    if (slots_ > 1) return {head * slots_ + i, 0};
    return {head / together_, head % together_ * height_};
  }

  /// Scores of the block, [group][position][row], before their scale.
  void score() {
    std::size_t at = block_.begin / kTileHeight * kTileHeight;
    std::size_t head = 0;
    std::size_t side = 0;
    KeyStep keys = key_step(at, head, side);
    while (at < block_.end) {
      const bool last_head = head + 1 == tile_.kv_heads;
      const std::size_t next_at = last_head ? at + keys.count * kTileHeight : at;
      const std::size_t next_head = last_head ? 0 : head + 1;
      side = 1 - side;
      // The next keys before these products: the tile unit can not read what was just stored.
      const KeyStep next = next_at < block_.end ? key_step(next_at, next_head, side) : keys;
      for (std::size_t i = 0; i < slots_; ++i) {
        if (keys.count == 2) {
          score_step<2>(slot(head, i), at, keys, i == 0);
        } else {
          score_step<1>(slot(head, i), at, keys, i == 0);
        }
      }
      at = next_at;
      head = next_head;
      keys = next;
    }
  }

  struct KeyTile {
    const std::byte* from;
    std::size_t stride;
  };

  /// One or two tiles of keys whose products take turns, since each waits for the one before that
  /// adds to the same sums.
  struct KeyStep {
    KeyTile tiles[2];
    std::size_t count;
  };

  KeyStep key_step(std::size_t position, std::size_t head, std::size_t side) {
    KeyStep keys{.tiles = {}, .count = position + kTileHeight < block_.end ? 2U : 1U};
    for (std::size_t i = 0; i < keys.count; ++i)
      keys.tiles[i] = key_tile(position + i * kTileHeight, head, 2 * side + i);
    return keys;
  }

  /// 16 keys from `position` on: where they are if one page holds them as bf16, or a copy, zeros
  /// for positions that nobody sees. `copy_index`: of the four there may be.
  KeyTile key_tile(std::size_t position, std::size_t head, std::size_t copy_index) {
    const std::size_t offset = head * tile_.kv_head_stride;
    const bool all = position >= block_.begin && position + kTileHeight <= block_.end;
    const bool in_page =
        (rows_.base() + position) % tile_.page_size + kTileHeight <= tile_.page_size;
    if (all && in_page && tile_.head_dim % 32 == 0 && !bytes_)
      return {keys_.row[position] + offset, tile_.row_bytes};
    const std::size_t line = steps_ * kTileRowBytes;
    std::byte* const copy = copy_ + copy_index * steps_ * kTileBytes;
    if (all && tile_.head_dim % 64 == 0 && bytes_) {
      widen_keys(position, offset, copy);
      return {copy, line};
    }
    for (std::size_t i = 0; i < kTileHeight; ++i) {
      const std::size_t j = position + i;
      std::byte* to = copy + i * line;
      const bool seen = j >= block_.begin && j < block_.end;
      if (seen && bytes_) {
        ByteRows<V>::widen(keys_.row[j] + offset, tile_.dtype, tile_.head_dim, to);
        ask_beside_widening<kTileHeight>(i);
        continue;
      }
      const std::size_t bytes = seen ? tile_.head_dim * 2 : 0;
      if (seen) __builtin_memcpy(to, keys_.row[j] + offset, bytes);
      __builtin_memset(to + bytes, 0, line - bytes);
    }
    return {copy, line};
  }

  /// 16 keys of 8 bit and whole 64 dimensions.
  void widen_keys(std::size_t position, std::size_t offset, std::byte* to) {
    constexpr std::size_t kRows = 4;
    for (std::size_t i = 0; i < kTileHeight; i += kRows) {
      ByteRows<V>::template widen_rows<kRows>(&keys_.row[position + i],
                                              offset,
                                              tile_.dtype,
                                              tile_.head_dim,
                                              to + i * steps_ * kTileRowBytes);
      ask_beside_widening<kTileHeight / kRows>(i / kRows);
    }
  }

  /// In one of so many turns, some of what ask_beside_keys() leaves.
  template <std::size_t kTurns>
  void ask_beside_widening(std::size_t turn) {
    for (std::size_t i = dealt<kTurns>(steps_ / 2, turn); i > 0; --i)
      ahead_.template ask<8>();
  }

  /// Of `all` what is the `turn`-th's of so many turns.
  template <std::size_t kTurns>
  static std::size_t dealt(std::size_t all, std::size_t turn) {
    return all * (turn + 1) / kTurns - all * turn / kTurns;
  }

  /// As many lines as 32 dimensions of 16 keys are; of 8 bit only every second time, the others
  /// while keys become bf16.
  inline __attribute__((always_inline)) void ask_beside_keys(std::size_t step) {
    if (!bytes_) return ahead_.template ask<kTileHeight>();
    if (step % 2 == 0) ahead_.template ask<8>();
  }

  template <std::size_t kTiles>
  void score_step(Slot slot, std::size_t position, const KeyStep& keys, bool asks) {
    const std::byte* q = q_ + slot.group * steps_ * kTileBytes + slot.lane * sizeof(float);
    tiles_.template zero<0>();
    if constexpr (kTiles == 2) tiles_.template zero<1>();
    for (std::size_t step = 0; step < steps_; ++step) {
      if (asks) ask_beside_keys(step);
      tiles_.template load<5>(q + step * kTileBytes, kTileRowBytes);
      tiles_.template load<4>(keys.tiles[0].from + step * kTileRowBytes, keys.tiles[0].stride);
      tiles_.template multiply_bf16<0, 4, 5>();
      if constexpr (kTiles == 2) {
        if (asks) ask_beside_keys(step);
        tiles_.template load<6>(keys.tiles[1].from + step * kTileRowBytes, keys.tiles[1].stride);
        tiles_.template multiply_bf16<1, 6, 5>();
      }
    }
    std::byte* to = scores_ + (slot.group * kKeyBlock + position) * kTileRowBytes;
    to += slot.lane * sizeof(float);
    tiles_.template store<0>(to, kTileRowBytes);
    if constexpr (kTiles == 2) tiles_.template store<1>(to + kTileBytes, kTileRowBytes);
  }

  /// Scores of a group to A tiles of weights, [step][row][position]. Nothing is read meanwhile, so
  /// lines are asked for: for as many the values ask for nothing.
  void weigh(std::size_t g) {
    const auto* scores = reinterpret_cast<const float*>(scores_ + g * kKeyBlock * kTileRowBytes);
    std::byte* tiles = weights_ + g * kBlockSteps * kTileBytes;
    const auto seen = rows_.seen_by(g);
    const Range steps = Weights::steps_of(block_);
    const Vec most = seen.largest(scores, steps.begin * kStep, steps.end * kStep);
    const bool first = rows_.begin_here(g, 1);
    sums_.anchor(g, most, [&](std::size_t lane, Vec factor) {
      if (first || lane >= rows_.group(g).rows) return;
      float* sum = summed(g, lane);
      for (std::size_t column = 0; column < columns_; ++column, sum += height_ * kLanes)
        V::store(sum, V::mul(V::load(sum), factor));
    });
    for (std::size_t step = steps.begin; step < steps.end; ++step) {
      weigh_step(g, step, scores + step * kStep * kLanes, tiles + step * kTileBytes);
      ahead_.template ask<kWeighLines>();
    }
    weighing_asked_ += (steps.end - steps.begin) * kWeighLines;
  }

  /// Rows are lanes, until words of two positions are turned.
  void weigh_step(std::size_t g, std::size_t step, const float* scores, std::byte* tile) {
    const Weights weights = weights_of_;
    const Vec anchor = V::load(sums_.anchors(g));
    const std::uint32_t seen = Weights::mask(block_, step * kStep);
    alignas(64) std::byte words[kTileBytes];
    const std::byte* lines[kTileHeight];
    for (std::size_t i = 0; i < kTileHeight; ++i) {
      const Int made = weights.of_any(
          V::load(scores + 2 * i * kLanes), V::load(scores + (2 * i + 1) * kLanes), anchor);
      lines[i] = words + i * kTileRowBytes;
      V::int_store(words + i * kTileRowBytes, V::pair_halves(made));
    }
    V::transpose_words(lines, 0, tile);
    for (std::size_t lane = 0; lane < kLanes; ++lane) {
      std::byte* line = tile + lane * kTileRowBytes;
      Int made = V::int_load(line);
      if (seen != ~std::uint32_t{0}) {
        made = V::keep_halves(made, seen);
        V::int_store(line, made);
      }
      float* sum = sums_.of(g, lane);
      V::store(sum, Sums::add(V::load(sum), made));
    }
  }

  /// Weighted values, head by head over each step. The products of a step come after the next one's
  /// values: the tile unit can not read what was just stored.
  void sum() {
    const Range steps = Weights::steps_of(block_);
    const std::size_t tiles = columns_ * kTileBytes;
    const std::size_t asked = weighing_asked_ / step_lines();
    weighing_asked_ %= step_lines();
    std::size_t unit = 0;
    for (std::size_t step = steps.begin; step < steps.end; ++step) {
      for (std::size_t head = 0; head < tile_.kv_heads; ++head, ++unit) {
        const TileValues<V> values(
            keys_, tile_.head_dim, head * tile_.kv_head_stride + tile_.value_offset, tile_.dtype);
        const bool asks = unit >= asked;
        std::size_t turn = 0;
        values.interleave(step * kStep, block_, value_tiles_ + unit % 2 * tiles, [&] {
          // Half of the lines; the others beside products.
          if (!asks) return;
          for (std::size_t i = dealt<4>(bytes_ ? steps_ : 2 * steps_, turn++); i > 0; --i)
            ahead_.template ask<8>();
        });
        if (unit > 0) sum_before(steps, unit - 1, asks);
      }
    }
    sum_before(steps, unit - 1, false);
  }

  void sum_before(Range steps, std::size_t unit, bool asks) {
    const std::size_t step = steps.begin + unit / tile_.kv_heads;
    const std::size_t head = unit % tile_.kv_heads;
    const std::byte* values = value_tiles_ + unit % 2 * columns_ * kTileBytes;
    for (std::size_t i = 0; i < slots_; ++i) {
      if (step == steps.begin && rows_.begins(0)) {
        sum_step<true>(head * slots_ + i, slot(head, i), step, values, asks && i == 0);
      } else {
        sum_step<false>(head * slots_ + i, slot(head, i), step, values, asks && i == 0);
      }
    }
  }

  template <bool kFirst>
  void sum_step(
      std::size_t index, Slot slot, std::size_t step, const std::byte* values, bool asks) {
    const std::size_t line = height_ * kTileRowBytes;
    std::byte* part = part_ + index * columns_ * line;
    tiles_.template load<3>(
        weights_ + (slot.group * kBlockSteps + step) * kTileBytes + slot.lane * kTileRowBytes,
        kTileRowBytes);
    for (std::size_t column = 0; column < columns_; ++column, part += line) {
      if constexpr (kFirst) {
        tiles_.template zero<2>();
      } else {
        tiles_.template load<2>(part, kTileRowBytes);
      }
      if (asks && (!bytes_ || column % 2 == 0)) ahead_.template ask<8>();
      tiles_.template load<6>(values + column * kTileBytes, kTileRowBytes);
      tiles_.template multiply_bf16<2, 3, 6>();
      tiles_.template store<2>(part, kTileRowBytes);
    }
  }

  /// The first column of a row's sums; the others follow C tile by C tile.
  [[nodiscard]] float* summed(std::size_t g, std::size_t lane) const {
    const std::size_t first = slots_ > 1 ? g : g * together_ + lane / height_;
    const std::size_t line = first * columns_ * height_ + lane % height_;
    return reinterpret_cast<float*>(part_ + line * kTileRowBytes);
  }

  const AttentionTile& tile_;
  std::size_t steps_;    ///< of 32 dimensions
  std::size_t columns_;  ///< of 16 dimensions
  Lanes rows_;
  Weights weights_of_;
  Sums sums_;
  Keys keys_;
  KeysAhead<V, 8> ahead_;
  const bool bytes_;                ///< keys and values are of 8 bit
  std::size_t height_;              ///< query heads of a kv head in one group
  std::size_t slots_;               ///< groups that a kv head takes
  std::size_t together_;            ///< kv heads that share a group
  std::size_t weighing_asked_ = 0;  ///< lines, of which values have not made up for
  Range block_{};                   ///< what the token sees of the block
  std::byte* q_;                    // [group][step], B tiles
  std::byte* scores_;               // [group][position][row] f32
  std::byte* weights_;              // [group][step of the block], A tiles
  std::byte* part_;                 // [kv head][column][height], C tiles: o
  std::byte* value_tiles_;          // of two steps, [column], B tiles
  std::byte* copy_;                 // four tiles of keys
  T tiles_;
};

}  // namespace tandem::kernels::cpu
