// Which rows a token asks for one by one: its own or the next token's, and none twice.
#include "kernels/cpu/simd/token_asks.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <vector>

namespace tandem::kernels::cpu {
namespace {

template <bool kPairs>
struct Vectors {
  static constexpr bool kBf16Pairs = kPairs;
};

struct Shape {
  std::size_t page_size;
  std::size_t kv_heads;
  std::size_t row_bytes;
  std::int32_t window;
};

// Two tokens of sequences of their own, which one thread has after each other.
template <bool kPairs>
class Tokens {
 public:
  using Asks = TokenAsks<Vectors<kPairs>>;
  using Keys = KeyRows<Vectors<kPairs>>;
  using Range = typename Keys::Range;

  Tokens(const Shape& shape, std::int32_t first, std::int32_t second)
      : shape_(shape), positions_{first, second} {
    const std::size_t kind_bytes = shape.page_size * shape.kv_heads * shape.row_bytes;
    std::int32_t pages = 0;
    for (std::size_t token = 0; token < 2; ++token) {
      const auto seen = static_cast<std::size_t>(positions_[token]) + 1;
      for (std::size_t at = 0; at < seen; at += shape.page_size)
        pages_[token].push_back(pages++);
    }
    // Not in the order of memory.
    for (auto& of_token : pages_)
      for (std::int32_t& page : of_token)
        page = pages - 1 - page;
    memory_.resize(static_cast<std::size_t>(pages) * 2 * kind_bytes + 64);
    base_ = memory_.data() + 64 - reinterpret_cast<std::uintptr_t>(memory_.data()) % 64;
    scratch_.resize(64 * 1024);
    for (std::size_t token = 0; token < 2; ++token)
      tiles_[token] = tile(token, kind_bytes);
  }

  /// Goes through both tokens as attention does.
  void run() {
    Claim claim;
    claim.next = &tiles_[1];
    tiles_[0].next = &claim;
    go_through(tiles_[0]);
    Claim nothing;
    nothing.lines_asked = claim.lines_asked;
    tiles_[1].next = &nothing;
    go_through(tiles_[1]);
  }

  /// Rows that were asked for one by one, and how often one that is nobody's, or was asked for or
  /// read before.
  std::size_t asked = 0;
  std::size_t wrong = 0;
  std::size_t read = 0;
  /// Rows that were read between when one was asked for and when it was read.
  std::size_t least_lead = ~std::size_t{0};
  std::size_t most_lead = 0;

 private:
  struct Claim : NextTile {
    Claim() : NextTile{.claim = [](NextTile& self) { return static_cast<Claim&>(self).next; }} {}

    const AttentionTile* next = nullptr;
  };

  AttentionTile tile(std::size_t token, std::size_t kind_bytes) {
    AttentionTile out{};
    out.position = &positions_[token];
    out.tokens = 1;
    out.dtype = DType::kBf16;
    out.kv_heads = shape_.kv_heads;
    out.pages = pages_[token].data();
    out.keys = base_;
    out.kv_head_stride = shape_.page_size * shape_.row_bytes;
    out.value_offset = kind_bytes;
    out.page_stride_bytes = 2 * kind_bytes;
    out.row_bytes = shape_.row_bytes;
    out.page_size = shape_.page_size;
    out.window = shape_.window;
    const auto seen = Keys::seen_by(out, 0);
    for (std::size_t at = seen.begin; at < seen.end; ++at) {
      for (std::size_t head = 0; head < shape_.kv_heads; ++head) {
        rows_.insert(row(out, at, head));
        rows_.insert(row(out, at, head) + kind_bytes);
      }
    }
    return out;
  }

  void go_through(const AttentionTile& tile) {
    Asks asks(tile, scratch_.data());
    asks.begin(tile);
    const auto seen = Keys::seen_by(tile, 0);
    std::vector<const std::byte*> room(Keys::kPointers);
    const Keys keys(tile, room.data());
    for (std::size_t base = seen.begin / kKeyBlock * kKeyBlock; base < seen.end;
         base += kKeyBlock) {
      const Range block = {seen.begin > base ? seen.begin - base : 0,
                           seen.end - base < kKeyBlock ? seen.end - base : kKeyBlock};
      for (const std::size_t behind : {std::size_t{0}, tile.value_offset})
        go_through(tile, base, block, behind, keys, asks);
    }
    asks.end();
  }

  void go_through(const AttentionTile& tile,
                  std::size_t base,
                  Range block,
                  std::size_t behind,
                  const Keys& keys,
                  Asks& asks) {
    const std::size_t stride = asks.stride();
    for (std::size_t at = block.begin / stride * stride; at < block.end; at += stride) {
      const auto positions = Keys::overlap(block, {at, at + stride});
      for (std::size_t head = 0; head < tile.kv_heads; ++head) {
        asks.begin_unit(positions);
        for (std::size_t j = positions.begin; j < positions.end; ++j) {
          note_read(row(tile, base + j, head) + behind);
          note_asked(asks.template asked<Asks::Asks::kToken>(keys, j)(0));
        }
      }
    }
  }

  static const std::byte* row(const AttentionTile& tile, std::size_t position, std::size_t head) {
    const auto page = static_cast<std::size_t>(tile.pages[position / tile.page_size]);
    return tile.keys + page * tile.page_stride_bytes + head * tile.kv_head_stride +
           position % tile.page_size * tile.row_bytes;
  }

  void note_read(const std::byte* row) {
    ++read;
    read_.insert(row);
    const auto found = asked_at_.find(row);
    if (found == asked_at_.end()) return;
    least_lead = std::min(least_lead, read - found->second);
    most_lead = std::max(most_lead, read - found->second);
  }

  void note_asked(const std::byte* row) {
    if (row >= scratch_.data() && row < scratch_.data() + scratch_.size()) return;
    ++asked;
    wrong += rows_.erase(row) == 0 || read_.count(row) != 0 ? 1U : 0U;
    asked_at_[row] = read;
  }

  Shape shape_;
  std::int32_t positions_[2];
  std::vector<std::int32_t> pages_[2];
  std::vector<std::byte> memory_;
  std::byte* base_ = nullptr;
  std::vector<std::byte> scratch_;
  AttentionTile tiles_[2] = {};
  std::set<const std::byte*> rows_;  // of both that nobody has asked for
  std::map<const std::byte*, std::size_t> asked_at_;
  std::set<const std::byte*> read_;
};

template <bool kPairs>
void each_row_at_most_once() {
  for (const std::size_t page_size : {4, 8, 16, 32, 64, 128}) {
    for (const std::size_t kv_heads : {1, 4, 8, 16}) {
      for (const std::size_t row_bytes : {128, 256, 512}) {
        for (const std::int32_t window : {0, 300}) {
          SCOPED_TRACE("pages of " + std::to_string(page_size) + ", heads " +
                       std::to_string(kv_heads) + ", rows of " + std::to_string(row_bytes) +
                       ", window " + std::to_string(window));
          Tokens<kPairs> tokens({page_size, kv_heads, row_bytes, window}, 2233, 152);
          tokens.run();
          EXPECT_EQ(tokens.wrong, 0U);
          EXPECT_GE(tokens.least_lead, 16U);
          EXPECT_LE(tokens.most_lead * row_bytes, 400U * 1024);
          if (page_size < 16 || window != 0) continue;
          // All but what begins, the ends of runs, and what lies ahead when there is no more.
          EXPECT_GE(tokens.asked * 10, tokens.read * 6);
        }
      }
    }
  }
}

TEST(TokenAsks, EachRowOfBothTokensAtMostOnceAndBeforeItIsRead) {
  each_row_at_most_once<true>();
  each_row_at_most_once<false>();
}

// Measured: kernels/cpu/simd/token_asks.h.
TEST(TokenAsks, HeadsOfBf16TakeTurnsAfterMorePositions) {
  const auto stride = [](DType dtype, std::size_t row_bytes, std::size_t page_size) {
    const std::int32_t position = 99;
    const std::vector<std::int32_t> pages(100, 0);
    std::vector<std::byte> memory(page_size * row_bytes * 4);
    AttentionTile tile{};
    tile.position = &position;
    tile.tokens = 1;
    tile.dtype = dtype;
    tile.kv_heads = 2;
    tile.pages = pages.data();
    tile.keys = memory.data();
    tile.kv_head_stride = page_size * row_bytes;
    tile.row_bytes = row_bytes;
    tile.page_size = page_size;
    return TokenAsks<Vectors<true>>(tile, memory.data()).stride();
  };
  EXPECT_EQ(stride(DType::kBf16, 256, 16), 64U);
  EXPECT_EQ(stride(DType::kFp8E4m3, 128, 16), 16U);
  EXPECT_EQ(stride(DType::kFp8E4m3, 128, 32), 32U);
}

TEST(TokenAsks, TakesRunsOfSomeWholeLines) {
  using Asks = TokenAsks<Vectors<true>>;
  AttentionTile tile{};
  tile.tokens = 1;
  tile.page_size = 16;
  tile.row_bytes = 256;
  EXPECT_TRUE(Asks::takes(tile));
  tile.page_size = 1;
  EXPECT_FALSE(Asks::takes(tile));
  tile.page_size = 48;
  EXPECT_FALSE(Asks::takes(tile));
  tile.page_size = 16;
  tile.row_bytes = 160;
  EXPECT_FALSE(Asks::takes(tile));
  tile.row_bytes = 256;
  tile.tokens = 2;
  EXPECT_FALSE(Asks::takes(tile));
}

}  // namespace
}  // namespace tandem::kernels::cpu
