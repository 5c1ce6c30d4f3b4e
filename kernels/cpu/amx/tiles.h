// Rows of Y = X W^T on AMX tiles: how they are packed, and products of many rows (many_rows.h).
//
// Idea: a packed panel (16 outputs) is a row of B tiles: 16 rows of 64 bytes each. x is packed into
// A tiles of 16 rows, one after the other along k.
//
// Order of sums of one output: that of the tile unit over k, whatever the rows, since rows of a
// tile do not meet. Bound: the tile unit's peak, for which A comes from the second level of caches
// at half of its bandwidth (2 KiB for 64 cycles).
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

/// Whether all parts of a block's rows fit into one A tile: the second parts behind the first ones.
template <class V, class W>
bool fits_one_tile(const LinearBlock& block) {
  return block.rows * W::kRowParts <= kTileHeight && !comes_packed<V>(block);
}

/// Of a block's A tiles.
template <class V, class W>
std::size_t tile_height(const LinearBlock& block) {
  if (fits_one_tile<V, W>(block)) return block.rows * W::kRowParts;
  return block.rows < kTileHeight && !comes_packed<V>(block) ? block.rows : kTileHeight;
}

template <class V, class T, template <class, class> class Kind>
class TileLinear {
  using W = Kind<V, T>;
  using Many = ManyRows<V, T, W>;
  using Tiles = PanelTiles<V, W>;

 public:
  /// More rows than two tiles, which are packed already.
  static void run(const LinearBlock& block) { TileLinear(block).run_all(); }

  /// See Kernels.
  static void pack_rows(const LinearBlock& block, std::size_t begin, std::size_t end) {
    TileLinear(block).pack(begin, end);
  }

  /// Rows that a block may have: as many as fit beside what else the second level of caches holds,
  /// whole pairs of tiles if it is more than one.
  static std::size_t most_rows(std::size_t k) {
    const std::size_t row_bytes = Tiles::steps(k) * W::kRowParts * kTileRowBytes;
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
  /// A tiles that have sums between cuts of k: all, but fewer fit where there are several cuts.
  static constexpr std::size_t kMostTiles = W::kRowParts * kMostTileRows / kTileHeight;
  static constexpr std::size_t kMostCutTiles = kRowsBytes / ((kCutSteps + 1) * kTileBytes);
  static constexpr std::size_t kSumsBytes =
      (kMostTiles < kMostCutTiles ? kMostTiles : kMostCutTiles) * 2 * kTileBytes;
  /// Scratch: x, then the sums between cuts of k, the C tiles that become outputs next, the last B
  /// tiles where panels end within them, and the B tiles of a cut where they are made.
  static constexpr std::size_t kSumsAt = kRowsRoom;
  static constexpr std::size_t kWaitingAt = kSumsAt + kSumsBytes;
  static constexpr std::size_t kTailAt = kWaitingAt + 4 * kTileBytes;
  static constexpr std::size_t kMadeAt = kTailAt + 2 * kTileBytes;
  static constexpr std::size_t kMadeBytes =
      W::kMadeOf == kTileBytes ? 0 : 2 * kCutSteps * kTileBytes;
  static_assert(kMadeAt + kMadeBytes <= kTilesRoom);

  explicit TileLinear(const LinearBlock& block)
      : block_(block),
        steps_(Tiles::steps(block.k)),
        height_(tile_height<V, W>(block)),
        row_tiles_((block.rows + kTileHeight - 1) / kTileHeight * W::kRowParts),
        last_count_(Tiles::last_count(block.k)),
        rows_(rows_room(block)),
        base_(reinterpret_cast<std::byte*>(block.scratch)) {}

  /// Rows [begin, end) of x to [tiles of rows][parts][steps][height][64 bytes], or where they fit
  /// one tile to [steps][parts][rows][64 bytes], zeros behind k and behind the last row.
  void pack(std::size_t begin, std::size_t end) {
    if constexpr (requires { &W::pack_tile; }) {
      if (block_.x_halves != nullptr) return pack_tiles(begin, end);
    }
    const bool one = fits_one_tile<V, W>(block_);
    const std::size_t rows = one ? block_.rows : height_;
    const std::size_t tile_bytes = height_ * kTileRowBytes;
    const std::size_t part_bytes = one ? rows * kTileRowBytes : steps_ * tile_bytes;
    if (end == block_.rows) end = (end + rows - 1) / rows * rows;
    for (std::size_t row = begin; row < end; ++row) {
      const TileLine<V> line{
          rows_ + row / rows * W::kRowParts * steps_ * tile_bytes + row % rows * kTileRowBytes,
          tile_bytes};
      if (row < block_.rows) {
        W::pack(block_, row, steps_, line, part_bytes);
        continue;
      }
      for (std::size_t part = 0; part < W::kRowParts; ++part) {
        for (std::size_t step = 0; step < steps_; ++step)
          __builtin_memset(line.at(step) + part * part_bytes, 0, kTileRowBytes);
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

  void run_all() {
    tiles_.configure(whole_tiles());  // C is 0 to 3, A 4 and 5, B 6 and 7
    const ManyRowsRoom room = {.x = rows_,
                               .waiting = base_ + kWaitingAt,
                               .tail = makes_tails() ? base_ + kTailAt : nullptr,
                               .made = base_ + kMadeAt};
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
      if (makes_tails()) {
        make_last(panel_at(panel), 0);
        make_last(panel_at(panel) + panels_apart(block_), 1);
      }
      many.template run<2>(panel, part, sums, next(panel + step));
      sums += sums_apart;
    }
    if (panel < block_.panel_end) {
      if (makes_tails()) make_last(panel_at(panel), 0);
      many.template run<1>(panel, part, sums, next(panel + 1));
    }
  }

  /// Whether panels that are B tiles in memory end within one.
  [[nodiscard]] bool makes_tails() const { return W::kMadeOf == kTileBytes && last_count_ != 0; }

  /// The last B tile of the N-th panel of a pass.
  void make_last(const std::byte* panel, std::size_t n) {
    Tiles::make_last(panel, steps_ - 1, last_count_, base_ + kTailAt + n * kTileBytes);
  }

  /// B tiles of the panels that are read when those before `panel` are done.
  [[nodiscard]] const std::byte* behind(std::size_t panel) const {
    return PanelAsks<V>::panels_behind(block_, panel) + W::at(0);
  }

  [[nodiscard]] const std::byte* panel_at(std::size_t panel) const {
    return block_.weight + panel * block_.panel_bytes;
  }

  [[nodiscard]] const std::byte* b_tile(std::size_t panel, std::size_t step) const {
    return panel_at(panel) + W::at(step);
  }

  const LinearBlock& block_;
  std::size_t steps_;
  std::size_t height_;      ///< of tiles of rows: 16, or the rows where they are fewer
  std::size_t row_tiles_;   ///< A tiles of a step
  std::size_t last_count_;  ///< k of the last step, where panels end within it; else 0
  std::byte* rows_;         ///< A tiles
  std::byte* base_;         ///< scratch
  T tiles_;
};

}  // namespace tandem::kernels::cpu
