// What products ask for ahead of its use: lines of panels, each beside a line that is read, for
// many at once would fill the queue of misses, and nothing would be computed until they are there.
#pragma once

#include "kernels/cpu/simd/table.h"

namespace tandem::kernels::cpu {

/// V is there so that each instruction set has an instance of its own (see table.h).
template <class V>
struct PanelAsks {
  /// Distance of the prefetch of weights for a few rows in AheadInPanels, in each of P panels
  /// side by side: the hardware alone left them at half of the memory bandwidth. 8 KiB in all,
  /// since of more than some 150 lines on their way at once processors forget some
  /// (docs/kernels.md).
  template <int P>
  static constexpr std::size_t kAheadBytes = 8192 / P;
  /// Tiles of more rows than this ask for the panels of the next tile.
  static constexpr int kFewRows = 3;
  /// As long as two tiles' panels fit into the second level of caches.
  static constexpr std::size_t kPanelsBytesMost = 256 * 1024;

  /// What a tile asks for with line number `line` of panel p: `from` + line * line_step + p *
  /// panel_step. All groups of rows together ask for the panels of the next tile: these come from
  /// memory while cached ones are multiplied, and not before.
  struct Ahead {
    const std::byte* from;
    std::size_t line_step;
    std::size_t panel_step;
  };

  /// Few rows ask further on in each panel and the one behind it, or, from `jump_at` bytes of it
  /// on, so many bytes further in the one that takes its place, unless next_in_order().
  struct AheadInPanels {
    std::size_t jump_at = 0;
    std::size_t jump = 0;
  };

  /// One panel after the other, which the processor foresees by itself.
  struct Nothing {};

  /// Whether few rows ask for the next tile of P panels in the order of memory.
  template <int P>
  static bool next_in_order(const LinearBlock& block) {
    return block.read_order == ReadOrder::kNextTile && P * block.panel_bytes <= kPanelsBytesMost;
  }

  /// Panels that follow each other in memory in each of the places that are read side by side, of
  /// `most`. Memory is slow along the first 4 to 8 KiB of a run, and fastest along runs of some 32
  /// KiB that lie near each other (docs/kernels.md); where it has an order of its own, that counts.
  static std::size_t run_length(const LinearBlock& block, std::size_t most) {
    if (block.read_order != ReadOrder::kSideBySide) return 1;
    constexpr std::size_t kRunBytes = 32 * 1024;
    const std::size_t wanted = (kRunBytes + block.panel_bytes / 2) / block.panel_bytes;
    return wanted < 1 ? 1 : wanted < most ? wanted : most;
  }

  /// Of P panels in runs; `last`: of those.
  template <int P>
  static AheadInPanels ahead_in_panels(const LinearBlock& block, bool last) {
    if (!last) return {};
    const std::size_t ahead = kAheadBytes<P>;
    return {.jump_at = block.panel_bytes > ahead ? block.panel_bytes - ahead : 0,
            .jump = (P - 1) * block.panel_step * block.panel_bytes};
  }

  /// How far ahead of byte `at` of P panels that is.
  template <int P>
  static inline __attribute__((always_inline)) std::size_t bytes_ahead(const AheadInPanels& ahead,
                                                                       std::size_t at) {
    return kAheadBytes<P> + (at >= ahead.jump_at ? ahead.jump : 0);
  }

  /// For line number `line` of P panels, the first of which begins at `weight` and the others
  /// `apart` bytes from each other; the line is `at` bytes from there.
  template <int R, int P>
  static inline __attribute__((always_inline)) void ask(const Ahead& ahead,
                                                        std::size_t line,
                                                        std::size_t /*apart*/,
                                                        const std::byte* /*weight*/,
                                                        std::size_t /*at*/) {
    const std::byte* from = ahead.from + line * ahead.line_step;
#pragma GCC unroll 8
    for (int p = 0; p < P; ++p) {
      // Few rows: 1 to 3 % sooner than into the second level (Zen 5).
      if constexpr (R <= kFewRows) {
        __builtin_prefetch(from + static_cast<std::size_t>(p) * ahead.panel_step);
      } else {
        __builtin_prefetch(from + static_cast<std::size_t>(p) * ahead.panel_step, 0, 2);
      }
    }
  }

  template <int R, int P>
  static inline __attribute__((always_inline)) void ask(const AheadInPanels& ahead,
                                                        std::size_t /*line*/,
                                                        std::size_t apart,
                                                        const std::byte* weight,
                                                        std::size_t at) {
    const std::byte* own = weight + at + bytes_ahead<P>(ahead, at);
#pragma GCC unroll 8
    for (int p = 0; p < P; ++p)
      __builtin_prefetch(own + static_cast<std::size_t>(p) * apart, 0, 2);
  }

  template <int R, int P>
  static inline __attribute__((always_inline)) void ask(const Nothing& /*ahead*/,
                                                        std::size_t /*line*/,
                                                        std::size_t /*apart*/,
                                                        const std::byte* /*weight*/,
                                                        std::size_t /*at*/) {}

  /// A line that ask() leaves out, since headers lie between lines; `line`: behind all those. Few
  /// rows' alone, and into the first level of caches, where others need not be: a group cannot
  /// begin without it (2 to 3 %).
  template <int R, int P>
  static inline __attribute__((always_inline)) void ask_header(const Ahead& ahead,
                                                               std::size_t line,
                                                               std::size_t apart,
                                                               const std::byte* weight,
                                                               std::size_t at) {
    if constexpr (R <= kFewRows) ask<R, P>(ahead, line, apart, weight, at);
  }

  template <int R, int P>
  static inline __attribute__((always_inline)) void ask_header(const AheadInPanels& ahead,
                                                               std::size_t /*line*/,
                                                               std::size_t apart,
                                                               const std::byte* weight,
                                                               std::size_t at) {
    if constexpr (R <= kFewRows) {
      const std::byte* own = weight + at + bytes_ahead<P>(ahead, at);
#pragma GCC unroll 8
      for (int p = 0; p < P; ++p)
        __builtin_prefetch(own + static_cast<std::size_t>(p) * apart);
    }
  }

  template <int R, int P>
  static inline __attribute__((always_inline)) void ask_header(const Nothing& /*ahead*/,
                                                               std::size_t /*line*/,
                                                               std::size_t /*apart*/,
                                                               const std::byte* /*weight*/,
                                                               std::size_t /*at*/) {}

  /// The last lines of the next tile: a panel has so many more than are asked for beside its
  /// elements, a header before them or a gap behind.
  template <int R, int P>
  static inline __attribute__((always_inline)) void ask_rest(const Ahead& ahead,
                                                             std::size_t panel_bytes) {
    static_assert(kByteHeaderBytes == kPanelGapBytes);
    for (std::size_t line = 1; line <= kByteHeaderBytes / 64; ++line)
      ask_header<R, P>(ahead, panel_bytes / 64 - line, panel_bytes, nullptr, 0);
  }

  /// Nothing is left.
  template <int R, int P, class A>
  static inline __attribute__((always_inline)) void ask_rest(const A& /*ahead*/,
                                                             std::size_t /*panel_bytes*/) {}

  /// What a group of rows asks for while it multiplies a cut of k, some in each of its steps. Not
  /// beside every k: there a line that is asked for takes the place of a load, and of loads such a
  /// loop has no more than it needs.
  struct Part {
    const std::byte* from;
    std::size_t step_bytes;

    void ask(std::size_t step) const {
      for_lines(step, [](const std::byte* line) { __builtin_prefetch(line, 0, 2); });
    }

    /// fn(somewhere in it) for the lines of a step.
    template <class Fn>
    void for_lines(std::size_t step, Fn fn) const {
      for (std::size_t at = step * step_bytes; at < (step + 1) * step_bytes; at += 64)
        fn(from + at);
    }
  };

  /// Of group `group` of `groups`, which together ask for what the next cut is made of if this one
  /// has `steps`; a shorter one asks for less.
  static Part part_of(const std::byte* next,
                      std::size_t bytes,
                      std::size_t group,
                      std::size_t groups,
                      std::size_t steps) {
    return {.from = next + bytes * group / groups,
            .step_bytes = (bytes + groups * steps - 1) / (groups * steps)};
  }

  /// What is read from `panel` on.
  static const std::byte* panels_behind(const LinearBlock& block, std::size_t panel) {
    if (panel >= block.panel_end && block.next != nullptr) return block.next;
    return block.weight + panel * block.panel_bytes;
  }

  /// Of group `group` of `groups` of rows of the tile at `panel`: what it asks for beside the lines
  /// of P panels.
  template <int P>
  static Ahead ahead_of(const LinearBlock& block,
                        std::size_t panel,
                        std::size_t group,
                        std::size_t groups) {
    const std::size_t bytes = P * block.panel_bytes;
    if (bytes > kPanelsBytesMost) {
      return {.from = block.weight + panel * block.panel_bytes + kAheadBytes<P>,
              .line_step = 64,
              .panel_step = block.panel_bytes};
    }
    const std::byte* next = panels_behind(block, panel + P);
    const std::size_t step = (63 + groups) / groups;
    if (block.read_order == ReadOrder::kNextTile) {
      return {.from = next + group * bytes / groups, .line_step = P * step, .panel_step = step};
    }
    return {.from = next + group * block.panel_bytes / groups,
            .line_step = step,
            .panel_step = block.panel_bytes};
  }
};

}  // namespace tandem::kernels::cpu
