// The 16-lane vector in two AVX2 registers (with FMA and F16C). Semantics: generic/vec.h, bit for
// bit.
#pragma once

#include "kernels/cpu/avx2/bytes.h"

#include <immintrin.h>

#include <cstddef>
#include <cstdint>

namespace tandem::kernels::cpu {

struct Avx2Vec : Avx2Bytes {
  struct Vec {
    __m256 lo;
    __m256 hi;
  };

  static constexpr bool kBf16Pairs = false;
  static constexpr bool kShortBf16 = true;
  static constexpr bool kByteCuts = true;
  // 6 rows x 1 panel: 12 of 16 registers are sums.
  static constexpr int kRowStep = 6;
  static constexpr int kWidePanels = 1;
  // Floats are made once for all rows: widening in registers leaves the sums too few of them, but
  // for bf16 by load_first() and load_second().
  static constexpr bool kCuts = true;
  static constexpr int kNarrowPanels = 2;
  static constexpr int kOneRowPanels = 4;
  static constexpr int kScoreSums = 4;
  static constexpr int kValueChunks = 1;
  static constexpr int kValueChunksTwoRows = 2;
  static constexpr int kValueChunksOneRow = 4;
  // 12 of 16 registers are sums.
  static constexpr int kLaneGroups = 1;
  static constexpr int kLaneScores = 6;
  static constexpr int kLaneRows = 6;
  static constexpr int kLaneColumns = 1;

  static Vec broadcast(float value) {
    const __m256 v = _mm256_set1_ps(value);
    return {v, v};
  }

  static Vec zero() { return {_mm256_setzero_ps(), _mm256_setzero_ps()}; }

  static Vec load(const float* from) { return {_mm256_loadu_ps(from), _mm256_loadu_ps(from + 8)}; }

  static void store(float* to, Vec v) {
    _mm256_storeu_ps(to, v.lo);
    _mm256_storeu_ps(to + 8, v.hi);
  }

  static __m128i load_half(const void* from, std::size_t offset) {
    return _mm_loadu_si128(
        reinterpret_cast<const __m128i*>(static_cast<const char*>(from) + offset));
  }

  static void store_half(void* to, std::size_t offset, __m128i v) {
    _mm_storeu_si128(reinterpret_cast<__m128i*>(static_cast<char*>(to) + offset), v);
  }

  static __m256 widen(__m128i bits) {
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(bits), 16));
  }

  static Vec load_bf16(const void* from) {
    return {widen(load_half(from, 0)), widen(load_half(from, 16))};
  }

  /// The lower and the upper bf16 of each word.
  static Vec halves_of(__m256i words) {
    const __m256i mask = _mm256_set1_epi32(static_cast<int>(0xffff0000u));
    return {_mm256_castsi256_ps(_mm256_slli_epi32(words, 16)),
            _mm256_castsi256_ps(_mm256_and_si256(words, mask))};
  }

  /// Even dimensions before odd ones: two operations instead of four.
  static Vec load_bf16_split(const void* from) {
    return halves_of(_mm256_loadu_si256(static_cast<const __m256i*>(from)));
  }

  /// The same of 32 bytes of D, E4M3 divided by 256 (by way of binary16, whose exponents count from
  /// 15, not 7; NaN becomes a number). *top: the largest magnitudes of bytes, of E4M3.
  template <DType D>
  static inline __attribute__((always_inline)) void load_fp8_split(const void* from,
                                                                   Vec* first,
                                                                   Vec* second,
                                                                   Int* top) {
    const __m256i words = _mm256_loadu_si256(static_cast<const __m256i*>(from));
    __m256i even = _mm256_slli_epi16(words, 8);
    __m256i odd = words;
    if constexpr (D == DType::kFp8E4m3) {
      top->lo = _mm256_max_epu8(top->lo, _mm256_and_si256(words, _mm256_set1_epi8(0x7f)));
      const __m256i mask = _mm256_set1_epi16(static_cast<short>(0xbf80));
      even = _mm256_and_si256(_mm256_srai_epi16(even, 1), mask);
      odd = _mm256_and_si256(_mm256_srai_epi16(odd, 1), mask);
    } else {
      odd = _mm256_and_si256(odd, _mm256_set1_epi16(static_cast<short>(0xff00)));
    }
    *first = {_mm256_cvtph_ps(_mm256_castsi256_si128(even)),
              _mm256_cvtph_ps(_mm256_castsi256_si128(odd))};
    *second = {_mm256_cvtph_ps(_mm256_extracti128_si256(even, 1)),
               _mm256_cvtph_ps(_mm256_extracti128_si256(odd, 1))};
  }

  /// Whether load_fp8_split() met NaN.
  static bool met_nan(Int top) {
    const __m256i is = _mm256_cmpeq_epi8(top.lo, _mm256_set1_epi8(0x7f));
    return _mm256_movemask_epi8(is) != 0;
  }

  /// Floats in that order.
  static Vec split(Vec v) {
    const auto ordered = [](__m256 mixed) {
      return _mm256_castpd_ps(_mm256_permute4x64_pd(_mm256_castps_pd(mixed), 0xd8));
    };
    return {ordered(_mm256_shuffle_ps(v.lo, v.hi, 0x88)),
            ordered(_mm256_shuffle_ps(v.lo, v.hi, 0xdd))};
  }

  /// Of split().
  static Vec joined(Vec v) {
    const __m256 a = _mm256_unpacklo_ps(v.lo, v.hi);
    const __m256 b = _mm256_unpackhi_ps(v.lo, v.hi);
    return {_mm256_permute2f128_ps(a, b, 0x20), _mm256_permute2f128_ps(a, b, 0x31)};
  }

  static Vec load_f16(const void* from) {
    return {_mm256_cvtph_ps(load_half(from, 0)), _mm256_cvtph_ps(load_half(from, 16))};
  }

  static __m256i narrow(__m256 v) {
    const __m256i bits = _mm256_castps_si256(v);
    const __m256i odd = _mm256_and_si256(_mm256_srli_epi32(bits, 16), _mm256_set1_epi32(1));
    const __m256i rounded = _mm256_srli_epi32(
        _mm256_add_epi32(bits, _mm256_add_epi32(odd, _mm256_set1_epi32(0x7fff))), 16);
    const __m256i quiet = _mm256_or_si256(_mm256_srli_epi32(bits, 16), _mm256_set1_epi32(0x40));
    const __m256i is_nan = _mm256_castps_si256(_mm256_cmp_ps(v, v, _CMP_UNORD_Q));
    return _mm256_blendv_epi8(rounded, quiet, is_nan);
  }

  static void store_bf16(void* to, Vec v) {
    const __m256i packed =
        _mm256_permute4x64_epi64(_mm256_packus_epi32(narrow(v.lo), narrow(v.hi)), 0xd8);
    _mm256_storeu_si256(static_cast<__m256i*>(to), packed);
  }

  static Vec rounded_to_bf16(Vec v) {
    const auto half = [](__m256 from) {
      const __m256i bits = _mm256_castps_si256(from);
      const __m256i odd = _mm256_and_si256(_mm256_srli_epi32(bits, 16), _mm256_set1_epi32(1));
      const __m256i sum = _mm256_add_epi32(bits, _mm256_add_epi32(odd, _mm256_set1_epi32(0x7fff)));
      return _mm256_castsi256_ps(_mm256_and_si256(sum, _mm256_set1_epi32(-0x10000)));
    };
    return {half(v.lo), half(v.hi)};
  }

  static void store_f16(void* to, Vec v) {
    store_half(to, 0, _mm256_cvtps_ph(v.lo, _MM_FROUND_TO_NEAREST_INT));
    store_half(to, 16, _mm256_cvtps_ph(v.hi, _MM_FROUND_TO_NEAREST_INT));
  }

  template <DType D>
  static __m256i narrow_fp8(__m256 v) {
    constexpr Fp8Format kFormat = fp8_format(D);
    constexpr int kBias = kFormat.bias;
    constexpr int kShift = 23 - kFormat.mantissa;
    const __m256i bits = _mm256_castps_si256(v);
    const __m256i magnitude = _mm256_and_si256(bits, _mm256_set1_epi32(0x7fffffff));
    const __m256i rebased = _mm256_sub_epi32(magnitude, _mm256_set1_epi32((127 - kBias) << 23));
    const __m256i odd = _mm256_and_si256(_mm256_srli_epi32(rebased, kShift), _mm256_set1_epi32(1));
    const __m256i half = _mm256_set1_epi32((1 << (kShift - 1)) - 1);
    const __m256i normal =
        _mm256_srli_epi32(_mm256_add_epi32(rebased, _mm256_add_epi32(odd, half)), kShift);
    const __m256i large = _mm256_set1_epi32((151 - kBias - kFormat.mantissa) << 23);
    const __m256 sum = _mm256_add_ps(_mm256_castsi256_ps(magnitude), _mm256_castsi256_ps(large));
    const __m256i small = _mm256_sub_epi32(_mm256_castps_si256(sum), large);
    const __m256i is_small = _mm256_cmpgt_epi32(_mm256_set1_epi32((128 - kBias) << 23), magnitude);
    const __m256i code = _mm256_min_epu32(_mm256_blendv_epi8(normal, small, is_small),
                                          _mm256_set1_epi32(static_cast<int>(kFormat.most)));
    const __m256i is_nan = _mm256_castps_si256(_mm256_cmp_ps(v, v, _CMP_UNORD_Q));
    const __m256i chosen = _mm256_blendv_epi8(code, _mm256_set1_epi32(0x7f), is_nan);
    const __m256i sign = _mm256_and_si256(_mm256_srli_epi32(bits, 24), _mm256_set1_epi32(0x80));
    return _mm256_or_si256(chosen, sign);
  }

  template <DType D>
  static void store_fp8(void* to, Vec v) {
    const __m256i words = _mm256_packus_epi32(narrow_fp8<D>(v.lo), narrow_fp8<D>(v.hi));
    const __m256i ordered = _mm256_permute4x64_epi64(words, 0xd8);
    store_half(
        to,
        0,
        _mm_packus_epi16(_mm256_castsi256_si128(ordered), _mm256_extracti128_si256(ordered, 1)));
  }

  static void store_int8(std::int8_t* to, Vec v) {
    const __m256i words = _mm256_packs_epi32(_mm256_cvtps_epi32(v.lo), _mm256_cvtps_epi32(v.hi));
    const __m256i ordered = _mm256_permute4x64_epi64(words, 0xd8);
    store_half(
        to,
        0,
        _mm_packs_epi16(_mm256_castsi256_si128(ordered), _mm256_extracti128_si256(ordered, 1)));
  }

  static Vec to_float(Int v) { return {_mm256_cvtepi32_ps(v.lo), _mm256_cvtepi32_ps(v.hi)}; }

  template <int J>
  static __m256 byte_of(__m256i v) {
    return _mm256_cvtepi32_ps(_mm256_srai_epi32(_mm256_slli_epi32(v, 24 - 8 * J), 24));
  }

  template <int J>
  static Vec byte_of(Int v) {
    return {byte_of<J>(v.lo), byte_of<J>(v.hi)};
  }

  static void load_pairs(const void* from, Vec* first, Vec* second) {
    pairs_of(int_load(from), first, second);
  }

  // For float_cuts.h. Assembly that stays in order: otherwise GCC 12 loads and widens for both
  // halves of a line, and brings in x of all rows, before there are registers for any of it.

  /// 16 words.
  struct Line {
    __m256 lo;
    __m256 hi;
  };

  /// The lower bf16 of each word.
  static inline __attribute__((always_inline)) void load_first(const void* from, Vec* out) {
    const auto* line = static_cast<const Line*>(from);
    __asm__ volatile(
        "vmovups %2, %0\n\t"
        "vmovups %3, %1\n\t"
        "vpslld $16, %0, %0\n\t"
        "vpslld $16, %1, %1"
        : "=&x"(out->lo), "=&x"(out->hi)
        : "m"(line->lo), "m"(line->hi));
  }

  /// The upper one, without a register for a mask.
  static inline __attribute__((always_inline)) void load_second(const void* from, Vec* out) {
    const auto* line = static_cast<const Line*>(from);
    __asm__ volatile(
        "vpxor %0, %0, %0\n\t"
        "vpxor %1, %1, %1\n\t"
        "vpblendw $0xaa, %2, %0, %0\n\t"
        "vpblendw $0xaa, %3, %1, %1"
        : "=&x"(out->lo), "=&x"(out->hi)
        : "m"(line->lo), "m"(line->hi));
  }

  /// sum += *x * w
  static inline __attribute__((always_inline)) void add_product(Vec* sum,
                                                                const float* x,
                                                                const Vec& w) {
    __m256 all;
    __asm__ volatile(
        "vbroadcastss %3, %2\n\t"
        "vfmadd231ps %2, %4, %0\n\t"
        "vfmadd231ps %2, %5, %1"
        : "+&x"(sum->lo), "+x"(sum->hi), "=&x"(all)
        : "m"(*x), "x"(w.lo), "x"(w.hi));
  }

  /// The lower and the upper bf16 of each word.
  static void pairs_of(Int words, Vec* first, Vec* second) {
    const Vec lo = halves_of(words.lo);
    const Vec hi = halves_of(words.hi);
    *first = {lo.lo, hi.lo};
    *second = {lo.hi, hi.hi};
  }

  static Int load_table(const void* from) {
    const __m256i twice =
        _mm256_broadcastsi128_si256(_mm_loadu_si128(static_cast<const __m128i*>(from)));
    return {twice, twice};
  }

  static Int look_up(Int table, Int bytes) {
    return {_mm256_shuffle_epi8(table.lo, bytes.lo), _mm256_shuffle_epi8(table.hi, bytes.hi)};
  }

  static void join_bytes(Int lower, Int upper, Int* first, Int* second) {
    *first = {_mm256_unpacklo_epi8(lower.lo, upper.lo), _mm256_unpacklo_epi8(lower.hi, upper.hi)};
    *second = {_mm256_unpackhi_epi8(lower.lo, upper.lo), _mm256_unpackhi_epi8(lower.hi, upper.hi)};
  }

  static void set_half(Int* first, Int* second, std::size_t index, std::uint16_t bits) {
    const __m256i value = _mm256_set1_epi16(static_cast<short>(bits));
    __m256i lane = _mm256_setr_epi16(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
    lane = _mm256_sub_epi16(lane, _mm256_set1_epi16(static_cast<short>(index)));
    const auto set = [&](__m256i v, short from) {
      const __m256i here = _mm256_cmpeq_epi16(lane, _mm256_set1_epi16(static_cast<short>(-from)));
      return _mm256_blendv_epi8(v, value, here);
    };
    *first = {set(first->lo, 0), set(first->hi, 16)};
    *second = {set(second->lo, 32), set(second->hi, 48)};
  }

  static Int max_magnitudes(Int most, Int halves) {
    const __m256i mask = _mm256_set1_epi16(0x7fff);
    return {_mm256_max_epu16(most.lo, _mm256_and_si256(halves.lo, mask)),
            _mm256_max_epu16(most.hi, _mm256_and_si256(halves.hi, mask))};
  }

  static Int min_magnitudes(Int least, Int halves) {
    const __m256i mask = _mm256_set1_epi16(0x7fff);
    return {_mm256_min_epu16(least.lo, _mm256_and_si256(halves.lo, mask)),
            _mm256_min_epu16(least.hi, _mm256_and_si256(halves.hi, mask))};
  }

  static Int pack_nibbles(Int low, Int high) {
    return {_mm256_or_si256(low.lo, _mm256_slli_epi16(high.lo, 4)),
            _mm256_or_si256(low.hi, _mm256_slli_epi16(high.hi, 4))};
  }

  /// Of half of the bytes; see below.
  static std::uint32_t name_upper_bytes(__m256i first,
                                        __m256i second,
                                        std::uint32_t base,
                                        bool zero,
                                        __m256i* lower,
                                        __m256i* names) {
    const __m256i low = _mm256_set1_epi16(0xff);
    *lower = _mm256_packus_epi16(_mm256_and_si256(first, low), _mm256_and_si256(second, low));
    const __m256i upper =
        _mm256_packus_epi16(_mm256_srli_epi16(first, 8), _mm256_srli_epi16(second, 8));
    const __m256i above = _mm256_sub_epi8(_mm256_and_si256(upper, _mm256_set1_epi8(0x7f)),
                                          _mm256_set1_epi8(static_cast<char>(base)));
    __m256i named = _mm256_cmpeq_epi8(_mm256_min_epu8(above, _mm256_set1_epi8(7)), above);
    const __m256i with_sign = _mm256_set1_epi8(8);
    __m256i name = _mm256_or_si256(above, _mm256_and_si256(_mm256_srli_epi16(upper, 4), with_sign));
    if (zero) {
      const __m256i none = _mm256_cmpeq_epi8(upper, _mm256_setzero_si256());
      named = _mm256_or_si256(none, _mm256_andnot_si256(_mm256_cmpeq_epi8(name, with_sign), named));
      name = _mm256_blendv_epi8(name, with_sign, none);
    }
    *names = _mm256_and_si256(name, named);
    return ~static_cast<std::uint32_t>(_mm256_movemask_epi8(named));
  }

  static std::uint64_t name_upper_bytes(
      Int first, Int second, std::uint32_t base, bool zero, Int* lower, Int* names) {
    const std::uint64_t low =
        name_upper_bytes(first.lo, second.lo, base, zero, &lower->lo, &names->lo);
    const std::uint64_t high =
        name_upper_bytes(first.hi, second.hi, base, zero, &lower->hi, &names->hi);
    return low | high << 32U;
  }

  static Vec add(Vec a, Vec b) { return {_mm256_add_ps(a.lo, b.lo), _mm256_add_ps(a.hi, b.hi)}; }

  static Vec sub(Vec a, Vec b) { return {_mm256_sub_ps(a.lo, b.lo), _mm256_sub_ps(a.hi, b.hi)}; }

  static Vec mul(Vec a, Vec b) { return {_mm256_mul_ps(a.lo, b.lo), _mm256_mul_ps(a.hi, b.hi)}; }

  static Vec div(Vec a, Vec b) { return {_mm256_div_ps(a.lo, b.lo), _mm256_div_ps(a.hi, b.hi)}; }

  static Vec fma(Vec a, Vec b, Vec c) {
    return {_mm256_fmadd_ps(a.lo, b.lo, c.lo), _mm256_fmadd_ps(a.hi, b.hi, c.hi)};
  }

  static Vec fms(Vec a, Vec b, Vec c) {
    return {_mm256_fmsub_ps(a.lo, b.lo, c.lo), _mm256_fmsub_ps(a.hi, b.hi, c.hi)};
  }

  static Vec max(Vec a, Vec b) { return {_mm256_max_ps(a.lo, b.lo), _mm256_max_ps(a.hi, b.hi)}; }

  static Vec min(Vec a, Vec b) { return {_mm256_min_ps(a.lo, b.lo), _mm256_min_ps(a.hi, b.hi)}; }

  static bool any_above(Vec v, Vec limit) {
    const __m256 above = _mm256_or_ps(_mm256_cmp_ps(v.lo, limit.lo, _CMP_GT_OQ),
                                      _mm256_cmp_ps(v.hi, limit.hi, _CMP_GT_OQ));
    return _mm256_movemask_ps(above) != 0;
  }

  static Vec select_greater(Vec a, Vec b, Vec yes, Vec no) {
    return {_mm256_blendv_ps(no.lo, yes.lo, _mm256_cmp_ps(a.lo, b.lo, _CMP_GT_OQ)),
            _mm256_blendv_ps(no.hi, yes.hi, _mm256_cmp_ps(a.hi, b.hi, _CMP_GT_OQ))};
  }

  static __m256 scale_by_power(__m256 v, __m256 shifted) {
    const __m256i n = _mm256_sub_epi32(_mm256_castps_si256(shifted), _mm256_set1_epi32(0x4b400000));
    const __m256i half = _mm256_srai_epi32(n, 1);
    const __m256i bias = _mm256_set1_epi32(127);
    const __m256i first = _mm256_slli_epi32(_mm256_add_epi32(half, bias), 23);
    const __m256i second = _mm256_slli_epi32(_mm256_add_epi32(_mm256_sub_epi32(n, half), bias), 23);
    return _mm256_mul_ps(_mm256_mul_ps(v, _mm256_castsi256_ps(first)), _mm256_castsi256_ps(second));
  }

  static Vec scale_by_power(Vec v, Vec shifted) {
    return {scale_by_power(v.lo, shifted.lo), scale_by_power(v.hi, shifted.hi)};
  }

  static __m256 scale_by_normal_power(__m256 v, __m256 shifted) {
    const __m256i n =
        _mm256_sub_epi32(_mm256_castps_si256(shifted), _mm256_set1_epi32(0x4b400000 - 127));
    return _mm256_mul_ps(v, _mm256_castsi256_ps(_mm256_slli_epi32(n, 23)));
  }

  static Vec scale_by_normal_power(Vec v, Vec shifted) {
    return {scale_by_normal_power(v.lo, shifted.lo), scale_by_normal_power(v.hi, shifted.hi)};
  }

  static float sum(Vec v) {
    const __m256 t = _mm256_add_ps(v.lo, v.hi);
    const __m128 u = _mm_add_ps(_mm256_castps256_ps128(t), _mm256_extractf128_ps(t, 1));
    const __m128 w = _mm_add_ps(u, _mm_movehl_ps(u, u));
    return _mm_cvtss_f32(_mm_add_ss(w, _mm_movehdup_ps(w)));
  }

  static float max_lane(Vec v) {
    const __m256 t = _mm256_max_ps(v.lo, v.hi);
    const __m128 u = _mm_max_ps(_mm256_castps256_ps128(t), _mm256_extractf128_ps(t, 1));
    const __m128 w = _mm_max_ps(u, _mm_movehl_ps(u, u));
    return _mm_cvtss_f32(_mm_max_ss(w, _mm_movehdup_ps(w)));
  }

  // Eight sums of eight lanes each, in order. Every step adds and transposes at once.
  static __m256 sum8(const __m256* t) {
    __m256 u[4];
#pragma GCC unroll 4
    for (int i = 0; i < 4; ++i) {
      u[i] = _mm256_add_ps(_mm256_permute2f128_ps(t[2 * i], t[2 * i + 1], 0x20),
                           _mm256_permute2f128_ps(t[2 * i], t[2 * i + 1], 0x31));
    }
    __m256 w[2];
#pragma GCC unroll 2
    for (int i = 0; i < 2; ++i) {
      const __m256d a = _mm256_castps_pd(u[2 * i]);
      const __m256d b = _mm256_castps_pd(u[2 * i + 1]);
      w[i] = _mm256_add_ps(_mm256_castpd_ps(_mm256_unpacklo_pd(a, b)),
                           _mm256_castpd_ps(_mm256_unpackhi_pd(a, b)));
    }
    const __m256 mixed =
        _mm256_add_ps(_mm256_shuffle_ps(w[0], w[1], 0x88), _mm256_shuffle_ps(w[0], w[1], 0xdd));
    return _mm256_permutevar8x32_ps(mixed, _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7));
  }

  static Vec sum16(const Vec* v) {
    __m256 t[16];
#pragma GCC unroll 16
    for (int i = 0; i < 16; ++i)
      t[i] = _mm256_add_ps(v[i].lo, v[i].hi);
    return {sum8(t), sum8(t + 8)};
  }

  // The same of vectors that are split: the same additions, some with their sides exchanged.
  static __m256 sum8_split(const Vec* v) {
    __m256 u[8];
#pragma GCC unroll 8
    for (int i = 0; i < 8; ++i) {
      u[i] = _mm256_add_ps(_mm256_blend_ps(v[i].lo, v[i].hi, 0xf0),
                           _mm256_permute2f128_ps(v[i].lo, v[i].hi, 0x21));
    }
    __m256 w[4];
#pragma GCC unroll 4
    for (int i = 0; i < 4; ++i) {
      const __m256d a = _mm256_castps_pd(u[2 * i]);
      const __m256d b = _mm256_castps_pd(u[2 * i + 1]);
      w[i] = _mm256_add_ps(_mm256_castpd_ps(_mm256_unpacklo_pd(a, b)),
                           _mm256_castpd_ps(_mm256_unpackhi_pd(a, b)));
    }
    __m256 z[2];
#pragma GCC unroll 2
    for (int i = 0; i < 2; ++i) {
      z[i] = _mm256_add_ps(_mm256_shuffle_ps(w[2 * i], w[2 * i + 1], 0x88),
                           _mm256_shuffle_ps(w[2 * i], w[2 * i + 1], 0xdd));
    }
    return _mm256_add_ps(_mm256_permute2f128_ps(z[0], z[1], 0x20),
                         _mm256_permute2f128_ps(z[0], z[1], 0x31));
  }

  static Vec sum16_split(const Vec* v) {
    return {sum8_split(v), sum8_split(v + 8)};
  }

  // Eight words of eight rows: pairs of words, pairs of pairs, then halves of registers.
  static void transpose8(const std::byte* const* rows, std::size_t at, std::byte* to) {
    __m256i a[8];
    __m256i b[8];
#pragma GCC unroll 8
    for (int i = 0; i < 8; ++i)
      a[i] = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(rows[i] + at));
#pragma GCC unroll 4
    for (int i = 0; i < 8; i += 2) {
      b[i] = _mm256_unpacklo_epi32(a[i], a[i + 1]);
      b[i + 1] = _mm256_unpackhi_epi32(a[i], a[i + 1]);
    }
#pragma GCC unroll 2
    for (int i = 0; i < 8; i += 4) {
      a[i] = _mm256_unpacklo_epi64(b[i], b[i + 2]);
      a[i + 1] = _mm256_unpackhi_epi64(b[i], b[i + 2]);
      a[i + 2] = _mm256_unpacklo_epi64(b[i + 1], b[i + 3]);
      a[i + 3] = _mm256_unpackhi_epi64(b[i + 1], b[i + 3]);
    }
#pragma GCC unroll 4
    for (int i = 0; i < 4; ++i) {
      auto* low = reinterpret_cast<__m256i*>(to + i * 64);
      auto* high = reinterpret_cast<__m256i*>(to + (i + 4) * 64);
      _mm256_storeu_si256(low, _mm256_permute2x128_si256(a[i], a[i + 4], 0x20));
      _mm256_storeu_si256(high, _mm256_permute2x128_si256(a[i], a[i + 4], 0x31));
    }
  }

  static void transpose_words(const std::byte* const* rows, std::size_t at, std::byte* to) {
    for (std::size_t half = 0; half < 2; ++half) {
      transpose8(rows + half * 8, at, to + half * 32);
      transpose8(rows + half * 8, at + 32, to + 8 * 64 + half * 32);
    }
  }
};

}  // namespace tandem::kernels::cpu
