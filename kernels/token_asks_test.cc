// Which rows a token asks for one by one: its own or the next token's, and none twice.
#include "kernels/cpu/simd/token_asks.h"

#include "kernels/two_tokens.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <map>
#include <set>
#include <vector>

namespace tandem::kernels::cpu {
namespace {

template <bool kPairs>
struct Vectors {
  static constexpr bool kBf16Pairs = kPairs;
};

template <bool kPairs>
class Tokens {
 public:
  using Asks = TokenAsks<Vectors<kPairs>>;
  using Keys = KeyRows<Vectors<kPairs>>;
  using Range = typename Keys::Range;

  explicit Tokens(const KeyShape& shape) : tokens_(shape, 2233, 152) {
    scratch_.resize(64 * 1024);
    for (const std::size_t token : {0, 1}) {
      const AttentionTile& tile = tokens_.tile(token);
      TwoTokens::each_row(
          tile, Keys::seen_by(tile, 0), [&](const std::byte* row) { rows_.insert(row); });
    }
  }

  /// Goes through both tokens as attention does.
  void run() {
    tokens_.run([&](const AttentionTile& tile) { go_through(tile); });
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
          note_read(TwoTokens::row(tile, base + j, head) + behind);
          note_asked(asks.template asked<Asks::Asks::kToken>(keys, j)(0));
        }
      }
    }
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

  TwoTokens tokens_;
  std::vector<std::byte> scratch_;
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
          const KeyShape shape{page_size, kv_heads, row_bytes, window};
          SCOPED_TRACE(shape.text());
          Tokens<kPairs> tokens(shape);
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
