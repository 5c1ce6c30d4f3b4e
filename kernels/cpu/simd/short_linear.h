// Y = X W^T on panels of WeightScheme::kShortBf16 (short_bf16.h), in vectors.
//
// Idea: a group of rows takes lines of a panel as they become plain ones in registers, so that a
// product reads three quarters of the bytes and writes none. Where there are several groups, one of
// them leaves the lines in scratch for the others, a cut of k at a time if they do not fit; where
// kCuts, the lines of a cut are made before, for all groups (float_cuts.h). Either way the
// products and their order are those of the tile of plain bf16, and so are the bits. Bound: as that
// tile's, with 12 bits to read for each weight.
#pragma once

#include "kernels/cpu/simd/float_cuts.h"
#include "kernels/cpu/simd/short_bf16.h"

namespace tandem::kernels::cpu {

/// Plain is the tile of plain bf16: Linear::FloatTile or Bf16Tile.
template <class V, class Plain>
struct ShortTile {
  using Vec = typename V::Vec;
  using Int = typename V::Int;

  static void run(const LinearBlock& block) {
    if (block.rows == 0) return;
    if (!block.packed) Plain::pack(block);
    std::size_t panel = block.panel_begin;
    if constexpr (kCuts) {
      if (block.rows > kFewOfCuts) {
        return FloatCuts<V, ShortTile>::run(block);
      }
    }
    if (side_by_side(block)) {
      for (; panel + kWide <= block.panel_end; panel += kWide)
        run_panels<kSideBySide>(block, panel);
    }
    for (; panel < block.panel_end; ++panel)
      run_panels<1>(block, panel);
  }

  // For FloatCuts:

  static constexpr bool kLines = true;

  /// Asks for what a panel that comes next has beside its lines.
  static void ask_beside(const LinearBlock& block, const std::byte* panel) {
    ShortBf16<V>::ask(panel, short_steps(block.k));
  }

  /// Bytes from a panel's beginning to k, the first of a step.
  static constexpr std::size_t at(std::size_t k) { return step_at(k / kShortStepK); }

  static const std::byte* make(const LinearBlock& block,
                               const std::byte* panel,
                               std::size_t begin,
                               std::size_t count,
                               std::byte* room) {
    const std::size_t steps = short_steps(block.k);
    const ShortPatch* patch = ShortBf16<V>::patches_from(panel, steps, begin / kShortStepK);
    const std::size_t end = (begin + count + kShortStepK - 1) / kShortStepK;
    std::byte* to = room;
    for (std::size_t step = begin / kShortStepK; step < end; ++step, to += kPlainStepBytes) {
      make_step(typename ShortBf16<V>::Table(panel), panel, step, to);
      patch = ShortBf16<V>::mend(patch, step, to);
    }
    return room;
  }

  static Vec output(const std::byte* /*panel*/, Vec sum) { return sum; }

 private:
  static constexpr std::size_t kUnits = kShortStepK / 8;
  static constexpr std::size_t kUnitBytes = kShortUnitLines * 64;
  static constexpr std::size_t kUnitPairs = 4;
  static constexpr std::size_t kStepLines = kUnits * kUnitPairs;

  /// Whether panels are read side by side. One panel alone, asked for all the same, comes faster
  /// for ReadOrder::kOneStream, and a row's chain of pairs nearly keeps up with it.
  static bool side_by_side(const LinearBlock& block) {
    if (kCuts) return block.rows == 1;
    return !V::kBf16Pairs || block.rows > 1 || block.read_order != ReadOrder::kOneStream;
  }

  /// Rows that are one group, or two whose lines are made twice.
  static constexpr bool are_few(std::size_t rows) { return rows <= 8 || rows == V::kRowStep; }

  /// Whether more rows than kFewOfCuts have the lines of a cut made once for all of them.
  static constexpr bool kCuts = V::kCuts && Plain::kCuts;
  static constexpr std::size_t kFewOfCuts = 4;
  static_assert(FloatCuts<V, ShortTile>::kCutK % kShortStepK == 0);
  /// Where kCuts, of one row alone, for more chains.
  static constexpr int kSideBySide = kCuts ? 2 : V::kWidePanels;
  static constexpr auto kWide = static_cast<std::size_t>(kSideBySide);
  /// Steps ahead of which the lines of P panels are asked for: 12 KiB on their way.
  template <int P>
  static constexpr std::size_t kAheadSteps = 16 / P;
  /// Scratch, in floats: rows, and a line that packing them may overwrite; sums; plain panels.
  /// Behind kTilesRoom others have theirs.
  static constexpr std::size_t kSumsAt = (Plain::kRowFloats / kPanel + 2) * kPanel;
  static constexpr std::size_t kMadeAt = kSumsAt + kMostRows * kWide * kPanel;
  static constexpr std::size_t kMadeBytes = kTilesRoom - kMadeAt * sizeof(float);
  static constexpr std::size_t kMadeFit = kMadeBytes / kWide / kPlainStepBytes - 1;
  /// Steps of a cut: what is made and what comes next lie in the second level of caches.
  static constexpr std::size_t kMadeMost = PanelAsks<V>::kPanelsBytesMost / kWide / kPlainStepBytes;
  static constexpr std::size_t kMadeSteps = kMadeFit < kMadeMost ? kMadeFit : kMadeMost;

  /// Bytes from a panel's beginning to a step.
  static constexpr std::size_t step_at(std::size_t step) {
    return kShortHeaderBytes + step * kShortStepBytes;
  }

  static inline __attribute__((always_inline)) void make_step(
      const typename ShortBf16<V>::Table& table,
      const std::byte* panel,
      std::size_t step,
      std::byte* to) {
    const std::byte* from = panel + step_at(step);
    for (std::size_t unit = 0; unit < kUnits; ++unit)
      table.make(from + unit * kUnitBytes, to + unit * kUnitPairs * 64);
  }

  /// The first step that a patch is for, or `end`.
  template <int P>
  static inline __attribute__((always_inline)) std::size_t first_due(
      const ShortPatch* const (&patches)[P], std::size_t end) {
#pragma GCC unroll 4
    for (int p = 0; p < P; ++p) {
      const std::size_t due = ShortBf16<V>::step_of(*patches[p]);
      end = due < end ? due : end;
    }
    return end;
  }

  /// Steps of P panels, and what is asked for while they are read.
  struct Lines {
    const std::byte* weight;  ///< the first panel
    std::size_t apart;        ///< bytes from one panel to the next
    std::size_t k;
    std::size_t begin;  ///< step
    std::size_t end;
    /// The first panel that is read then. Where lines are kept: what comes next, of which so many
    /// bytes are asked for with each line.
    const std::byte* next;
    std::size_t next_step;
    std::byte* made;     ///< where they are kept
    bool next_in_order;  ///< see PanelAsks
  };

  /// Adds the products of R rows with P panels to acc. kKeep: the plain lines stay in `made`.
  template <int R, int P, bool kKeep, class X>
  static inline __attribute__((always_inline)) void add_direct(Lines from, X x, Vec (&acc)[R][P]) {
    const std::size_t steps = short_steps(from.k);
    const ShortPatch* patches[P];
#pragma GCC unroll 4
    for (std::size_t p = 0; p < static_cast<std::size_t>(P); ++p)
      patches[p] = ShortBf16<V>::patches_from(from.weight + p * from.apart, steps, from.begin);
    const std::size_t whole = from.k / kShortStepK < from.end ? from.k / kShortStepK : from.end;
    for (std::size_t step = from.begin; step < from.end; ++step) {
      // Nothing is called in here, so that sums stay in registers.
      for (const std::size_t stop = first_due<P>(patches, whole); step < stop; ++step) {
        add_units<R, P, kKeep, false>(
            x, from, step, lines_ahead<P, kKeep>(from, step, steps), patches, acc);
        x = Plain::template x_behind<R>(x, kShortStepK);
      }
      if (step == from.end) break;
      const auto ask = lines_ahead<P, kKeep>(from, step, steps);
      if (step < whole) {
        add_units<R, P, kKeep, true>(x, from, step, ask, patches, acc);
        x = Plain::template x_behind<R>(x, kShortStepK);
        continue;
      }
      // A last one that is not whole.
      for (std::size_t unit = 0; unit < kUnits; ++unit)
        ask_unit<P, kKeep>(from, unit, ask);
      alignas(64) std::byte room[kKeep ? 64 : P * kPlainStepBytes];
      std::byte* made = kKeep ? made_at(from, step) : room;
      const std::size_t apart = kKeep ? made_apart(from) : kPlainStepBytes;
      mend_step<P>(from.weight, from.apart, step, patches, made, apart);
      const auto nothing = [](std::size_t, std::size_t) __attribute__((always_inline)){};
      const std::size_t left = from.k - step * kShortStepK;
      Plain::template add<R, P>(
          x, made, apart, left < kShortStepK ? left : kShortStepK, nothing, acc);
      x = Plain::template x_behind<R>(x, kShortStepK);
    }
  }

  /// Where the lines that are asked for beside a step of P panels begin: P runs, each as long as a
  /// step of one panel; with kKeep one place, from which Lines::next_step leads on.
  template <int P, bool kKeep>
  struct Asked {
    const std::byte* at[kKeep ? 1 : P];
  };

  template <int P, bool kKeep>
  static inline __attribute__((always_inline)) Asked<P, kKeep> lines_ahead(const Lines& from,
                                                                           std::size_t step,
                                                                           std::size_t steps) {
    if constexpr (kKeep) {
      return {{from.next + (step - from.begin) * kStepLines * from.next_step}};
    } else {
      constexpr auto kPanels = static_cast<std::size_t>(P);
      // The next panels in the order of memory; or what comes in each of these.
      const bool in_order = from.next_in_order;
      const bool inside = step + kAheadSteps<P> < steps;
      const std::size_t ahead = inside ? step + kAheadSteps<P> : step + kAheadSteps<P> - steps;
      if (in_order ? step == 0 : ahead == 0) {
        for (std::size_t p = 0; p < kPanels; ++p)
          ShortBf16<V>::ask(from.next + p * from.apart, steps);
      }
      Asked<P, kKeep> asked;
#pragma GCC unroll 4
      for (std::size_t p = 0; p < kPanels; ++p) {
        const std::size_t place = step * kPanels + p;
        asked.at[p] = in_order
                          ? from.next + place / steps * from.apart + step_at(place % steps)
                          : (inside ? from.weight : from.next) + p * from.apart + step_at(ahead);
      }
      return asked;
    }
  }

  template <int P, bool kKeep>
  static inline __attribute__((always_inline)) void ask_unit(const Lines& from,
                                                             std::size_t unit,
                                                             const Asked<P, kKeep>& asked) {
    if constexpr (kKeep) {
#pragma GCC unroll 4
      for (std::size_t line = unit * kUnitPairs; line < (unit + 1) * kUnitPairs; ++line) {
#pragma GCC unroll 4
        for (std::size_t p = 0; p < static_cast<std::size_t>(P); ++p)
          __builtin_prefetch(asked.at[0] + p * from.apart + line * from.next_step, 0, 2);
      }
    } else {
      constexpr std::size_t kStep = kUnits * kShortUnitLines;
      constexpr std::size_t kLines = P * kShortUnitLines;
      static_assert(kStep % kLines == 0);
      // One place and constants behind it: a division a line is felt in each of them.
      const std::size_t line = unit * kLines;
      const std::byte* at = asked.at[line / kStep] + line % kStep * 64;
      const auto ask_into = [&]<int kLocality>() __attribute__((always_inline)) {
#pragma GCC unroll 16
        for (std::size_t i = 0; i < kLines; ++i)
          __builtin_prefetch(at + i * 64, 0, kLocality);
      };
      // The second level of caches; the first where the order is that of memory.
      from.next_in_order ? ask_into.template operator()<3>() : ask_into.template operator()<2>();
    }
  }

  static std::byte* made_at(const Lines& from, std::size_t step) {
    return from.made + (step - from.begin) * kPlainStepBytes;
  }

  /// From one plain panel to the next, see kPanelGapBytes.
  static std::size_t made_apart(const Lines& from) {
    return (from.end - from.begin) * kPlainStepBytes + kPanelGapBytes;
  }

  template <int P>
  __attribute__((noinline)) static void mend_step(const std::byte* weight,
                                                  std::size_t apart,
                                                  std::size_t step,
                                                  const ShortPatch* (&patches)[P],
                                                  std::byte* made,
                                                  std::size_t made_apart) {
    for (std::size_t p = 0; p < static_cast<std::size_t>(P); ++p) {
      const std::byte* panel = weight + p * apart;
      make_step(typename ShortBf16<V>::Table(panel), panel, step, made + p * made_apart);
      patches[p] = ShortBf16<V>::mend(patches[p], step, made + p * made_apart);
    }
  }

  /// Of a whole step; kPatched: some lines of which are mended.
  template <int R, int P, bool kKeep, bool kPatched, class X>
  static inline __attribute__((always_inline)) void add_units(X x,
                                                              const Lines& from,
                                                              std::size_t step,
                                                              const Asked<P, kKeep>& ask,
                                                              const ShortPatch* (&patches)[P],
                                                              Vec (&acc)[R][P]) {
    for (std::size_t unit = 0; unit < kUnits; ++unit) {
      ask_unit<P, kKeep>(from, unit, ask);
      add_half<R, P, kKeep, kPatched, 0>(x, from, step, unit, patches, acc);
      add_half<R, P, kKeep, kPatched, 1>(
          Plain::template x_behind<R>(x, kUnitPairs), from, step, unit, patches, acc);
      x = Plain::template x_behind<R>(x, kUnitPairs * 2);
    }
  }

  /// Two lines of each panel.
  template <int R, int P, bool kKeep, bool kPatched, int kHalf, class X>
  static inline __attribute__((always_inline)) void add_half(X x,
                                                             const Lines& from,
                                                             std::size_t step,
                                                             std::size_t unit,
                                                             const ShortPatch* (&patches)[P],
                                                             Vec (&acc)[R][P]) {
    Int lines[2][P];
#pragma GCC unroll 4
    for (std::size_t p = 0; p < static_cast<std::size_t>(P); ++p) {
      const std::byte* panel = from.weight + p * from.apart;
      const std::byte* own = panel + step_at(step) + unit * kUnitBytes;
      typename ShortBf16<V>::Table(panel).template make_half<kHalf>(
          own, &lines[0][p], &lines[1][p]);
      if constexpr (kPatched) {
        patches[p] =
            ShortBf16<V>::mend_half(patches[p], step, unit * 2 + kHalf, &lines[0][p], &lines[1][p]);
      }
      if constexpr (kKeep) {
        std::byte* to =
            made_at(from, step) + p * made_apart(from) + (unit * kUnitPairs + kHalf * 2) * 64;
        V::int_store(to, lines[0][p]);
        V::int_store(to + 64, lines[1][p]);
      }
      if constexpr (kCuts && R == 1) {
        // Panel by panel: few registers.
        Vec sum[1][1] = {{acc[0][p]}};
        const Int first[1] = {lines[0][p]};
        const Int second[1] = {lines[1][p]};
        Plain::template add_line<1, 1>(x, first, sum);
        Plain::template add_line<1, 1>(Plain::template x_behind<1>(x, 2), second, sum);
        acc[0][p] = sum[0][0];
      }
    }
    if constexpr (!kCuts || R > 1) {
      Plain::template add_line<R, P>(x, lines[0], acc);
      Plain::template add_line<R, P>(Plain::template x_behind<R>(x, 2), lines[1], acc);
    }
  }

  /// All groups of rows against panels [panel, panel + P).
  template <int P>
  static void run_panels(const LinearBlock& block, std::size_t panel) {
    const std::size_t steps = short_steps(block.k);
    Lines lines = {.weight = block.weight + panel * block.panel_bytes,
                   .apart = block.panel_bytes,
                   .k = block.k,
                   .begin = 0,
                   .end = steps,
                   .next = PanelAsks<V>::panels_behind(block, panel + P),
                   .next_step = 0,
                   .made = reinterpret_cast<std::byte*>(block.scratch + kMadeAt),
                   .next_in_order = PanelAsks<V>::template next_in_order<P>(block)};
    if (kCuts || are_few(block.rows)) {
      Linear<V>::for_groups(block, [&](std::size_t row, std::size_t rows) {
        Linear<V>::with_rows(rows, [&]<int R>() {
          // Where kCuts, 2 to kFewOfCuts rows come panel by panel, more not at all.
          constexpr bool kTaken = !kCuts || R == 1 || (R <= kFewOfCuts && P == 1);
          if constexpr (kTaken) run_tile<R, P, Takes::kPanels>(block, row, panel, lines);
        });
      });
      return;
    }
    if constexpr (!kCuts) run_in_cuts<P>(block, panel, lines);
  }

  /// With some groups of rows, of which one keeps plain lines for the others.
  template <int P>
  static void run_in_cuts(const LinearBlock& block, std::size_t panel, Lines lines) {
    const std::size_t steps = short_steps(block.k);
    for (std::size_t p = 0; p < static_cast<std::size_t>(P); ++p)
      ShortBf16<V>::ask(lines.next + p * lines.apart, steps);
    const std::size_t cuts = (steps + kMadeSteps - 1) / kMadeSteps;
    const std::size_t each = (steps + cuts - 1) / cuts;
    for (; lines.begin < steps; lines.begin = lines.end) {
      lines.end = lines.begin + each < steps ? lines.begin + each : steps;
      run_cut<P>(block, panel, each, lines);
    }
  }

  /// `lines` of a cut: one group of rows keeps them, the others take what it kept. What is read
  /// next comes from memory meanwhile, a part of it for each group.
  template <int P>
  static void run_cut(const LinearBlock& block,
                      std::size_t panel,
                      std::size_t steps_each,
                      Lines lines) {
    std::size_t groups = 0;
    // Few sums leave more registers to what makes lines: 8 rows do it at half of what 12 pay.
    std::size_t keeper = 0;
    Linear<V>::for_groups(block, [&](std::size_t row, std::size_t rows) {
      ++groups;
      if (rows == 8) keeper = row;
    });
    const std::size_t left = short_steps(block.k) - lines.end;
    const std::size_t next_steps = left == 0 || left > steps_each ? steps_each : left;
    const std::size_t part = next_steps * kShortStepBytes / groups;
    lines.next = (left == 0 ? lines.next : lines.weight) + step_at(left == 0 ? 0 : lines.end);
    lines.next_step = (kShortStepBytes / kStepLines + groups - 1) / groups;
    Linear<V>::for_groups(block, [&](std::size_t row, std::size_t rows) {
      if (row != keeper) return;
      Linear<V>::with_rows(
          rows, [&]<int R>() { run_tile<R, P, Takes::kPanelsAndKeeps>(block, row, panel, lines); });
    });
    Linear<V>::for_groups(block, [&](std::size_t row, std::size_t rows) {
      if (row == keeper) return;
      lines.next += part;
      Linear<V>::with_rows(
          rows, [&]<int R>() { run_tile<R, P, Takes::kKept>(block, row, panel, lines); });
    });
  }

  enum class Takes {
    kPanels,
    kPanelsAndKeeps,
    kKept
  };

  /// Sums wait in memory from cut to cut.
  template <int R, int P, Takes kTakes>
  static void run_tile(const LinearBlock& block,
                       std::size_t row,
                       std::size_t panel,
                       const Lines& lines) {
    float* sums = block.scratch + kSumsAt + row * kWide * kPanel;
    const bool last = lines.end == short_steps(lines.k);
    if (last) Linear<V>::template ask_outputs<R, P>(block, row, panel);
    Vec acc[R][P];
    if (lines.begin == 0) {
      Linear<V>::template clear<R, P>(acc);
    } else {
#pragma GCC unroll 16
      for (int r = 0; r < R; ++r) {
#pragma GCC unroll 8
        for (int p = 0; p < P; ++p)
          acc[r][p] = V::load(sums + (r * P + p) * kPanel);
      }
    }
    const auto x = Plain::template x_at<R>(block, row, lines.begin * kShortStepK);
    if constexpr (kTakes == Takes::kKept) {
      const std::size_t end = last ? lines.k : lines.end * kShortStepK;
      const auto ask = [&](std::size_t line, std::size_t) __attribute__((always_inline)) {
#pragma GCC unroll 4
        for (std::size_t p = 0; p < static_cast<std::size_t>(P); ++p)
          __builtin_prefetch(lines.next + p * lines.apart + line * lines.next_step, 0, 2);
      };
      Plain::template add<R, P>(
          x, lines.made, made_apart(lines), end - lines.begin * kShortStepK, ask, acc);
    } else {
      add_direct<R, P, kTakes == Takes::kPanelsAndKeeps>(lines, x, acc);
    }
    if (last) {
      // A copy, so that acc need not be in memory.
      Vec copy[R * P];
      Linear<V>::template put<R, P>(acc, copy);
      return Linear<V>::template finish_tile<R, P>(block, row, panel, copy);
    }
#pragma GCC unroll 16
    for (int r = 0; r < R; ++r) {
#pragma GCC unroll 8
      for (int p = 0; p < P; ++p)
        V::store(sums + (r * P + p) * kPanel, acc[r][p]);
    }
  }
};

}  // namespace tandem::kernels::cpu
