// Query rows of an attention tile as lanes: 16 rows of one kv head make a group, so that whatever
// is done for each row over positions (maximum, exp, sum) crosses no lanes.
#pragma once

#include "kernels/cpu/simd/key_rows.h"
#include "kernels/cpu/simd/mixed.h"
#include "kernels/cpu/simd/rows.h"

namespace tandem::kernels::cpu {

/// Of kGroups groups at most.
template <class V, std::size_t kGroups = 16>
class LaneRows {
 public:
  using Vec = typename V::Vec;
  using Range = typename KeyRows<V>::Range;

  static constexpr std::size_t kLanes = 16;
  static constexpr std::size_t kMaxGroups = kGroups;
  static constexpr std::size_t kWordBytes = 4;  ///< of a pair of bf16

  /// Up to 16 rows, and what they see of the block in progress.
  struct Group {
    std::size_t row;
    std::size_t rows;
    Range some;  ///< positions that any row sees
    Range all;   ///< those that every row sees
  };

  /// The same, a row a lane: from begin to end.
  struct Seen {
    Vec begin;
    Vec end;
    Range all;

    /// `value` of position j of the block, `hidden` for rows that do not see it.
    [[nodiscard]] inline __attribute__((always_inline)) Vec hide(Vec value,
                                                                 std::size_t j,
                                                                 Vec hidden) const {
      if (j >= all.begin && j < all.end) return value;
      const Vec at = V::broadcast(static_cast<float>(j));
      return V::select_greater(begin, at, hidden, V::select_greater(end, at, value, hidden));
    }

    /// Of values [position][row], the largest that each row sees of [from, to), whole fours; -inf
    /// when none.
    [[nodiscard]] Vec largest(const float* values, std::size_t from, std::size_t to) const {
      const Vec lowest = V::broadcast(-__builtin_inff());
      Vec best[4] = {lowest, lowest, lowest, lowest};
      for (std::size_t j = from; j < to; j += 4) {
        const bool whole = j >= all.begin && j + 4 <= all.end;
#pragma GCC unroll 4
        for (std::size_t i = 0; i < 4; ++i) {
          const Vec value = V::load(values + (j + i) * kLanes);
          best[i] = V::max(whole ? value : hide(value, j + i, lowest), best[i]);
        }
      }
      return V::max(V::max(best[0], best[1]), V::max(best[2], best[3]));
    }
  };

  /// Of one token, rows of a kv head are in one group if they fit, and so are those of the next
  /// ones as far as they do.
  explicit LaneRows(const AttentionTile& tile)
      : tile_(tile), rows_(tile.tokens * tile.kv_heads * tile.heads) {
    std::size_t each = rows_;
    if (tile.tokens == 1)
      each = tile.heads > kLanes ? tile.heads : kLanes / tile.heads * tile.heads;
    for (std::size_t row = 0; row < rows_; row += each) {
      const std::size_t end = row + each < rows_ ? row + each : rows_;
      for (std::size_t i = row; i < end; i += kLanes)
        groups_[group_count_++] = {
            .row = i, .rows = end - i < kLanes ? end - i : kLanes, .some = {}, .all = {}};
    }
    const std::size_t heads = tile_.kv_heads * tile_.heads;
    last_ = 0;
    first_ = ~std::size_t{0};
    for (std::size_t token = 0; token < tile_.tokens; ++token) {
      const Range range = KeyRows<V>::seen_by(tile_, token);
      for (std::size_t i = 0; i < heads; ++i)
        visible_[token * heads + i] = range;
      first_ = range.begin < first_ ? range.begin : first_;
      last_ = range.end > last_ ? range.end : last_;
    }
  }

  [[nodiscard]] std::size_t group_count() const {
    return group_count_;
  }

  [[nodiscard]] const Group& group(std::size_t g) const {
    return groups_[g];
  }

  /// Positions that any row sees, of all blocks.
  [[nodiscard]] std::size_t first() const {
    return first_;
  }

  [[nodiscard]] std::size_t last() const {
    return last_;
  }

  /// First position of the block in progress, and what of it any row sees.
  [[nodiscard]] std::size_t base() const {
    return base_;
  }

  [[nodiscard]] Range block() const {
    return block_;
  }

  /// Begins the block at `base`, which somebody sees.
  void enter(std::size_t base) {
    base_ = base;
    block_ = {first_ > base ? first_ - base : 0,
              last_ - base < kKeyBlock ? last_ - base : kKeyBlock};
    for (std::size_t g = 0; g < group_count_; ++g) {
      Group& group = groups_[g];
      group.some = {kKeyBlock, 0};
      group.all = {0, kKeyBlock};
      for (std::size_t row = group.row; row < group.row + group.rows; ++row) {
        const Range range = seen(row);
        if (range.begin < range.end) group.some = either(group.some, range);
        group.all = KeyRows<V>::overlap(group.all, range);
      }
    }
  }

  /// Positions of the block that a row sees; begin >= end: none.
  [[nodiscard]] Range seen(std::size_t row) const {
    const Range range = visible_[row];
    const std::size_t begin = range.begin > base_ ? range.begin - base_ : 0;
    const std::size_t end = range.end > base_ ? range.end - base_ : 0;
    return {begin < kKeyBlock ? begin : kKeyBlock, end < kKeyBlock ? end : kKeyBlock};
  }

  /// Whether the row sees some of the block, but less than others of the tile.
  [[nodiscard]] bool sees_less(std::size_t row) const {
    const Range range = seen(row);
    return range.begin < range.end && (range.begin > block_.begin || range.end < block_.end);
  }

  /// Whether the block is the first one that the row sees any of, if it does.
  [[nodiscard]] bool begins(std::size_t row) const {
    return visible_[row].begin >= base_;
  }

  [[nodiscard]] Seen seen_by(std::size_t g) const {
    alignas(64) float begins[kLanes] = {};
    alignas(64) float ends[kLanes] = {};
    for (std::size_t lane = 0; lane < groups_[g].rows; ++lane) {
      const Range range = seen(groups_[g].row + lane);
      begins[lane] = static_cast<float>(range.begin);
      ends[lane] = static_cast<float>(range.end);
    }
    return {V::load(begins), V::load(ends), groups_[g].all};
  }

  /// Positions of the block that a row of a group sees; begin >= end: none, or no such row.
  [[nodiscard]] Range seen_of(std::size_t g, std::size_t lane) const {
    return lane < groups_[g].rows ? seen(groups_[g].row + lane) : Range{0, 0};
  }

  /// Whether the row sees less than others of the tile, of all blocks.
  [[nodiscard]] bool sees_part(std::size_t row) const {
    return visible_[row].begin > first_ || visible_[row].end < last_;
  }

  /// Rows of `count` groups from g on.
  [[nodiscard]] Range rows_of(std::size_t g, std::size_t count) const {
    if (count == 0) return {0, 0};
    return {groups_[g].row, groups_[g + count - 1].row + groups_[g + count - 1].rows};
  }

  /// Whether no row of them sees anything before the block in progress.
  [[nodiscard]] bool begin_here(std::size_t g, std::size_t count) const {
    const Range rows = rows_of(g, count);
    for (std::size_t row = rows.begin; row < rows.end; ++row)
      if (!begins(row)) return false;
    return true;
  }

  /// Nor behind it.
  [[nodiscard]] bool end_here(std::size_t g, std::size_t count) const {
    const Range rows = rows_of(g, count);
    for (std::size_t row = rows.begin; row < rows.end; ++row)
      if (visible_[row].end > base_ + kKeyBlock) return false;
    return true;
  }

  /// Positions that any of `count` groups from g on sees.
  [[nodiscard]] Range some_of(std::size_t g, std::size_t count) const {
    Range some = groups_[g].some;
    for (std::size_t i = 1; i < count; ++i)
      some = either(some, groups_[g + i].some);
    return some;
  }

  static Range either(Range a, Range b) {
    return {a.begin < b.begin ? a.begin : b.begin, a.end > b.end ? a.end : b.end};
  }

  /// Queries rounded to bf16, [group][pair of dimensions][row], zeros where there is no row and
  /// behind head_dim, up to `words` pairs (a multiple of 16). `room`: 16 * words words.
  void load_queries(std::size_t words, bool negate, std::byte* room, std::byte* to) const {
    const auto line_of = [&](const float* q, std::size_t lane) {
      std::byte* line = room + lane * words * kWordBytes;
      if (q == nullptr) __builtin_memset(line, 0, words * kWordBytes);
      for (std::size_t i = 0; q != nullptr && i < words * 2; i += 16) {
        const Vec values = Rows<V>::load_within(q, i, tile_.head_dim);
        V::store_bf16(line + i * 2, negate ? V::sub(V::zero(), values) : values);
      }
      return line;
    };
    turn_rows(words, line_of, to);
  }

  /// Queries as they are, [group][dimension][row], zeros where there is no row. head_dim is a
  /// multiple of 16; `room`: head_dim floats.
  void turn_queries(float* room, float* to) const {
    __builtin_memset(room, 0, tile_.head_dim * sizeof(float));
    const auto line_of = [&](const float* q, std::size_t) {
      return reinterpret_cast<const std::byte*>(q == nullptr ? room : q);
    };
    turn_rows(tile_.head_dim, line_of, reinterpret_cast<std::byte*>(to));
  }

  [[nodiscard]] const float* query(std::size_t row) const {
    const std::size_t heads = tile_.kv_heads * tile_.heads;
    return tile_.q + row / heads * tile_.q_stride + row % heads * tile_.head_dim;
  }

  [[nodiscard]] float* output(std::size_t row) const {
    const std::size_t heads = tile_.kv_heads * tile_.heads;
    return tile_.out + row / heads * tile_.out_stride + row % heads * tile_.head_dim;
  }

  /// Rows of results times 1 / sums[group][lane]. `values`: [row][columns]; kMixed: mixed.h.
  template <std::size_t kMixed>
  void write(const float* values, std::size_t columns, const float* sums) const {
    const std::size_t heads = tile_.kv_heads * tile_.heads;
    for (std::size_t g = 0; g < group_count_; ++g) {
      ask_rows(g + 1, tile_.out, tile_.out_stride);
      for (std::size_t lane = 0; lane < groups_[g].rows; ++lane) {
        const std::size_t row = groups_[g].row + lane;
        Mixed<V>::template scale_row<kMixed>(
            values + row * columns,
            1.0F / sums[g * kLanes + lane],
            tile_.head_dim,
            tile_.out + row / heads * tile_.out_stride + row % heads * tile_.head_dim);
      }
    }
  }

 private:
  /// Words of queries to [group][word][row]. line_of(query of a row of a group, or null, lane) is
  /// where `words` of it are, a multiple of 16.
  template <class LineOf>
  void turn_rows(std::size_t words, LineOf line_of, std::byte* to) const {
    ask_rows(0, tile_.q, tile_.q_stride);
    ask_rows(0, tile_.out, tile_.out_stride);
    for (std::size_t g = 0; g < group_count_; ++g) {
      ask_rows(g + 1, tile_.q, tile_.q_stride);
      const std::byte* lines[kLanes];
      for (std::size_t lane = 0; lane < kLanes; ++lane) {
        const bool there = lane < groups_[g].rows;
        lines[lane] = line_of(there ? query(groups_[g].row + lane) : nullptr, lane);
      }
      for (std::size_t i = 0; i < words; i += 16)
        V::transpose_words(lines, i * kWordBytes, to + (g * words + i) * kLanes * kWordBytes);
    }
  }

  /// Rows are far from each other: those of a group, if there is one, are asked for at once.
  void ask_rows(std::size_t g, const float* first, std::size_t stride) const {
    if (g >= group_count_) return;
    const std::size_t heads = tile_.kv_heads * tile_.heads;
    for (std::size_t row = groups_[g].row; row < groups_[g].row + groups_[g].rows; ++row) {
      const float* from = first + row / heads * stride + row % heads * tile_.head_dim;
      for (std::size_t i = 0; i < tile_.head_dim; i += 16)
        __builtin_prefetch(from + i);
    }
  }

  const AttentionTile& tile_;
  std::size_t rows_;
  std::size_t group_count_ = 0;
  Group groups_[kMaxGroups];
  std::size_t first_ = 0;
  std::size_t last_ = 0;
  std::size_t base_ = 0;
  Range block_{};
  Range visible_[kMaxGroups * kLanes];
};

}  // namespace tandem::kernels::cpu
