// Which lines a token's attention on tiles asks for: all of its own and some of the next token's,
// none twice, and each before it is read.
#include "kernels/cpu/simd/keys_ahead.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cstdint>
#include <map>
#include <set>
#include <string>
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

constexpr std::size_t kLine = 64;

struct Shape {
  std::size_t page_size;
  std::size_t kv_heads;  ///< of a tile
  std::size_t row_bytes;
  std::int32_t window;
  std::size_t heads_before = 0;  ///< in the page, and as many behind
};

// Two tokens of sequences of their own, which one thread has after each other.
class Tokens {
 public:
  using Ahead = KeysAhead<Recording, 8>;
  using Range = KeyRows<Recording>::Range;

  Tokens(const Shape& shape, std::int32_t first, std::int32_t second)
      : shape_(shape), positions_{first, second} {
    const std::size_t kind_bytes =
        shape.page_size * shape.row_bytes * (shape.kv_heads + 2 * shape.heads_before);
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
    memory_.resize(static_cast<std::size_t>(pages) * 2 * kind_bytes + kLine);
    base_ = memory_.data() + kLine - reinterpret_cast<std::uintptr_t>(memory_.data()) % kLine;
    for (std::size_t token = 0; token < 2; ++token)
      tiles_[token] = tile(token, kind_bytes);
  }

  /// Goes through both tokens as attention does: a line is asked for with each that is read.
  void run() {
    Claim claim;
    claim.next = &tiles_[1];
    tiles_[0].next = &claim;
    go_through(tiles_[0]);
    asked_of_next = claim.lines_asked;
    Claim nothing;
    nothing.lines_asked = claim.lines_asked;
    tiles_[1].next = &nothing;
    go_through(tiles_[1]);
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
  struct Claim : NextTile {
    Claim() : NextTile{.claim = [](NextTile& self) { return static_cast<Claim&>(self).next; }} {}

    const AttentionTile* next = nullptr;
  };

  AttentionTile tile(std::size_t token, std::size_t kind_bytes) {
    AttentionTile out{};
    out.position = &positions_[token];
    out.tokens = 1;
    out.kv_heads = shape_.kv_heads;
    out.pages = pages_[token].data();
    out.kv_head_stride = shape_.page_size * shape_.row_bytes;
    out.keys = base_ + shape_.heads_before * out.kv_head_stride;
    out.value_offset = kind_bytes;
    out.page_stride_bytes = 2 * kind_bytes;
    out.row_bytes = shape_.row_bytes;
    out.page_size = shape_.page_size;
    out.window = shape_.window;
    const Range seen = KeyRows<Recording>::seen_by(out, 0);
    for (std::size_t at = seen.begin; at < seen.end; ++at)
      for (std::size_t head = 0; head < shape_.kv_heads; ++head)
        for (const std::size_t offset : {std::size_t{0}, kind_bytes})
          for (const std::byte* line : lines_of(row(out, at, head) + offset))
            lines_.insert(line);
    return out;
  }

  static const std::byte* row(const AttentionTile& tile, std::size_t position, std::size_t head) {
    const auto page = static_cast<std::size_t>(tile.pages[position / tile.page_size]);
    return tile.keys + page * tile.page_stride_bytes + head * tile.kv_head_stride +
           position % tile.page_size * tile.row_bytes;
  }

  [[nodiscard]] std::vector<const std::byte*> lines_of(const std::byte* row) const {
    std::vector<const std::byte*> lines;
    const auto from = static_cast<std::size_t>(row - base_) / kLine;
    const auto to = (static_cast<std::size_t>(row - base_) + shape_.row_bytes - 1) / kLine;
    for (std::size_t line = from; line <= to; ++line)
      lines.push_back(base_ + line * kLine);
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
          read_row(row(tile, j, head) + offset, ahead);
      }
    }
  }

  void read_row(const std::byte* row, Ahead& ahead) {
    for (const std::byte* line : lines_of(row)) {
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

  Shape shape_;
  std::int32_t positions_[2];
  std::vector<std::int32_t> pages_[2];
  std::vector<std::byte> memory_;
  std::byte* base_ = nullptr;
  AttentionTile tiles_[2] = {};
  std::set<const std::byte*> lines_;            // that are read
  std::map<const std::byte*, std::size_t> at_;  // asked for, after how many were read
  std::set<const std::byte*> read_;
  std::size_t beside_ = 0;
};

void each_line_once(const Shape& shape) {
  SCOPED_TRACE("pages of " + std::to_string(shape.page_size) + ", heads " +
               std::to_string(shape.kv_heads) + " behind " + std::to_string(shape.heads_before) +
               ", rows of " + std::to_string(shape.row_bytes) + ", window " +
               std::to_string(shape.window));
  Tokens tokens(shape, 433, 152);
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
  EXPECT_LE(tokens.most_lead, 2 * tokens.lead + 128);
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
TEST(KeysAhead, RunsThatTakeTurnsAreNoShorterThan4KiB) {
  using Places = std::vector<std::size_t>;
  constexpr std::size_t kKib = 1024;
  // 4 heads of 16 positions: a run of each of two pages, or two heads in a run and four pages.
  EXPECT_EQ(first_turn(16, 4, 256),
            (Places{0, 4 * kKib, 8 * kKib, 12 * kKib, 32 * kKib, 36 * kKib, 40 * kKib, 44 * kKib}));
  EXPECT_EQ(
      first_turn(16, 4, 128),
      (Places{0, 4 * kKib, 16 * kKib, 20 * kKib, 32 * kKib, 36 * kKib, 48 * kKib, 52 * kKib}));
  // Pages of one position have no runs of that length.
  EXPECT_EQ(first_turn(1, 8, 256),
            (Places{0, 4 * kKib, 8 * kKib, 12 * kKib, 16 * kKib, 20 * kKib, 24 * kKib, 28 * kKib}));
  // Heads of a long page are runs of their own.
  EXPECT_EQ(
      first_turn(64, 4, 256),
      (Places{
          0, 16 * kKib, 32 * kKib, 48 * kKib, 64, 16 * kKib + 64, 32 * kKib + 64, 48 * kKib + 64}));
}

}  // namespace
}  // namespace tandem::kernels::cpu
