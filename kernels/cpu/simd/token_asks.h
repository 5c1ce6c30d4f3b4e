// What one token asks for while it reads keys and values: unit by unit, beside each row another
// one.
#pragma once

#include "kernels/cpu/simd/keys_ahead.h"

#include <cstddef>

namespace tandem::kernels::cpu {

/// The order of asking is that of memory (keys_ahead.h). Of bf16 by pairs the order of reading is
/// another one: each head goes over several pages before the next head does, which other families
/// and keys of 8 bit gain nothing by. Which rows are asked for is settled before a unit, so that
/// between products nothing is left to decide; that takes runs of some rows in whole lines.
template <class V>
class TokenAsks {
 public:
  using Range = typename KeyRows<V>::Range;

  /// What is asked for beside what is read: nothing, rows of KeyRows::ahead, or those of
  /// this class.
  enum class Asks {
    kNothing,
    kRows,
    kToken
  };

  /// Whether this class is for a token with such keys and values; else KeyRows asks for them, row
  /// by row.
  static bool takes(const AttentionTile& tile) {
    return tile.tokens == 1 && tile.row_bytes % 64 == 0 && tile.page_size >= 4 &&
           tile.page_size * tile.row_bytes >= kLeastRunBytes &&
           (kStrideMost % tile.page_size == 0 || tile.page_size % kStrideMost == 0);
  }

  /// `near`: memory of 2 kGroup rows that others use anyway.
  TokenAsks(const AttentionTile& tile, const std::byte* near)
      : ahead_(tile, KeyRows<V>::seen_by(tile, 0)),
        near_(near),
        row_bytes_(tile.row_bytes),
        stride_(by_pairs(tile) ? kStrideMost : kGroup) {
    const std::size_t most_bytes = row_bytes_ > kRowBytes ? row_bytes_ : kRowBytes;
    while (stride_ > kGroup && stride_ * tile.kv_heads * most_bytes > kStrideBytes)
      stride_ /= 2;
    const std::size_t run = tile.page_size < kStrideMost ? tile.page_size : kStrideMost;
    if (stride_ < run) stride_ = run;
    const bool one_order = stride_ == run || tile.kv_heads == 1;
    const std::size_t between = one_order ? 0 : stride_ * tile.kv_heads * row_bytes_;
    lines_ahead_ = (kBytesAhead + between) / 64;
    for (auto& group : groups_)
      group = near;
  }

  /// Asks at once for what comes first, as far as the tile before has not.
  void begin(const AttentionTile& tile) {
    std::size_t asked = 0;
    if (tile.next != nullptr) {
      asked = tile.next->lines_asked;
      ahead_.go_on(*tile.next, lines_ahead_);
    }
    if (asked < lines_ahead_) ahead_.ask_some(lines_ahead_ - asked);
  }

  void end() { ahead_.end(); }

  /// Positions that a token's heads go through in turn: those of one head are a unit.
  [[nodiscard]] std::size_t stride() const { return stride_; }

  /// `positions` within a stride come next, of one head.
  void begin_unit(Range positions) {
    std::size_t begin = positions.begin;
    while (begin < positions.end) {
      const std::size_t group_end = begin / kGroup * kGroup + kGroup;
      const std::size_t end = group_end < positions.end ? group_end : positions.end;
      const std::byte* from = next((end - begin) * row_bytes_ / 64);
      groups_[begin / kGroup % kGroups] =
          from == nullptr ? near_ : from - begin % kGroup * row_bytes_;
      begin = end;
    }
  }

  /// A function of c: the row that the position c further asks for. Of kToken the position is one
  /// of the unit; beyond its kGroup other rows are asked for than were counted.
  template <Asks A>
  auto asked(const KeyRows<V>& keys, std::size_t position) const {
    if constexpr (A == Asks::kToken) {
      const std::byte* row = groups_[position / kGroup % kGroups] + position % kGroup * row_bytes_;
      return [row, bytes = row_bytes_](int c) { return row + static_cast<std::size_t>(c) * bytes; };
    } else {
      return [rows = keys.ahead + position](int c) { return rows[c]; };
    }
  }

 private:
  static constexpr std::size_t kStrideMost = KeyRows<V>::kStrideMost;
  static constexpr std::size_t kGroup = 16;
  static constexpr std::size_t kLeastRunBytes = 1024;
  static constexpr std::size_t kGroups = kStrideMost / kGroup;
  /// Of a stride of all heads, at most, but a run of each at least; shorter rows than kRowBytes
  /// count as such ones.
  static constexpr std::size_t kStrideBytes = 64 * 1024;
  static constexpr std::size_t kRowBytes = 256;
  /// Between a prefetch and its use, where both have one order: no more lines than a processor that
  /// waits for memory keeps in mind (docs/kernels.md).
  static constexpr std::size_t kBytesAhead = 8 * 1024;

  static bool by_pairs(const AttentionTile& tile) {
    return V::kBf16Pairs && tile.dtype == DType::kBf16;
  }

  /// The next lines, if they follow each other; null: they are asked for.
  const std::byte* next(std::size_t lines) {
    if (too_many_ >= lines) {
      too_many_ -= lines;
      return nullptr;
    }
    // Rather begins with a run.
    if (ahead_.left() < lines) {
      too_many_ += ahead_.left();
      ahead_.ask_some(ahead_.left());
    }
    if (ahead_.left() >= lines) return ahead_.take(lines);
    ahead_.ask_some(lines);
    return nullptr;
  }

  KeysAhead<V, 1, kStrideMost> ahead_;
  const std::byte* near_;
  std::size_t row_bytes_;
  std::size_t stride_;
  std::size_t lines_ahead_;
  std::size_t too_many_ = 0;  ///< lines that were asked for beyond what was read
  const std::byte* groups_[kGroups];
};

}  // namespace tandem::kernels::cpu
