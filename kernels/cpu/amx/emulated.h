// The tile unit in plain code, written after the pseudo code of TDPBF16PS and TDPBSSD in Intel's
// SDM, volume 2. V only keeps instruction-set files apart (table.h).
#pragma once

#include "kernels/cpu/amx/tiles.h"
#include "kernels/cpu/generic/flushed.h"

namespace tandem::kernels::cpu {

template <class V>
class EmulatedTiles {
 public:
  void configure(const TileConfig& config) {
    config_ = config;
    __builtin_memset(tiles_, 0, sizeof(tiles_));
  }

  void release() {}

  template <int C>
  void zero() {
    __builtin_memset(tiles_[C], 0, sizeof(tiles_[C]));
  }

  template <int Tile>
  void load(const std::byte* from, std::size_t stride_bytes) {
    __builtin_memset(tiles_[Tile], 0, sizeof(tiles_[Tile]));
    for (std::size_t row = 0; row < config_.rows[Tile]; ++row) {
      __builtin_memcpy(tiles_[Tile] + row * 64, from + row * stride_bytes, config_.row_bytes[Tile]);
    }
  }

  template <int Tile>
  void load_passing(const std::byte* from, std::size_t stride_bytes) {
    load<Tile>(from, stride_bytes);
  }

  template <int Tile>
  void store(std::byte* to, std::size_t stride_bytes) {
    for (std::size_t row = 0; row < config_.rows[Tile]; ++row)
      __builtin_memcpy(to + row * stride_bytes, tiles_[Tile] + row * 64, config_.row_bytes[Tile]);
  }

  template <int C, int A, int B>
  void multiply_bf16() {
    float a[16][32];
    float b[16][32];
    widen<A>(a);
    widen<B>(b);
    for (std::size_t m = 0; m < config_.rows[C]; ++m) {
      float even[16] = {};
      float odd[16] = {};
      for (std::size_t k = 0; k < 16; ++k) {
        for (std::size_t n = 0; n < 16; ++n) {
          even[n] = Flushed<V>::fma(a[m][2 * k], b[k][2 * n], even[n]);
          odd[n] = Flushed<V>::fma(a[m][2 * k + 1], b[k][2 * n + 1], odd[n]);
        }
      }
      for (std::size_t n = 0; n < 16; ++n) {
        float sum = 0;
        __builtin_memcpy(&sum, tiles_[C] + m * 64 + n * 4, sizeof(sum));
        sum = Flushed<V>::value(Flushed<V>::value(sum) + Flushed<V>::value(even[n] + odd[n]));
        __builtin_memcpy(tiles_[C] + m * 64 + n * 4, &sum, sizeof(sum));
      }
    }
  }

  // Sums of 32 bits wrap around.
  template <int C, int A, int B>
  void multiply_int8() {
    for (std::size_t m = 0; m < config_.rows[C]; ++m) {
      for (std::size_t n = 0; n < 16; ++n) {
        std::uint32_t sum = 0;
        __builtin_memcpy(&sum, tiles_[C] + m * 64 + n * 4, sizeof(sum));
        for (std::size_t k = 0; k < 64; ++k) {
          const auto a = static_cast<std::int8_t>(tiles_[A][m * 64 + k]);
          const auto b = static_cast<std::int8_t>(tiles_[B][k / 4 * 64 + n * 4 + k % 4]);
          sum += static_cast<std::uint32_t>(a * b);
        }
        __builtin_memcpy(tiles_[C] + m * 64 + n * 4, &sum, sizeof(sum));
      }
    }
  }

 private:
  /// All rows of a tile, as f32.
  template <int Tile>
  void widen(float (&to)[16][32]) const {
    for (std::size_t row = 0; row < 16; ++row) {
      for (std::size_t col = 0; col < 32; ++col) {
        std::uint16_t bits[2] = {};  // the upper half of a float
        __builtin_memcpy(&bits[1], tiles_[Tile] + row * 64 + col * 2, sizeof(bits[1]));
        float value = 0;
        __builtin_memcpy(&value, bits, sizeof(value));
        to[row][col] = Flushed<V>::value(value);
      }
    }
  }

  TileConfig config_{};
  std::byte tiles_[8][1024] = {};
};

}  // namespace tandem::kernels::cpu
