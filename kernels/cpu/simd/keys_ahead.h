// Asks for keys and values before they are needed, nearly in the order in which they lie in memory.
#pragma once

#include "kernels/cpu/simd/key_rows.h"

#include <cstddef>
#include <cstdint>

namespace tandem::kernels::cpu {

/// Of each block all keys, then all values, page by page, only what the tile sees; a line of each
/// of up to kMostStreams runs in turn: memory is faster along several than along one. Pages of up
/// to kRunMost positions, where all of one are seen, are cut into runs of kStreamBytes and more
/// where they have as much, some pages at a time; else each kv head is one. kRunMost: positions
/// whose kv heads follow each other, where a page is no limit.
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
    for (std::size_t asked = next.lines_asked; asked >= streams_ && left_ > 0;) {
      const std::size_t turns = asked / streams_ < left_ ? asked / streams_ : left_;
      asked -= turns * streams_;
      pass(turns);
    }
    next.lines_asked = 0;
  }

  /// When all is done: says how many lines of the next tile were asked for.
  void end() {
    if (entered_ != nullptr) entered_->lines_asked = aimed_at_ - left_ * streams_;
  }

  /// Of runs of whole pages that take turns, all lines: whoever reads one page after the other must
  /// ask for as much ahead. 0: heads take turns.
  [[nodiscard]] std::size_t group_lines() const { return kMostStreams * chunk_bytes_ / kLine; }

  /// Lines of a run that are left, one behind the other, of each one that takes turns.
  [[nodiscard]] std::size_t left() const { return left_; }

  /// So many lines, no more than left(), for the caller to ask for: where the first one is.
  const std::byte* take(std::size_t lines) {
    static_assert(kMostStreams == 1);
    const std::byte* from = from_[0] + at_;
    pass(lines);
    return from;
  }

  /// For so many lines.
  void ask_some(std::size_t lines) { ask_slowly(lines); }

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
  /// Of runs that take turns: memory is slow where one begins (docs/kernels.md).
  static constexpr std::size_t kStreamBytes = 8192;
  /// All of those that take turns are asked for before the first one is read.
  static constexpr std::size_t kStreamBytesMost = 4 * kStreamBytes;

  /// For a line of each of kStreams runs, kTurns times.
  template <std::size_t kStreams, std::size_t kTurns>
  inline __attribute__((always_inline)) void ask_of() {
    static_assert(kTurns > 0);
    if (left_ < kTurns) {
      if (left_ > 0) ask_slowly(kTurns * kStreams);
      return;
    }
    const std::size_t at = at_;
#pragma GCC unroll 32
    for (std::size_t turn = 0; turn < kTurns; ++turn) {
#pragma GCC unroll 8
      for (std::size_t stream = 0; stream < kStreams; ++stream)
        KeyRows<V>::ask(from_[stream] + at + turn * kLine);
    }
    pass(kTurns);
  }

  /// Over lines of each run that takes turns, no more than are left.
  inline __attribute__((always_inline)) void pass(std::size_t turns) {
    at_ += turns * kLine;
    left_ -= turns;
    if (left_ == 0) step();
  }

  __attribute__((noinline)) void ask_slowly(std::size_t lines) {
    while (lines > 0 && left_ > 0) {
      lines -= streams_ < lines ? streams_ : lines;
      for (std::size_t stream = 0; stream < streams_; ++stream)
        KeyRows<V>::ask(from_[stream] + at_);
      pass(1);
    }
  }

  void enter(const AttentionTile& tile, Range positions) {
    tile_ = &tile;
    heads_at_once_ = tile.kv_head_stride % kLine == 0 ? kMostStreams : 1;
    while (tile.kv_heads % heads_at_once_ != 0)
      heads_at_once_ /= 2;
    cut_pages(tile);
    last_ = positions.end;
    limit_ = positions.end;
    begin_block(positions.begin);
  }

  /// How a page's keys, or values, are cut into runs of whole lines.
  void cut_pages(const AttentionTile& tile) {
    chunks_ = 0;
    chunk_bytes_ = 0;
    if constexpr (kMostStreams == 1) return;
    const std::size_t bytes = tile.kv_heads * tile.kv_head_stride;
    const std::size_t places = reinterpret_cast<std::uintptr_t>(tile.keys) | tile.value_offset |
                               tile.page_stride_bytes | bytes;
    if (places % kLine != 0 || tile.page_size > kRunMost ||
        tile.kv_head_stride != tile.page_size * tile.row_bytes)
      return;
    std::size_t chunks = kMostStreams;
    while (chunks > 1 && (bytes % (chunks * kLine) != 0 || bytes / chunks < kStreamBytes))
      chunks /= 2;
    if (bytes / chunks > kStreamBytesMost) return;
    chunks_ = chunks;
    chunk_bytes_ = bytes / chunks;
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
    head_ += heads_at_once_;
    if (!in_pages_ && head_ < tile_->kv_heads) return aim_at_head();
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
    lines_left_ = next_lines_;
    aimed_at_ = 0;
    entered_ = &next;
    aim();
  }

  void aim() {
    in_pages_ = chunks_ > 0 && aim_at_pages();
    if (in_pages_) return;
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
    streams_ = heads_at_once_;
    for (std::size_t stream = 0; stream < streams_; ++stream)
      from_[stream] = from - shift + stream * tile_->kv_head_stride;
    begin_turns((shift + run_bytes_ + kLine - 1) / kLine);
  }

  /// At whole pages of the block, as many as have runs for all turns. False: there is none.
  bool aim_at_pages() {
    const AttentionTile& tile = *tile_;
    if (begin_ % tile.page_size != 0) return false;
    std::size_t pages = kMostStreams / chunks_;
    while (pages > 0 && begin_ + pages * tile.page_size > block_end_)
      pages /= 2;
    if (pages == 0) return false;
    end_ = begin_ + pages * tile.page_size;
    streams_ = 0;
    for (std::size_t page = 0; page < pages; ++page) {
      const auto index = static_cast<std::size_t>(tile.pages[begin_ / tile.page_size + page]);
      const std::byte* from =
          tile.keys + index * tile.page_stride_bytes + (values_ ? tile.value_offset : 0);
      for (std::size_t chunk = 0; chunk < chunks_; ++chunk)
        from_[streams_++] = from + chunk * chunk_bytes_;
    }
    begin_turns(chunk_bytes_ / kLine);
    return true;
  }

  /// Runs that are cut short are the last ones.
  void begin_turns(std::size_t turns) {
    const std::size_t most = lines_left_ / streams_;
    at_ = 0;
    left_ = turns < most ? turns : most;
    lines_left_ = left_ < turns ? 0 : lines_left_ - left_ * streams_;
    aimed_at_ += left_ * streams_;
  }

  const AttentionTile* tile_ = nullptr;
  NextTile* next_ = nullptr;     ///< until its tile is entered
  NextTile* entered_ = nullptr;  ///< whose tile this is
  std::size_t next_lines_ = 0;
  std::size_t lines_left_ = ~std::size_t{0};  ///< that may be aimed at
  std::size_t aimed_at_ = 0;                  ///< lines of the tile
  std::size_t heads_at_once_ = 1;             ///< that take turns
  std::size_t chunks_ = 0;                    ///< runs of a whole page; 0: heads take turns
  std::size_t chunk_bytes_ = 0;               ///< of each
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
  bool in_pages_ = false;  ///< runs of whole pages take turns, not heads
  std::size_t streams_ = 1;
  const std::byte* from_[kMostStreams] = {};  ///< runs that take turns
  std::size_t at_ = 0;                        ///< bytes of each that were asked for
  std::size_t left_ = 0;                      ///< lines of each that were not
};

}  // namespace tandem::kernels::cpu
