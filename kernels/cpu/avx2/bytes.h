// Integers of the 16-lane vector in two AVX2 registers: bytes of keys, and products of bytes.
// Semantics: generic/vec.h, bit for bit.
#pragma once

#include "kernels/api/dtype.h"

#include <immintrin.h>

#include <cstddef>
#include <cstdint>

namespace tandem::kernels::cpu {

struct Avx2Bytes {
  struct Int {
    __m256i lo;
    __m256i hi;
  };

  static constexpr bool kOffsetBytes = false;

  static Int int_zero() { return {_mm256_setzero_si256(), _mm256_setzero_si256()}; }

  static Int int_load(const void* from) {
    const auto* words = static_cast<const __m256i*>(from);
    return {_mm256_loadu_si256(words), _mm256_loadu_si256(words + 1)};
  }

  static void int_store(void* to, Int v) {
    auto* words = static_cast<__m256i*>(to);
    _mm256_storeu_si256(words, v.lo);
    _mm256_storeu_si256(words + 1, v.hi);
  }

  /// By the lower half of an index, what is different in the bytes of a subnormal.
  struct Subnormals {
    std::uint8_t low[16];
    std::uint8_t high[16];
  };

  template <DType D>
  static constexpr Subnormals make_subnormals() {
    constexpr Fp8Format kFormat = fp8_format(D);
    constexpr unsigned kCodes = 1U << kFormat.mantissa;
    Subnormals out{};
    for (unsigned code = 0; code < kCodes; ++code) {
      const std::uint16_t half = f32_to_bf16(fp8_to_f32(static_cast<std::uint8_t>(code), D));
      const unsigned normal = (code << (7 - kFormat.mantissa)) + ((127U - kFormat.bias) << 7U);
      out.low[16 - kCodes + code] = static_cast<std::uint8_t>(half ^ normal);
      out.high[16 - kCodes + code] = static_cast<std::uint8_t>((half ^ normal) >> 8U);
    }
    return out;
  }

  template <DType D>
  static constexpr Subnormals kSubnormals = make_subnormals<D>();

  static __m256i from_table(const std::uint8_t* table, __m256i index) {
    const __m128i once = _mm_loadu_si128(reinterpret_cast<const __m128i*>(table));
    return _mm256_shuffle_epi8(_mm256_broadcastsi128_si256(once), index);
  }

  /// As in avx512/vec.h, the lower and the upper byte of each bf16 apart: 32 values at a time.
  template <DType D>
  static Int widen_fp8(const void* from) {
    constexpr Fp8Format kFormat = fp8_format(D);
    constexpr int kShift = 7 - kFormat.mantissa;
    const auto bytes = [](int byte) { return _mm256_set1_epi8(static_cast<char>(byte)); };
    // In the order in which unpacking makes neighbours of what is.
    const __m256i codes =
        _mm256_permute4x64_epi64(_mm256_loadu_si256(static_cast<const __m256i*>(from)), 0xd8);
    const __m256i magnitude = _mm256_and_si256(codes, bytes(0x7f));
    __m256i low = _mm256_and_si256(_mm256_slli_epi16(magnitude, kShift), bytes(0xff << kShift));
    __m256i high =
        _mm256_and_si256(_mm256_srli_epi16(magnitude, 8 - kShift), bytes((1 << (kShift - 1)) - 1));
    high = _mm256_add_epi8(high, bytes((127 - kFormat.bias) >> 1));
    // Below 128, where a shuffle takes it, of subnormals only.
    const __m256i index = _mm256_add_epi8(magnitude, bytes(0x80 - (1 << kFormat.mantissa)));
    low = _mm256_xor_si256(low, from_table(kSubnormals<D>.low, index));
    high = _mm256_xor_si256(high, from_table(kSubnormals<D>.high, index));
    const __m256i is_top = _mm256_cmpgt_epi8(magnitude, bytes(static_cast<int>(kFormat.most)));
    high = _mm256_or_si256(high, _mm256_and_si256(is_top, bytes(0x7f)));
    high = _mm256_or_si256(high, _mm256_and_si256(codes, bytes(0x80)));
    return {_mm256_unpacklo_epi8(low, high), _mm256_unpackhi_epi8(low, high)};
  }

  static Int int_negate(Int v) {
    const __m256i zero = _mm256_setzero_si256();
    return {_mm256_sub_epi32(zero, v.lo), _mm256_sub_epi32(zero, v.hi)};
  }

  static __m256i low_nibbles(__m256i v) { return _mm256_and_si256(v, _mm256_set1_epi8(15)); }

  static Int low_nibbles(Int v) { return {low_nibbles(v.lo), low_nibbles(v.hi)}; }

  static Int high_nibbles(Int v) {
    return {low_nibbles(_mm256_srli_epi16(v.lo, 4)), low_nibbles(_mm256_srli_epi16(v.hi, 4))};
  }

  static void load_affine(__m128i eight, __m256i* step, __m256i* offset) {
    const __m256i pairs = _mm256_cvtepu16_epi32(eight);
    const __m128i first = _mm_setr_epi8(0, -1, 0, -1, 4, -1, 4, -1, 8, -1, 8, -1, 12, -1, 12, -1);
    const __m128i second = _mm_setr_epi8(1, 1, 1, 1, 5, 5, 5, 5, 9, 9, 9, 9, 13, 13, 13, 13);
    *step = _mm256_shuffle_epi8(pairs, _mm256_broadcastsi128_si256(first));
    *offset = _mm256_shuffle_epi8(pairs, _mm256_broadcastsi128_si256(second));
  }

  static void load_affine(const void* from, Int* step, Int* offset) {
    const auto* eights = static_cast<const __m128i*>(from);
    load_affine(_mm_loadu_si128(eights), &step->lo, &offset->lo);
    load_affine(_mm_loadu_si128(eights + 1), &step->hi, &offset->hi);
  }

  // A product of 16 bits is two of 8, since the lower one stays below 256.
  static __m256i scaled_bytes(__m256i v, __m256i step, __m256i offset) {
    return _mm256_sub_epi8(_mm256_mullo_epi16(v, step), offset);
  }

  static Int scaled_bytes(Int v, Int step, Int offset) {
    return {scaled_bytes(v.lo, step.lo, offset.lo), scaled_bytes(v.hi, step.hi, offset.hi)};
  }

  /// The bytes of x and their magnitudes.
  struct Bytes {
    __m256i value;
    __m256i magnitude;
  };

  static Bytes bytes_of(std::uint32_t four) {
    const __m256i value = _mm256_set1_epi32(static_cast<int>(four));
    return {value, _mm256_abs_epi8(value)};
  }

  // The sign of x goes to w, so that maddubs gets its unsigned operand; 2 * 127 * 127 fits 16 bits.
  static __m256i dot4(__m256i acc, Bytes x, __m256i w) {
    const __m256i pairs = _mm256_maddubs_epi16(x.magnitude, _mm256_sign_epi8(w, x.value));
    return _mm256_add_epi32(acc, _mm256_madd_epi16(pairs, _mm256_set1_epi16(1)));
  }

  static Int dot4(Int acc, Bytes x, Int w) {
    return {dot4(acc.lo, x, w.lo), dot4(acc.hi, x, w.hi)};
  }

  // For byte_cuts.h:

  static Int byte_ones() { return {_mm256_set1_epi8(1), _mm256_set1_epi8(1)}; }

  static Int int_broadcast(std::uint32_t word) {
    const __m256i v = _mm256_set1_epi32(static_cast<int>(word));
    return {v, v};
  }

  static Int int_add(Int a, Int b) {
    return {_mm256_add_epi32(a.lo, b.lo), _mm256_add_epi32(a.hi, b.hi)};
  }

  static Int int_sub(Int a, Int b) {
    return {_mm256_sub_epi32(a.lo, b.lo), _mm256_sub_epi32(a.hi, b.hi)};
  }

  /// Bytes with 128 added to each.
  static Int offset_bytes(Int v) {
    const __m256i top = _mm256_set1_epi8(static_cast<char>(0x80));
    return {_mm256_xor_si256(v.lo, top), _mm256_xor_si256(v.hi, top)};
  }

  /// Sums of two products of a's unsigned bytes with b's signed ones, as words of 16 bits, which
  /// must be enough for them (maddubs saturates).
  static Int byte_products(Int a, Int b) {
    return {_mm256_maddubs_epi16(a.lo, b.lo), _mm256_maddubs_epi16(a.hi, b.hi)};
  }

  // The three below are assembly since GCC 12 brings in the words of all rows first and then has no
  // registers for sums.

  /// halves += byte_products of w and the word at x.
  static inline __attribute__((always_inline)) void add_byte_products(Int* halves,
                                                                      Int w,
                                                                      const std::uint32_t* x) {
    __m256i first;
    __m256i second;
    __asm__(
        "vpbroadcastd %4, %2\n\t"
        "vpmaddubsw %2, %5, %3\n\t"
        "vpmaddubsw %2, %6, %2\n\t"
        "vpaddw %3, %0, %0\n\t"
        "vpaddw %2, %1, %1"
        : "+x"(halves->lo), "+x"(halves->hi), "=&x"(first), "=&x"(second)
        : "m"(*x), "x"(w.lo), "x"(w.hi));
  }

  /// halves = byte_products of w and the word at x.
  static inline __attribute__((always_inline)) void set_byte_products(Int* halves,
                                                                      Int w,
                                                                      const std::uint32_t* x) {
    __asm__(
        "vpbroadcastd %2, %1\n\t"
        "vpmaddubsw %1, %3, %0\n\t"
        "vpmaddubsw %1, %4, %1"
        : "=&x"(halves->lo), "=&x"(halves->hi)
        : "m"(*x), "x"(w.lo), "x"(w.hi));
  }

  /// acc += sums of four products of w's unsigned bytes and the signed ones at x, of which either
  /// pair must fit 16 bits.
  static inline __attribute__((always_inline)) void add_dot4(Int* acc,
                                                             Int w,
                                                             const std::uint32_t* x) {
    const __m256i ones = _mm256_set1_epi16(1);
    __m256i first;
    __m256i second;
    __asm__(
        "vpbroadcastd %4, %2\n\t"
        "vpmaddubsw %2, %5, %3\n\t"
        "vpmaddubsw %2, %6, %2\n\t"
        "vpmaddwd %7, %3, %3\n\t"
        "vpmaddwd %7, %2, %2\n\t"
        "vpaddd %3, %0, %0\n\t"
        "vpaddd %2, %1, %1"
        : "+x"(acc->lo), "+x"(acc->hi), "=&x"(first), "=&x"(second)
        : "m"(*x), "x"(w.lo), "x"(w.hi), "x"(ones));
  }

  /// Sums of two products of words of 16 bits.
  static Int half_products(Int a, Int b) {
    return {_mm256_madd_epi16(a.lo, b.lo), _mm256_madd_epi16(a.hi, b.hi)};
  }

  /// acc + both words of 16 bits of each.
  static Int add_words(Int acc, Int halves) {
    const __m256i ones = _mm256_set1_epi16(1);
    return int_add(acc, half_products(halves, {ones, ones}));
  }

  /// A bit for each byte of words of 16 bits whose magnitude is more than `most`.
  static std::uint64_t halves_above(Int halves, int most) {
    const __m256i limit = _mm256_set1_epi16(static_cast<short>(most));
    const auto above = [&](__m256i v) {
      const int bits = _mm256_movemask_epi8(_mm256_cmpgt_epi16(_mm256_abs_epi16(v), limit));
      return std::uint64_t{static_cast<std::uint32_t>(bits)};
    };
    return above(halves.lo) | above(halves.hi) << 32U;
  }

  /// A group's steps, two words of 16 bits each, and its offsets, a word of 32 bits whose upper
  /// half is 0.
  static void load_affine_halves(const void* from, Int* step, Int* offset) {
    load_affine(from, step, offset);
    const auto word = [](__m256i four) {
      return _mm256_srli_epi32(_mm256_srai_epi16(four, 8), 16);
    };
    *offset = {word(offset->lo), word(offset->hi)};
  }
};

}  // namespace tandem::kernels::cpu
