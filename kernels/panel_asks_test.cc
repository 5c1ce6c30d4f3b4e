// What products ask for is what the next tile reads: all of it, and nothing else.
#include "kernels/cpu/simd/panel_asks.h"

#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace tandem::kernels::cpu {
namespace {

struct AnyVec {};

using Asks = PanelAsks<AnyVec>;

constexpr std::size_t kPanelBytes = 33 * 64;
constexpr std::size_t kLines = kPanelBytes / 64;

/// How often each line from `next` on was asked for by groups of rows of a tile of P panels, the
/// last of a block.
template <int P>
std::vector<int> asked_behind(const std::byte* weight,
                              const std::byte* next,
                              bool in_order,
                              std::size_t groups) {
  LinearBlock block{};
  block.weight = weight;
  block.panel_bytes = kPanelBytes;
  block.panel_end = P;
  block.next = next;
  block.read_order = in_order ? ReadOrder::kNextTile : ReadOrder::kSideBySide;
  std::vector<int> asked(P * kLines, 0);
  for (std::size_t group = 0; group < groups; ++group) {
    const Asks::Ahead ahead = Asks::ahead_of<P>(block, 0, group, groups);
    for (std::size_t line = 0; line < kLines; ++line) {
      for (std::size_t p = 0; p < P; ++p) {
        const std::byte* at = ahead.from + line * ahead.line_step + p * ahead.panel_step;
        const auto place = static_cast<std::size_t>(at - next) / 64;
        // Steps are rounded up to whole bytes, so the last ones may lead a little further.
        EXPECT_LT(place, asked.size() + P);
        if (place < asked.size()) ++asked[place];
      }
    }
  }
  return asked;
}

template <int P>
void expect_all_of_the_next_tile() {
  const std::vector<std::byte> memory(3 * P * kPanelBytes);
  const std::byte* weight = memory.data();
  for (const bool in_order : {false, true}) {
    for (const std::size_t groups : {1U, 2U, 3U, 5U}) {
      SCOPED_TRACE(std::to_string(P) + " panels, groups " + std::to_string(groups) +
                   (in_order ? " in order" : " in panels"));
      // Not the panel behind: what the block says comes next.
      const std::byte* next = weight + 2 * P * kPanelBytes;
      for (const int times : asked_behind<P>(weight, next, in_order, groups))
        EXPECT_GE(times, 1);
    }
  }
}

TEST(PanelAsks, GroupsAskForTheNextCutWhole) {
  const std::vector<std::byte> memory(kPanelBytes);
  for (const std::size_t groups : {1U, 2U, 3U, 7U, 32U, 39U}) {
    for (const std::size_t steps : {1U, 2U, 8U, 32U}) {
      SCOPED_TRACE(std::to_string(groups) + " groups, steps " + std::to_string(steps));
      std::vector<int> asked(kLines + 1, 0);
      for (std::size_t group = 0; group < groups; ++group) {
        const auto part = Asks::part_of(memory.data(), kPanelBytes, group, groups, steps);
        for (std::size_t step = 0; step < steps; ++step) {
          part.for_lines(step, [&](const std::byte* line) {
            const auto place = static_cast<std::size_t>(line - memory.data()) / 64;
            ASSERT_LE(place, kLines);
            ++asked[place];
          });
        }
      }
      for (std::size_t line = 0; line < kLines; ++line)
        EXPECT_GE(asked[line], 1) << line;
    }
  }
}

TEST(PanelAsks, TheNextTileIsAskedForWhole) {
  expect_all_of_the_next_tile<1>();
  expect_all_of_the_next_tile<2>();
  expect_all_of_the_next_tile<4>();
}

/// How often few rows ask for each line behind the first ones of their runs, as run_narrow goes
/// through `panels` panels P at a time.
template <int P>
std::vector<int> asked_in_runs(std::size_t panel_bytes, std::size_t panels) {
  LinearBlock block{};
  block.panel_bytes = panel_bytes;
  std::vector<int> asked(2 * panels * panel_bytes / 64, 0);
  for (std::size_t panel = 0; panel + P <= panels; panel += P * block.panel_step) {
    block.panel_step = Asks::run_length(block, (panels - panel) / P);
    for (std::size_t i = 0; i < block.panel_step; ++i) {
      const auto ahead = Asks::ahead_in_panels<P>(block, i + 1 == block.panel_step);
      for (std::size_t at = 0; at < panel_bytes; at += 64) {
        for (std::size_t p = 0; p < P; ++p) {
          const std::size_t own = (panel + i + p * block.panel_step) * panel_bytes;
          ++asked[(own + at + Asks::bytes_ahead<P>(ahead, at)) / 64];
        }
      }
    }
  }
  return asked;
}

TEST(PanelAsks, RunsAreAskedForWholeAndOnce) {
  constexpr std::size_t kAhead = Asks::kAheadBytes<4>;
  for (const std::size_t panel_bytes : {40 * 64UL, 132 * 64UL, 264 * 64UL, 600 * 64UL}) {
    LinearBlock block{};
    block.panel_bytes = panel_bytes;
    const std::size_t step = Asks::run_length(block, 1000);
    const std::size_t tile = 4 * step;
    SCOPED_TRACE(std::to_string(panel_bytes) + " bytes, runs of " + std::to_string(step));
    // Two tiles of runs: what the first one's ends ask for is the second one's beginnings.
    const std::vector<int> asked = asked_in_runs<4>(panel_bytes, 2 * tile);
    for (std::size_t line = 0; line < 2 * tile * panel_bytes / 64; ++line) {
      const std::size_t in_run = line * 64 % (step * panel_bytes);
      const bool first = line * 64 < tile * panel_bytes && in_run < kAhead;
      ASSERT_EQ(asked[line], first ? 0 : 1) << line;
    }
  }
}

TEST(PanelAsks, RunsAreSome32KiBWhereThereAreSoManyPanels) {
  LinearBlock block{};
  block.panel_bytes = 8448;
  EXPECT_EQ(Asks::run_length(block, 100), 4U);
  EXPECT_EQ(Asks::run_length(block, 3), 3U);
  EXPECT_EQ(Asks::run_length(block, 1), 1U);
  block.panel_bytes = 16512;
  EXPECT_EQ(Asks::run_length(block, 100), 2U);
  block.panel_bytes = 1 << 20;
  EXPECT_EQ(Asks::run_length(block, 100), 1U);
  block.panel_bytes = 8448;
  for (const ReadOrder order : {ReadOrder::kNextTile, ReadOrder::kOneStream}) {
    block.read_order = order;
    EXPECT_EQ(Asks::run_length(block, 100), 1U) << "as that order has it";
  }
}

TEST(PanelAsks, OneGroupAsksInTheOrderOfMemory) {
  LinearBlock block{};
  const std::vector<std::byte> memory(8 * kPanelBytes);
  block.weight = memory.data();
  block.panel_bytes = kPanelBytes;
  block.panel_end = 8;
  block.read_order = ReadOrder::kNextTile;
  const Asks::Ahead ahead = Asks::ahead_of<4>(block, 0, 0, 1);
  EXPECT_EQ(ahead.from, block.weight + 4 * kPanelBytes);
  EXPECT_EQ(ahead.panel_step, 64U);
  EXPECT_EQ(ahead.line_step, 4 * 64U);
}

TEST(PanelAsks, OnlyTilesThatFitAreAskedForInOrder) {
  LinearBlock block{};
  block.read_order = ReadOrder::kNextTile;
  block.panel_bytes = Asks::kPanelsBytesMost / 2;
  EXPECT_TRUE(Asks::next_in_order<2>(block));
  EXPECT_FALSE(Asks::next_in_order<4>(block));
  for (const ReadOrder order : {ReadOrder::kSideBySide, ReadOrder::kOneStream}) {
    block.read_order = order;
    EXPECT_FALSE(Asks::next_in_order<2>(block));
  }
}

}  // namespace
}  // namespace tandem::kernels::cpu
