// Which lines a token's attention on tiles asks for: all of its own and some of the next token's,
// none twice, and each before it is read.
#include "kernels/cpu/simd/keys_ahead.h"

#include "kernels/two_tokens.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cstdint>
#include <map>
#include <set>
#include <vector>

namespace tandem::kernels::cpu {
namespace {

struct Recording {};

std::vector<const std::byte*> asked_for;

}  // namespace

template <>
void KeyRows<Recording>::ask(const std::byte* line) {
  asked_for.push_back(line);
}

namespace {

constexpr std::size_t kLine = TwoTokens::kLine;

class Tokens {
 public:
  using Ahead = KeysAhead<Recording, 8>;
  using Range = KeyRows<Recording>::Range;

  explicit Tokens(const KeyShape& shape) : tokens_(shape, 433, 152) {
    for (const std::size_t token : {0, 1}) {
      const AttentionTile& tile = tokens_.tile(token);
      TwoTokens::each_row(tile, KeyRows<Recording>::seen_by(tile, 0), [&](const std::byte* row) {
        for (const std::byte* line : lines_of(row, tile.row_bytes))
          lines_.insert(line);
      });
    }
  }

  /// Goes through both tokens as attention does: a line is asked for with each that is read.
  void run() {
    asked_of_next = tokens_.run([&](const AttentionTile& tile) { go_through(tile); });
    for (const std::byte* line : lines_)
      missing += at_.count(line) == 0 ? 1U : 0U;
  }

  std::size_t asked_of_next = 0;
  std::size_t strange = 0;  ///< lines that nobody reads
  std::size_t twice = 0;
  std::size_t late = 0;
  std::size_t missing = 0;
  std::size_t read = 0;
  std::size_t most_lead = 0;  ///< lines that were read between when one was asked for and read
  std::size_t lead = 0;       ///< that the kernel asks ahead

 private:
  [[nodiscard]] std::vector<const std::byte*> lines_of(const std::byte* row,
                                                       std::size_t bytes) const {
    std::vector<const std::byte*> lines;
    const auto from = static_cast<std::size_t>(row - tokens_.base());
    for (std::size_t line = from / kLine; line <= (from + bytes - 1) / kLine; ++line)
      lines.push_back(tokens_.base() + line * kLine);
    return lines;
  }

  void go_through(const AttentionTile& tile) {
    const Range seen = KeyRows<Recording>::seen_by(tile, 0);
    Ahead ahead(tile, seen);
    const std::size_t step = (32 * tile.row_bytes + kLine - 1) / kLine * (tile.kv_heads + 1);
    lead = std::max({lead, step, ahead.group_lines()});
    std::size_t begun = tile.next->lines_asked;
    ahead.go_on(*tile.next, lead);
    for (; begun < lead; begun += 16)
      ahead.ask<16>();
    note_asked();
    for (std::size_t base = seen.begin / kKeyBlock * kKeyBlock; base < seen.end;
         base += kKeyBlock) {
      const Range block = {std::max(base, seen.begin), std::min(base + kKeyBlock, seen.end)};
      for (const std::size_t offset : {std::size_t{0}, tile.value_offset})
        go_through(tile, block, offset, ahead);
    }
    ahead.end();
  }

  void go_through(const AttentionTile& tile, Range block, std::size_t offset, Ahead& ahead) {
    constexpr std::size_t kStep = 32;
    for (std::size_t at = block.begin / kStep * kStep; at < block.end; at += kStep) {
      for (std::size_t head = 0; head < tile.kv_heads; ++head) {
        for (std::size_t j = std::max(at, block.begin); j < std::min(at + kStep, block.end); ++j)
          read_row(TwoTokens::row(tile, j, head) + offset, tile.row_bytes, ahead);
      }
    }
  }

  void read_row(const std::byte* row, std::size_t bytes, Ahead& ahead) {
    for (const std::byte* line : lines_of(row, bytes)) {
      if (!read_.insert(line).second) continue;
      ++read;
      const auto found = at_.find(line);
      if (found != at_.end()) most_lead = std::max(most_lead, read - found->second);
      late += found == at_.end() ? 1U : 0U;
      if (++beside_ % 8 == 0) ahead.ask<8>();
      note_asked();
    }
  }

  void note_asked() {
    for (const std::byte* line : asked_for) {
      strange += lines_.count(line) == 0 ? 1U : 0U;
      twice += at_.emplace(line, read).second ? 0U : 1U;
    }
    asked_for.clear();
  }

  TwoTokens tokens_;
  std::set<const std::byte*> lines_;            // that are read
  std::map<const std::byte*, std::size_t> at_;  // asked for, after how many were read
  std::set<const std::byte*> read_;
  std::size_t beside_ = 0;
};

void each_line_once(const KeyShape& shape) {
  SCOPED_TRACE(shape.text());
  Tokens tokens(shape);
  tokens.run();
  EXPECT_EQ(tokens.strange, 0U);
  EXPECT_EQ(tokens.missing, 0U);
  // Heads may have a line in common.
  if (shape.page_size * shape.row_bytes % kLine == 0) {
    EXPECT_EQ(tokens.twice, 0U);
  }
  // Heads of pages that do not fit the kernel's steps are read before pages behind them.
  const bool fits = std::has_single_bit(shape.page_size) && shape.window == 0;
  EXPECT_LE(tokens.late, fits ? 0U : tokens.read / 50);
  EXPECT_GT(tokens.asked_of_next, 0U);
  // There runs end elsewhere than steps do, too.
  EXPECT_LE(tokens.most_lead, 2 * tokens.lead + (fits ? 128 : 384));
}

TEST(KeysAhead, EachLineOfBothTokensOnceAndBeforeItIsRead) {
  for (const std::size_t page_size : {1, 2, 3, 4, 8, 12, 16, 32, 64, 128})
    for (const std::size_t kv_heads : {1, 3, 4, 8, 16})
      for (const std::size_t row_bytes : {64, 192, 256})
        for (const std::int32_t window : {0, 300})
          each_line_once({page_size, kv_heads, row_bytes, window});
}

TEST(KeysAhead, SomeHeadsOfAPageAndRowsOfNoWholeLines) {
  for (const std::size_t page_size : {1, 4, 16, 64}) {
    for (const std::size_t kv_heads : {1, 3, 4}) {
      each_line_once({page_size, kv_heads, 128, 0, kv_heads});
      if (page_size == 1) continue;  // rows share lines with those of other heads
      each_line_once({page_size, kv_heads, 96, 0, kv_heads});
      each_line_once({page_size, kv_heads, 96, 300, 1});
    }
  }
}

/// The first lines of a token, one of each run that takes turns.
std::vector<std::size_t> first_turn(std::size_t page_size,
                                    std::size_t kv_heads,
                                    std::size_t row_bytes) {
  const std::int32_t position = 255;
  std::vector<std::int32_t> pages(256);
  for (std::size_t i = 0; i < pages.size(); ++i)
    pages[i] = static_cast<std::int32_t>(i);
  AttentionTile tile{};
  tile.position = &position;
  tile.tokens = 1;
  tile.kv_heads = kv_heads;
  tile.pages = pages.data();
  tile.kv_head_stride = page_size * row_bytes;
  tile.value_offset = kv_heads * tile.kv_head_stride;
  tile.page_stride_bytes = 2 * tile.value_offset;
  const std::vector<std::byte> memory(256 * 2 * kv_heads * row_bytes + kLine);
  tile.keys = memory.data() + kLine - reinterpret_cast<std::uintptr_t>(memory.data()) % kLine;
  tile.row_bytes = row_bytes;
  tile.page_size = page_size;
  asked_for.clear();
  KeysAhead<Recording, 8> ahead(tile, {0, 256});
  ahead.ask<8>();
  std::vector<std::size_t> places;
  for (const std::byte* line : asked_for)
    places.push_back(static_cast<std::size_t>(line - tile.keys));
  asked_for.clear();
  return places;
}

// Measured: docs/kernels.md.
TEST(KeysAhead, RunsThatTakeTurnsAreNoShorterThan8KiB) {
  using Places = std::vector<std::size_t>;
  constexpr std::size_t kKib = 1024;
  const auto each = [](std::size_t kib) {
    Places places;
    for (std::size_t i = 0; i < 8; ++i)
      places.push_back(i * kib * kKib);
    return places;
  };
  // Four heads of 16 positions: each a run, of two pages, or two heads in a run and four
  // pages, or all four and eight pages.
  EXPECT_EQ(
      first_turn(16, 4, 512),
      (Places{0, 8 * kKib, 16 * kKib, 24 * kKib, 64 * kKib, 72 * kKib, 80 * kKib, 88 * kKib}));
  EXPECT_EQ(
      first_turn(16, 4, 256),
      (Places{0, 8 * kKib, 32 * kKib, 40 * kKib, 64 * kKib, 72 * kKib, 96 * kKib, 104 * kKib}));
  EXPECT_EQ(first_turn(16, 4, 128), each(16));
  // Pages of one position have no runs of that length.
  EXPECT_EQ(first_turn(1, 8, 256), each(4));
  // Heads of a long page are runs of their own.
  EXPECT_EQ(
      first_turn(64, 4, 256),
      (Places{
          0, 16 * kKib, 32 * kKib, 48 * kKib, 64, 16 * kKib + 64, 32 * kKib + 64, 48 * kKib + 64}));
}

}  // namespace
}  // namespace tandem::kernels::cpu
