// Where the keys of an attention tile lie, and what is asked for ahead of its use, row by row.
//
// Of several tokens each position asks for one further on. A token with several kv heads goes
// through the positions in strides, each head over one stride before the next stride: one such part
// is a unit. While a unit is computed, a later one is asked for, a line for each line that is read:
// many at once would fill the queue of misses, and nothing would be computed until they are there.
// Of a token whose pages hold runs of some rows token_asks.h does that.
#pragma once

#include "kernels/cpu/simd/table.h"

#include <cstddef>

namespace tandem::kernels::cpu {

/// Of one block of kKeyBlock positions at a time; positions count from its beginning. V is there so
/// that each instruction set has an instance of its own (see table.h).
template <class V>
class KeyRows {
 public:
  struct Range {
    std::size_t begin;
    std::size_t end;
  };

  /// Positions between a prefetch and its use by several tokens: some hundred nanoseconds of work
  /// for two rows. Also into the next block.
  static constexpr std::size_t kAhead = 64;
  /// Positions that a token's heads go through in turn, at most.
  static constexpr std::size_t kStrideMost = 64;
  /// Tiles of keys may reach so far over the end; what they compute there is not used.
  static constexpr std::size_t kOver = 16;
  /// Pointers that it needs room for.
  static constexpr std::size_t kPointers = 2 * kKeyBlock + kAhead + 2 * kOver;

  KeyRows(const AttentionTile& tile, const std::byte** room)
      : tile_(tile),
        row(room),
        ahead(room + kKeyBlock + kAhead + kOver),
        stride_(kStrideLeast),
        by_head_(tile.page_size % kStrideLeast == 0) {
    while (stride_ < kStrideMost && tile.page_size % (2 * stride_) == 0)
      stride_ *= 2;
    units_ahead_ = (kAheadBytes + stride_ * tile.row_bytes - 1) / (stride_ * tile.row_bytes);
    for (std::size_t j = 0; j < kKeyBlock + kOver; ++j)
      ahead[j] = tile.keys;
  }

  /// Positions that a token of a tile sees.
  static Range seen_by(const AttentionTile& tile, std::size_t token) {
    const auto end = static_cast<std::size_t>(tile.position[token]) + 1;
    const auto window = static_cast<std::size_t>(tile.window);
    return {window != 0 && end > window ? end - window : 0, end};
  }

  static Range overlap(Range a, Range b) {
    return {a.begin > b.begin ? a.begin : b.begin, a.end < b.end ? a.end : b.end};
  }

  /// Rows of the block at `base`, from `begin` on, and of up to kAhead positions behind it as far
  /// as `last`, the end of what is seen.
  void find(std::size_t base, std::size_t begin, std::size_t last) {
    known_ = last - base < kKeyBlock + kAhead ? last - base : kKeyBlock + kAhead;
    std::size_t page = (base + begin) / tile_.page_size;
    std::size_t slot = (base + begin) % tile_.page_size;
    for (std::size_t j = begin; j < known_;) {
      const std::byte* from =
          tile_.keys + static_cast<std::size_t>(tile_.pages[page]) * tile_.page_stride_bytes +
          slot * tile_.row_bytes;
      for (; slot < tile_.page_size && j < known_; ++slot, ++j, from += tile_.row_bytes)
        row[j] = from;
      slot = 0;
      ++page;
    }
    for (std::size_t j = known_; j < known_ + kOver; ++j)
      row[j] = row[known_ - 1];
    // Nobody reads these, but whole strides are asked for.
    for (std::size_t j = 0; j < begin; ++j)
      row[j] = row[begin];
  }

  /// Positions of a unit.
  [[nodiscard]] std::size_t stride() const { return stride_; }

  /// Units are numbered from the block's beginning.
  [[nodiscard]] std::size_t units(Range block) const {
    return (block.end + stride_ - 1) / stride_ * tile_.kv_heads;
  }

  /// Asks at once for what the first units of all read, keys of this block.
  void ask_first(Range block) {
    const std::size_t begin = block.begin / stride_ * tile_.kv_heads;
    for (std::size_t i = 0; i < units_ahead_ && begin + i < units(block); ++i) {
      aim(0, block, begin + i);
      for (std::size_t j = 0; j < stride_; ++j) {
        for (std::size_t at = 0; at < tile_.row_bytes; at += 64)
          ask<1>(ahead + j, at);
      }
    }
  }

  /// Lets the positions of `unit` ask for a later unit. `passed`: units before the block's first of
  /// this kind, that is none for keys and all of the keys' for values.
  void aim_from(Range block, std::size_t unit, std::size_t passed) {
    aim(unit / tile_.kv_heads * stride_, block, passed + unit + units_ahead_);
  }

  /// Lets each position ask for the one kAhead further on; `offset` as of rows.
  void aim_all(Range block, std::size_t offset) {
    for (std::size_t j = block.begin; j < block.end; ++j)
      ahead[j] = (j + kAhead < known_ ? row[j + kAhead] : row[known_ - 1]) + offset;
  }

  /// For the line at byte `at` of the rows that C positions ask for.
  template <int C>
  inline __attribute__((always_inline)) void ask(const std::byte* const* rows,
                                                 std::size_t at) const {
#pragma GCC unroll 16
    for (int c = 0; c < C; ++c)
      ask(rows[c] + at);
  }

  /// For a line. Into the second level: the first has room for few lines that wait, and whoever
  /// asks for more stands still.
  static inline __attribute__((always_inline)) void ask(const std::byte* line) {
    __builtin_prefetch(line, 0, 2);
  }

 private:
  static constexpr std::size_t kStrideLeast = 16;
  /// Bytes between a prefetch and its use by one token.
  static constexpr std::size_t kAheadBytes = 32 * 1024;

  /// Positions from `first` on ask for a unit of this block's keys, or, numbered behind these, of
  /// its values, or behind those of the next block's keys. Rows come in the order of memory: by
  /// head where a stride fills a page, and else by position.
  void aim(std::size_t first, Range block, std::size_t unit) {
    const std::size_t all = units(block);
    const std::size_t offset = unit >= all && unit < 2 * all ? tile_.value_offset : 0;
    // Where a block follows, this one is whole: the next one's units go on from its last.
    const std::size_t at = unit < all ? unit : unit - all;
    const std::size_t from = at / tile_.kv_heads * stride_;
    const std::size_t head = at % tile_.kv_heads;
    const std::byte** to = ahead + first;
    if (by_head_ && from < known_) {
      // Rows of one page lie one behind the other, also those that are not seen yet.
      const std::byte* next = row[from] + offset + head * tile_.kv_head_stride;
      for (std::size_t i = 0; i < stride_; ++i, next += tile_.row_bytes)
        to[i] = next;
      return;
    }
    for (std::size_t i = 0; i < stride_; ++i) {
      const std::size_t place = head * stride_ + i;
      const std::size_t position = from + place / tile_.kv_heads;
      to[i] = position < known_
                  ? row[position] + offset + place % tile_.kv_heads * tile_.kv_head_stride
                  : row[known_ - 1];
    }
  }

  const AttentionTile& tile_;

 public:
  const std::byte** row;    ///< [kKeyBlock + kAhead + kOver], of the first kv head
  const std::byte** ahead;  ///< [kKeyBlock + kOver], row that each position asks for

 private:
  std::size_t known_ = 0;        // end of the rows that are filled in
  std::size_t stride_;           // positions of a unit
  std::size_t units_ahead_ = 0;  // between prefetch and use
  bool by_head_;                 // a stride is within a page
};

}  // namespace tandem::kernels::cpu
