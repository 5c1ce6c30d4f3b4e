// A product of one row with bf16 weights in vectors, with the sums of the tile unit.
//
// Idea: such a product takes the time of reading its weight, and vectors need no copy of it in the
// first level of caches, as tiles do (some_rows.h). So the unit's products are made by fused
// multiply-adds: per 32 k a chain over the even and one over the odd k of each output, from zero,
// and their sum goes onto C. Subnormals count as zero meanwhile (V::begin_flushing). The bits are
// those of the tiles that more rows take. Two rows and more are faster on tiles.
//
// Lines of kShortBf16 become plain ones in registers, but for steps with patches, which are rare.
//
// Bound: memory bandwidth.
#pragma once

#include "kernels/cpu/amx/tiles.h"

namespace tandem::kernels::cpu {

/// W is the kind of bf16 weights, see linear.h.
template <class V, class W>
class OneRow {
  using Vec = typename V::Vec;

 public:
  /// More inputs do not fit into the scratch.
  static constexpr std::size_t kMostK = 28 * 1024;

  static void run(const LinearBlock& block) {
    OneRow row(block);
    if (!block.packed) row.pack();
    std::size_t panel = block.panel_begin;
    for (; panel + kWide <= block.panel_end; panel += kWide)
      row.template run_panels<kWide>(panel);
    for (; panel < block.panel_end; ++panel)
      row.template run_panels<1>(panel);
  }

 private:
  static constexpr std::size_t kStepK = W::kStepK;
  /// Whether B tiles are made of what lies in memory.
  static constexpr bool kMakes = W::kMadeOf != kTileBytes;
  using Tiles = PanelTiles<V, W>;
  static constexpr std::size_t kStepLines = kTileHeight;
  static_assert(kStepLines * 2 == kStepK, "a line is a pair of k");
  /// Panels side by side: four streams are read fastest.
  static constexpr std::size_t kWide = 4;
  static constexpr std::size_t kAheadSteps =
      kMakes ? 4 : PanelAsks<V>::template kAheadBytes<kWide> / W::kMadeOf;
  /// Scratch: the row as tiles have it, as f32, sums of panels, B tiles that are made.
  static constexpr std::size_t kXAt = kMostK * 2;
  static constexpr std::size_t kSumsAt = kXAt + kMostK * 4;
  static constexpr std::size_t kMadeAt = kSumsAt + kWide * kTileRowBytes;
  static_assert(kMadeAt + kWide * kTileBytes <= kRowsBytes);

  explicit OneRow(const LinearBlock& block)
      : block_(block),
        steps_(PanelTiles<V, W>::steps(block.k)),
        base_(reinterpret_cast<std::byte*>(block.scratch)),
        x_(reinterpret_cast<float*>(base_ + kXAt)),
        sums_(reinterpret_cast<float*>(base_ + kSumsAt)) {}

  /// x as tiles round it.
  void pack() {
    W::pack(block_, 0, steps_, {base_, kTileRowBytes}, 0);
    for (std::size_t i = 0; i < steps_ * kStepK; i += 16)
      V::store(x_ + i, V::load_bf16(base_ + i * 2));
  }

  template <std::size_t P>
  void run_panels(std::size_t panel) {
    const float* y = Linear<V>::y_row(block_, 0) + panel * kPanel;
    for (std::size_t p = 0; p < P; ++p)
      __builtin_prefetch(y + p * kPanel, 1);
    const std::uint32_t before = V::begin_flushing();
    sum<P>(panel);
    V::end_flushing(before);
    for (std::size_t p = 0; p < P; ++p) {
      const auto* sums = reinterpret_cast<const std::byte*>(sums_ + p * kPanel);
      Linear<V>::finish(block_, 0, panel + p, W::outputs(block_, 0, panel + p, sums, 0));
    }
  }

  /// C of P panels to [P][16].
  template <std::size_t P>
  inline __attribute__((always_inline)) void sum(std::size_t panel) const {
    const std::byte* weight = block_.weight + panel * block_.panel_bytes;
    const std::byte* then = PanelAsks<V>::panels_behind(block_, panel + P);
    const float* x = x_;
    Vec c[P];
    clear(c);
    const ShortPatch* patches[P];
    if constexpr (W::kPatches) {
      for (std::size_t p = 0; p < P; ++p)
        patches[p] = ShortBf16<V>::patches(weight + p * block_.panel_bytes, steps_);
    }
    for (std::size_t step = 0; step < steps_; ++step) {
      const bool inside = step + kAheadSteps < steps_;
      const std::size_t ahead = inside ? step + kAheadSteps : step + kAheadSteps - steps_;
      const std::byte* ask = (inside ? weight : then) + W::at(ahead);
      const std::size_t left = block_.k - step * kStepK;
      const std::byte* from = weight + W::at(step);
      std::size_t apart = block_.panel_bytes;
      if constexpr (kMakes) {
        if (ahead == 0) {
          for (std::size_t p = 0; p < P; ++p)
            ShortBf16<V>::ask(then + p * block_.panel_bytes, steps_);
        }
        if (left >= kStepK && !is_due<P>(patches, step)) {
          add_units<P>(x, weight, step, ask, c);
          x += kStepK;
          continue;
        }
        make_step<P>(weight, step, ask, patches);
        from = base_ + kMadeAt;
        apart = kTileBytes;
      }
      if (left > kStepK) {
        add_lines<P, true>(x, from, apart, ask, kStepLines, c);
      } else {
        add_lines<P, false>(x, from, apart, ask, (left + 1) / 2, c);
      }
      x += kStepK;
    }
#pragma GCC unroll 4
    for (std::size_t p = 0; p < P; ++p)
      V::store(sums_ + p * kPanel, c[p]);
  }

  template <std::size_t P>
  static inline __attribute__((always_inline)) void clear(Vec (&sums)[P]) {
#pragma GCC unroll 4
    for (std::size_t p = 0; p < P; ++p)
      sums[p] = V::zero();
  }

  template <std::size_t P>
  static inline __attribute__((always_inline)) bool is_due(const ShortPatch* const (&patches)[P],
                                                           std::size_t step) {
    bool due = false;
#pragma GCC unroll 4
    for (std::size_t p = 0; p < P; ++p)
      due |= ShortBf16<V>::is_due(patches[p], step);
    return due;
  }

  /// B tiles of a step of P panels, with their patches.
  template <std::size_t P>
  __attribute__((noinline)) void make_step(const std::byte* weight,
                                           std::size_t step,
                                           const std::byte* ask,
                                           const ShortPatch* (&patches)[P]) const {
    for (std::size_t p = 0; p < P; ++p) {
      std::byte* to = base_ + kMadeAt + p * kTileBytes;
      Tiles::make(weight + p * block_.panel_bytes, step, ask + p * block_.panel_bytes, to);
      patches[p] = ShortBf16<V>::mend(patches[p], step, to);
    }
  }

  /// A line's products: of a pair of k.
  static inline __attribute__((always_inline)) void add_pair(const float* x,
                                                             typename V::Int line,
                                                             Vec& even,
                                                             Vec& odd) {
    Vec first;
    Vec second;
    V::pairs_of(line, &first, &second);
    even = V::fma(V::broadcast(x[0]), first, even);
    odd = V::fma(V::broadcast(x[1]), second, odd);
  }

  /// Adds to c the sums of a step, as add_lines does, of P panels from `weight` on without patches.
  template <std::size_t P>
  inline __attribute__((always_inline)) void add_units(const float* x,
                                                       const std::byte* weight,
                                                       std::size_t step,
                                                       const std::byte* ask,
                                                       Vec (&c)[P]) const {
    constexpr std::size_t kUnitPairs = kStepLines / Tiles::kUnits;
    Vec even[P];
    Vec odd[P];
    clear(even);
    clear(odd);
    for (std::size_t unit = 0; unit < Tiles::kUnits; ++unit, x += 2 * kUnitPairs) {
      const std::size_t at = unit * Tiles::kUnitBytes;
      for (std::size_t line = 0; line < W::kUnitLines; ++line) {
#pragma GCC unroll 4
        for (std::size_t p = 0; p < P; ++p)
          __builtin_prefetch(ask + p * block_.panel_bytes + at + line * 64, 0, 2);
      }
#pragma GCC unroll 4
      for (std::size_t p = 0; p < P; ++p) {
        const std::byte* panel = weight + p * block_.panel_bytes;
        typename V::Int lines[kUnitPairs];
        typename W::Lines{panel, step}.make(panel + W::at(step) + at, lines);
#pragma GCC unroll 4
        for (std::size_t line = 0; line < kUnitPairs; ++line)
          add_pair(x + line * 2, lines[line], even[p], odd[p]);
      }
    }
#pragma GCC unroll 4
    for (std::size_t p = 0; p < P; ++p)
      c[p] = V::add(c[p], V::add(even[p], odd[p]));
  }

  /// Adds to c the sums of a step: of P panels at `from`, `apart` bytes from each other, whose
  /// first `lines` lines are there, and inputs `x`. kMore: all of them, and something behind them.
  /// Asks into the second level of caches, since little is done for each line.
  template <std::size_t P, bool kMore>
  inline __attribute__((always_inline)) void add_lines(const float* x,
                                                       const std::byte* from,
                                                       std::size_t apart,
                                                       const std::byte* ask,
                                                       std::size_t lines,
                                                       Vec (&c)[P]) const {
    Vec even[P];
    Vec odd[P];
    clear(even);
    clear(odd);
    for (std::size_t line = 0; line < (kMore ? kStepLines : lines); ++line) {
#pragma GCC unroll 4
      for (std::size_t p = 0; p < P; ++p) {
        if constexpr (!kMakes) __builtin_prefetch(ask + p * apart + line * 64, 0, 2);
        add_pair(x + line * 2, V::int_load(from + p * apart + line * 64), even[p], odd[p]);
      }
    }
#pragma GCC unroll 4
    for (std::size_t p = 0; p < P; ++p) {
      if (!kMore && lines < kStepLines) {
        // The products of zeros behind the last k make 0 of -0.
        even[p] = V::add(even[p], V::zero());
        odd[p] = V::add(odd[p], V::zero());
      }
      c[p] = V::add(c[p], V::add(even[p], odd[p]));
    }
  }

  const LinearBlock& block_;
  std::size_t steps_;
  std::byte* base_;
  float* x_;
  float* sums_;
};

}  // namespace tandem::kernels::cpu
