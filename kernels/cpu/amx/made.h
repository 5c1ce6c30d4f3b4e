// Y = X W^T on AMX tiles, of weights that are smaller in memory than B tiles.
//
// Idea: a cut is four steps along k (four B tiles) of two panels. While up to 32 rows are
// multiplied with it, the B tiles of the next cut are made, one after each that is used, so that
// both units have work; both cuts are a third of the first level of caches. Chains of sums of
// panels and tiles of rows go side by side. What a C tile holds goes to memory when it is needed
// for the next sums: for up to 16 rows two sets of C tiles take turns, since a store that waits for
// the tile unit would hold up all others. More rows: made_many.h.
//
// Order of sums of one output: that of the tile unit over k, whatever the rows and panels. Bound:
// the weight is read once, at memory bandwidth; with all of it in caches a B tile of weight-only
// int8 takes about 50 cycles, of which 16 are stores and 9 its load.
#pragma once

#include "kernels/cpu/amx/made_many.h"

namespace tandem::kernels::cpu {

template <class V, class T, template <class, class> class Kind>
class MadeTiles {
  using W = Kind<V, T>;

 public:
  static void run(const LinearBlock& block) {
    if (block.rows == 0) return;
    MadeTiles(block).run_all();
  }

 private:
  static constexpr std::size_t kFewTiles = 2;  ///< of rows; more go another way
  static constexpr int kPanels = 2;            ///< of a cut
  static constexpr std::size_t kCutSteps = 4;
  static constexpr std::size_t kPanelTiles = kCutSteps * kTileBytes;
  /// Scratch: x; four C tiles that wait; two cuts of B tiles.
  static constexpr std::size_t kWaitingAt = kRowsRoom;
  static constexpr std::size_t kMadeAt = kWaitingAt + 4 * kTileBytes;
  static constexpr std::size_t kMadeBytes = kPanels * kPanelTiles;
  static_assert(kMadeAt + 2 * kMadeBytes <= kTilesRoom);

  /// Four steps of some panels.
  struct Cut {
    std::size_t panel;
    std::size_t cut;  ///< of k
  };

  /// B tiles that are being made.
  struct Making {
    const std::byte* panel;  ///< the first one
    const std::byte* ahead;  ///< what to ask for meanwhile
    std::byte* to;
    std::size_t first;  ///< step
    std::size_t tile;   ///< the next one
    std::size_t tiles;
  };

  /// Sums of a tile of rows and a panel.
  struct Sums {
    TilePanel at;
    bool there;
  };

  explicit MadeTiles(const LinearBlock& block)
      : block_(block),
        steps_((block.k + W::kStepK - 1) / W::kStepK),
        cuts_((steps_ + kCutSteps - 1) / kCutSteps),
        height_(tile_height<V>(block)),
        row_tiles_((block.rows + kTileHeight - 1) / kTileHeight),
        rows_(rows_room(block)),
        base_(reinterpret_cast<std::byte*>(block.scratch)) {}

  void run_all() {
    if (!block_.packed) TileLinear<V, T, Kind>::pack_rows(block_, 0, block_.rows);
    if (row_tiles_ > kFewTiles) return MadeMany<V, T, W>(block_, steps_).run();
    configure();
    if (row_tiles_ == 2) {
      run_wide<2, 1>(run_wide<2, kPanels>(block_.panel_begin));
    } else {
      run_wide<1, 1>(run_wide<1, kPanels>(block_.panel_begin));
    }
    tiles_.release();
  }

  /// One shape for the whole block. C is 0 to 3, A 4 and 5, B 6 and 7.
  void configure() {
    TileConfig config = whole_tiles();
    for (std::size_t tile = 0; tile < 6; ++tile)
      config.rows[tile] = static_cast<std::uint8_t>(height_);
    tiles_.configure(config);
  }

  /// M tiles of rows, all of them.
  template <int M, int N>
  std::size_t run_wide(std::size_t panel) {
    const std::size_t end = panel + (block_.panel_end - panel) / N * N;
    if (panel == end) return panel;
    begin_making<N>({panel, 0}, 0);
    make_rest<N>();
    std::size_t turn = 0;
    for (; panel < end; panel += N) {
      for (std::size_t cut = 0; cut < cuts_; ++cut) {
        const Cut next = after<N>({panel, cut}, 1);
        begin_making<N>(next, (turn + 1) % 2);
        if (next.panel == end) making_.tiles = 0;
        const bool begins = cut == 0;
        if (M == 1 && begins) set_ = 1 - set_;
        const std::byte* weight = base_ + kMadeAt + turn * kMadeBytes;
        if constexpr (M == 1) {
          if (set_ == 1) {
            run_cut<M, N, 2>({panel, cut}, begins, weight);
          } else {
            run_cut<M, N, 0>({panel, cut}, begins, weight);
          }
        } else {
          run_cut<M, N, 0>({panel, cut}, begins, weight);
        }
        make_rest<N>();
        turn = (turn + 1) % 2;
      }
    }
    finish();
    return panel;
  }

  template <int N>
  Cut after(Cut cut, std::size_t count) const {
    cut.cut += count;
    while (cut.cut >= cuts_) {
      cut.cut -= cuts_;
      cut.panel += N;
    }
    return cut;
  }

  /// C tiles from First on: of tile m of rows and panel n, m * 2 + n.
  template <int M, int N, int First>
  void run_cut(Cut cut, bool begins, const std::byte* weight) {
    const std::size_t first = cut.cut * kCutSteps;
    const std::size_t steps = steps_ - first < kCutSteps ? steps_ - first : kCutSteps;
    const std::byte* x = rows_ + first * height_ * kTileRowBytes;
    if (begins) {
      for_c<V, M, N>([&]<int C>() {
        store<First + C>();
        tiles_.template zero<First + C>();
      });
    }
    for (std::size_t step = 0; step < steps; ++step) {
      multiply<M, N, First>(x, weight);
      x += height_ * kTileRowBytes;
      weight += kTileBytes;
      if (begins && (step == 1 || steps == 1))
        for_c<V, M, N>([&]<int C>() { settle<First + C>(); });
    }
    for_c<V, M, N>([&]<int C>() { hold<First + C>(cut.panel + C % 2, C / 2); });
  }

  /// Says what C tile C holds.
  template <int C>
  inline __attribute__((always_inline)) void hold(std::size_t panel, std::size_t tile) {
    const std::size_t row = tile * kTileHeight;
    const std::size_t left = block_.rows - row;
    sums_[C] = {.at = {.row = row, .rows = left < height_ ? left : height_, .panel = panel},
                .there = true};
  }

  /// All that tiles hold, the older set first.
  void finish() {
    if (set_ == 0) {
      finish<2>();
      finish<3>();
    }
    finish<0>();
    finish<1>();
    finish<2>();
    finish<3>();
  }

  template <int C>
  void finish() {
    store<C>();
    settle<C>();
  }

  /// What C tile C holds to memory. Only now, since it is ready.
  template <int C>
  inline __attribute__((always_inline)) void store() {
    const Sums& sums = sums_[C];
    if (!sums.there) return;
    tiles_.template store<C>(base_ + kWaitingAt + C * kTileBytes, kTileRowBytes);
    waiting_[C] = sums;
    ask_outputs(sums.at);
    sums_[C].there = false;
  }

  /// One step along k.
  template <int M, int N, int First>
  inline __attribute__((always_inline)) void multiply(const std::byte* x, const std::byte* weight) {
    tiles_.template load_passing<4>(x, kTileRowBytes);
    if constexpr (M == 2) {
      tiles_.template load_passing<5>(x + steps_ * kTileBytes, kTileRowBytes);
    }
    tiles_.template load<6>(weight, kTileRowBytes);
    W::template multiply<First, 4, 6>(tiles_);
    if constexpr (M == 2) W::template multiply<First + 2, 5, 6>(tiles_);
    make_one<N>();
    if constexpr (N == 2) {
      tiles_.template load<7>(weight + kPanelTiles, kTileRowBytes);
      W::template multiply<First + 1, 4, 7>(tiles_);
      if constexpr (M == 2) W::template multiply<First + 3, 5, 7>(tiles_);
      make_one<N>();
    }
  }

  template <int N>
  void begin_making(Cut cut, std::size_t turn) {
    const Cut ahead = after<N>(cut, kCutsAhead);
    making_ = {
        .panel = block_.weight + cut.panel * block_.panel_bytes,
        .ahead = Linear<V>::panels_behind(block_, ahead.panel) + W::at(ahead.cut * kCutSteps),
        .to = base_ + kMadeAt + turn * kMadeBytes,
        .first = cut.cut * kCutSteps,
        .tile = 0,
        .tiles = N * kCutSteps};
  }

  template <int N>
  void make_rest() {
    while (making_.tile < making_.tiles)
      make_one<N>();
  }

  template <int N>
  inline __attribute__((always_inline)) void make_one() {
    if (making_.tile >= making_.tiles) return;
    const std::size_t step = making_.tile % kCutSteps;
    const std::size_t behind = making_.tile / kCutSteps * block_.panel_bytes;
    const std::size_t at = making_.first + step;
    if (at < steps_) {
      const std::size_t left = block_.k - at * W::kStepK;
      std::byte* to = making_.to + making_.tile * kTileBytes;
      if (left >= W::kStepK) {
        W::make(making_.panel + behind, at, making_.ahead + behind + step * W::kMadeOf, to);
      } else {
        W::make_last(making_.panel + behind, at, left, to);
      }
      if (W::kHeaders && step == 0) __builtin_prefetch(making_.ahead + behind - 64);
    }
    ++making_.tile;
  }

  /// Makes outputs of the C tile that waits.
  template <int C>
  inline __attribute__((always_inline)) void settle() {
    if (!waiting_[C].there) return;
    make_outputs(waiting_[C].at, base_ + kWaitingAt + C * kTileBytes);
    waiting_[C].there = false;
  }

  void make_outputs(const TilePanel& at, const std::byte* sums) {
    const bool simple = block_.y_rows == nullptr && block_.row_scale == nullptr &&
                        (at.panel + 1) * kPanel <= block_.n;
    if (!simple) {
      for (std::size_t r = 0; r < at.rows; ++r) {
        Linear<V>::finish(block_,
                          at.row + r,
                          at.panel,
                          W::outputs(block_, at.row + r, at.panel, sums + r * kTileRowBytes));
      }
      return;
    }
    float* y = block_.y + at.row * block_.y_stride + at.panel * kPanel;
    for (std::size_t r = 0; r < at.rows; ++r) {
      typename V::Vec sum = W::outputs(block_, at.row + r, at.panel, sums + r * kTileRowBytes);
      if (block_.bias != nullptr) sum = V::add(sum, V::load(block_.bias + at.panel * kPanel));
      if (block_.accumulate) sum = V::add(sum, V::load(y));
      V::store(y, sum);
      y += block_.y_stride;
    }
  }

  /// Stores to lines that are far away would hold up everything behind them.
  void ask_outputs(const TilePanel& at) {
    for (std::size_t r = 0; r < at.rows; ++r)
      __builtin_prefetch(Linear<V>::y_row(block_, at.row + r) + at.panel * kPanel, 1);
  }

  static constexpr std::size_t kCutsAhead = 2;

  const LinearBlock& block_;
  std::size_t steps_;
  std::size_t cuts_;
  std::size_t height_;  ///< of tiles of rows: 16, or the rows where they are fewer
  std::size_t row_tiles_;
  std::byte* rows_;  ///< A tiles
  std::byte* base_;  ///< scratch
  Making making_{};
  Sums sums_[4]{};       ///< in C tiles
  Sums waiting_[4]{};    ///< in memory, to be settled
  std::size_t set_ = 0;  ///< of C tiles, of one tile of rows; the other one waits
  T tiles_;
};

}  // namespace tandem::kernels::cpu
