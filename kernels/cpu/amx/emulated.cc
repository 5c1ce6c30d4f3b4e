// The amx family in plain code.
#include "kernels/cpu/amx/emulated.h"

#include "kernels/cpu/amx/amx.h"
#include "kernels/cpu/amx/attention.h"
#include "kernels/cpu/amx/linear.h"
#include "kernels/cpu/generic/flushed.h"
#include "kernels/cpu/generic/vec.h"

#include <cstring>

namespace tandem::kernels::cpu {
namespace {

using Tiles = AmxLinear<GenericVec, EmulatedTiles<GenericVec>>;

void linear(const LinearBlock& block) {
  if (Tiles::run(block)) return;
  if (block.scheme != WeightScheme::kInt8) return generic_kernels().linear(block);
  Linear<GenericVec>::run_tiles<FixedInt8Tile<GenericVec>>(block);
}

/// What attention needs beyond.
struct GenericTileVec : GenericVec {
  static Int int_broadcast(std::uint32_t word) {
    return words([&](int) { return word; });
  }

  static Int int_or(const Int& a, const Int& b) {
    return words([&](int i) { return static_cast<std::uint32_t>(a.lane[i] | b.lane[i]); });
  }

  /// Adds the products of pairs of bf16, as VDPBF16PS does.
  static Vec dot2(const Vec& acc, const Int& x, const Int& w) {
    return each([&](int i) {
      return Flushed<GenericTileVec>::dot2(acc.lane[i],
                                           static_cast<std::uint32_t>(x.lane[i]),
                                           static_cast<std::uint32_t>(w.lane[i]));
    });
  }

  /// Pairs (a, b) of 64 values each: of every 16 those of four into each of `pairs`.
  template <DType D>
  static void widen_fp8_pairs(const Int& a, const Int& b, Int (&pairs)[4]) {
    std::uint8_t codes[2][64];
    std::memcpy(codes[0], a.lane, sizeof(codes[0]));
    std::memcpy(codes[1], b.lane, sizeof(codes[1]));
    for (std::size_t p = 0; p < 4; ++p) {
      std::uint16_t words[32];
      for (std::size_t i = 0; i < 32; ++i) {
        const std::uint8_t code = codes[i % 2][i / 8 * 16 + p * 4 + i % 8 / 2];
        words[i] = f32_to_bf16(fp8_to_f32(code, D));
      }
      std::memcpy(pairs[p].lane, words, sizeof(words));
    }
  }

  /// Bit i: a > b of lane i.
  static std::uint32_t greater_mask(const Vec& a, const Vec& b) {
    std::uint32_t mask = 0;
    for (int i = 0; i < 16; ++i)
      mask |= (a.lane[i] > b.lane[i] ? 1U : 0U) << i;
    return mask;
  }

  /// Halves: of every 8 the first four of `low`, then four of `high`. Each is rounded to 16 bits
  /// (the nearest, even of two; NaN and from 2^31 on to 0), less the byte that its bits 3 to 8 find
  /// in the table, but not below 0, without the last two bits.
  static Int powers(const Vec& low, const Vec& high, const Int& table) {
    std::uint8_t less[64];
    std::memcpy(less, table.lane, sizeof(less));
    return halves(low, high, [&](float value) {
      float clamped = value > 0 && value < 0x1p31F ? value : 0;
      clamped = clamped < 65535 ? clamped : 65535;
      const auto fixed = static_cast<std::uint32_t>(__builtin_rintf(clamped));
      const std::uint32_t by = less[fixed >> 3 & 63U];
      return (fixed > by ? fixed - by : 0) >> 2;
    });
  }

  /// All ones where a value is NaN, in the order of powers().
  static Int nan_halves(const Vec& low, const Vec& high) {
    return halves(low, high, [](float value) { return value != value ? 0xffffU : 0U; });
  }

  /// Half i where bit i is set, else 0.
  static Int keep_halves(const Int& v, std::uint32_t which) {
    return words([&](int i) {
      const std::uint32_t mask =
          (which >> 2 * i & 1U) * 0xffffU | (which >> (2 * i + 1) & 1U) * 0xffff0000U;
      return static_cast<std::uint32_t>(v.lane[i]) & mask;
    });
  }

  /// Words of one value of `low` and one of `high`, of what powers() made of them.
  static Int pair_halves(const Int& v) {
    const auto half = [&](int i) {
      return static_cast<std::uint32_t>(v.lane[i / 2]) >> i % 2 * 16 & 0xffffU;
    };
    return words([&](int i) {
      const int at = i / 4 * 8 + i % 4;
      return half(at) | half(at + 4) << 16;
    });
  }

  /// Lane i: the largest of v[i].
  static Vec max16(const Vec* v) {
    return each([&](int i) {
      float most = v[i].lane[0];
      for (const float value : v[i].lane)
        most = value > most ? value : most;
      return most;
    });
  }

 private:
  template <class Fn>
  static Int words(Fn fn) {
    Int out;
    for (int i = 0; i < 16; ++i)
      out.lane[i] = static_cast<std::int32_t>(fn(i));
    return out;
  }

  template <class Fn>
  static Int halves(const Vec& low, const Vec& high, Fn fn) {
    const auto half = [&](int i) -> std::uint32_t {
      return fn((i % 8 < 4 ? low : high).lane[i / 8 * 4 + i % 4]);
    };
    return words([&](int i) { return half(2 * i) | half(2 * i + 1) << 16; });
  }
};

using Attention = TileAttention<GenericTileVec, EmulatedTiles<GenericTileVec>>;

void attention(const AttentionTile& tile) {
  if (Attention::takes(tile.dtype)) return Attention::run(tile);
  generic_kernels().attention(tile);
}

}  // namespace

Kernels emulated_amx_kernels() {
  Kernels kernels = generic_kernels();
  kernels.linear = &linear;
  kernels.row_step = 32;
  kernels.many_rows_tasks = kLongTasks;
  kernels.most_rows = &Tiles::most_rows;
  kernels.rows_in_parts = &Tiles::rows_in_parts;
  kernels.shares_rows = &Tiles::shares_rows;
  kernels.takes_gated = &Tiles::takes_gated;
  kernels.pack_rows = &Tiles::pack_rows;
  kernels.takes_packed = &Tiles::takes_packed;
  kernels.pack_part = &Tiles::pack_part;
  kernels.shorten = &ShortBf16<GenericVec>::shorten;
  kernels.attention = &attention;
  kernels.attention_rows = &Attention::most_rows;
  return kernels;
}

}  // namespace tandem::kernels::cpu
