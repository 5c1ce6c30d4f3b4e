// Y = X W^T for bf16 weights on AMX tiles: x is rounded to bf16, products and sums are f32.
//
// Idea: a packed panel (16 outputs) is a row of B tiles already: 32 k of 16 outputs, as 16 rows of
// 16 pairs. Up to 32 rows of x make two A tiles; 2 x 2 C tiles stay in registers over all of k.
// Order of sums of one output, the same for every row count (rows of a tile do not meet): per 32 k,
// one chain of FMAs over the even and one over the odd k, added to each other and then to C (Intel
// SDM, TDPBF16PS; subnormals count as zero). Bound: one row reads the weight at memory bandwidth (a
// tile product of 16 cycles eats 1 KiB of weight); many rows run at the tile unit's peak, 4
// products for 4 tile loads.
//
// T is the tile unit: HardwareTiles (kernels.cc) or EmulatedTiles, which runs anywhere and is what
// the tests use where there is no AMX.
#pragma once

#include "kernels/cpu/simd/linear.h"

namespace tandem::kernels::cpu {

/// The 64 bytes of ldtilecfg, palette 1.
struct alignas(64) TileConfig {
  std::uint8_t palette;
  std::uint8_t start_row;
  std::uint8_t reserved[14];
  std::uint16_t row_bytes[16];
  std::uint8_t rows[16];
};

template <class V, class T>
class AmxLinear {
 public:
  /// Pre: block.dtype is bf16.
  static void run(const LinearBlock& block) {
    if (block.rows == 0) return;
    AmxLinear(block).run_all();
  }

 private:
  static constexpr std::size_t kTileRowsMax = 16;
  static constexpr std::size_t kTileK = 32;
  static constexpr std::size_t kTileBytes = 1024;

  explicit AmxLinear(const LinearBlock& block)
      : block_(block),
        padded_k_((block.k + kTileK - 1) / kTileK * kTileK),
        x_(reinterpret_cast<std::byte*>(block.scratch)),
        sums_(block.scratch + kPackedFloats) {}

  void run_all() {
    if (!block_.packed) round_rows();
    std::size_t panel = block_.panel_begin;
    for (; panel + 2 <= block_.panel_end; panel += 2)
      run_panels<2>(panel);
    if (panel < block_.panel_end) run_panels<1>(panel);
    tiles_.release();
  }

  /// x to bf16 [rows][padded_k], zeros behind k.
  void round_rows() {
    for (std::size_t row = 0; row < block_.rows; ++row) {
      const float* from = Linear<V>::x_row(block_, row);
      std::byte* to = x_ + row * padded_k_ * 2;
      std::size_t i = 0;
      for (; i + 16 <= block_.k; i += 16)
        V::store_bf16(to + i * 2, V::load(from + i));
      if (i < block_.k) {
        V::store_bf16(to + i * 2, Rows<V>::load_part(from + i, block_.k - i));
        i += 16;
      }
      for (; i < padded_k_; i += 16)
        V::store_bf16(to + i * 2, V::zero());
    }
  }

  template <int N>
  void run_panels(std::size_t panel) {
    for (std::size_t row = 0; row < block_.rows; row += 2 * kTileRowsMax) {
      const std::size_t rows = block_.rows - row;
      if (rows > kTileRowsMax) {
        run_tiles<2, N>(row, rows < 2 * kTileRowsMax ? rows : 2 * kTileRowsMax, panel);
      } else {
        run_tiles<1, N>(row, rows, panel);
      }
    }
  }

  /// Shapes tiles for `rows` rows of x, unless they are so already.
  void configure(std::size_t rows) {
    if (rows == configured_) return;
    configured_ = rows;
    const std::size_t first = rows < kTileRowsMax ? rows : kTileRowsMax;
    const std::size_t second = rows > kTileRowsMax ? rows - kTileRowsMax : 1;
    TileConfig config{};
    config.palette = 1;
    for (std::size_t tile = 0; tile < 8; ++tile) {
      config.row_bytes[tile] = 64;
      // 0 1: C of the first rows, 2 3: C of the second, 4: A of the first, 5: A of the second, 6 7:
      // B.
      const std::size_t tile_rows = tile < 2 || tile == 4 ? first
                                    : tile < 6            ? second
                                                          : kTileRowsMax;
      config.rows[tile] = static_cast<std::uint8_t>(tile_rows);
    }
    tiles_.configure(config);
  }

  /// M tiles of rows x N panels.
  template <int M, int N>
  void run_tiles(std::size_t row, std::size_t rows, std::size_t panel) {
    configure(rows);
    const std::size_t x_bytes = padded_k_ * 2;
    const std::byte* x = x_ + row * x_bytes;
    const std::byte* weight = block_.weight + panel * block_.panel_bytes;
    tiles_.template zero<0>();
    if constexpr (N == 2) tiles_.template zero<1>();
    if constexpr (M == 2) tiles_.template zero<2>();
    if constexpr (M == 2 && N == 2) tiles_.template zero<3>();
    for (std::size_t k = 0; k < padded_k_ / kTileK; ++k) {
      tiles_.template load<4>(x + k * 64, x_bytes);
      tiles_.template load<6>(weight + k * kTileBytes, 64);
      tiles_.template multiply<0, 4, 6>();
      if constexpr (N == 2) {
        tiles_.template load<7>(weight + block_.panel_bytes + k * kTileBytes, 64);
        tiles_.template multiply<1, 4, 7>();
      }
      if constexpr (M == 2) {
        tiles_.template load<5>(x + kTileRowsMax * x_bytes + k * 64, x_bytes);
        tiles_.template multiply<2, 5, 6>();
        if constexpr (N == 2) tiles_.template multiply<3, 5, 7>();
      }
    }
    const std::size_t first = rows < kTileRowsMax ? rows : kTileRowsMax;
    finish<0>(row, first, panel);
    if constexpr (N == 2) finish<1>(row, first, panel + 1);
    if constexpr (M == 2) finish<2>(row + kTileRowsMax, rows - kTileRowsMax, panel);
    if constexpr (M == 2 && N == 2) finish<3>(row + kTileRowsMax, rows - kTileRowsMax, panel + 1);
  }

  template <int C>
  void finish(std::size_t row, std::size_t rows, std::size_t panel) {
    tiles_.template store<C>(sums_, 64);
    for (std::size_t r = 0; r < rows; ++r)
      Linear<V>::finish(block_, row + r, panel, V::load(sums_ + r * 16));
  }

  const LinearBlock& block_;
  std::size_t padded_k_;
  std::byte* x_;
  float* sums_;  // one C tile
  T tiles_;
  std::size_t configured_ = 0;
};

}  // namespace tandem::kernels::cpu
