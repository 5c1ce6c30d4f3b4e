// Y = X W^T on AMX tiles, of weights that are smaller in memory than B tiles.
//
// Idea: a cut is 128 k (four B tiles) of two panels. While up to 32 rows are multiplied with it,
// the B tiles of the next cut are made, one after every product or every second, so that both units
// have work; both cuts are a third of the first level of caches. Four A tiles stay in registers for
// the panels of a cut. What a C tile holds goes to memory when it is needed for the next sums, two
// chains of products later: a store that waits for the tile unit would hold up all others. Where
// groups of k have sums of their own, they are joined to totals one more chain later. More rows:
// made_many.h.
//
// Order of sums of one output: that of the tile unit over k (of W where there are groups), whatever
// the rows and panels. Bound: the weight is read once, at memory bandwidth; a B tile takes about 45
// cycles, of which 28 are look-ups (int4) and 9 its load, and 5 to 10 more for each eight rows.
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
  /// Scratch: x; sums between cuts, [tile of rows][panel]; two C tiles that wait; two cuts of B
  /// tiles.
  static constexpr std::size_t kSumsAt = kRowsRoom;
  static constexpr std::size_t kWaitingAt = kSumsAt + kFewTiles * kPanels * kTileBytes;
  static constexpr std::size_t kMadeAt = kWaitingAt + 2 * kTileBytes;
  static constexpr std::size_t kMadeBytes = kPanels * kPanelTiles;
  static_assert(kMadeAt + 2 * kMadeBytes <= kTilesRoom);

  /// Four steps of some panels.
  struct Cut {
    std::size_t panel;
    std::size_t cut;  ///< of k
  };

  /// B tiles that are being made.
  struct Making {
    const std::byte* from;   ///< of the first panel
    const std::byte* ahead;  ///< what to ask for, beside `from`
    std::byte* to;
    std::size_t first;  ///< step
    std::size_t tile;   ///< the next one
    std::size_t tiles;
    std::size_t products;  ///< until then
  };

  /// Sums of a tile of rows and a panel.
  struct Sums {
    TileGroup at;
    std::byte* total;  ///< where they go on, or what they are joined to; null: none
  };

  explicit MadeTiles(const LinearBlock& block)
      : block_(block),
        steps_((block.k + W::kStepK - 1) / W::kStepK),
        cuts_((steps_ + kCutSteps - 1) / kCutSteps),
        height_(block.rows < kTileHeight ? block.rows : kTileHeight),
        row_tiles_((block.rows + kTileHeight - 1) / kTileHeight),
        rows_(rows_room(block)),
        base_(reinterpret_cast<std::byte*>(block.scratch)) {}

  void run_all() {
    if (!block_.packed) TileLinear<V, T, Kind>::pack_rows(block_, 0, block_.rows);
    if (row_tiles_ > kFewTiles) return MadeMany<V, T, W>(block_, steps_).run();
    configure();
    std::size_t panel = run_wide<kPanels>(block_.panel_begin);
    run_wide<1>(panel);
    store<0>();
    settle<0>();
    store<1>();
    settle<1>();
    tiles_.release();
  }

  /// One shape for the whole block. C is 0 and 1, B 2 and 3, A 4 to 7.
  void configure() {
    TileConfig config = whole_tiles();
    for (const std::size_t tile : {0, 1, 4, 5, 6, 7})
      config.rows[tile] = static_cast<std::uint8_t>(height_);
    tiles_.configure(config);
  }

  template <int N>
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
        for (std::size_t tile = 0; tile < row_tiles_; ++tile)
          run_tile<N>({panel, cut}, tile, base_ + kMadeAt + turn * kMadeBytes);
        make_rest<N>();
        turn = (turn + 1) % 2;
      }
    }
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

  /// One tile of rows.
  template <int N>
  void run_tile(Cut cut, std::size_t tile, const std::byte* weight) {
    const std::size_t first = cut.cut * kCutSteps;
    const std::size_t steps = steps_ - first < kCutSteps ? steps_ - first : kCutSteps;
    const std::size_t x_step = height_ * kTileRowBytes;
    const std::byte* x = rows_ + (tile * steps_ + first) * x_step;
    tiles_.template load_passing<4>(x, kTileRowBytes);
    if (steps > 1) tiles_.template load_passing<5>(x + x_step, kTileRowBytes);
    if (steps > 2) tiles_.template load_passing<6>(x + 2 * x_step, kTileRowBytes);
    if (steps > 3) tiles_.template load_passing<7>(x + 3 * x_step, kTileRowBytes);
    run_chain<N, 0>(cut, tile, weight, steps);
    if constexpr (N > 1) run_chain<N, 1>(cut, tile, weight, steps);
  }

  template <int N, int P>
  inline __attribute__((always_inline)) void run_chain(Cut cut,
                                                       std::size_t tile,
                                                       const std::byte* weight,
                                                       std::size_t steps) {
    constexpr int kC = P % 2;
    std::byte* total = base_ + kSumsAt + (tile * kPanels + P) * kTileBytes;
    const bool goes_on = !W::kGrouped && cut.cut != 0;
    const bool here = goes_on && sums_[kC].total == total;
    if (!here) {
      store<kC>();
      if (goes_on) {
        tiles_.template load<kC>(total, kTileRowBytes);
      } else {
        tiles_.template zero<kC>();
      }
    }
    weight += P * kPanelTiles;
    multiply<N, kC, 0>(weight, steps);
    multiply<N, kC, 1>(weight, steps);
    multiply<N, kC, 2>(weight, steps);
    multiply<N, kC, 3>(weight, steps);
    settle<kC>();
    const std::size_t row = tile * kTileHeight;
    const std::size_t left = block_.rows - row;
    sums_[kC] = {{row, left < height_ ? left : height_, cut.panel + P, cut.cut}, total};
  }

  /// What C tile C holds to memory. Only now, since it is ready.
  template <int C>
  inline __attribute__((always_inline)) void store() {
    const Sums& sums = sums_[C];
    if (sums.total == nullptr) return;
    if (W::kGrouped || sums.at.group + 1 == cuts_) {
      tiles_.template store<C>(base_ + kWaitingAt + C * kTileBytes, kTileRowBytes);
      waiting_[C] = sums;
      if (sums.at.group + 1 == cuts_) ask_outputs(sums.at);
    } else {
      tiles_.template store<C>(sums.total, kTileRowBytes);
    }
    sums_[C].total = nullptr;
  }

  template <int N, int C, int S>
  inline __attribute__((always_inline)) void multiply(const std::byte* weight, std::size_t steps) {
    if (S >= steps) return;
    constexpr int kB = 2 + S % 2;
    tiles_.template load<kB>(weight + S * kTileBytes, kTileRowBytes);
    W::template multiply<C, 4 + S, kB>(tiles_);
    if (--making_.products == 0) {
      making_.products = row_tiles_;
      make_one<N>();
    }
  }

  template <int N>
  void begin_making(Cut cut, std::size_t turn) {
    const Cut ahead = after<N>(cut, kCutsAhead);
    making_ = {
        .from = block_.weight + cut.panel * block_.panel_bytes + W::at(cut.cut * kCutSteps),
        .ahead = Linear<V>::panels_behind(block_, ahead.panel) + W::at(ahead.cut * kCutSteps),
        .to = base_ + kMadeAt + turn * kMadeBytes,
        .first = cut.cut * kCutSteps,
        .tile = 0,
        .tiles = N * kCutSteps,
        .products = row_tiles_};
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
    const std::size_t at = making_.tile / kCutSteps * block_.panel_bytes + step * W::kMadeOf;
    if (making_.first + step < steps_) {
      const std::size_t left = block_.k - (making_.first + step) * W::kStepK;
      std::byte* to = making_.to + making_.tile * kTileBytes;
      if (left >= W::kStepK) {
        W::make(making_.from + at, making_.ahead + at, to);
      } else {
        W::make_last(making_.from + at, left, to);
      }
      if (W::kGrouped && step == 0) __builtin_prefetch(making_.ahead + at - kInt4HeaderBytes);
    }
    ++making_.tile;
  }

  /// Makes outputs of the C tile that waits, or joins it to its total.
  template <int C>
  inline __attribute__((always_inline)) void settle() {
    if (waiting_[C].total == nullptr) return;
    const TileGroup& at = waiting_[C].at;
    const std::byte* sums = base_ + kWaitingAt + C * kTileBytes;
    if constexpr (W::kGrouped) {
      W::fold(block_, at, sums, waiting_[C].total);
      sums = waiting_[C].total;
    }
    if (at.group + 1 == cuts_) make_outputs(at, sums);
    waiting_[C].total = nullptr;
  }

  void make_outputs(const TileGroup& at, const std::byte* sums) {
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
  void ask_outputs(const TileGroup& at) {
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
  Sums sums_[2]{};     ///< in C tiles
  Sums waiting_[2]{};  ///< in memory, to be settled
  T tiles_;
};

}  // namespace tandem::kernels::cpu
