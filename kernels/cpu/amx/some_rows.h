// Y = X W^T on AMX tiles, up to two tiles of rows, with weights of every kind.
//
// Idea: such a product takes the time of reading its weight, and memory is read fastest line by
// line from four places in turn, while a tile load takes 16 lines of one place. So vectors bring
// lines of four panels to B tiles in the first level of caches (or make B tiles of them, where a
// weight is smaller in memory), two steps along k before they are loaded, since a tile load right
// behind the stores of its tile waits for them. One tile of rows has a C tile for each of the four
// panels. Two tiles of rows take turns every two steps, and their sums wait in memory meanwhile.
// Outputs are made beside the products of the next four panels.
//
// Order of sums of one output: that of the tile unit over k, whatever the rows and panels.
// Bound: memory bandwidth. Two threads of a Granite Rapids: 33 GB/s, where tile loads from memory
// with lines asked for 2 KiB ahead got 29 and vectors that add up all lines 34.5 (docs/kernels.md).
#pragma once

#include "kernels/cpu/amx/tiles.h"
#include "kernels/cpu/simd/short_bf16.h"

namespace tandem::kernels::cpu {

template <class V, class T, class W>
class SomeRows {
 public:
  static constexpr std::size_t kMostRows = 2 * kTileHeight;

  /// The rows are packed already, as TileLinear does.
  static void run(const LinearBlock& block) {
    SomeRows rows(block);
    if (block.rows <= kTileHeight) {
      rows.template run_tiles<1>();
    } else {
      rows.template run_tiles<2>();
    }
  }

 private:
  using Tiles = PanelTiles<V, W>;

  static constexpr std::size_t kPanels = 4;
  /// Steps that B tiles are brought before their products, and for which there is room.
  static constexpr std::size_t kBroughtSteps = 2;
  static constexpr std::size_t kRoomSteps = 2 * kBroughtSteps;
  static constexpr std::size_t kStepBytes = kPanels * kTileBytes;
  /// Lines are asked for a tile's worth of memory before they are brought; those of a unit, which
  /// are asked for together, earlier.
  static constexpr std::size_t kAheadSteps =
      W::kUnitLines == 1 ? kTileBytes / W::kMadeOf : W::kUnitLines;
  /// Units of a panel that are brought at a time.
  static constexpr std::size_t kQuarterUnits = Tiles::kUnits / 4;
  /// Scratch: x; sums of four panels, twice; B tiles.
  static constexpr std::size_t kSumsAt = kRowsRoom;
  static constexpr std::size_t kSumsBytes = 2 * kStepBytes;
  static constexpr std::size_t kBroughtAt = kSumsAt + 2 * kSumsBytes;
  static_assert(kBroughtAt + kRoomSteps * kStepBytes <= kTilesRoom);

  /// Rows whose outputs are asked for before they are made.
  static constexpr std::size_t kOutputsAhead = 4;

  /// Four panels: the first one, and bytes from it to the second and to the third; the fourth is as
  /// far from the third as the second from the first. Where outputs are of two weights, the first
  /// two are of gate and the others of up.
  struct Four {
    const std::byte* first;
    std::ptrdiff_t second;
    std::ptrdiff_t third;
    std::size_t panel;   ///< of outputs
    std::size_t panels;  ///< of outputs, from there on; where they are few, some of the four are
                         ///< the same. 0: nothing is left
  };

  /// Sums that become outputs.
  struct Waiting {
    Four four;
    const std::byte* sums;
    std::size_t row;  ///< the next one; block_.rows: none is left
  };

  explicit SomeRows(const LinearBlock& block)
      : block_(block),
        gated_(block.up != nullptr),
        steps_(Tiles::steps(block.k)),
        step_rows_((block.rows + steps_ - 1) / steps_),
        last_count_(Tiles::last_count(block.k)),
        height_(tile_height<V>(block)),
        rows_(rows_room(block)),
        base_(reinterpret_cast<std::byte*>(block.scratch)),
        outputs_(block) {}

  template <int M>
  void run_tiles() {
    configure();
    bringing_ = four_at(block_.panel_begin);
    then_ = behind(bringing_);
    waiting_ = {.four = bringing_, .sums = nullptr, .row = block_.rows};
    for (std::size_t step = 0; step < kBroughtSteps; ++step)
      bring_step();
    std::size_t turn = 0;
    for (Four four = four_at(block_.panel_begin); four.panels != 0; four = behind(four)) {
      std::byte* sums = base_ + kSumsAt + turn * kSumsBytes;
      if constexpr (M == 1) {
        sum_one_tile(sums);
      } else {
        sum_two_tiles(sums);
      }
      settle(block_.rows);
      waiting_ = {.four = four, .sums = sums, .row = 0};
      turn = 1 - turn;
    }
    settle(block_.rows);
    outputs_.end();
    tiles_.release();
  }

  /// One shape for the whole block. C is 0 to 3, A 4, B 6 and 7.
  void configure() {
    TileConfig config = whole_tiles();
    for (std::size_t tile = 0; tile <= 4; ++tile)
      config.rows[tile] = static_cast<std::uint8_t>(height_);
    tiles_.configure(config);
  }

  /// The first ones of `panel` and those behind it.
  [[nodiscard]] Four four_at(std::size_t panel) const {
    const auto next = static_cast<std::ptrdiff_t>(block_.panel_bytes);
    const std::size_t left = panel < block_.panel_end ? block_.panel_end - panel : 0;
    const std::size_t most = gated_ ? 2 : kPanels;
    Four four = {.first = PanelAsks<V>::panels_behind(block_, panel),
                 .second = left == 1 ? 0 : next,
                 .third = 2 * next,
                 .panel = panel,
                 .panels = left < most ? left : most};
    if (gated_) {
      four.third = static_cast<std::ptrdiff_t>(panels_apart(block_));
    } else if (left == 1 || left == 2) {
      four.third = 0;
    } else if (left == 3) {
      four.third = next;
    }
    return four;
  }

  [[nodiscard]] Four behind(const Four& four) const { return four_at(four.panel + four.panels); }

  /// Bytes from the first of four panels to panel P.
  template <int P>
  static inline __attribute__((always_inline)) std::ptrdiff_t offset(const Four& four) {
    return (P % 2 == 1 ? four.second : 0) + (P / 2 == 1 ? four.third : 0);
  }

  void bring_step() {
    bring<0>();
    bring<1>();
    bring<2>();
    bring<3>();
  }

  /// A quarter of the lines of a step, one of each panel in turn. The four quarters follow each
  /// other.
  template <int Quarter>
  inline __attribute__((always_inline)) void bring() {
    if (bringing_.panels == 0) return;
    if (last_count_ == 0 || step_ + 1 < steps_) {
      bring_lines<Quarter>();
    } else if constexpr (Quarter == 0) {
      bring_last<0>();
      bring_last<1>();
      bring_last<2>();
      bring_last<3>();
    }
    if constexpr (Quarter == 3) {
      if constexpr (W::kPatches) mend();
      brought_ = (brought_ + 1) % kRoomSteps;
      if (++step_ < steps_) return;
      step_ = 0;
      bringing_ = then_;
      then_ = behind(then_);
    }
  }

  template <int Quarter>
  inline __attribute__((always_inline)) void bring_lines() {
    constexpr std::size_t kFirst = Quarter * kQuarterUnits;
    const bool inside = step_ + kAheadSteps < steps_;
    const std::size_t ahead = inside ? step_ + kAheadSteps : step_ + kAheadSteps - steps_;
    const Four& asked = inside ? bringing_ : then_;
    const std::byte* ask = asked.first + W::at(ahead) + kFirst * Tiles::kUnitBytes;
    const std::byte* from[4];
    const std::byte* asks[4];
    each_panel([&]<int P>() {
      from[P] = bringing_.first + offset<P>(bringing_);
      asks[P] = ask + offset<P>(asked);
    });
    const typename W::Lines lines[4] = {
        {from[0], step_}, {from[1], step_}, {from[2], step_}, {from[3], step_}};
    if constexpr (W::kHeaderSteps != 0 && Quarter == 0) {
      if (ahead % W::kHeaderSteps == 0) each_panel([&]<int P>() { ask_header(asks[P] - 64); });
    }
    const std::size_t at = W::at(step_) + kFirst * Tiles::kUnitBytes;
    std::byte* to = room(brought_) + kFirst * Tiles::kUnitMakes;
#pragma GCC unroll 4
    for (std::size_t unit = 0; unit < kQuarterUnits; ++unit) {
      each_panel([&]<int P>() __attribute__((always_inline)) {
        Tiles::ask(asks[P] + unit * Tiles::kUnitBytes);
        lines[P].make(from[P] + at + unit * Tiles::kUnitBytes,
                      to + P * kTileBytes + unit * Tiles::kUnitMakes);
        __asm__ volatile("" ::: "memory");  // the order is what counts
      });
    }
  }

  /// For what lies before a panel's units, and its patches.
  inline __attribute__((always_inline)) void ask_header(const std::byte* header) const {
    if constexpr (W::kPatches) {
      ShortBf16<V>::ask(header, steps_);
    } else {
      __builtin_prefetch(header);
    }
  }

  /// The B tiles of a step that are brought but for what their units do not say.
  inline __attribute__((always_inline)) void mend() {
    each_panel([&]<int P>() __attribute__((always_inline)) {
      if (step_ == 0)
        patches_[P] = ShortBf16<V>::patches(bringing_.first + offset<P>(bringing_), steps_);
      patches_[P] = ShortBf16<V>::mend(patches_[P], step_, room(brought_) + P * kTileBytes);
    });
  }

  /// The last step of panel P, where k ends within it.
  template <int P>
  void bring_last() {
    Tiles::make_last(bringing_.first + offset<P>(bringing_),
                     step_,
                     last_count_,
                     room(brought_) + P * kTileBytes);
  }

  template <class Fn>
  static inline __attribute__((always_inline)) void each_panel(Fn fn) {
    fn.template operator()<0>();
    fn.template operator()<1>();
    fn.template operator()<2>();
    fn.template operator()<3>();
  }

  /// B tiles of the step that is brought in turn `turn`.
  [[nodiscard]] std::byte* room(std::size_t turn) const {
    return base_ + kBroughtAt + turn * kStepBytes;
  }

  /// Sums of four panels, [panels][16][64 bytes].
  void sum_one_tile(std::byte* sums) {
    const std::byte* x = rows_;
    each_panel([&]<int C>() { tiles_.template zero<C>(); });
    for (std::size_t step = 0; step < steps_; ++step) {
      settle(step_rows_);
      const std::byte* b = room(used_);
      tiles_.template load_passing<4>(x, kTileRowBytes);
      each_panel([&]<int P>() __attribute__((always_inline)) {
        bring<P>();
        multiply_panel<P>(b);
      });
      x += height_ * kTileRowBytes;
      used_ = (used_ + 1) % kRoomSteps;
    }
    store_sums(sums);
  }

  /// The same of two tiles of rows, [tiles of rows][panels][16][64 bytes].
  void sum_two_tiles(std::byte* sums) {
    std::size_t step = 0;
    for (; step + 2 <= steps_; step += 2)
      sum_steps<2>(step, sums);
    if (step < steps_) sum_steps<1>(step, sums);
  }

  template <int Steps>
  inline __attribute__((always_inline)) void sum_steps(std::size_t step, std::byte* sums) {
    sum_tile<Steps, 0>(step, sums);
    sum_tile<Steps, 1>(step, sums + kStepBytes);
    used_ = (used_ + Steps) % kRoomSteps;
  }

  /// Of a cut of so many steps, a tile of rows.
  template <int Steps, int Tile>
  inline __attribute__((always_inline)) void sum_tile(std::size_t step, std::byte* sums) {
    if (step == 0) {
      each_panel([&]<int C>() { tiles_.template zero<C>(); });
    } else {
      each_panel([&]<int C>() { tiles_.template load<C>(sums + C * kTileBytes, kTileRowBytes); });
    }
    const std::byte* x = rows_ + (Tile * steps_ + step) * kTileBytes;
    multiply_step<Steps, Tile, 0>(x);
    if constexpr (Steps == 2) multiply_step<Steps, Tile, 1>(x + kTileBytes);
    store_sums(sums);
  }

  /// Step I of the cut. Each tile of rows brings half of the cut's worth of lines.
  template <int Steps, int Tile, int I>
  inline __attribute__((always_inline)) void multiply_step(const std::byte* x) {
    constexpr int kQuarter = Steps == 2 ? 2 * I : 2 * Tile;
    const std::byte* b = room((used_ + I) % kRoomSteps);
    if constexpr (Tile == 0) settle(step_rows_);
    tiles_.template load_passing<4>(x, kTileRowBytes);
    bring<kQuarter>();
    multiply_panel<0>(b);
    multiply_panel<1>(b);
    bring<kQuarter + 1>();
    multiply_panel<2>(b);
    multiply_panel<3>(b);
  }

  template <int P>
  inline __attribute__((always_inline)) void multiply_panel(const std::byte* b) {
    constexpr int kB = 6 + P % 2;
    tiles_.template load<kB>(b + P * kTileBytes, kTileRowBytes);
    W::template multiply<P, 4, kB>(tiles_);
  }

  inline __attribute__((always_inline)) void store_sums(std::byte* to) {
    each_panel([&]<int C>() { tiles_.template store<C>(to + C * kTileBytes, kTileRowBytes); });
  }

  /// Makes outputs of `count` more rows of the sums that wait for it, or of those that are left.
  inline __attribute__((always_inline)) void settle(std::size_t count) {
    const std::size_t left = block_.rows - waiting_.row;
    const std::size_t end = waiting_.row + (count < left ? count : left);
    for (; waiting_.row < end; ++waiting_.row) {
      const std::size_t row = waiting_.row;
      const std::byte* sums =
          waiting_.sums + row / kTileHeight * kStepBytes + row % kTileHeight * kTileRowBytes;
      if (gated_) {
        settle_gated(row, sums);
      } else {
        settle_plain(row, sums);
      }
    }
  }

  inline __attribute__((always_inline)) void settle_gated(std::size_t row, const std::byte* sums) {
    const Four& four = waiting_.four;
    ask_outputs(row);
    for (std::size_t n = 0; n < four.panels; ++n) {
      const std::size_t panel = four.panel + n;
      const std::byte* gate = sums + n * kTileBytes;
      outputs_.set_gated(outputs_.at(row, panel),
                         panel,
                         W::outputs(block_, row, panel, gate),
                         W::outputs(block_, row, panel + outputs_.up(), gate + 2 * kTileBytes));
    }
  }

  inline __attribute__((always_inline)) void settle_plain(std::size_t row, const std::byte* sums) {
    const Four& four = waiting_.four;
    const bool simple = outputs_.simple(four.panel, four.panels);
    if (simple) ask_outputs(row);
    for (std::size_t n = 0; n < four.panels; ++n) {
      const std::size_t panel = four.panel + n;
      // Of three panels the second one is there twice.
      const std::size_t at = four.panels == 3 && n == 2 ? 3 : n;
      const typename V::Vec sum = W::outputs(block_, row, panel, sums + at * kTileBytes);
      if (simple) {
        outputs_.set(outputs_.at(row, panel), panel, sum);
      } else {
        Linear<V>::finish(block_, row, panel, sum);
      }
    }
  }

  /// For those of a row behind `row`, if there is one.
  inline __attribute__((always_inline)) void ask_outputs(std::size_t row) const {
    if (row + kOutputsAhead >= block_.rows) return;
    for (std::size_t n = 0; n < waiting_.four.panels; ++n)
      outputs_.ask(outputs_.at(row + kOutputsAhead, waiting_.four.panel + n));
  }

  const LinearBlock& block_;
  bool gated_;
  std::size_t steps_;
  std::size_t step_rows_;   ///< outputs to make beside a step
  std::size_t last_count_;  ///< k of the last step, where panels end within it; else 0
  std::size_t height_;      ///< of tiles of rows: 16, or the rows where they are fewer
  const std::byte* rows_;   ///< A tiles
  std::byte* base_;         ///< scratch
  Four bringing_{};
  Four then_{};                              ///< behind `bringing_`
  std::size_t step_ = 0;                     ///< that is brought next
  std::size_t brought_ = 0;                  ///< steps, modulo kRoomSteps
  std::size_t used_ = 0;                     ///< the same
  const ShortPatch* patches_[kPanels] = {};  ///< of the panels that are brought, the next ones
  Waiting waiting_{};
  ManyOutputs<V> outputs_;
  T tiles_;
};

}  // namespace tandem::kernels::cpu
