// Y = X W^T on AMX tiles, of weights whose panels are B tiles in memory; others are in made.h. A
// few rows may go by vectors instead: few_rows.h.
//
// Idea: a packed panel (16 outputs) is a row of B tiles: 16 rows of 64 bytes each. x is packed into
// A tiles of 16 rows, one after the other along k. Up to 16 rows take four panels at a time, up to
// 32 three, 2 x 3 C tiles: their x comes from the second level of caches each time, and now for six
// products instead of four. A C tile becomes outputs only after the products of the next one are
// under way: the tile unit works meanwhile. Where outputs are of two weights (gate and up), panels
// of both go side by side. More than 32 rows: many_rows.h.
//
// Order of sums of one output: that of the tile unit over k, whatever the rows, since rows of a
// tile do not meet. Bound: few rows read the weight once, at memory bandwidth (a product of 16
// cycles eats 1 KiB of B); many rows run at the tile unit's peak, for which A comes from the second
// level of caches at half of its bandwidth (2 KiB for 64 cycles).
//
// T is the tile unit: HardwareTiles (kernels.cc) or EmulatedTiles, which runs anywhere and is what
// the tests use where there is no AMX. W is a kind of weight, see linear.h.
#pragma once

#include "kernels/cpu/amx/many_rows.h"

namespace tandem::kernels::cpu {

/// The 64 bytes of ldtilecfg, palette 1.
struct alignas(64) TileConfig {
  std::uint8_t palette;
  std::uint8_t start_row;
  std::uint8_t reserved[14];
  std::uint16_t row_bytes[16];
  std::uint8_t rows[16];
};

/// Eight whole tiles.
inline __attribute__((always_inline)) TileConfig whole_tiles() {
  TileConfig config{};
  config.palette = 1;
  for (std::size_t tile = 0; tile < 8; ++tile) {
    config.row_bytes[tile] = kTileRowBytes;
    config.rows[tile] = kTileHeight;
  }
  return config;
}

/// Where one row of x lies in the A tiles: 64 bytes for each step along k. (V only keeps
/// instruction-set files apart, see table.h.)
template <class V>
struct TileLine {
  std::byte* first;
  std::size_t step_bytes;

  [[nodiscard]] std::byte* at(std::size_t step) const { return first + step * step_bytes; }
};

/// Whether a block's rows came packed, in whole tiles.
template <class V>
bool comes_packed(const LinearBlock& block) {
  return block.rows_room != nullptr || block.x_halves != nullptr;
}

/// Of the tiles that a block's rows go to.
template <class V>
std::size_t tile_height(const LinearBlock& block) {
  return block.rows < kTileHeight && !comes_packed<V>(block) ? block.rows : kTileHeight;
}

/// Rows of one tile, and one panel.
struct TilePanel {
  std::size_t row;
  std::size_t rows;
  std::size_t panel;
};

template <class V, class T, template <class, class> class Kind>
class TileLinear {
  using W = Kind<V, T>;
  using Many = ManyRows<V, T, W>;

 public:
  static void run(const LinearBlock& block) {
    if (block.rows == 0) return;
    TileLinear(block).run_all();
  }

  /// See Kernels.
  static void pack_rows(const LinearBlock& block, std::size_t begin, std::size_t end) {
    TileLinear(block).pack(begin, end);
  }

  /// Rows that a block may have: as many as fit beside what else the second level of caches holds,
  /// whole pairs of tiles if it is more than one.
  static std::size_t most_rows(std::size_t k) {
    const std::size_t row_bytes = steps_of(k) * kTileRowBytes;
    if (row_bytes * kMostTileRows <= kRowsBytes) return kMostTileRows;
    const std::size_t fit = kRowsBytes / row_bytes;
    return fit >= 2 * kTileHeight ? fit / (2 * kTileHeight) * (2 * kTileHeight)
                                  : (fit < kTileHeight ? fit : kTileHeight);
  }

  /// See Kernels.
  static std::size_t rows_in_parts(std::size_t k) {
    return most_rows(k) < kRowsInParts ? kRowsInParts : 0;
  }

 private:
  /// 512 gain nothing over most_rows.
  static constexpr std::size_t kRowsInParts = 256;
  static_assert(kRowsInParts / kTileHeight * kPartPanels * kTileBytes <= kRowsRoom,
                "sums of all panels lie where rows would be packed");
  /// C tiles at most.
  static constexpr std::size_t kMostC = 6;
  /// Scratch: x, then the sums between cuts of k, the C tiles that become outputs next, twice, and
  /// the last B tiles where a panel ends within them.
  static constexpr std::size_t kSumsBytes = kMostTileRows / kTileHeight * 2 * kTileBytes;
  static constexpr std::size_t kSumsAt = kRowsRoom;
  static constexpr std::size_t kWaitingAt = kSumsAt + kSumsBytes;
  static constexpr std::size_t kWaitingMoreAt = kWaitingAt + kMostC * kTileBytes;
  static constexpr std::size_t kTailAt = kWaitingMoreAt + kMostC * kTileBytes;
  static_assert(kTailAt + 4 * kTileBytes <= kTilesRoom);
  /// How far ahead up to 32 rows ask for their own panel, in steps: Linear::kAheadBytes.
  static constexpr std::size_t kAheadSteps = Linear<V>::kAheadBytes / kTileBytes;

  /// C tiles in memory that are to become outputs.
  struct Waiting {
    std::size_t panel;
    std::size_t panels;
    std::size_t row;  ///< the next one; block_.rows: none is left
  };

  /// Rows whose outputs are asked for before they are made: stores to lines that are far away would
  /// hold up everything behind them.
  static constexpr std::size_t kOutputsAhead = 4;

  /// The same where outputs are of two weights.
  struct Gated {
    /// Sums of the first tile of rows.
    struct Pair {
      const std::byte* gate;
      const std::byte* up;
    };

    std::size_t panel;
    std::size_t row;  ///< as of Waiting
    Pair pairs[2];    ///< of `panel` and of the next one
    std::size_t count;
    std::size_t tile_apart;  ///< bytes from sums of a tile of rows to those of the next
  };

  explicit TileLinear(const LinearBlock& block)
      : block_(block),
        steps_(steps_of(block.k)),
        height_(tile_height<V>(block)),
        row_tiles_((block.rows + kTileHeight - 1) / kTileHeight),
        tail_bytes_(W::tail_bytes(block.k)),
        rows_(rows_room(block)),
        base_(reinterpret_cast<std::byte*>(block.scratch)),
        streams_(block.y_rows == nullptr && block.row_scale == nullptr && streams_outputs(block)),
        waiting_{.panel = 0, .panels = 0, .row = block.rows},
        gated_{.panel = 0, .row = block.rows, .pairs = {}, .count = 0, .tile_apart = 0},
        outputs_(block) {}

  static std::size_t steps_of(std::size_t k) { return (k + W::kStepK - 1) / W::kStepK; }

  void run_all() {
    if (!block_.packed) pack(0, block_.rows);
    configure();
    std::size_t panel = block_.panel_begin;
    if (row_tiles_ > 2) return run_many();
    if (block_.up != nullptr) {
      if (row_tiles_ == 1) {
        panel = run_gated<1, 2>(panel);
        run_gated<1, 1>(panel);
      } else {
        panel = run_three_gated(panel);
        run_gated<2, 1>(panel);
      }
      settle_gated(block_.rows);
    } else {
      if (row_tiles_ == 1) {
        panel = run_wide<1, 4>(panel);
        panel = run_wide<1, 2>(panel);
        run_wide<1, 1>(panel);
      } else {
        panel = run_wide<2, 3>(panel);
        panel = run_wide<2, 2>(panel);
        run_wide<2, 1>(panel);
      }
      settle(block_.rows);
    }
    if (streams_) V::end_streams();
    tiles_.release();
  }

  /// Rows [begin, end) of x to [tiles of rows][steps][height][64 bytes], zeros behind k and behind
  /// the last row.
  void pack(std::size_t begin, std::size_t end) {
    if constexpr (requires { &W::pack_tile; }) {
      if (block_.x_halves != nullptr) return pack_tiles(begin, end);
    }
    const std::size_t tile_bytes = height_ * kTileRowBytes;
    if (end == block_.rows) end = row_tiles_ * height_;
    for (std::size_t row = begin; row < end; ++row) {
      const TileLine<V> line{
          rows_ + row / height_ * steps_ * tile_bytes + row % height_ * kTileRowBytes, tile_bytes};
      if (row < block_.rows) {
        W::pack(block_, row, steps_, line);
      } else {
        for (std::size_t step = 0; step < steps_; ++step)
          __builtin_memset(line.at(step), 0, kTileRowBytes);
      }
    }
  }

  /// The same of rows that came as bf16, in whole tiles. Rows behind the last one stay what they
  /// were: no row meets another.
  void pack_tiles(std::size_t begin, std::size_t end) {
    for (std::size_t row = begin; row < end; row += kTileHeight) {
      const std::size_t left = end - row;
      W::pack_tile(block_.x_halves + row * block_.k * sizeof(std::uint16_t),
                   left < kTileHeight ? left : kTileHeight,
                   steps_,
                   row_floats(block_) + row,
                   rows_ + row * steps_ * kTileRowBytes);
    }
  }

  /// One shape for the whole block. C is 0 to 3, A 4 and 5, B 6 and 7; of three panels C is 0 to 5,
  /// A 6, B 7, and all tiles are whole.
  void configure() {
    TileConfig config = whole_tiles();
    for (std::size_t tile = 0; tile < 6; ++tile)
      config.rows[tile] = static_cast<std::uint8_t>(height_);
    tiles_.configure(config);
  }

  void run_many() {
    const ManyRowsRoom room = {.x = rows_,
                               .waiting = base_ + kWaitingAt,
                               .tail = tail_bytes_ == 0 ? nullptr : base_ + kTailAt};
    Many many(block_, steps_, room, tiles_);
    // A tiles of rows_in_parts alone take more of the second level than kRowsBytes.
    const std::size_t parts = (row_tiles_ * steps_ * kTileBytes + kRowsBytes - 1) / kRowsBytes;
    if (parts == 1) {
      run_part(many, many.part(0, 1), base_ + kSumsAt, 0);
    } else {
      for (std::size_t i = 0; i < parts; ++i)
        run_part(many, many.part(i, parts), base_, row_tiles_ * 2 * kTileBytes);
    }
    many.settle();
    tiles_.release();
  }

  /// All panels; sums of two panels lie `sums_apart` bytes from those of the next two.
  void run_part(Many& many,
                const typename Many::Part& part,
                std::byte* sums,
                std::size_t sums_apart) {
    const std::size_t step = block_.up != nullptr ? 1 : 2;
    const std::size_t end = many.first_step(part.end);
    const auto next = [&](std::size_t panel) {
      if (panel < block_.panel_end) return b_tile(panel, many.first_step(part.begin));
      return end < steps_ ? b_tile(block_.panel_begin, end) : behind(panel);
    };
    std::size_t panel = block_.panel_begin;
    for (; panel + step <= block_.panel_end; panel += step) {
      if (tail_bytes_ != 0) {
        copy_tail(b_tile(panel, steps_ - 1), 0);
        copy_tail(block_.up == nullptr ? b_tile(panel + 1, steps_ - 1)
                                       : b_tile(panel, steps_ - 1) + (block_.up - block_.weight),
                  1);
      }
      many.template run<2>(panel, part, sums, next(panel + step));
      sums += sums_apart;
    }
    if (panel < block_.panel_end) {
      if (tail_bytes_ != 0) copy_tail(b_tile(panel, steps_ - 1), 0);
      many.template run<1>(panel, part, sums, next(panel + 1));
    }
  }

  /// Panels that go side by side: B tiles of the first one, and bytes from there to those of the
  /// second and of the third; the fourth is as far from the third as the second from the first.
  struct Side {
    const std::byte* at;
    std::ptrdiff_t second;
    std::ptrdiff_t third;

    template <int P>
    [[nodiscard]] inline __attribute__((always_inline)) std::ptrdiff_t to() const {
      return (P % 2 == 1 ? second : 0) + (P / 2 == 1 ? third : 0);
    }
  };

  /// Neighbours.
  [[nodiscard]] Side neighbours(const std::byte* first) const {
    return {first, panel_bytes(), 2 * panel_bytes()};
  }

  [[nodiscard]] std::ptrdiff_t panel_bytes() const {
    return static_cast<std::ptrdiff_t>(block_.panel_bytes);
  }

  /// Panels from `panel` on, N at a time. The last four go in pairs and not with one left alone,
  /// which would be read more slowly.
  template <int M, int N>
  std::size_t run_wide(std::size_t panel) {
    while (panel + N <= block_.panel_end && (N != 3 || panel + 4 != block_.panel_end)) {
      run_side<M, N>(neighbours(b_tile(panel, 0)), neighbours(behind(panel + N)), [&](auto count) {
        settle(count);
      });
      store_sums<M, N>(base_ + kWaitingAt);
      waiting_ = {.panel = panel, .panels = N, .row = 0};
      panel += N;
    }
    return panel;
  }

  /// The sums of all rows, M tiles of them, with N panels, in C tiles. Asks for those that come
  /// `then`. settle(count) makes outputs of so many more rows of the sums before.
  template <int M, int N, class Settle>
  inline __attribute__((always_inline)) void run_side(const Side& side,
                                                      const Side& then,
                                                      Settle settle_rows) {
    if (tail_bytes_ != 0) {
      const std::byte* last = side.at + (steps_ - 1) * kTileBytes;
      copy_tail(last, 0);
      if constexpr (N > 1) copy_tail(last + side.template to<1>(), 1);
      if constexpr (N > 2) copy_tail(last + side.template to<2>(), 2);
      if constexpr (N > 3) copy_tail(last + side.template to<3>(), 3);
    }
    for_c<M, N>([&]<int C>() { tiles_.template zero<C>(); });
    const std::byte* x = rows_;
    const std::size_t x_step = height_ * kTileRowBytes;
    const std::size_t whole = steps_ - (tail_bytes_ != 0 ? 1 : 0);
    const std::size_t rows = (block_.rows + steps_ - 1) / steps_;
    const std::size_t inside = steps_ > kAheadSteps ? steps_ - kAheadSteps : 0;
    std::size_t step = 0;
    const auto run_to = [&](std::size_t end, const Side& ahead, std::size_t first)
        __attribute__((always_inline)) {
      const std::byte* now = side.at + step * kTileBytes;
      const std::byte* ask = ahead.at + first * kTileBytes;
      for (; step < end; ++step) {
        settle_rows(rows);
        multiply<M, N>(x, now, side, ask, ahead);
        x += x_step;
        now += kTileBytes;
        ask += kTileBytes;
      }
    };
    run_to(inside < whole ? inside : whole, side, kAheadSteps);
    run_to(whole, then, step + kAheadSteps - steps_);
    if (whole < steps_) {
      const Side tail = {base_ + kTailAt, kTileBytes, 2 * kTileBytes};
      multiply<M, N>(x, tail.at, tail, tail.at, tail);
    }
    settle_rows(block_.rows);
  }

  template <int M, int N>
  inline __attribute__((always_inline)) void store_sums(std::byte* to) {
    for_c<M, N>([&]<int C>() { tiles_.template store<C>(to + C * kTileBytes, kTileRowBytes); });
  }

  /// Outputs of `panel` and those behind it, N at a time: those panels of both weights.
  template <int M, int N>
  std::size_t run_gated(std::size_t panel) {
    const auto up = static_cast<std::ptrdiff_t>(panels_apart(block_));
    std::byte* const sums = base_ + kWaitingAt;
    for (; panel + N <= block_.panel_end; panel += N) {
      const Side side = {b_tile(panel, 0), N == 2 ? panel_bytes() : up, up};
      Side then = side;
      then.at = behind(panel + N);
      run_side<M, 2 * N>(side, then, [&](std::size_t count) { settle_gated(count); });
      store_sums<M, 2 * N>(sums);
      gated_ = {.panel = panel, .row = 0, .pairs = {}, .count = N, .tile_apart = 2 * kTileBytes};
      for (std::size_t n = 0; n < N; ++n)
        gated_.pairs[n] = {.gate = sums + n * kTileBytes, .up = sums + (N + n) * kTileBytes};
    }
    return panel;
  }

  /// The same with two tiles of rows, three outputs' panels in two turns of three: gate, up, gate;
  /// up, gate, up. The third sums wait for the second turn.
  std::size_t run_three_gated(std::size_t panel) {
    const auto up = static_cast<std::ptrdiff_t>(panels_apart(block_));
    const std::ptrdiff_t next = panel_bytes();
    std::byte* const first = base_ + kWaitingAt;
    std::byte* const second = base_ + kWaitingMoreAt;
    const auto sums = [](std::byte* from, std::size_t n) { return from + n * kTileBytes; };
    for (; panel + 3 <= block_.panel_end; panel += 3) {
      const Side one = {b_tile(panel, 0), up, next};
      const Side two = {b_tile(panel + 1, 0) + up, next - up, next};
      const Side then = {behind(panel + 3), up, next};
      run_side<2, 3>(one, two, [&](std::size_t count) { settle_gated(count); });
      store_sums<2, 3>(first);
      gated_ = {.panel = panel,
                .row = 0,
                .pairs = {{.gate = sums(first, 0), .up = sums(first, 1)}, {}},
                .count = 1,
                .tile_apart = 3 * kTileBytes};
      run_side<2, 3>(two, then, [&](std::size_t count) { settle_gated(count); });
      store_sums<2, 3>(second);
      gated_ = {.panel = panel + 1,
                .row = 0,
                .pairs = {{.gate = sums(first, 2), .up = sums(second, 0)},
                          {.gate = sums(second, 1), .up = sums(second, 2)}},
                .count = 2,
                .tile_apart = 3 * kTileBytes};
    }
    return panel;
  }

  /// A last B tile, zeros behind what its panel holds.
  void copy_tail(const std::byte* from, std::size_t n) {
    std::byte* to = base_ + kTailAt + n * kTileBytes;
    __builtin_memcpy(to, from, tail_bytes_);
    __builtin_memset(to + tail_bytes_, 0, kTileBytes - tail_bytes_);
  }

  /// One step along k of panels that lie as those of `side`. Asks for the tiles at `ask`, which lie
  /// as those of `ahead`.
  template <int M, int N>
  inline __attribute__((always_inline)) void multiply(const std::byte* x,
                                                      const std::byte* weight,
                                                      const Side& side,
                                                      const std::byte* ask,
                                                      const Side& ahead) {
    const std::byte* second = x + steps_ * height_ * kTileRowBytes;
    if constexpr (N == 3) {
      multiply_three(x, second, weight, side, ask, ahead);
    } else {
      tiles_.template load_passing<4>(x, kTileRowBytes);
      if constexpr (M == 2) tiles_.template load_passing<5>(second, kTileRowBytes);
      multiply_panel<M, 0>(weight + side.template to<0>(), ask + ahead.template to<0>());
      if constexpr (N > 1)
        multiply_panel<M, 1>(weight + side.template to<1>(), ask + ahead.template to<1>());
      if constexpr (N == 4) {
        multiply_panel<M, 2>(weight + side.template to<2>(), ask + ahead.template to<2>());
        multiply_panel<M, 3>(weight + side.template to<3>(), ask + ahead.template to<3>());
      }
    }
  }

  /// Of two tiles of rows, back through the panels for the second one: the last B tile is there
  /// still, and the other two are in the first level.
  inline __attribute__((always_inline)) void multiply_three(const std::byte* x,
                                                            const std::byte* second,
                                                            const std::byte* weight,
                                                            const Side& side,
                                                            const std::byte* ask,
                                                            const Side& ahead) {
    const auto multiply_one = [&]<int C, int P>() __attribute__((always_inline)) {
      tiles_.template load<7>(weight + side.template to<P>(), kTileRowBytes);
      W::template multiply<C, 6, 7>(tiles_);
    };
    tiles_.template load_passing<6>(x, kTileRowBytes);
    ask_tile(ask);
    multiply_one.template operator()<0, 0>();
    ask_tile(ask + ahead.template to<1>());
    multiply_one.template operator()<1, 1>();
    ask_tile(ask + ahead.template to<2>());
    multiply_one.template operator()<2, 2>();
    tiles_.template load_passing<6>(second, kTileRowBytes);
    W::template multiply<5, 6, 7>(tiles_);
    multiply_one.template operator()<4, 1>();
    multiply_one.template operator()<3, 0>();
  }

  static inline __attribute__((always_inline)) void ask_tile(const std::byte* tile) {
#pragma GCC unroll 16
    for (std::size_t line = 0; line < kTileBytes; line += 64)
      __builtin_prefetch(tile + line);
  }

  template <int M, int P>
  inline __attribute__((always_inline)) void multiply_panel(const std::byte* weight,
                                                            const std::byte* ask) {
    constexpr int kB = 6 + P % 2;
    ask_tile(ask);
    tiles_.template load<kB>(weight, kTileRowBytes);
    W::template multiply<P, 4, kB>(tiles_);
    if constexpr (M == 2) W::template multiply<2 + P, 5, kB>(tiles_);
  }

  /// C tiles from one tile of rows to the next.
  static constexpr std::size_t c_apart(std::size_t panels) {
    return panels == 3 ? 3 : 2;
  }

  /// fn.operator()<C>() for the C tiles of M x N: m * c_apart(N) + n of tile m of rows, panel n.
  template <int M, int N, class Fn>
  static inline __attribute__((always_inline)) void for_c(Fn fn) {
    fn.template operator()<0>();
    if constexpr (N > 1) fn.template operator()<1>();
    if constexpr (N > 2 || M > 1) fn.template operator()<2>();
    if constexpr (N == 3) {
      fn.template operator()<5>();
      fn.template operator()<4>();
    }
    if constexpr (N > 2 || (M > 1 && N > 1)) fn.template operator()<3>();
  }

  /// Makes outputs of `count` more rows of the C tiles that wait for it, or of those that are left.
  inline __attribute__((always_inline)) void settle(std::size_t count) {
    const std::size_t left = block_.rows - waiting_.row;
    const std::size_t end = waiting_.row + (count < left ? count : left);
    for (; waiting_.row < end; ++waiting_.row) {
      const std::size_t row = waiting_.row;
      const std::byte* c = base_ + kWaitingAt +
                           row / kTileHeight * c_apart(waiting_.panels) * kTileBytes +
                           row % kTileHeight * kTileRowBytes;
      if (!streams_ && row + kOutputsAhead < block_.rows) ask_outputs(row + kOutputsAhead);
      for (std::size_t n = 0; n < waiting_.panels; ++n) {
        const std::size_t panel = waiting_.panel + n;
        put(row, panel, W::outputs(block_, row, panel, c + n * kTileBytes));
      }
    }
  }

  /// The same of both weights' outputs.
  inline __attribute__((always_inline)) void settle_gated(std::size_t count) {
    const std::size_t left = block_.rows - gated_.row;
    const std::size_t end = gated_.row + (count < left ? count : left);
    for (; gated_.row < end; ++gated_.row) {
      const std::size_t row = gated_.row;
      const std::size_t at =
          row / kTileHeight * gated_.tile_apart + row % kTileHeight * kTileRowBytes;
      for (std::size_t n = 0; n < gated_.count; ++n) {
        const std::size_t panel = gated_.panel + n;
        outputs_.put_gated(outputs_.at(row, panel),
                           panel,
                           W::outputs(block_, row, panel, gated_.pairs[n].gate + at),
                           W::outputs(block_, row, panel + outputs_.up(), gated_.pairs[n].up + at));
      }
    }
  }

  inline __attribute__((always_inline)) void put(std::size_t row,
                                                 std::size_t panel,
                                                 typename V::Vec sum) {
    if (!streams_ || (panel + 1) * kPanel > block_.n)
      return Linear<V>::finish(block_, row, panel, sum);
    if (block_.bias != nullptr) sum = V::add(sum, V::load(block_.bias + panel * kPanel));
    V::stream(Linear<V>::y_row(block_, row) + panel * kPanel, sum);
  }

  inline __attribute__((always_inline)) void ask_outputs(std::size_t row) {
    const float* y = Linear<V>::y_row(block_, row) + waiting_.panel * kPanel;
    for (std::size_t n = 0; n < waiting_.panels; ++n)
      __builtin_prefetch(y + n * kPanel, 1);
  }

  /// B tiles of the panels that are read when those before `panel` are done.
  [[nodiscard]] const std::byte* behind(std::size_t panel) const {
    return Linear<V>::panels_behind(block_, panel) + W::kHeaderBytes;
  }

  [[nodiscard]] const std::byte* b_tile(std::size_t panel, std::size_t step) const {
    return block_.weight + panel * block_.panel_bytes + W::kHeaderBytes + step * kTileBytes;
  }

  const LinearBlock& block_;
  std::size_t steps_;
  std::size_t height_;  ///< of tiles of rows: 16, or the rows where they are fewer
  std::size_t row_tiles_;
  std::size_t tail_bytes_;  ///< of a panel's last B tile, where it is not whole; else 0
  std::byte* rows_;         ///< A tiles
  std::byte* base_;         ///< scratch
  bool streams_;            ///< outputs, past the caches
  Waiting waiting_;
  Gated gated_;
  ManyOutputs<V> outputs_;
  T tiles_;
};

}  // namespace tandem::kernels::cpu
