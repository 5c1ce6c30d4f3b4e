// Y = X W^T on AMX tiles, up to two tiles of rows, with weights of every kind.
//
// Idea: such a product takes the time of reading its weight, and memory is read fastest line by
// line from four places in turn, while a tile load takes 16 lines of one place. So vectors bring
// lines of four places to B tiles in the first level of caches (or make B tiles of them, where a
// weight is smaller in memory), two steps along k before they are loaded, since a tile load right
// behind the stores of its tile waits for them. Outputs are made beside the products of the next
// panels.
//
// One A tile has a C tile for each of four panels. Two A tiles take turns every two steps, and
// their sums wait in memory meanwhile. Where sums are integers, k may be summed in any order: then
// (kHalves) the four places are two panels at the first and at the second half of k, and two A
// tiles have a C tile for each of them all along. Four A tiles (both parts of two tiles of rows)
// take turns, two and two.
//
// Order of sums of one output: that of the tile unit over k, whatever the rows and panels.
// Bound: memory bandwidth. Two threads of a Granite Rapids: 33 GB/s, where tile loads from memory
// with lines asked for 2 KiB ahead got 29 and vectors that add up all lines 34.5 (docs/kernels.md).
#pragma once

#include "kernels/cpu/amx/tiles.h"
#include "kernels/cpu/simd/short_bf16.h"

namespace tandem::kernels::cpu {

template <class V, class T, class W, bool kHalves = false>
class SomeRows {
 public:
  static constexpr std::size_t kMostRows = 2 * kTileHeight;

  /// The rows are packed already, as TileLinear does.
  static void run(const LinearBlock& block) {
    if (fits_one_tile<V, W>(block)) {
      run_as<1>(block);
    } else if (block.rows <= kTileHeight) {
      run_as<W::kRowParts>(block);
    } else {
      run_as<2 * W::kRowParts>(block);
    }
  }

 private:
  template <class, class, class, bool>
  friend class SomeRows;

  using Tiles = PanelTiles<V, W>;

  static constexpr std::size_t kPlaces = 4;
  static constexpr std::size_t kPanels = kHalves ? 2 : kPlaces;
  /// Steps that B tiles are brought before their products, and for which there is room.
  static constexpr std::size_t kBroughtSteps = 2;
  static constexpr std::size_t kRoomSteps = 2 * kBroughtSteps;
  static constexpr std::size_t kStepBytes = kPlaces * kTileBytes;
  /// Sums of an A tile.
  static constexpr std::size_t kSumsStep = kPanels * kTileBytes;
  /// Lines are asked for a tile's worth of memory before they are brought; those of a unit, which
  /// are asked for together, earlier.
  static constexpr std::size_t kAheadSteps =
      W::kUnitLines == 1 ? kTileBytes / W::kMadeOf : W::kUnitLines;
  /// Units of a panel that are brought at a time.
  static constexpr std::size_t kQuarterUnits = Tiles::kUnits / 4;
  /// Scratch: x; sums of some panels, twice; B tiles.
  static constexpr std::size_t kSumsAt = kRowsRoom;
  static constexpr std::size_t kSumsBytes = 2 * W::kRowParts * kSumsStep;
  static constexpr std::size_t kBroughtAt = kSumsAt + 2 * kSumsBytes;
  static_assert(kBroughtAt + kRoomSteps * kStepBytes <= kTilesRoom);

  /// Rows whose outputs are asked for before they are made.
  static constexpr std::size_t kOutputsAhead = 4;

  /// Four places: the first panel, and bytes from it to the second place's and to the third one's;
  /// the fourth is as far from the third as the second from the first. Where outputs are of two
  /// weights, the first two are of gate and the others of up, or with kHalves the even ones of gate
  /// and the odd ones of up. One A tile's places go along runs of panels, see
  /// PanelAsks::run_length.
  struct Four {
    const std::byte* first;
    std::ptrdiff_t second;
    std::ptrdiff_t third;
    std::size_t panel;   ///< of outputs
    std::size_t panels;  ///< of outputs, `step` from one to the next; where they are few, some
                         ///< places are the same. 0: nothing is left
    std::size_t step;    ///< 1, or panels of a run
    std::size_t left;    ///< of the run, behind these
  };

  /// Sums that become outputs.
  struct Waiting {
    Four four;
    const std::byte* sums;
    std::size_t row;  ///< the next one; block_.rows: none is left
  };

  SomeRows(const LinearBlock& block, bool one_tile)
      : block_(block),
        gated_(block.up != nullptr),
        in_runs_(one_tile),  // with two A tiles and more it is 2 to 3 % slower
        steps_(Tiles::steps(block.k)),
        turns_(kHalves ? (steps_ + 1) / 2 : steps_),
        turn_rows_((block.rows + turns_ - 1) / turns_),
        last_count_(Tiles::last_count(block.k)),
        whole_turns_(whole_turns()),
        height_(tile_height<V, W>(block)),
        parts_apart_(fits_one_tile<V, W>(block) ? block.rows * kTileRowBytes : kSumsStep),
        rows_(rows_room(block)),
        base_(reinterpret_cast<std::byte*>(block.scratch)),
        outputs_(block) {}

  /// With M A tiles of a step.
  template <int M>
  static void run_as(const LinearBlock& block) {
    SomeRows<V, T, W, W::kExactSums && M != 1>(block, M == 1).template run_tiles<M>();
  }

  /// Turns in which all places have whole steps.
  [[nodiscard]] std::size_t whole_turns() const {
    const std::size_t whole = last_count_ == 0 ? steps_ : steps_ - 1;
    if constexpr (!kHalves) return whole;
    return whole > turns_ ? whole - turns_ : 0;
  }

  template <int M>
  void run_tiles() {
    configure();
    bringing_ = four_at(block_.panel_begin);
    then_ = behind(bringing_);
    waiting_ = {.four = bringing_, .sums = nullptr, .row = block_.rows};
    for (std::size_t step = 0; step < kBroughtSteps; ++step)
      bring_turn();
    std::size_t sums_turn = 0;
    for (Four four = four_at(block_.panel_begin); four.panels != 0; four = behind(four)) {
      std::byte* sums = base_ + kSumsAt + sums_turn * kSumsBytes;
      if constexpr (M == 1) {
        sum_one_tile(sums);
      } else if constexpr (!kHalves) {
        sum_two_tiles(sums);
      } else if constexpr (M == 2) {
        sum_halves(sums);
      } else {
        sum_halves_in_turn(sums);
      }
      settle(block_.rows);
      waiting_ = {.four = four, .sums = sums, .row = 0};
      sums_turn = 1 - sums_turn;
    }
    settle(block_.rows);
    outputs_.end();
    tiles_.release();
  }

  /// One shape for the whole block. C is 0 to 3, A 4 and 5, B 6 and 7.
  void configure() {
    TileConfig config = whole_tiles();
    for (std::size_t tile = 0; tile <= 5; ++tile)
      config.rows[tile] = static_cast<std::uint8_t>(height_);
    tiles_.configure(config);
  }

  /// The first ones of the runs from `panel` on.
  [[nodiscard]] Four four_at(std::size_t panel) const {
    const std::size_t left = panel < block_.panel_end ? block_.panel_end - panel : 0;
    const std::size_t most = gated_ ? kPanels / 2 : kPanels;
    const std::size_t step =
        left < most || !in_runs_ ? 1 : PanelAsks<V>::run_length(block_, left / most);
    const auto next = static_cast<std::ptrdiff_t>(step * block_.panel_bytes);
    Four four = {.first = PanelAsks<V>::panels_behind(block_, panel),
                 .second = left == 1 ? 0 : next,
                 .third = 2 * next,
                 .panel = panel,
                 .panels = left < most ? left : most,
                 .step = step,
                 .left = step - 1};
    if constexpr (kHalves) {
      if (gated_) four.second = static_cast<std::ptrdiff_t>(panels_apart(block_));
      four.third = 0;
    } else if (gated_) {
      four.third = static_cast<std::ptrdiff_t>(panels_apart(block_));
    } else if (left == 1 || left == 2) {
      four.third = 0;
    } else if (left == 3) {
      four.third = next;
    }
    return four;
  }

  [[nodiscard]] Four behind(Four four) const {
    if (four.left == 0) return four_at(four.panel + 1 + (four.panels - 1) * four.step);
    four.first += block_.panel_bytes;
    ++four.panel;
    --four.left;
    return four;
  }

  /// Bytes from the first panel to that of place P.
  template <int P>
  static inline __attribute__((always_inline)) std::ptrdiff_t offset(const Four& four) {
    return (P % 2 == 1 ? four.second : 0) + (P / 2 == 1 ? four.third : 0);
  }

  /// The step that place P has in a turn.
  template <int P>
  [[nodiscard]] inline __attribute__((always_inline)) std::size_t step_of(std::size_t turn) const {
    return kHalves && P / 2 == 1 ? turn + turns_ : turn;
  }

  void bring_turn() {
    bring<0>();
    bring<1>();
    bring<2>();
    bring<3>();
  }

  /// A quarter of the lines of a turn, one of each place in turn. The four quarters follow each
  /// other.
  template <int Quarter>
  inline __attribute__((always_inline)) void bring() {
    if (bringing_.panels == 0) return;
    if (turn_ < whole_turns_) {
      bring_lines<Quarter>();
    } else if constexpr (Quarter == 0) {
      each_place([&]<int P>() { bring_end<P>(); });
    }
    if constexpr (Quarter == 3) {
      if constexpr (W::kPatches) mend();
      brought_ = (brought_ + 1) % kRoomSteps;
      if (++turn_ < turns_) return;
      turn_ = 0;
      bringing_ = then_;
      then_ = behind(then_);
    }
  }

  template <int Quarter>
  inline __attribute__((always_inline)) void bring_lines() {
    constexpr std::size_t kFirst = Quarter * kQuarterUnits * Tiles::kUnitBytes;
    const bool inside = turn_ + kAheadSteps < turns_;
    const std::size_t ahead = inside ? turn_ + kAheadSteps : turn_ + kAheadSteps - turns_;
    const Four& asked = inside ? bringing_ : then_;
    const std::byte* from[kPlaces];
    const std::byte* asks[kPlaces];
    each_place([&]<int P>() __attribute__((always_inline)) {
      from[P] = bringing_.first + offset<P>(bringing_) + W::at(step_of<P>(turn_)) + kFirst;
      asks[P] = asked.first + offset<P>(asked) + W::at(step_of<P>(ahead)) + kFirst;
      if constexpr (W::kHeaderSteps != 0 && Quarter == 0) {
        if (step_of<P>(ahead) % W::kHeaderSteps == 0) ask_header(asks[P] - 64);
      }
    });
    const typename W::Lines lines[kPlaces] = {
        lines_of<0>(), lines_of<1>(), lines_of<2>(), lines_of<3>()};
    std::byte* to = room(brought_) + Quarter * kQuarterUnits * Tiles::kUnitMakes;
#pragma GCC unroll 4
    for (std::size_t unit = 0; unit < kQuarterUnits; ++unit) {
      each_place([&]<int P>() __attribute__((always_inline)) {
        Tiles::ask(asks[P] + unit * Tiles::kUnitBytes);
        lines[P].make(from[P] + unit * Tiles::kUnitBytes,
                      to + P * kTileBytes + unit * Tiles::kUnitMakes);
        __asm__ volatile("" ::: "memory");  // the order is what counts
      });
    }
  }

  /// What lines of place P become in the turn that is brought.
  template <int P>
  [[nodiscard]] inline __attribute__((always_inline)) typename W::Lines lines_of() const {
    return {bringing_.first + offset<P>(bringing_), step_of<P>(turn_)};
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
    each_place([&]<int P>() __attribute__((always_inline)) {
      if (turn_ == 0)
        patches_[P] = ShortBf16<V>::patches(bringing_.first + offset<P>(bringing_), steps_);
      patches_[P] = ShortBf16<V>::mend(patches_[P], turn_, room(brought_) + P * kTileBytes);
    });
  }

  /// The step of place P where some place has none, or a part of one.
  template <int P>
  void bring_end() {
    const std::byte* panel = bringing_.first + offset<P>(bringing_);
    const std::size_t step = step_of<P>(turn_);
    std::byte* to = room(brought_) + P * kTileBytes;
    if (step >= steps_) {
      __builtin_memset(to, 0, kTileBytes);
    } else if (step + 1 == steps_ && last_count_ != 0) {
      Tiles::make_last(panel, step, last_count_, to);
    } else {
      Tiles::make(panel, step, panel + W::at(step), to);
    }
  }

  template <class Fn>
  static inline __attribute__((always_inline)) void each_place(Fn fn) {
    fn.template operator()<0>();
    fn.template operator()<1>();
    fn.template operator()<2>();
    fn.template operator()<3>();
  }

  /// B tiles of the turn that has place `turn` there.
  [[nodiscard]] std::byte* room(std::size_t turn) const {
    return base_ + kBroughtAt + turn * kStepBytes;
  }

  /// Sums of four panels, [panels][16][64 bytes].
  void sum_one_tile(std::byte* sums) {
    const std::byte* x = rows_;
    begin_sums(true, sums);
    for (std::size_t step = 0; step < steps_; ++step) {
      settle(turn_rows_);
      const std::byte* b = room(used_);
      tiles_.template load_passing<4>(x, kTileRowBytes);
      each_place([&]<int P>() __attribute__((always_inline)) {
        bring<P>();
        multiply_panel<P>(b);
      });
      x += height_ * kTileRowBytes;
      used_ = (used_ + 1) % kRoomSteps;
    }
    store_sums(sums);
  }

  /// fn.operator()<Count>(first) for cuts of two of `count`, and of the one that may be left.
  template <class Fn>
  inline __attribute__((always_inline)) void for_cuts(std::size_t count, Fn fn) {
    std::size_t first = 0;
    for (; first + 2 <= count; first += 2) {
      fn.template operator()<2>(first);
      used_ = (used_ + 2) % kRoomSteps;
    }
    if (first == count) return;
    fn.template operator()<1>(first);
    used_ = (used_ + 1) % kRoomSteps;
  }

  /// The same of two A tiles, [A tiles][panels][16][64 bytes].
  void sum_two_tiles(std::byte* sums) {
    for_cuts(
        steps_, [&]<int Steps>(std::size_t step) __attribute__((always_inline)) {
          sum_tile<Steps, 0>(step, sums);
          sum_tile<Steps, 1>(step, sums + kSumsStep);
        });
  }

  /// Of a cut of so many steps, an A tile.
  template <int Steps, int Tile>
  inline __attribute__((always_inline)) void sum_tile(std::size_t step, std::byte* sums) {
    begin_sums(step == 0, sums);
    const std::byte* x = a_tile(Tile, step);
    multiply_step<Steps, Tile, 0>(x);
    if constexpr (Steps == 2) multiply_step<Steps, Tile, 1>(x + height_ * kTileRowBytes);
    store_sums(sums);
  }

  /// Step I of the cut. Each A tile brings half of the cut's worth of lines.
  template <int Steps, int Tile, int I>
  inline __attribute__((always_inline)) void multiply_step(const std::byte* x) {
    constexpr int kQuarter = Steps == 2 ? 2 * I : 2 * Tile;
    const std::byte* b = room((used_ + I) % kRoomSteps);
    if constexpr (Tile == 0) settle(turn_rows_);
    tiles_.template load_passing<4>(x, kTileRowBytes);
    bring<kQuarter>();
    multiply_panel<0>(b);
    multiply_panel<1>(b);
    bring<kQuarter + 1>();
    multiply_panel<2>(b);
    multiply_panel<3>(b);
  }

  /// Sums of two panels with two A tiles, [A tiles][panels][16][64 bytes]; kHalves.
  void sum_halves(std::byte* sums) {
    begin_sums(true, sums);
    for (std::size_t turn = 0; turn < turns_; ++turn) {
      settle(turn_rows_);
      const std::byte* b = room(used_);
      multiply_pair<0, 2>(a_tile(0, turn), b);
      multiply_pair<2, 2>(second_half(0, turn), b + 2 * kTileBytes);
      used_ = (used_ + 1) % kRoomSteps;
    }
    store_sums(sums);
  }

  /// The same with four A tiles, of which two and two take turns.
  void sum_halves_in_turn(std::byte* sums) {
    for_cuts(
        turns_, [&]<int Turns>(std::size_t turn) __attribute__((always_inline)) {
          sum_pair<Turns, 0>(turn, sums);
          sum_pair<Turns, 1>(turn, sums + 2 * kSumsStep);
        });
  }

  /// Of a cut of so many turns, two A tiles.
  template <int Turns, int Pair>
  inline __attribute__((always_inline)) void sum_pair(std::size_t turn, std::byte* sums) {
    begin_sums(turn == 0, sums);
    multiply_turn<Turns, Pair, 0>(turn);
    if constexpr (Turns == 2) multiply_turn<Turns, Pair, 1>(turn + 1);
    store_sums(sums);
  }

  /// Turn I of the cut. Each pair brings half of the cut's worth of lines.
  template <int Turns, int Pair, int I>
  inline __attribute__((always_inline)) void multiply_turn(std::size_t turn) {
    constexpr int kQuarter = Turns == 2 ? 2 * I : 2 * Pair;
    const std::byte* b = room((used_ + I) % kRoomSteps);
    if constexpr (Pair == 0) settle(turn_rows_);
    multiply_pair<kQuarter, 1>(a_tile(2 * Pair, turn), b);
    multiply_pair<kQuarter + 1, 1>(second_half(2 * Pair, turn), b + 2 * kTileBytes);
  }

  /// Two A tiles, `x` and the next one of that step, and two panels. Brings so many quarters.
  template <int Quarter, int Quarters>
  inline __attribute__((always_inline)) void multiply_pair(const std::byte* x, const std::byte* b) {
    tiles_.template load_passing<4>(x, kTileRowBytes);
    tiles_.template load_passing<5>(x + steps_ * height_ * kTileRowBytes, kTileRowBytes);
    bring<Quarter>();
    tiles_.template load<6>(b, kTileRowBytes);
    W::template multiply<0, 4, 6>(tiles_);
    W::template multiply<2, 5, 6>(tiles_);
    if constexpr (Quarters == 2) bring<Quarter + 1>();
    tiles_.template load<7>(b + kTileBytes, kTileRowBytes);
    W::template multiply<1, 4, 7>(tiles_);
    W::template multiply<3, 5, 7>(tiles_);
  }

  [[nodiscard]] const std::byte* a_tile(std::size_t tile, std::size_t step) const {
    return rows_ + (tile * steps_ + step) * height_ * kTileRowBytes;
  }

  /// That of the second half in a turn; any where its place has no step, and zeros in its B tile.
  [[nodiscard]] const std::byte* second_half(std::size_t tile, std::size_t turn) const {
    const std::size_t step = turn + turns_;
    return a_tile(tile, step < steps_ ? step : turn);
  }

  /// C tiles at the beginning of a cut.
  inline __attribute__((always_inline)) void begin_sums(bool first, const std::byte* sums) {
    if (first) {
      each_place([&]<int C>() { tiles_.template zero<C>(); });
    } else {
      each_place([&]<int C>() { tiles_.template load<C>(sums + C * kTileBytes, kTileRowBytes); });
    }
  }

  template <int P>
  inline __attribute__((always_inline)) void multiply_panel(const std::byte* b) {
    constexpr int kB = 6 + P % 2;
    tiles_.template load<kB>(b + P * kTileBytes, kTileRowBytes);
    W::template multiply<P, 4, kB>(tiles_);
  }

  inline __attribute__((always_inline)) void store_sums(std::byte* to) {
    each_place([&]<int C>() { tiles_.template store<C>(to + C * kTileBytes, kTileRowBytes); });
  }

  /// Makes outputs of `count` more rows of the sums that wait for it, or of those that are left.
  inline __attribute__((always_inline)) void settle(std::size_t count) {
    const std::size_t left = block_.rows - waiting_.row;
    const std::size_t end = waiting_.row + (count < left ? count : left);
    for (; waiting_.row < end; ++waiting_.row) {
      const std::size_t row = waiting_.row;
      const std::byte* sums = waiting_.sums + row / kTileHeight * W::kRowParts * kSumsStep +
                              row % kTileHeight * kTileRowBytes;
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
      const std::size_t panel = four.panel + n * four.step;
      const std::byte* gate = sums + n * kTileBytes;
      outputs_.set_gated(outputs_.at(row, panel),
                         panel,
                         output(row, panel, gate),
                         output(row, panel + outputs_.up(), gate + kPanels / 2 * kTileBytes));
    }
  }

  inline __attribute__((always_inline)) void settle_plain(std::size_t row, const std::byte* sums) {
    const Four& four = waiting_.four;
    const bool simple = outputs_.simple(four.panel + (four.panels - 1) * four.step, 1);
    if (simple) ask_outputs(row);
    for (std::size_t n = 0; n < four.panels; ++n) {
      const std::size_t panel = four.panel + n * four.step;
      // Of three panels the second one is there twice.
      const std::size_t at = four.panels == 3 && n == 2 ? 3 : n;
      const typename V::Vec sum = output(row, panel, sums + at * kTileBytes);
      if (simple) {
        outputs_.set(outputs_.at(row, panel), panel, sum);
      } else {
        Linear<V>::finish(block_, row, panel, sum);
      }
    }
  }

  [[nodiscard]] inline __attribute__((always_inline)) typename V::Vec output(
      std::size_t row, std::size_t panel, const std::byte* sums) const {
    return W::outputs(block_, row, panel, sums, parts_apart_);
  }

  /// For those of a row behind `row`, if there is one.
  inline __attribute__((always_inline)) void ask_outputs(std::size_t row) const {
    if (row + kOutputsAhead >= block_.rows) return;
    const Four& four = waiting_.four;
    for (std::size_t n = 0; n < four.panels; ++n)
      outputs_.ask(outputs_.at(row + kOutputsAhead, four.panel + n * four.step));
  }

  const LinearBlock& block_;
  bool gated_;
  bool in_runs_;
  std::size_t steps_;
  std::size_t turns_;        ///< in each of which every place has a step
  std::size_t turn_rows_;    ///< outputs to make beside a turn
  std::size_t last_count_;   ///< k of the last step, where panels end within it; else 0
  std::size_t whole_turns_;  ///< in which all steps are whole
  std::size_t height_;       ///< of tiles of rows: 16, or the rows where they are fewer
  std::size_t parts_apart_;  ///< bytes from sums of a row's first part to those of the second
  const std::byte* rows_;    ///< A tiles
  std::byte* base_;          ///< scratch
  Four bringing_{};
  Four then_{};                              ///< behind `bringing_`
  std::size_t turn_ = 0;                     ///< that is brought next
  std::size_t brought_ = 0;                  ///< turns, modulo kRoomSteps
  std::size_t used_ = 0;                     ///< the same
  const ShortPatch* patches_[kPlaces] = {};  ///< of the panels that are brought, the next ones
  Waiting waiting_{};
  ManyOutputs<V> outputs_;
  T tiles_;
};

}  // namespace tandem::kernels::cpu
