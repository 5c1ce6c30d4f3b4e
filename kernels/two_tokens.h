// Tests: keys and values of two tokens of sequences of their own, which one thread has after each
// other.
#pragma once

#include "kernels/cpu/simd/table.h"

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace tandem::kernels::cpu {

struct KeyShape {
  std::size_t page_size;
  std::size_t kv_heads;  ///< of a tile
  std::size_t row_bytes;
  std::int32_t window;
  std::size_t heads_before = 0;  ///< in the page, and as many behind

  [[nodiscard]] std::string text() const {
    return "pages of " + std::to_string(page_size) + ", heads " + std::to_string(kv_heads) +
           " behind " + std::to_string(heads_before) + ", rows of " + std::to_string(row_bytes) +
           ", window " + std::to_string(window);
  }
};

/// Pages do not lie in the order of positions.
class TwoTokens {
 public:
  static constexpr std::size_t kLine = 64;

  TwoTokens(const KeyShape& shape, std::int32_t first, std::int32_t second)
      : positions_{first, second} {
    const std::size_t stride = shape.page_size * shape.row_bytes;
    const std::size_t kind_bytes = stride * (shape.kv_heads + 2 * shape.heads_before);
    std::int32_t pages = 0;
    for (std::size_t token = 0; token < 2; ++token) {
      const auto seen = static_cast<std::size_t>(positions_[token]) + 1;
      for (std::size_t at = 0; at < seen; at += shape.page_size)
        pages_[token].push_back(pages++);
    }
    for (auto& of_token : pages_)
      for (std::int32_t& page : of_token)
        page = pages - 1 - page;
    memory_.resize(static_cast<std::size_t>(pages) * 2 * kind_bytes + kLine);
    base_ = memory_.data() + kLine - reinterpret_cast<std::uintptr_t>(memory_.data()) % kLine;
    for (std::size_t token = 0; token < 2; ++token) {
      AttentionTile& tile = tiles_[token];
      tile.position = &positions_[token];
      tile.tokens = 1;
      tile.dtype = DType::kBf16;
      tile.kv_heads = shape.kv_heads;
      tile.pages = pages_[token].data();
      tile.kv_head_stride = stride;
      tile.keys = base_ + shape.heads_before * stride;
      tile.value_offset = kind_bytes;
      tile.page_stride_bytes = 2 * kind_bytes;
      tile.row_bytes = shape.row_bytes;
      tile.page_size = shape.page_size;
      tile.window = shape.window;
    }
  }

  TwoTokens(const TwoTokens&) = delete;
  TwoTokens& operator=(const TwoTokens&) = delete;

  /// A multiple of a line, before all rows.
  [[nodiscard]] const std::byte* base() const { return base_; }

  [[nodiscard]] const AttentionTile& tile(std::size_t token) const { return tiles_[token]; }

  /// go_through() both; lines of the second one that the first one asked for.
  template <class GoThrough>
  std::size_t run(GoThrough go_through) {
    Claim claim;
    claim.next = &tiles_[1];
    tiles_[0].next = &claim;
    go_through(tiles_[0]);
    Claim nothing;
    nothing.lines_asked = claim.lines_asked;
    tiles_[1].next = &nothing;
    go_through(tiles_[1]);
    return claim.lines_asked;
  }

  /// fn(row) of all keys and values of `positions`.
  template <class Range, class Fn>
  static void each_row(const AttentionTile& tile, const Range& positions, Fn fn) {
    for (std::size_t at = positions.begin; at < positions.end; ++at) {
      for (std::size_t head = 0; head < tile.kv_heads; ++head) {
        fn(row(tile, at, head));
        fn(row(tile, at, head) + tile.value_offset);
      }
    }
  }

  static const std::byte* row(const AttentionTile& tile, std::size_t position, std::size_t head) {
    const auto page = static_cast<std::size_t>(tile.pages[position / tile.page_size]);
    return tile.keys + page * tile.page_stride_bytes + head * tile.kv_head_stride +
           position % tile.page_size * tile.row_bytes;
  }

 private:
  struct Claim : NextTile {
    Claim() : NextTile{.claim = [](NextTile& self) { return static_cast<Claim&>(self).next; }} {}

    const AttentionTile* next = nullptr;
  };

  std::int32_t positions_[2];
  std::vector<std::int32_t> pages_[2];
  std::vector<std::byte> memory_;
  std::byte* base_ = nullptr;
  AttentionTile tiles_[2] = {};
};

}  // namespace tandem::kernels::cpu
