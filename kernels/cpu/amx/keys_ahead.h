// Asks for keys and values before they are needed, nearly in the order in which they lie in memory.
#pragma once

#include "kernels/cpu/simd/key_rows.h"

namespace tandem::kernels::cpu {

/// Lines go to the second level of caches: the first has room for few that wait, and whoever asks
/// for more stands still. Of each block all keys, then all values, page by page, the kv heads of a
/// page kStreams at a time: only what the tile sees. Memory is faster along several runs than along
/// one.
template <class V>
class KeysAhead {
 public:
  /// Sees positions from `first` to `last`.
  KeysAhead(const AttentionTile& tile, std::size_t first, std::size_t last)
      : tile_(tile),
        streams_(tile.kv_heads % kStreams == 0 && tile.kv_head_stride % kLine == 0 ? kStreams : 1),
        heads_(tile.kv_heads / streams_),
        last_(last),
        limit_(last) {
    begin_block(first);
    aim();
  }

  /// Asks for no block that begins at `limit` or later.
  void stop_at(std::size_t limit) {
    limit_ = limit < last_ ? limit : last_;
    if (left_ == 0 && block_begin_ < limit_) aim();
  }

  /// For N lines.
  template <std::size_t N>
  inline __attribute__((always_inline)) void ask() {
    if (left_ < N) {
      if (left_ > 0) ask_slowly(N);
      return;
    }
#pragma GCC unroll 32
    for (std::size_t i = 0; i < N; ++i)
      __builtin_prefetch(next_ + i * kLine, 0, 2);
    next_ += N * kLine;
    left_ -= N;
    if (left_ == 0) step();
  }

 private:
  static constexpr std::size_t kLine = 64;
  static constexpr std::size_t kStreams = 4;
  /// Lines of a stream before the next one has its turn.
  static constexpr std::size_t kTurn = 16;
  /// Positions whose kv heads follow each other, where a page is no limit.
  static constexpr std::size_t kStride = 32;

  __attribute__((noinline)) void ask_slowly(std::size_t lines) {
    for (; lines > 0 && left_ > 0; --lines) {
      __builtin_prefetch(next_, 0, 2);
      next_ += kLine;
      if (--left_ == 0) step();
    }
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
    if (++stream_ < streams_) return turn();
    stream_ = 0;
    line_ += kTurn;
    if (line_ < lines_) return turn();
    if (++head_ == heads_) {
      head_ = 0;
      begin_ = end_;
      if (begin_ == block_end_) {
        if (values_) {
          begin_block(block_end_);
          if (block_begin_ >= limit_) return;
        } else {
          values_ = true;
          begin_ = block_begin_;
        }
      }
    }
    aim();
  }

  void aim() {
    const std::size_t page = begin_ / tile_.page_size;
    const std::size_t slot = begin_ % tile_.page_size;
    const std::size_t page_end = begin_ - slot + tile_.page_size;
    const std::size_t stride_end = begin_ / kStride * kStride + kStride;
    end_ = page_end < stride_end ? page_end : stride_end;
    end_ = end_ < block_end_ ? end_ : block_end_;
    const std::byte* from =
        tile_.keys + static_cast<std::size_t>(tile_.pages[page]) * tile_.page_stride_bytes +
        slot * tile_.row_bytes + head_ * tile_.kv_head_stride + (values_ ? tile_.value_offset : 0);
    const std::size_t shift = reinterpret_cast<std::uintptr_t>(from) % kLine;
    from_ = from - shift;
    lines_ = (shift + (end_ - begin_) * tile_.row_bytes + kLine - 1) / kLine;
    line_ = 0;
    turn();
  }

  void turn() {
    next_ = from_ + stream_ * heads_ * tile_.kv_head_stride + line_ * kLine;
    left_ = lines_ - line_ < kTurn ? lines_ - line_ : kTurn;
  }

  const AttentionTile& tile_;
  std::size_t streams_;
  std::size_t heads_;  ///< of a stream, one after the other
  std::size_t last_;
  std::size_t limit_;
  std::size_t block_begin_ = 0;
  std::size_t block_end_ = 0;
  std::size_t begin_ = 0;  ///< positions of the run
  std::size_t end_ = 0;
  std::size_t head_ = 0;
  bool values_ = false;
  const std::byte* from_ = nullptr;  ///< the first stream's run
  std::size_t lines_ = 0;            ///< of a run
  std::size_t line_ = 0;             ///< of a run, where all streams have their turn
  std::size_t stream_ = 0;
  const std::byte* next_ = nullptr;
  std::size_t left_ = 0;  ///< lines of the turn
};

}  // namespace tandem::kernels::cpu
