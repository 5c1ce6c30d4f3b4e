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

/// T, a tile of Linear, says whether cuts are lines of bf16 pairs, [pair of k][16 outputs][2], or
/// floats, [k][16 outputs] (kLines); where k, the first of a cut, begins in a panel (at); and what
/// an output is of its sum (output). make(block, panel, begin, count, room) returns where a cut is:
/// in the panel itself, or in `room` for kCutK floats of 16 outputs. With ask_beside(block, panel)
/// it asks for what else a panel has.
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
  /// What cuts are made of, as a panel of it holds it, and its bytes of one k.
  static constexpr DType kMade = T::kLines ? DType::kBf16 : DType::kF32;
  using Made = typename Base::template FloatTile<kMade>;
  static constexpr std::size_t kMadeBytes = kPanel * (T::kLines ? 2 : sizeof(float));

  /// A cut of a panel, and what is asked for while it is multiplied.
  struct Cut {
    const std::byte* made;     ///< where it is
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
    const auto no_asks = [](std::size_t, std::size_t) __attribute__((always_inline)){};
    for (std::size_t begin = 0; begin < cut.count; begin += kAskK) {
      const std::size_t end = cut.count - begin < kAskK ? cut.count : begin + kAskK;
      cut.next.ask(begin / kAskK);
      Made::template add<R, 1>(
          x + begin * R, cut.made + begin * kMadeBytes, 0, end - begin, no_asks, acc);
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
};

}  // namespace tandem::kernels::cpu
