// Products of many rows with weights that are smaller in memory than B tiles: made.h has fewer.
//
// Idea: as in many_rows.h, pairs of tiles of rows against pairs of panels. The B tiles of a cut of
// 384 k are made before its products, which all rows share. Where groups of k have sums of their
// own, a pass is a group: its C tiles are joined to their totals, some rows a step, while those of
// the next pass have their products. Totals of a pair of tiles stay in the first level of caches
// for all groups of a cut.
#pragma once

#include "kernels/cpu/amx/tiles.h"

namespace tandem::kernels::cpu {

template <class V, class T, class W>
class MadeMany {
 public:
  /// The rows are packed already.
  MadeMany(const LinearBlock& block, std::size_t steps)
      : block_(block),
        steps_(steps),
        row_tiles_((block.rows + kTileHeight - 1) / kTileHeight),
        rows_(rows_room(block)),
        base_(reinterpret_cast<std::byte*>(block.scratch)),
        apart_(panels_apart(block) / block.panel_bytes),
        outputs_(block) {}

  void run() {
    tiles_.configure(whole_tiles());  // C is 0 to 3, A 4 and 5, B 6 and 7
    std::size_t panel = block_.panel_begin;
    const std::size_t step = block_.up != nullptr ? 1 : 2;
    for (; panel + step <= block_.panel_end; panel += step)
      run_panels<2>(panel, step);
    if (panel < block_.panel_end) run_panels<1>(panel, 1);
    settle(waiting_.rows);
    outputs_.end();
    tiles_.release();
  }

 private:
  using Vec = typename V::Vec;

  static constexpr std::size_t kCutSteps = 12;
  static constexpr std::size_t kPassSteps = [] {
    if constexpr (W::kGrouped) {
      return W::kGroupSteps;
    } else {
      return kCutSteps;
    }
  }();
  static constexpr std::size_t kPanelMade = kCutSteps * kTileBytes;
  /// Scratch: sums between cuts or totals, two tiles for each tile of rows; four C tiles that wait;
  /// the B tiles of a cut.
  static constexpr std::size_t kSumsAt = kRowsRoom;
  static constexpr std::size_t kWaitingAt = kSumsAt + kMostTileRows / kTileHeight * 2 * kTileBytes;
  static constexpr std::size_t kMadeAt = kWaitingAt + 4 * kTileBytes;
  static_assert(kMadeAt + 2 * kPanelMade <= kTilesRoom);

  /// C tiles that are to become outputs, or to join their totals.
  struct Waiting {
    std::size_t tile;
    std::size_t panel;
    std::size_t panels;
    std::size_t group;
    std::size_t row;   ///< the next one, from the first of `tile` on
    std::size_t rows;  ///< that are left; 0: none
    bool last;         ///< of k
  };

  template <std::size_t N>
  void run_panels(std::size_t panel, std::size_t panels) {
    for (std::size_t first = 0; first < steps_; first += kCutSteps) {
      const std::size_t steps = steps_ - first < kCutSteps ? steps_ - first : kCutSteps;
      make<N>(panel, first, steps);
      ask_ = first + steps < steps_ ? weights(panel, first + steps)
                                    : Linear<V>::panels_behind(block_, panel + panels) + W::at(0);
      const std::size_t passes = (row_tiles_ + 1) / 2 * ((steps + kPassSteps - 1) / kPassSteps);
      ask_lines_ = (kCutLines + passes - 1) / passes;
      for (std::size_t tile = 0; tile < row_tiles_; tile += 2) {
        for (std::size_t step = 0; step < steps; step += kPassSteps) {
          const std::size_t count = steps - step < kPassSteps ? steps - step : kPassSteps;
          if (tile + 1 < row_tiles_) {
            pass<2, N>(tile, panel, first, step, count);
          } else {
            pass<1, N>(tile, panel, first, step, count);
          }
        }
      }
    }
  }

  /// B tiles of a cut.
  template <std::size_t N>
  void make(std::size_t panel, std::size_t first, std::size_t steps) {
    for (std::size_t n = 0; n < N; ++n) {
      for (std::size_t step = 0; step < steps; ++step) {
        const std::byte* from = weights(panel + n * apart_, first + step);
        std::byte* to = base_ + kMadeAt + n * kPanelMade + step * kTileBytes;
        const std::size_t left = block_.k - (first + step) * W::kStepK;
        if (left >= W::kStepK) {
          W::make(from, from + kMakeAhead, to);
        } else {
          W::make_last(from, left, to);
        }
      }
    }
  }

  /// M tiles of rows x N panels over `steps` steps, from step `step` of the cut on.
  template <int M, std::size_t N>
  void pass(
      std::size_t tile, std::size_t panel, std::size_t first, std::size_t step, std::size_t steps) {
    std::byte* sums = base_ + kSumsAt + tile * 2 * kTileBytes;
    const bool last = first + step + steps == steps_;
    if (W::kGrouped || first + step == 0) {
      for_c<V, M, static_cast<int>(N)>([&]<int C>() { tiles_.template zero<C>(); });
    } else {
      for_c<V, M, static_cast<int>(N)>(
          [&]<int C>() { tiles_.template load<C>(sums + C * kTileBytes, kTileRowBytes); });
    }
    const std::byte* x = rows_ + (tile * steps_ + first + step) * kTileBytes;
    const std::byte* weight = base_ + kMadeAt + step * kTileBytes;
    if (M == 2 && N == 2 && joins_whole(steps)) {
      if constexpr (W::kGrouped) multiply_and_join(x, weight);
    } else {
      const std::size_t rows = (waiting_.rows + steps - 1) / steps;
      for (std::size_t i = 0; i < steps; ++i) {
        multiply<M, N>(x + i * kTileBytes, weight + i * kTileBytes);
        settle(rows);
      }
    }
    ask<N>();
    for_c<V, M, static_cast<int>(N)>([&]<int C>() {
      std::byte* to = W::kGrouped || last ? base_ + kWaitingAt : sums;
      tiles_.template store<C>(to + C * kTileBytes, kTileRowBytes);
    });
    if (!W::kGrouped && !last) return;
    const std::size_t left = block_.rows - tile * kTileHeight;
    waiting_ = {.tile = tile,
                .panel = panel,
                .panels = N,
                .group = (first + step) / kPassSteps,
                .row = 0,
                .rows = left < M * kTileHeight ? left : M * kTileHeight,
                .last = last};
  }

  /// Whether what waits are two whole tiles of rows of two panels, and there are as many steps as
  /// multiply_and_join has.
  [[nodiscard]] bool joins_whole(std::size_t steps) const {
    return W::kGrouped && steps == kPassSteps && waiting_.rows == 2 * kTileHeight &&
           waiting_.panels == 2;
  }

  /// A pass of two tiles of rows and two panels, and settles what waits: eight rows a step.
  void multiply_and_join(const std::byte* x, const std::byte* weight) {
    const Waiting& at = waiting_;
    const std::size_t row = at.tile * kTileHeight;
    const typename W::Affine affine[2] = {W::affine(block_, at.panel, at.group),
                                          W::affine(block_, at.panel + apart_, at.group)};
    const float* x_sums[2] = {W::x_sums(block_, row, at.group),
                              W::x_sums(block_, row + kTileHeight, at.group)};
    const auto* sums = reinterpret_cast<const float*>(base_ + kWaitingAt);
    auto* totals = reinterpret_cast<float*>(base_ + kSumsAt + at.tile * 2 * kTileBytes);
    constexpr std::size_t kRows = 2 * kTileHeight / kPassSteps;
    constexpr std::size_t kTile = kTileBytes / sizeof(float);
    const bool first = at.group == 0;
#pragma GCC unroll 4
    for (std::size_t i = 0; i < kPassSteps; ++i) {
      multiply<2, 2>(x + i * kTileBytes, weight + i * kTileBytes);
      const std::size_t tile = i * kRows / kTileHeight;
      const std::size_t in_tile = i * kRows % kTileHeight;
      const std::size_t from = tile * 2 * kTile + in_tile * kPanel;
      const float* x_sum = x_sums[tile] + in_tile;
      if (first) {
        W::template join<kRows, true>(affine[0], x_sum, sums + from, totals + from);
        W::template join<kRows, true>(affine[1], x_sum, sums + from + kTile, totals + from + kTile);
      } else {
        W::template join<kRows, false>(affine[0], x_sum, sums + from, totals + from);
        W::template join<kRows, false>(
            affine[1], x_sum, sums + from + kTile, totals + from + kTile);
      }
    }
    for (std::size_t m = 0; at.last && m < 2; ++m) {
      make_outputs(
          {.row = row + m * kTileHeight, .rows = kTileHeight, .panel = at.panel, .group = at.group},
          reinterpret_cast<const std::byte*>(totals + m * 2 * kTile));
    }
    waiting_.rows = 0;
  }

  template <int M, std::size_t N>
  inline __attribute__((always_inline)) void multiply(const std::byte* x, const std::byte* weight) {
    tiles_.template load_passing<4>(x, kTileRowBytes);
    if constexpr (M == 2) tiles_.template load_passing<5>(x + steps_ * kTileBytes, kTileRowBytes);
    tiles_.template load<6>(weight, kTileRowBytes);
    W::template multiply<0, 4, 6>(tiles_);
    if constexpr (M == 2) W::template multiply<2, 5, 6>(tiles_);
    if constexpr (N == 2) {
      tiles_.template load<7>(weight + kPanelMade, kTileRowBytes);
      W::template multiply<1, 4, 7>(tiles_);
      if constexpr (M == 2) W::template multiply<3, 5, 7>(tiles_);
    }
  }

  /// Some of what the next cut is made of.
  template <std::size_t N>
  void ask() {
    for (std::size_t line = 0; line < ask_lines_; ++line) {
      for (std::size_t n = 0; n < N; ++n)
        __builtin_prefetch(ask_ + n * apart_ * block_.panel_bytes, 0, 2);
      ask_ += 64;
    }
  }

  /// Joins the next `count` rows that wait to their totals, or makes outputs of them.
  inline __attribute__((always_inline)) void settle(std::size_t count) {
    count = waiting_.rows < count ? waiting_.rows : count;
    if (count == 0) return;
    waiting_.rows -= count;
    // Rows of two tiles are two tiles apart.
    while (count > 0) {
      const std::size_t in_tile = kTileHeight - waiting_.row % kTileHeight;
      const std::size_t some = count < in_tile ? count : in_tile;
      settle_rows(waiting_.row, some);
      waiting_.row += some;
      count -= some;
    }
  }

  inline __attribute__((always_inline)) void settle_rows(std::size_t row, std::size_t count) {
    const std::size_t at = row / kTileHeight * 2 * kTileBytes + row % kTileHeight * kTileRowBytes;
    const std::byte* sums = base_ + kWaitingAt + at;
    TileGroup rows = {.row = waiting_.tile * kTileHeight + row,
                      .rows = count,
                      .panel = waiting_.panel,
                      .group = waiting_.group};
    if constexpr (W::kGrouped) {
      std::byte* totals = base_ + kSumsAt + waiting_.tile * 2 * kTileBytes + at;
      for (std::size_t n = 0; n < waiting_.panels; ++n) {
        rows.panel = waiting_.panel + n * apart_;
        W::fold(block_, rows, sums + n * kTileBytes, totals + n * kTileBytes);
      }
      rows.panel = waiting_.panel;
      sums = totals;
    }
    if (waiting_.last) make_outputs(rows, sums);
  }

  /// Of rows that wait, in all panels; `sums` are those of the first one.
  void make_outputs(const TileGroup& at, const std::byte* sums) {
    const bool simple = outputs_.simple(at.panel, waiting_.panels);
    std::byte* y = outputs_.at(at.row, at.panel);
    for (std::size_t r = 0; r < at.rows; ++r) {
      const std::byte* row_sums = sums + r * kTileRowBytes;
      if (block_.up != nullptr) {
        const Vec gate = W::outputs(block_, at.row + r, at.panel, row_sums);
        const Vec up = W::outputs(block_, at.row + r, at.panel + apart_, row_sums + kTileBytes);
        outputs_.put_gated(y, at.panel, gate, up);
      } else {
        for (std::size_t n = 0; n < waiting_.panels; ++n) {
          const std::size_t panel = at.panel + n;
          const Vec sum = W::outputs(block_, at.row + r, panel, row_sums + n * kTileBytes);
          if (simple) {
            outputs_.put(y + n * kPanel * sizeof(float), panel, sum);
          } else {
            Linear<V>::finish(block_, at.row + r, panel, sum);
          }
        }
      }
      y += outputs_.step_after(at.row + r);
    }
  }

  [[nodiscard]] const std::byte* weights(std::size_t panel, std::size_t step) const {
    return block_.weight + panel * block_.panel_bytes + W::at(step);
  }

  static constexpr std::size_t kCutLines = (W::at(kCutSteps) - W::at(0) + 63) / 64;
  /// Far enough for the second level of caches.
  static constexpr std::size_t kMakeAhead = 1024;

  const LinearBlock& block_;
  std::size_t steps_;
  std::size_t row_tiles_;
  std::byte* rows_;    ///< A tiles
  std::byte* base_;    ///< scratch
  std::size_t apart_;  ///< panels from the one to the other
  ManyOutputs<V> outputs_;
  const std::byte* ask_ = nullptr;
  std::size_t ask_lines_ = 0;
  Waiting waiting_{};
  T tiles_;
};

}  // namespace tandem::kernels::cpu
