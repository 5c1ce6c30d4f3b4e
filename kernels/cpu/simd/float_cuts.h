// Y = X W^T by FMAs where registers are few: all rows of a block against a panel, a cut of k at a
// time.
//
// Idea: what a panel holds becomes, once for all rows, what products read, and stays in the first
// level of caches meanwhile; a group of rows keeps its sums in registers for a cut, and in memory
// from cut to cut. bf16 is read as lines of pairs of k, as panels have them (those of 12 bits are
// made such lines): widening takes an operation for 8 weights of a group, of units that do not
// multiply, and as lines they take half of the loads that floats do, and of the stores if they are
// made. The order of sums is that of linear.h. Bound: FMAs; 6 rows: 12 for 2 loads and 6
// broadcasts.
#pragma once

#include "kernels/cpu/simd/linear.h"

namespace tandem::kernels::cpu {

/// T: a tile of Linear with
///   kLines     whether a cut is lines of bf16 pairs of k, [pair][16 outputs][2], or floats,
///   [k][16] at(k)      bytes from a panel's beginning to k, the first of a cut make(block, panel,
///   begin, count, room)   where a cut is: in the panel itself, or in `room`, which
///              has kCutK floats for each of 16 outputs
///   output(panel, sum)
/// and, where panels have more than what cuts are made of, ask_beside(block, panel).
template <class V, class T>
struct FloatCuts {
  using Vec = typename V::Vec;
  using Base = Linear<V>;
  using Asks = PanelAsks<V>;

  static constexpr std::size_t kCutK = 256;  ///< k of a cut
  static constexpr std::size_t kAskK = 8;    ///< those that lines are asked for at once beside

  static void run(const LinearBlock& block) {
    for (std::size_t panel = block.panel_begin; panel < block.panel_end; ++panel)
      run_panel(block, panel);
  }

 private:
  /// Those that are multiplied at once, and the bytes of one where it was made.
  static constexpr std::size_t kStepK = T::kLines ? 2 : 1;
  static constexpr std::size_t kMadeBytes = kPanel * (T::kLines ? 2 : sizeof(float));

  /// A cut of a panel, and what is asked for while it is multiplied.
  struct Cut {
    const std::byte* made;     ///< [k][16 outputs] floats or, with kLines, [pair of k][16][2] bf16
    std::size_t begin;         ///< of k
    std::size_t count;         ///< of k
    typename Asks::Part next;  ///< this group's part of what the next cut is made of
  };

  static void run_panel(const LinearBlock& block, std::size_t panel) {
    std::size_t groups = 0;
    Base::for_groups(block, [&](std::size_t, std::size_t) { ++groups; });
    const std::byte* weight = block.weight + panel * block.panel_bytes;
    const std::byte* behind = Asks::panels_behind(block, panel + 1);
    if constexpr (requires { &T::ask_beside; }) T::ask_beside(block, behind);
    float* sums = block.scratch + kPackedFloats;
    auto* room = reinterpret_cast<std::byte*>(sums + kMostRows * kPanel);
    constexpr std::size_t kBytes = T::at(kCutK) - T::at(0);
    for (std::size_t begin = 0; begin < block.k; begin += kCutK) {
      const std::size_t left = block.k - begin;
      const std::size_t count = left < kCutK ? left : kCutK;
      const std::byte* made = T::make(block, weight, begin, count, room);
      const std::byte* next = count == left ? behind : weight + T::at(begin + count);
      std::size_t group = 0;
      Base::for_groups(block, [&](std::size_t row, std::size_t rows) {
        const Cut cut = {.made = made,
                         .begin = begin,
                         .count = count,
                         .next = Asks::part_of(next, kBytes, group++, groups, kCutK / kAskK)};
        Base::with_rows(rows,
                        [&]<int R>() { multiply<R>(block, row, panel, cut, sums + row * kPanel); });
      });
    }
  }

  /// R packed rows against a cut; `sums`: [R][16].
  template <int R>
  static void multiply(
      const LinearBlock& block, std::size_t row, std::size_t panel, const Cut& cut, float* sums) {
    const float* x = block.scratch + row * block.k + cut.begin * R;
    const bool last = cut.begin + cut.count == block.k;
    if (last) Base::template ask_outputs<R, 1>(block, row, panel);
    Vec acc[R][1];
#pragma GCC unroll 16
    for (int r = 0; r < R; ++r)
      acc[r][0] = cut.begin == 0 ? V::zero() : V::load(sums + r * kPanel);
    for (std::size_t begin = 0; begin < cut.count; begin += kAskK) {
      const std::size_t end = cut.count - begin < kAskK ? cut.count : begin + kAskK;
      cut.next.ask(begin / kAskK);
      for (std::size_t i = begin; i + kStepK <= end; i += kStepK)
        add<R>(x + i * R, cut.made + i * kMadeBytes, acc);
    }
    if (T::kLines && cut.count % 2 != 0) {
      const std::size_t i = cut.count - 1;
      add_half<R, false>(x + i * R, cut.made + i * kMadeBytes, acc);
    }
    if (last) {
      Vec outputs[R];
#pragma GCC unroll 16
      for (int r = 0; r < R; ++r)
        outputs[r] = T::output(block.weight + panel * block.panel_bytes, acc[r][0]);
      return Base::template finish_tile<R, 1>(block, row, panel, outputs);
    }
#pragma GCC unroll 16
    for (int r = 0; r < R; ++r)
      V::store(sums + r * kPanel, acc[r][0]);
  }

  /// Adds the products of kStepK k.
  template <int R>
  static inline __attribute__((always_inline)) void add(const float* x,
                                                        const std::byte* made,
                                                        Vec (&acc)[R][1]) {
    if constexpr (T::kLines) {
      add_half<R, false>(x, made, acc);
      add_half<R, true>(x + R, made, acc);
    } else {
      const Vec w[1] = {V::load(reinterpret_cast<const float*>(made))};
      Base::template step<R, 1>(x, w, acc);
    }
  }

  /// Of the first or the second k of a line.
  template <int R, bool kSecond>
  static inline __attribute__((always_inline)) void add_half(const float* x,
                                                             const std::byte* line,
                                                             Vec (&acc)[R][1]) {
    if constexpr (requires { &V::add_product; }) {
      Vec w;
      if constexpr (kSecond) {
        V::load_second(line, &w);
      } else {
        V::load_first(line, &w);
      }
#pragma GCC unroll 16
      for (int r = 0; r < R; ++r)
        V::add_product(&acc[r][0], x + r, w);
    } else {
      Vec halves[2];
      V::load_pairs(line, &halves[0], &halves[1]);
      const Vec w[1] = {halves[kSecond ? 1 : 0]};
      Base::template step<R, 1>(x, w, acc);
    }
  }
};

}  // namespace tandem::kernels::cpu
