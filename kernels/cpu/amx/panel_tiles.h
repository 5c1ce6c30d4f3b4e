// B tiles of panels: lines of memory that become rows of a tile.
#pragma once

#include "kernels/cpu/simd/quant.h"
#include "kernels/cpu/simd/short_bf16.h"

namespace tandem::kernels::cpu {

inline constexpr std::size_t kTileHeight = 16;  ///< rows of a tile
inline constexpr std::size_t kTileRowBytes = 64;
inline constexpr std::size_t kTileBytes = kTileHeight * kTileRowBytes;

/// B tiles of panels of a kind of weights, made a unit of lines at a time.
template <class V, class W>
struct PanelTiles {
  static constexpr std::size_t kUnitBytes = W::kUnitLines * 64;   ///< of memory
  static constexpr std::size_t kUnits = W::kMadeOf / kUnitBytes;  ///< for a tile
  static constexpr std::size_t kUnitMakes = kTileBytes / kUnits;  ///< bytes that it becomes

  static constexpr std::size_t steps(std::size_t k) { return (k + W::kStepK - 1) / W::kStepK; }

  /// k of the last step, where panels end within it; else 0.
  static constexpr std::size_t last_count(std::size_t k) {
    return W::kWholeSteps ? 0 : k % W::kStepK;
  }

  /// The tile of a step of `panel`; asks for as much at `ahead`.
  static inline __attribute__((always_inline)) void make(const std::byte* panel,
                                                         std::size_t step,
                                                         const std::byte* ahead,
                                                         std::byte* to) {
    const typename W::Lines lines{panel, step};
    const std::byte* from = panel + W::at(step);
#pragma GCC unroll 8
    for (std::size_t unit = 0; unit < kUnits; ++unit) {
      ask(ahead + unit * kUnitBytes);
      lines.make(from + unit * kUnitBytes, to + unit * kUnitMakes);
    }
  }

  /// For a unit.
  static inline __attribute__((always_inline)) void ask(const std::byte* unit) {
#pragma GCC unroll 4
    for (std::size_t line = 0; line < W::kUnitLines; ++line)
      __builtin_prefetch(unit + line * 64);
  }

  /// That of a step of which the panel has `count` k: zeros behind them.
  static void make_last(const std::byte* panel,
                        std::size_t step,
                        std::size_t count,
                        std::byte* to) {
    constexpr std::size_t kUnitK = W::kStepK / kUnits;
    const typename W::Lines lines{panel, step};
    const std::byte* from = panel + W::at(step);
    __builtin_memset(to, 0, kTileBytes);
    for (std::size_t unit = 0; unit * kUnitK < count; ++unit)
      lines.make(from + unit * kUnitBytes, to + unit * kUnitMakes);
  }
};

}  // namespace tandem::kernels::cpu
