// Products of many rows on AMX tiles: pairs of tiles of rows against pairs of panels, see tiles.h.
//
// Idea: the B tiles of a cut of k stay in the first level of caches while the rows go by, two tiles
// of them a pass; A comes from the second level past the first. What surrounds the products is
// shared out among their steps, since the processor looks only a few steps ahead: asking for the
// next cut's weights, and making outputs of the pass before. The C tiles of one pass are stored and
// those of the next loaded one by one, so that the tile unit waits for a single tile only.
//
// Weights of a long k come in at the speed of memory if few rows' A tiles fit. Then kRowsInParts
// rows take k in parts: all panels of a task go by with the A tiles of one part, and their sums
// stay in memory until the next one.
//
// B tiles of weights that are smaller in memory are made for each cut, before its products.
#pragma once

#include "kernels/cpu/amx/panel_tiles.h"

namespace tandem::kernels::cpu {

/// Rows of a block at most, and the bytes that their A tiles take: half of the second level of
/// caches (2 MiB wherever there are tiles). With more, some of them meet in the same places of it.
inline constexpr std::size_t kMostTileRows = 512;
inline constexpr std::size_t kRowsBytes = 1024 * 1024;

/// A tiles of a block's rows, and behind kRowsBytes what a kind of weight keeps of rows.
inline __attribute__((always_inline)) std::byte* rows_room(const LinearBlock& block) {
  return block.rows_room != nullptr ? block.rows_room : reinterpret_cast<std::byte*>(block.scratch);
}

inline __attribute__((always_inline)) float* row_floats(const LinearBlock& block) {
  return reinterpret_cast<float*>(rows_room(block) + kRowsBytes);
}

/// Bytes from a panel to the one that a pass takes with it: the next one, or that of block.up.
inline __attribute__((always_inline)) std::size_t panels_apart(const LinearBlock& block) {
  return block.up != nullptr ? static_cast<std::size_t>(block.up - block.weight)
                             : block.panel_bytes;
}

/// Outputs of a block from which on they go past the caches: lines would be read before they are
/// written, and rows that lie a power of 2 apart push each other out meanwhile.
inline constexpr std::size_t kStreamedBytes = 2 << 20;

/// Of outputs with a common stride.
inline __attribute__((always_inline)) bool streams_outputs(const LinearBlock& block) {
  return block.y_packed == nullptr && !block.accumulate &&
         block.rows * block.n * sizeof(float) >= kStreamedBytes &&
         (reinterpret_cast<std::uintptr_t>(block.y) | block.y_stride * sizeof(float)) % 64 == 0;
}

/// fn.operator()<C>() for the C tiles of M tiles of rows x N panels (m * 2 + n), in the order in
/// which a step multiplies. (V only keeps instruction-set files apart, see table.h.)
template <class V, int M, int N, class Fn>
inline __attribute__((always_inline)) void for_c(Fn fn) {
  fn.template operator()<0>();
  if constexpr (M == 2) fn.template operator()<2>();
  if constexpr (N == 2) fn.template operator()<1>();
  if constexpr (M == 2 && N == 2) fn.template operator()<3>();
}

/// Stores outputs of many rows.
template <class V>
class ManyOutputs {
 public:
  explicit ManyOutputs(const LinearBlock& block)
      : block_(block),
        up_(panels_apart(block) / block.panel_bytes),
        streams_(streams_outputs(block)),
        packed_(block.y_packed != nullptr),
        row_step_(packed_ ? kTileRowBytes : block.y_stride * sizeof(float)),
        // Packed rows of a tile are one run; those of the next lie behind all of its steps.
        tile_step_(packed_ ? block.n / kPackedColumns * kTileBytes : kTileHeight * row_step_),
        ahead_(packed_ ? tile_step_ : kRowsAhead * row_step_) {}

  /// Panels from gate to up.
  [[nodiscard]] std::size_t up() const { return up_; }

  /// Whether outputs of `count` panels from `panel` on have a common stride and whole panels.
  [[nodiscard]] bool simple(std::size_t panel, std::size_t count) const {
    return block_.y_rows == nullptr && block_.row_scale == nullptr &&
           (panel + (block_.up != nullptr ? 1 : count)) * kPanel <= block_.n;
  }

  [[nodiscard]] std::byte* at(std::size_t row, std::size_t panel) const {
    const std::size_t down = row / kTileHeight * tile_step_ + row % kTileHeight * row_step_;
    if (!packed_) return reinterpret_cast<std::byte*>(block_.y + panel * kPanel) + down;
    return block_.y_packed + down + panel / 2 * kTileBytes + panel % 2 * (kTileRowBytes / 2);
  }

  /// From `row` to the row behind it.
  [[nodiscard]] std::size_t step_after(std::size_t row) const {
    return (row + 1) % kTileHeight == 0 ? tile_step_ - (kTileHeight - 1) * row_step_ : row_step_;
  }

  /// One row and panel, where it is simple. Asks for those of a later row.
  inline __attribute__((always_inline)) void put(std::byte* to,
                                                 std::size_t panel,
                                                 typename V::Vec sum) const {
    ask(to + ahead_);
    set(to, panel, sum);
  }

  /// silu(gate) * up.
  inline __attribute__((always_inline)) void put_gated(std::byte* to,
                                                       std::size_t panel,
                                                       typename V::Vec gate,
                                                       typename V::Vec up) const {
    ask(to + ahead_);
    set_gated(to, panel, gate, up);
  }

  /// Stores to lines that are far away would hold up everything behind them.
  inline __attribute__((always_inline)) void ask(const std::byte* to) const {
    if (!streams_) __builtin_prefetch(to, 1);
  }

  /// The same as `put`, of what was asked for.
  inline __attribute__((always_inline)) void set(std::byte* to,
                                                 std::size_t panel,
                                                 typename V::Vec sum) const {
    auto* y = reinterpret_cast<float*>(to);
    if (block_.bias != nullptr) sum = V::add(sum, V::load(block_.bias + panel * kPanel));
    if (block_.accumulate) sum = V::add(sum, V::load(y));
    store(y, sum);
  }

  /// As of `put_gated`.
  inline __attribute__((always_inline)) void set_gated(std::byte* to,
                                                       std::size_t panel,
                                                       typename V::Vec gate,
                                                       typename V::Vec up) const {
    if (block_.bias != nullptr) {
      gate = V::add(gate, V::load(block_.bias + panel * kPanel));
      up = V::add(up, V::load(block_.bias + (panel + up_) * kPanel));
    }
    const typename V::Vec value = Rows<V>::silu_mul(gate, up);
    if (packed_) {
      V::store_bf16(to, value);
    } else {
      store(reinterpret_cast<float*>(to), value);
    }
  }

  /// After the last one.
  void end() const {
    if (streams_) V::end_streams();
  }

 private:
  /// Rows whose outputs are asked for before they are made: some steps' time. Many more would push
  /// each other out of the first level, since rows lie a power of 2 apart.
  static constexpr std::size_t kRowsAhead = 6;

  inline __attribute__((always_inline)) void store(float* y, typename V::Vec value) const {
    if (streams_) {
      V::stream(y, value);
    } else {
      V::store(y, value);
    }
  }

  const LinearBlock& block_;
  std::size_t up_;
  bool streams_;           ///< past the caches
  bool packed_;            ///< as rows of the product that comes next
  std::size_t row_step_;   ///< bytes from row to row of a tile
  std::size_t tile_step_;  ///< from tile to tile
  std::size_t ahead_;      ///< to what is asked for
};

/// Steps along k of a cut: two panels' B tiles take 32 KiB of the first level's 48.
inline constexpr std::size_t kCutSteps = 16;

/// Where products of many rows find what they need.
struct ManyRowsRoom {
  const std::byte* x;     ///< A tiles: [tiles of rows][parts][steps]
  std::byte* waiting;     ///< four tiles that become outputs
  const std::byte* tail;  ///< the last B tile of each panel, where it is not whole; else null
  std::byte* made;  ///< B tiles of a cut, [2][kCutSteps], of weights that are others in memory
};

template <class V, class T, class W>
class ManyRows {
 public:
  ManyRows(const LinearBlock& block, std::size_t steps, const ManyRowsRoom& room, T& tiles)
      : block_(block),
        room_(room),
        tiles_(tiles),
        steps_(steps),
        row_tiles_((block.rows + kTileHeight - 1) / kTileHeight * W::kRowParts),
        apart_(panels_apart(block)),
        outputs_(block) {}

  /// Cuts of k.
  struct Part {
    std::size_t begin;
    std::size_t end;
  };

  /// One of `parts` parts.
  [[nodiscard]] Part part(std::size_t index, std::size_t parts) const {
    return {cuts() * index / parts, cuts() * (index + 1) / parts};
  }

  /// The first step of a cut.
  [[nodiscard]] std::size_t first_step(std::size_t cut) const { return cut * most_steps(); }

  /// All rows against panels [panel, panel + N), or where block.up is set (N is 2) that panel of
  /// both weights; `behind` is what is read after them. Sums of a part that is not the last one
  /// stay in `sums`, and those of a part that is not the first one come from there: two tiles for
  /// each tile of rows.
  template <int N>
  void run(std::size_t panel, const Part& part, std::byte* sums, const std::byte* behind) {
    const std::size_t most = most_steps();
    const std::size_t passes = (row_tiles_ + 1) / 2;
    for (std::size_t cut = part.begin; cut < part.end; ++cut) {
      const std::size_t first = first_step(cut);
      const std::size_t left = steps_ - first;
      Cut at{.panel = panel,
             .first = first,
             .steps = left < most ? left : most,
             .last = left <= most,
             .weight = kMakes ? room_.made : b_tile(panel, first),
             .next = cut + 1 == part.end ? behind : b_tile(panel, first + most),
             .sums = sums,
             .lines = 0,
             .begun = false};
      const std::size_t lines = (W::at(first + most) - W::at(first) + 63) / 64;
      at.lines = (lines + passes * most - 1) / (passes * most);
      if constexpr (kMakes) make<N>(panel, first, at.steps);
      for (std::size_t tile = 0; tile < row_tiles_; tile += 2) {
        if (tile + 1 < row_tiles_) {
          const bool goes_on = tile + 3 < row_tiles_;
          pass<2, N>(at, tile, goes_on);
          at.begun = goes_on;
        } else {
          pass<1, N>(at, tile, false);
        }
        at.next += at.lines * most * kTileRowBytes;
      }
    }
  }

  /// Makes outputs of what waits for it.
  void settle() {
    make_outputs(waiting_, waiting_.rows);
    outputs_.end();
  }

 private:
  using Vec = typename V::Vec;

  using Tiles = PanelTiles<V, W>;

  /// Sums of a pass's second A tile lie behind both panels of the first one.
  static constexpr std::size_t kSecondTile = 2 * kTileBytes;
  static_assert(W::kRowParts <= 2);

  /// Whether B tiles are made of what lies in memory, and how far apart those of two panels are.
  static constexpr bool kMakes = W::kMadeOf != kTileBytes;
  static constexpr std::size_t kMadeApart = kCutSteps * kTileBytes;
  /// Far enough for the second level of caches to bring what is made of.
  static constexpr std::size_t kMakeAhead = 1024;

  struct Cut {
    std::size_t panel;
    std::size_t first;  ///< step
    std::size_t steps;
    bool last;
    const std::byte* weight;  ///< B tiles
    const std::byte* next;    ///< what to ask for: the weights after these
    std::byte* sums;          ///< between cuts
    std::size_t lines;        ///< of it, a panel and step
    bool begun;               ///< the C tiles hold what they begin with
  };

  /// C tiles that are to become outputs.
  struct Waiting {
    const std::byte* from;
    std::size_t row;
    std::size_t rows;  ///< 0: none
    std::size_t panel;
    std::size_t panels;
    std::byte* y;  ///< of the next row; null: outputs have no common stride, or no whole panels
  };

  [[nodiscard]] std::size_t cuts() const { return (steps_ + kCutSteps - 1) / kCutSteps; }

  [[nodiscard]] std::size_t most_steps() const { return (steps_ + cuts() - 1) / cuts(); }

  /// B tiles of a cut.
  template <int N>
  void make(std::size_t panel, std::size_t first, std::size_t steps) const {
    for (std::size_t n = 0; n < N; ++n) {
      const std::byte* from = block_.weight + panel * block_.panel_bytes + n * apart_;
      std::byte* to = room_.made + n * kMadeApart;
      for (std::size_t step = 0; step < steps; ++step) {
        const std::size_t at = first + step;
        const std::size_t left = block_.k - at * W::kStepK;
        if (W::kWholeSteps || left >= W::kStepK) {
          Tiles::make(from, at, from + W::at(at) + kMakeAhead, to + step * kTileBytes);
        } else {
          Tiles::make_last(from, at, left, to + step * kTileBytes);
        }
      }
      if constexpr (W::kPatches) mend(from, first, steps, to);
    }
  }

  /// B tiles of a cut but for what their units do not say.
  void mend(const std::byte* panel, std::size_t first, std::size_t steps, std::byte* to) const {
    const ShortPatch* patch = ShortBf16<V>::patches_from(panel, steps_, first);
    for (std::size_t step = 0; step < steps; ++step)
      patch = ShortBf16<V>::mend(patch, first + step, to + step * kTileBytes);
  }

  template <int M, int N>
  void pass(const Cut& cut, std::size_t tile, bool goes_on) {
    T& tiles = tiles_;
    const std::byte* x = room_.x + (tile * steps_ + cut.first) * kTileBytes;
    const std::size_t x_next = steps_ * kTileBytes;
    const std::byte* weight = cut.weight;
    std::byte* sums = cut.sums + tile * 2 * kTileBytes;
    if (!cut.begun) for_c<V, M, N>([&]<int C>() { begin_sums<C>(cut.first == 0, sums); });

    const bool cut_tail = !kMakes && cut.last && room_.tail != nullptr;
    const std::size_t whole = cut.steps - (cut_tail ? 1 : 0);
    const std::size_t lines = cut.lines;
    const std::byte* ask = cut.next;
    Waiting waiting = waiting_;
    const std::size_t rows = (waiting.rows + cut.steps - 1) / cut.steps;
    for (std::size_t step = 0; step < whole; ++step) {
      for (std::size_t line = 0; line < lines; ++line) {
        __builtin_prefetch(ask, 0, 2);
        if constexpr (N == 2) __builtin_prefetch(ask + apart_, 0, 2);
        ask += 64;
      }
      multiply<M, N>(tiles, x, x_next, weight, kMakes ? kMadeApart : apart_);
      x += kTileBytes;
      weight += kTileBytes;
      make_outputs(waiting, rows);
    }
    if (cut_tail) multiply<M, N>(tiles, x, x_next, room_.tail, kTileBytes);
    make_outputs(waiting, waiting.rows);

    std::byte* to = cut.last ? room_.waiting : sums;
    for_c<V, M, N>([&]<int C>() {
      tiles.template store<C>(to + C * kTileBytes, kTileRowBytes);
      if (goes_on) begin_sums<C>(cut.first == 0, sums + 4 * kTileBytes);
    });
    waiting_.rows = 0;
    if (cut.last) {
      waiting_ = waiting_of<M, N>(cut, tile);
      waiting_.from = to;
    }
  }

  template <int M, int N>
  Waiting waiting_of(const Cut& cut, std::size_t tile) const {
    const std::size_t row = tile / W::kRowParts * kTileHeight;
    const std::size_t left = block_.rows - row;
    const std::size_t most = M / W::kRowParts * kTileHeight;
    const bool simple = outputs_.simple(cut.panel, N);
    return {.from = nullptr,
            .row = row,
            .rows = left < most ? left : most,
            .panel = cut.panel,
            .panels = N,
            .y = simple ? outputs_.at(row, cut.panel) : nullptr};
  }

  /// One step along k.
  template <int M, int N>
  static inline __attribute__((always_inline)) void multiply(T& tiles,
                                                             const std::byte* x,
                                                             std::size_t x_next,
                                                             const std::byte* weight,
                                                             std::size_t apart) {
    tiles.template load_passing<4>(x, kTileRowBytes);
    if constexpr (M == 2) tiles.template load_passing<5>(x + x_next, kTileRowBytes);
    tiles.template load<6>(weight, kTileRowBytes);
    W::template multiply<0, 4, 6>(tiles);
    if constexpr (M == 2) W::template multiply<2, 5, 6>(tiles);
    if constexpr (N == 2) {
      tiles.template load<7>(weight + apart, kTileRowBytes);
      W::template multiply<1, 4, 7>(tiles);
      if constexpr (M == 2) W::template multiply<3, 5, 7>(tiles);
    }
  }

  /// What a C tile begins with: nothing, or the sums of the cut before.
  template <int C>
  inline __attribute__((always_inline)) void begin_sums(bool first, const std::byte* sums) {
    if (first) {
      tiles_.template zero<C>();
    } else {
      tiles_.template load<C>(sums + C * kTileBytes, kTileRowBytes);
    }
  }

  /// Of the next `count` rows that wait for it.
  inline __attribute__((always_inline)) void make_outputs(Waiting& waiting, std::size_t count) {
    count = waiting.rows < count ? waiting.rows : count;
    for (std::size_t i = 0; i < count; ++i) {
      if (block_.up != nullptr) {
        const Vec gate = output(waiting, waiting.panel, 0);
        const Vec up = output(waiting, waiting.panel + outputs_.up(), 1);
        outputs_.put_gated(waiting.y, waiting.panel, gate, up);
        waiting.y += outputs_.step_after(waiting.row);
      } else if (waiting.y != nullptr) {
        outputs_.put(waiting.y, waiting.panel, output(waiting, waiting.panel, 0));
        if (waiting.panels == 2) {
          const std::size_t panel = waiting.panel + 1;
          outputs_.put(waiting.y + kPanel * sizeof(float), panel, output(waiting, panel, 1));
        }
        waiting.y += outputs_.step_after(waiting.row);
      } else {
        for (std::size_t n = 0; n < waiting.panels; ++n) {
          const std::size_t panel = waiting.panel + n;
          Linear<V>::finish(block_, waiting.row, panel, output(waiting, panel, n));
        }
      }
      ++waiting.row;
      waiting.from += kTileRowBytes;
      if (waiting.row % kTileHeight == 0) waiting.from += kSecondTile - kTileBytes;
    }
    waiting.rows -= count;
  }

  /// Of the next row that waits, from its tile `n`.
  [[nodiscard]] inline __attribute__((always_inline)) Vec output(const Waiting& waiting,
                                                                 std::size_t panel,
                                                                 std::size_t n) const {
    return W::outputs(block_, waiting.row, panel, waiting.from + n * kTileBytes, kSecondTile);
  }

  [[nodiscard]] const std::byte* b_tile(std::size_t panel, std::size_t step) const {
    return block_.weight + panel * block_.panel_bytes + W::at(step);
  }

  const LinearBlock& block_;
  const ManyRowsRoom& room_;
  T& tiles_;
  std::size_t steps_;
  std::size_t row_tiles_;  ///< A tiles of a step
  std::size_t apart_;      ///< bytes from the one panel to the other
  ManyOutputs<V> outputs_;
  Waiting waiting_{};
};

}  // namespace tandem::kernels::cpu
