// The 16-lane vector in portable code: what avx2/vec.h and avx512/vec.h must equal bit for bit.
#pragma once

#include "kernels/api/dtype.h"

#include <cstddef>
#include <cstdint>
#include <cstring>

namespace tandem::kernels::cpu {

struct GenericVec {
  struct Vec {
    float lane[16];
  };

  static constexpr bool kBf16Pairs = false;  // products of bf16 pairs: dot2() and what goes with it
  static constexpr bool kShortBf16 = false;  // products of panels that are kept so
  static constexpr int kRowStep = 4;         // rows of the largest product tile
  static constexpr int kWidePanels = 1;      // panels beside each other in it
  static constexpr bool kCuts = true;
  static constexpr int kNarrowPanels = 1;  // and when there are two or three rows
  static constexpr int kOneRowPanels = 1;  // and when there is one
  static constexpr int kScoreSums = 16;    // scores of attention at a time
  static constexpr int kValueChunks = 1;   // vectors of a value row kept in registers, 4 query rows
  static constexpr int kValueChunksTwoRows = 1;
  static constexpr int kValueChunksOneRow = 1;
  static constexpr int kLaneGroups = 1;  // groups of rows in LaneAttention
  static constexpr int kLaneScores = 4;  // and its scores at a time
  static constexpr int kLaneRows = 4;    // rows and vectors of values at a time there
  static constexpr int kLaneColumns = 1;

  template <class Fn>
  static Vec each(Fn fn) {
    Vec out;
    for (int i = 0; i < 16; ++i)
      out.lane[i] = fn(i);
    return out;
  }

  static Vec broadcast(float value) {
    return each([&](int) { return value; });
  }

  static Vec zero() { return broadcast(0.0F); }

  static Vec load(const float* from) {
    Vec out;
    std::memcpy(out.lane, from, sizeof(out.lane));
    return out;
  }

  static void store(float* to, const Vec& v) { std::memcpy(to, v.lane, sizeof(v.lane)); }

  static void stream(float* to, const Vec& v) { store(to, v); }

  static void end_streams() {}

  static Vec load_bf16(const void* from) {
    std::uint16_t bits[16];
    std::memcpy(bits, from, sizeof(bits));
    return each([&](int i) { return bf16_to_f32(bits[i]); });
  }

  static Vec load_f16(const void* from) {
    std::uint16_t bits[16];
    std::memcpy(bits, from, sizeof(bits));
    return each([&](int i) { return f16_to_f32(bits[i]); });
  }

  static void store_bf16(void* to, const Vec& v) {
    std::uint16_t bits[16];
    for (int i = 0; i < 16; ++i)
      bits[i] = f32_to_bf16(v.lane[i]);
    std::memcpy(to, bits, sizeof(bits));
  }

  /// What store_bf16 and load_bf16 give of numbers; of NaN something.
  static Vec rounded_to_bf16(const Vec& v) {
    return each([&](int i) { return bf16_to_f32(f32_to_bf16(v.lane[i])); });
  }

  static void store_f16(void* to, const Vec& v) {
    std::uint16_t bits[16];
    for (int i = 0; i < 16; ++i)
      bits[i] = f32_to_f16(v.lane[i]);
    std::memcpy(to, bits, sizeof(bits));
  }

  template <DType D>
  static void store_fp8(void* to, const Vec& v) {
    std::uint8_t bytes[16];
    for (int i = 0; i < 16; ++i)
      bytes[i] = f32_to_fp8(v.lane[i], D);
    std::memcpy(to, bytes, sizeof(bytes));
  }

  /// 16 values of magnitude up to 127, rounded to nearest, ties to even.
  static void store_int8(std::int8_t* to, const Vec& v) {
    for (int i = 0; i < 16; ++i)
      to[i] = static_cast<std::int8_t>(std::bit_cast<std::uint32_t>(v.lane[i] + 0x1.8p23F) & 0xffU);
  }

  /// 16 words of 32 bits.
  struct Int {
    std::int32_t lane[16];
  };

  /// Whether dot4 wants its second operand with 128 added to each byte (as dpbusd does).
  static constexpr bool kOffsetBytes = false;
  /// Whether products of bytes of some rows go by byte_cuts.h.
  static constexpr bool kByteCuts = false;

  static Int int_zero() { return {}; }

  static Int int_load(const void* from) {
    Int out;
    std::memcpy(out.lane, from, sizeof(out.lane));
    return out;
  }

  static void int_store(void* to, const Int& v) { std::memcpy(to, v.lane, sizeof(v.lane)); }

  /// 32 values of 8 bit to bf16; a NaN stays one.
  template <DType D>
  static Int widen_fp8(const void* from) {
    std::uint8_t bytes[32];
    std::memcpy(bytes, from, sizeof(bytes));
    std::uint16_t halves[32];
    for (int i = 0; i < 32; ++i)
      halves[i] = f32_to_bf16(fp8_to_f32(bytes[i], D));
    return int_load(halves);
  }

  /// Of each 16 bits the larger one, unsigned: those of `most`, or of `halves` without the sign.
  static Int max_magnitudes(const Int& most, const Int& halves) {
    Int out;
    for (int i = 0; i < 16; ++i) {
      const auto a = static_cast<std::uint32_t>(most.lane[i]);
      const std::uint32_t b = static_cast<std::uint32_t>(halves.lane[i]) & 0x7fff7fffU;
      const std::uint32_t low = (a & 0xffffU) > (b & 0xffffU) ? a & 0xffffU : b & 0xffffU;
      const std::uint32_t high = a >> 16U > b >> 16U ? a >> 16U : b >> 16U;
      out.lane[i] = static_cast<std::int32_t>(high << 16U | low);
    }
    return out;
  }

  /// And the smaller one.
  static Int min_magnitudes(const Int& least, const Int& halves) {
    Int out;
    for (int i = 0; i < 16; ++i) {
      const auto a = static_cast<std::uint32_t>(least.lane[i]);
      const std::uint32_t b = static_cast<std::uint32_t>(halves.lane[i]) & 0x7fff7fffU;
      const std::uint32_t low = (a & 0xffffU) < (b & 0xffffU) ? a & 0xffffU : b & 0xffffU;
      const std::uint32_t high = a >> 16U < b >> 16U ? a >> 16U : b >> 16U;
      out.lane[i] = static_cast<std::int32_t>(high << 16U | low);
    }
    return out;
  }

  static Int int_negate(const Int& v) {
    Int out;
    for (int i = 0; i < 16; ++i)
      out.lane[i] = -v.lane[i];
    return out;
  }

  static Vec to_float(const Int& v) {
    return each([&](int i) { return static_cast<float>(v.lane[i]); });
  }

  /// Signed byte J of each word.
  template <int J>
  static Vec byte_of(const Int& v) {
    return each([&](int i) {
      const auto word = static_cast<std::uint32_t>(v.lane[i]);
      return static_cast<float>(static_cast<std::int8_t>((word >> (8 * J)) & 0xffU));
    });
  }

  /// The lower and the upper half of each byte.
  static Int low_nibbles(const Int& v) { return nibbles(v, 0); }

  static Int high_nibbles(const Int& v) { return nibbles(v, 4); }

  static Int nibbles(const Int& v, unsigned shift) {
    Int out;
    for (int i = 0; i < 16; ++i) {
      const std::uint32_t word = static_cast<std::uint32_t>(v.lane[i]) >> shift;
      out.lane[i] = static_cast<std::int32_t>(word & 0x0f0f0f0fU);
    }
    return out;
  }

  /// Of 16 pairs of bytes the first one in both halves of a word, and the second one in all four
  /// bytes of another.
  static void load_affine(const void* from, Int* step, Int* offset) {
    std::uint8_t bytes[32];
    std::memcpy(bytes, from, sizeof(bytes));
    for (int i = 0; i < 16; ++i) {
      step->lane[i] = bytes[2 * i] * 0x10001;
      offset->lane[i] = static_cast<std::int32_t>(bytes[2 * i + 1] * 0x1010101U);
    }
  }

  /// Bytes: half bytes times a step of up to 17, less an offset, as load_affine has them.
  static Int scaled_bytes(const Int& v, const Int& step, const Int& offset) {
    Int out;
    for (int i = 0; i < 16; ++i) {
      std::uint32_t word = 0;
      for (unsigned j = 0; j < 32; j += 8) {
        const auto byte = [j](std::int32_t lane) { return static_cast<std::uint32_t>(lane) >> j; };
        const std::uint32_t scaled = (byte(v.lane[i]) & 15U) * (step.lane[i] & 31);
        word |= ((scaled - byte(offset.lane[i])) & 0xffU) << j;
      }
      out.lane[i] = static_cast<std::int32_t>(word);
    }
    return out;
  }

  /// Four signed bytes of a row, for dot4. None is -128.
  static std::uint32_t bytes_of(std::uint32_t four) { return four; }

  /// acc + the four products of the bytes of x with those of each word of w, exactly.
  static Int dot4(const Int& acc, std::uint32_t x, const Int& w) {
    Int out = acc;
    for (int i = 0; i < 16; ++i) {
      const auto word = static_cast<std::uint32_t>(w.lane[i]);
      for (int j = 0; j < 4; ++j) {
        out.lane[i] += static_cast<std::int8_t>((x >> (8 * j)) & 0xffU) *
                       static_cast<std::int8_t>((word >> (8 * j)) & 0xffU);
      }
    }
    return out;
  }

  /// 16 pairs of bf16: the first and the second of each pair, widened.
  static void load_pairs(const void* from, Vec* first, Vec* second) {
    std::uint16_t bits[32];
    std::memcpy(bits, from, sizeof(bits));
    *first = each([&](int i) { return bf16_to_f32(bits[2 * i]); });
    *second = each([&](int i) { return bf16_to_f32(bits[2 * i + 1]); });
  }

  static Vec add(const Vec& a, const Vec& b) {
    return each([&](int i) { return a.lane[i] + b.lane[i]; });
  }

  static Vec sub(const Vec& a, const Vec& b) {
    return each([&](int i) { return a.lane[i] - b.lane[i]; });
  }

  static Vec mul(const Vec& a, const Vec& b) {
    return each([&](int i) { return a.lane[i] * b.lane[i]; });
  }

  static Vec div(const Vec& a, const Vec& b) {
    return each([&](int i) { return a.lane[i] / b.lane[i]; });
  }

  /// a * b + c, rounded once.
  static Vec fma(const Vec& a, const Vec& b, const Vec& c) {
    return each([&](int i) { return __builtin_fmaf(a.lane[i], b.lane[i], c.lane[i]); });
  }

  /// a * b - c, rounded once.
  static Vec fms(const Vec& a, const Vec& b, const Vec& c) {
    return each([&](int i) { return __builtin_fmaf(a.lane[i], b.lane[i], -c.lane[i]); });
  }

  /// a > b ? a : b; b when either is NaN.
  static Vec max(const Vec& a, const Vec& b) {
    return each([&](int i) { return a.lane[i] > b.lane[i] ? a.lane[i] : b.lane[i]; });
  }

  /// a < b ? a : b; b when either is NaN.
  static Vec min(const Vec& a, const Vec& b) {
    return each([&](int i) { return a.lane[i] < b.lane[i] ? a.lane[i] : b.lane[i]; });
  }

  /// a > b ? yes : no.
  static Vec select_greater(const Vec& a, const Vec& b, const Vec& yes, const Vec& no) {
    return each([&](int i) { return a.lane[i] > b.lane[i] ? yes.lane[i] : no.lane[i]; });
  }

  /// v * 2^n for n = bits(shifted) - bits(1.5 * 2^23), -126 <= n <= 128, in two exact-as-possible
  /// steps.
  static Vec scale_by_power(const Vec& v, const Vec& shifted) {
    return each([&](int i) {
      const std::int32_t n = std::bit_cast<std::int32_t>(shifted.lane[i]) - 0x4b400000;
      const std::int32_t half = n >> 1;
      const auto power = [](std::int32_t e) {
        return std::bit_cast<float>(static_cast<std::uint32_t>(e + 127) << 23);
      };
      return v.lane[i] * power(half) * power(n - half);
    });
  }

  /// v * 2^n where -126 <= n <= 127, in one step. A NaN of v stays one.
  static Vec scale_by_normal_power(const Vec& v, const Vec& shifted) {
    return each([&](int i) {
      const std::uint32_t n = std::bit_cast<std::uint32_t>(shifted.lane[i]) - (0x4b400000U - 127U);
      return v.lane[i] * std::bit_cast<float>(n << 23);
    });
  }

  /// The float whose exponent is in the lowest 8 bits of v.
  static Vec exponent_of(const Vec& v) {
    return each(
        [&](int i) { return std::bit_cast<float>(std::bit_cast<std::uint32_t>(v.lane[i]) << 23); });
  }

  static bool any_above(const Vec& v, const Vec& limit) {
    bool any = false;
    for (int i = 0; i < 16; ++i)
      any |= v.lane[i] > limit.lane[i];
    return any;
  }

  static bool any_nan(const Vec& v) {
    bool any = false;
    for (const float lane : v.lane)
      any |= lane != lane;
    return any;
  }

  /// The first `count` halves, zero behind them.
  static Int int_load_part(const void* from, std::size_t count) {
    Int out = int_zero();
    std::memcpy(out.lane, from, count * 2);
    return out;
  }

  /// Pairs (a, b) of the halves of a and b: of every 8 the first four into low.
  static void interleave(const Int& a, const Int& b, Int* low, Int* high) {
    for (int i = 0; i < 16; ++i) {
      const int word = i / 4 * 4 + i % 4 / 2;  // of 16 bytes, the first 8
      const int shift = i % 2 * 16;
      const auto half = [shift](std::int32_t lane) {
        return static_cast<std::uint32_t>(lane) >> shift & 0xffffU;
      };
      low->lane[i] = static_cast<std::int32_t>(half(a.lane[word]) | half(b.lane[word]) << 16);
      high->lane[i] =
          static_cast<std::int32_t>(half(a.lane[word + 2]) | half(b.lane[word + 2]) << 16);
    }
  }

  /// The quarters of a and b in turn, those of their first halves into `first`. Results may be
  /// where a and b were.
  static void interleave_quarters(Vec a, Vec b, Vec* first, Vec* second) {
    for (int i = 0; i < 16; ++i) {
      const Vec& from = i / 4 % 2 == 0 ? a : b;
      first->lane[i] = from.lane[i / 8 * 4 + i % 4];
      second->lane[i] = from.lane[8 + i / 8 * 4 + i % 4];
    }
  }

  static std::uint32_t byte_at(const Int& v, int i) {
    return static_cast<std::uint32_t>(v.lane[i / 4]) >> i % 4 * 8 & 0xffU;
  }

  /// fn(i) to byte i.
  template <class Fn>
  static Int of_bytes(Fn fn) {
    Int out;
    for (int i = 0; i < 64; i += 4) {
      const std::uint32_t word = fn(i) | fn(i + 1) << 8 | fn(i + 2) << 16 | fn(i + 3) << 24;
      out.lane[i / 4] = static_cast<std::int32_t>(word);
    }
    return out;
  }

  /// 16 bytes, four times.
  static Int load_table(const void* from) {
    Int out;
    for (int i = 0; i < 16; i += 4)
      std::memcpy(out.lane + i, from, 16);
    return out;
  }

  /// Of each byte, from 0 to 15, what `table` has there.
  static Int look_up(const Int& table, const Int& bytes) {
    return of_bytes([&](int i) { return byte_at(table, byte_at(bytes, i)); });
  }

  /// Halves of a lower and an upper byte: of every 16 the first 8 into `first`.
  static void join_bytes(const Int& lower, const Int& upper, Int* first, Int* second) {
    const auto half_of = [&](const Int& v, int i, int from) {
      return byte_at(v, i / 16 * 16 + i % 16 / 2 + from);
    };
    const auto joined = [&](int from) {
      return of_bytes([&](int i) { return half_of(i % 2 == 0 ? lower : upper, i, from); });
    };
    *first = joined(0);
    *second = joined(8);
  }

  /// Half `index` of the 64 in two vectors.
  static void set_half(Int* first, Int* second, std::size_t index, std::uint16_t bits) {
    auto* line = reinterpret_cast<std::byte*>(index < 32 ? first : second);
    __builtin_memcpy(line + index % 32 * 2, &bits, sizeof(bits));
  }

  /// What low_nibbles and high_nibbles take apart.
  static Int pack_nibbles(const Int& low, const Int& high) {
    return of_bytes([&](int i) { return byte_at(low, i) | byte_at(high, i) << 4; });
  }

  /// Of 64 bf16 in two vectors, in the order of join_bytes: their lower bytes, and names of the
  /// upper ones: bits 0 to 6 less base, where that is 0 to 7, and 8 with a sign. With `zero` (base
  /// is not 0 then) 8 is the upper byte 0 instead. Bit i: byte i has no such name (but 0).
  static std::uint64_t name_upper_bytes(
      const Int& first, const Int& second, std::uint32_t base, bool zero, Int* lower, Int* names) {
    const auto bits_of = [&](int i) {
      const int half = i / 16 * 8 + i % 8;
      const Int& v = i % 16 < 8 ? first : second;
      return byte_at(v, half * 2) | byte_at(v, half * 2 + 1) << 8;
    };
    constexpr std::uint32_t kNoName = 16;
    const auto name_of = [&](int i) {
      const std::uint32_t upper = bits_of(i) >> 8;
      if (zero && upper == 0) return 8U;
      const std::uint32_t above = (upper & 0x7fU) - base;
      const std::uint32_t name = above | (upper >> 7 << 3);
      return above > 7 || (zero && name == 8) ? kNoName : name;
    };
    *lower = of_bytes([&](int i) { return bits_of(i) & 0xffU; });
    *names = of_bytes([&](int i) { return name_of(i) % kNoName; });
    std::uint64_t others = 0;
    for (int i = 0; i < 64; ++i)
      others |= std::uint64_t{name_of(i) == kNoName} << i;
    return others;
  }

  /// The tree of all families: lanes i and i+8, then i and i+4, then i and i+2, then 0 and 1.
  static float sum(const Vec& v) {
    float t[16];
    std::memcpy(t, v.lane, sizeof(t));
    for (int width = 8; width >= 1; width /= 2) {
      for (int i = 0; i < width; ++i)
        t[i] = t[i] + t[i + width];
    }
    return t[0];
  }

  static float max_lane(const Vec& v) {
    float t[16];
    std::memcpy(t, v.lane, sizeof(t));
    for (int width = 8; width >= 1; width /= 2) {
      for (int i = 0; i < width; ++i)
        t[i] = t[i] > t[i + width] ? t[i] : t[i + width];
    }
    return t[0];
  }

  /// to[w][lane] = word w of rows[lane] behind `at` bytes: 16 words of 32 bits of 16 rows.
  static void transpose_words(const std::byte* const* rows, std::size_t at, std::byte* to) {
    for (std::size_t w = 0; w < 16; ++w) {
      for (std::size_t lane = 0; lane < 16; ++lane)
        std::memcpy(to + (w * 16 + lane) * 4, rows[lane] + at + w * 4, 4);
    }
  }

  /// Lane i: sum(v[i]).
  static Vec sum16(const Vec* v) {
    return each([&](int i) { return sum(v[i]); });
  }
};

}  // namespace tandem::kernels::cpu
