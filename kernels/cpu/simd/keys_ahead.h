// Asks for keys and values before they are needed, nearly in the order in which they lie in memory.
#pragma once

#include "kernels/cpu/simd/key_rows.h"

#include <cstddef>
#include <cstdint>

namespace tandem::kernels::cpu {

/// Of each block all keys, then all values, page by page, only what the tile
/// sees; a line of each of up to kMostStreams kv heads in turn: memory is faster along several runs
/// than along one. kRunMost: positions whose kv heads follow each other, where a page is no limit.
template <class V, std::size_t kMostStreams, std::size_t kRunMost = 32>
class KeysAhead {
 public:
  using Range = typename KeyRows<V>::Range;

  /// Of a tile that sees `positions`.
  KeysAhead(const AttentionTile& tile, Range positions) {
    enter(tile, positions);
    aim();
  }

  /// Of one token. It goes on with the tile that `next` claims, for `lines` of it; it begins behind
  /// those that were asked for already.
  void go_on(NextTile& next, std::size_t lines) {
    next_ = &next;
    next_lines_ = lines;
    ask_slowly<false>(next.lines_asked / streams_);
    next.lines_asked = 0;
  }

  /// When all is done: says how many lines of the next tile were asked for.
  void end() {
    if (entered_ != nullptr)
      entered_->lines_asked = (next_lines_ / streams_ - turns_ - left_) * streams_;
  }

  /// Lines of a run that are left, one behind the other, of each head that takes turns.
  [[nodiscard]] std::size_t left() const { return left_; }

  /// So many lines, no more than left(), for the caller to ask for: where the first one is.
  const std::byte* take(std::size_t lines) {
    static_assert(kMostStreams == 1);
    const std::byte* from = from_;
    from_ += lines * kLine;
    left_ -= lines;
    if (left_ == 0) step();
    return from;
  }

  /// For so many lines of each head that takes turns.
  void ask_some(std::size_t turns) { ask_slowly<true>(turns); }

  /// From now on asks for no block that begins at `limit` or later.
  void stop_at(std::size_t limit) {
    limit_ = limit < last_ ? limit : last_;
    if (left_ == 0 && block_begin_ < limit_) aim();
  }

  /// For N lines.
  template <std::size_t N>
  inline __attribute__((always_inline)) void ask() {
    if constexpr (kMostStreams >= 8) {
      if (streams_ == 8) return ask_of<8, N / 8>();
    }
    if constexpr (kMostStreams >= 4) {
      if (streams_ == 4) return ask_of<4, N / 4>();
    }
    if constexpr (kMostStreams >= 2) {
      if (streams_ == 2) return ask_of<2, N / 2>();
    }
    ask_of<1, N>();
  }

 private:
  static constexpr std::size_t kLine = 64;

  /// For a line of each of kStreams kv heads, kTurns times.
  template <std::size_t kStreams, std::size_t kTurns>
  inline __attribute__((always_inline)) void ask_of() {
    static_assert(kTurns > 0);
    if (left_ < kTurns) {
      if (left_ > 0) ask_slowly<true>(kTurns);
      return;
    }
    const std::byte* from = from_;
#pragma GCC unroll 32
    for (std::size_t turn = 0; turn < kTurns; ++turn, from += kLine)
      ask_each<kStreams>(from);
    from_ = from;
    left_ -= kTurns;
    if (left_ == 0) step();
  }

  template <std::size_t kStreams>
  inline __attribute__((always_inline)) void ask_each(const std::byte* from) const {
    const std::size_t apart = tile_->kv_head_stride;
#pragma GCC unroll 8
    for (std::size_t stream = 0; stream < kStreams; ++stream)
      KeyRows<V>::ask(from + stream * apart);
  }

  template <bool kAsks>
  __attribute__((noinline)) void ask_slowly(std::size_t turns) {
    for (; turns > 0 && left_ > 0; --turns) {
      if (kAsks) {
        for (std::size_t stream = 0; stream < streams_; ++stream)
          KeyRows<V>::ask(from_ + stream * tile_->kv_head_stride);
      }
      from_ += kLine;
      if (--left_ == 0) step();
    }
  }

  void enter(const AttentionTile& tile, Range positions) {
    tile_ = &tile;
    streams_ = tile.kv_head_stride % kLine == 0 ? kMostStreams : 1;
    while (tile.kv_heads % streams_ != 0)
      streams_ /= 2;
    last_ = positions.end;
    limit_ = positions.end;
    begin_block(positions.begin);
  }

  void begin_block(std::size_t position) {
    block_begin_ = position;
    const std::size_t end = position / kKeyBlock * kKeyBlock + kKeyBlock;
    block_end_ = end < last_ ? end : last_;
    begin_ = position;
    head_ = 0;
    values_ = false;
  }

  /// To the next lines, if there are any.
  __attribute__((noinline)) void step() {
    head_ += streams_;
    if (head_ < tile_->kv_heads) return aim_at_head();
    head_ = 0;
    begin_ = end_;
    if (begin_ == block_end_) {
      if (values_) {
        begin_block(block_end_);
        if (block_begin_ >= limit_) return enter_next();
      } else {
        values_ = true;
        begin_ = block_begin_;
      }
    }
    aim();
  }

  /// One tile more, and not wholly.
  void enter_next() {
    if (next_ == nullptr) return;
    NextTile& next = *next_;
    next_ = nullptr;
    const AttentionTile* tile = next.claim(next);
    if (tile == nullptr) return;
    enter(*tile, KeyRows<V>::seen_by(*tile, 0));
    turns_ = next_lines_ / streams_;
    entered_ = &next;
    aim();
  }

  void aim() {
    const AttentionTile& tile = *tile_;
    const std::size_t page = begin_ / tile.page_size;
    const std::size_t slot = begin_ % tile.page_size;
    const std::size_t page_end = begin_ - slot + tile.page_size;
    const std::size_t run_end = begin_ / kRunMost * kRunMost + kRunMost;
    end_ = page_end < run_end ? page_end : run_end;
    end_ = end_ < block_end_ ? end_ : block_end_;
    run_ = tile.keys + static_cast<std::size_t>(tile.pages[page]) * tile.page_stride_bytes +
           slot * tile.row_bytes + (values_ ? tile.value_offset : 0);
    run_bytes_ = (end_ - begin_) * tile.row_bytes;
    aim_at_head();
  }

  void aim_at_head() {
    const std::byte* from = run_ + head_ * tile_->kv_head_stride;
    const std::size_t shift = reinterpret_cast<std::uintptr_t>(from) % kLine;
    from_ = from - shift;
    left_ = (shift + run_bytes_ + kLine - 1) / kLine;
    left_ = left_ < turns_ ? left_ : turns_;
    turns_ -= left_;
  }

  const AttentionTile* tile_ = nullptr;
  NextTile* next_ = nullptr;     ///< until its tile is entered
  NextTile* entered_ = nullptr;  ///< whose tile this is
  std::size_t next_lines_ = 0;
  std::size_t turns_ = ~std::size_t{0};  ///< behind those that are left of the run
  std::size_t streams_ = 1;              ///< kv heads that take turns
  std::size_t last_ = 0;
  std::size_t limit_ = 0;
  std::size_t block_begin_ = 0;
  std::size_t block_end_ = 0;
  std::size_t begin_ = 0;  ///< positions of the run
  std::size_t end_ = 0;
  const std::byte* run_ = nullptr;  ///< of the first head
  std::size_t run_bytes_ = 0;       ///< of each
  std::size_t head_ = 0;            ///< the first of those that take turns
  bool values_ = false;
  const std::byte* from_ = nullptr;  ///< of that head
  std::size_t left_ = 0;             ///< lines of each head's run
};

}  // namespace tandem::kernels::cpu
