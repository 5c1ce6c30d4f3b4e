// Products of many rows with weights that are smaller in memory than B tiles.
//
// Idea: as in many_rows.h, pairs of tiles of rows against pairs of panels. The B tiles of a cut of
// k are made before its products, which all rows share.
#pragma once

#include "kernels/cpu/amx/tiles.h"

namespace tandem::kernels::cpu {

template <class V, class T, class W>
class MadeMany {
 public:
  /// The rows are packed already.
  explicit MadeMany(const LinearBlock& block)
      : block_(block),
        steps_(Tiles::steps(block.k)),
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
  using Tiles = PanelTiles<V, W>;

  static constexpr std::size_t kCutSteps = W::kCutSteps;
  static constexpr std::size_t kPanelMade = kCutSteps * kTileBytes;
  /// Scratch: sums between cuts, two tiles for each tile of rows; four C tiles that wait; the B
  /// tiles of a cut.
  static constexpr std::size_t kSumsAt = kRowsRoom;
  static constexpr std::size_t kWaitingAt = kSumsAt + kMostTileRows / kTileHeight * 2 * kTileBytes;
  static constexpr std::size_t kMadeAt = kWaitingAt + 4 * kTileBytes;
  static_assert(kMadeAt + 2 * kPanelMade <= kTilesRoom);

  /// Rows of one tile, and one panel.
  struct TilePanel {
    std::size_t row;
    std::size_t rows;
    std::size_t panel;
  };

  /// C tiles that are to become outputs.
  struct Waiting {
    std::size_t tile;
    std::size_t panel;
    std::size_t panels;
    std::size_t row;   ///< the next one, from the first of `tile` on
    std::size_t rows;  ///< that are left; 0: none
  };

  template <std::size_t N>
  void run_panels(std::size_t panel, std::size_t panels) {
    // As even as whole fours of steps are.
    const std::size_t cuts = (steps_ + kCutSteps - 1) / kCutSteps;
    const std::size_t most = (steps_ + 4 * cuts - 1) / (4 * cuts) * 4;
    for (std::size_t first = 0; first < steps_; first += most) {
      const std::size_t steps = steps_ - first < most ? steps_ - first : most;
      make<N>(panel, first, steps);
      ask_ = first + steps < steps_ ? weights(panel, first + steps)
                                    : Linear<V>::panels_behind(block_, panel + panels) + W::at(0);
      const std::size_t passes = (row_tiles_ + 1) / 2;
      ask_lines_ = (kCutLines + passes - 1) / passes;
      for (std::size_t tile = 0; tile < row_tiles_; tile += 2) {
        if (tile + 1 < row_tiles_) {
          pass<2, N>(tile, panel, first, steps);
        } else {
          pass<1, N>(tile, panel, first, steps);
        }
      }
    }
  }

  /// B tiles of a cut.
  template <std::size_t N>
  void make(std::size_t panel, std::size_t first, std::size_t steps) {
    for (std::size_t n = 0; n < N; ++n) {
      for (std::size_t step = 0; step < steps; ++step) {
        const std::byte* from = block_.weight + (panel + n * apart_) * block_.panel_bytes;
        std::byte* to = base_ + kMadeAt + n * kPanelMade + step * kTileBytes;
        const std::size_t at = first + step;
        const std::size_t left = block_.k - at * W::kStepK;
        if (left >= W::kStepK) {
          Tiles::make(from, at, from + W::at(at) + kMakeAhead, to);
        } else {
          Tiles::make_last(from, at, left, to);
        }
      }
    }
  }

  /// M tiles of rows x N panels over a cut of `steps` steps.
  template <int M, std::size_t N>
  void pass(std::size_t tile, std::size_t panel, std::size_t first, std::size_t steps) {
    std::byte* sums = base_ + kSumsAt + tile * 2 * kTileBytes;
    const bool last = first + steps == steps_;
    if (first == 0) {
      for_c<V, M, static_cast<int>(N)>([&]<int C>() { tiles_.template zero<C>(); });
    } else {
      for_c<V, M, static_cast<int>(N)>(
          [&]<int C>() { tiles_.template load<C>(sums + C * kTileBytes, kTileRowBytes); });
    }
    const std::byte* x = rows_ + (tile * steps_ + first) * kTileBytes;
    const std::byte* weight = base_ + kMadeAt;
    const std::size_t rows = (waiting_.rows + steps - 1) / steps;
    for (std::size_t i = 0; i < steps; ++i) {
      multiply<M, N>(x + i * kTileBytes, weight + i * kTileBytes);
      settle(rows);
    }
    ask<N>();
    for_c<V, M, static_cast<int>(N)>([&]<int C>() {
      std::byte* to = last ? base_ + kWaitingAt : sums;
      tiles_.template store<C>(to + C * kTileBytes, kTileRowBytes);
    });
    if (!last) return;
    const std::size_t left = block_.rows - tile * kTileHeight;
    waiting_ = {.tile = tile,
                .panel = panel,
                .panels = N,
                .row = 0,
                .rows = left < M * kTileHeight ? left : M * kTileHeight};
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

  /// Makes outputs of the next `count` rows that wait.
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
    make_outputs({.row = waiting_.tile * kTileHeight + row, .rows = count, .panel = waiting_.panel},
                 base_ + kWaitingAt + at);
  }

  /// Of rows that wait, in all panels; `sums` are those of the first one.
  void make_outputs(const TilePanel& at, const std::byte* sums) {
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
