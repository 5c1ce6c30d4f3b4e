// The 16-lane vector in one AVX-512 register (F, BW, VL, DQ). Semantics: generic/vec.h, bit for
// bit, but for what one_row.h of amx needs beyond: begin_flushing.
#pragma once

#include "kernels/api/dtype.h"

#include <immintrin.h>

#include <cstddef>
#include <cstdint>

namespace tandem::kernels::cpu {

struct Avx512Vec {
  using Vec = __m512;

  static constexpr bool kBf16Pairs = false;
  static constexpr bool kShortBf16 = true;
  // 12 rows x 2 panels: 24 of 32 registers are sums.
  static constexpr int kRowStep = 12;
  static constexpr int kWidePanels = 2;
  // Registers are enough to widen in: cuts of k gained nothing.
  static constexpr bool kCuts = false;
  static constexpr int kNarrowPanels = 4;
  static constexpr int kOneRowPanels = 4;
  static constexpr int kScoreSums = 16;
  static constexpr int kValueChunks = 4;
  static constexpr int kValueChunksTwoRows = 8;
  static constexpr int kValueChunksOneRow = 8;
  static constexpr int kLaneGroups = 4;
  static constexpr int kLaneScores = 16;
  static constexpr int kLaneRows = 8;
  static constexpr int kLaneColumns = 2;

  static Vec broadcast(float value) { return _mm512_set1_ps(value); }

  static Vec zero() { return _mm512_setzero_ps(); }

  static Vec load(const float* from) { return _mm512_loadu_ps(from); }

  static void store(float* to, Vec v) { _mm512_storeu_ps(to, v); }

  /// Past the caches, 64-byte aligned; other threads see it after end_streams().
  static void stream(float* to, Vec v) { _mm512_stream_ps(to, v); }

  static void end_streams() { _mm_sfence(); }

  static Vec load_bf16(const void* from) {
    const __m256i bits = _mm256_loadu_si256(static_cast<const __m256i*>(from));
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(bits), 16));
  }

  static Vec load_f16(const void* from) {
    return _mm512_cvtph_ps(_mm256_loadu_si256(static_cast<const __m256i*>(from)));
  }

  // Not vcvtneps2bf16: that one flushes subnormals, and the bits must be those of every other
  // family.
  static void store_bf16(void* to, Vec v) {
    const __m512i bits = _mm512_castps_si512(v);
    const __m512i top = _mm512_srli_epi32(bits, 16);
    const __m512i odd = _mm512_and_si512(top, _mm512_set1_epi32(1));
    const __m512i rounded = _mm512_srli_epi32(
        _mm512_add_epi32(bits, _mm512_add_epi32(odd, _mm512_set1_epi32(0x7fff))), 16);
    const __m512i quiet = _mm512_or_si512(top, _mm512_set1_epi32(0x40));
    const __mmask16 is_nan = _mm512_cmp_ps_mask(v, v, _CMP_UNORD_Q);
    const __m512i chosen = _mm512_mask_blend_epi32(is_nan, rounded, quiet);
    _mm256_storeu_si256(static_cast<__m256i*>(to), _mm512_cvtepi32_epi16(chosen));
  }

  static Vec rounded_to_bf16(Vec v) {
    const __m512i bits = _mm512_castps_si512(v);
    const __m512i odd = _mm512_and_si512(_mm512_srli_epi32(bits, 16), _mm512_set1_epi32(1));
    const __m512i sum = _mm512_add_epi32(bits, _mm512_add_epi32(odd, _mm512_set1_epi32(0x7fff)));
    return _mm512_castsi512_ps(_mm512_and_si512(sum, _mm512_set1_epi32(-0x10000)));
  }

  static void store_f16(void* to, Vec v) {
    _mm256_storeu_si256(static_cast<__m256i*>(to), _mm512_cvtps_ph(v, _MM_FROUND_TO_NEAREST_INT));
  }

  template <DType D>
  static void store_fp8(void* to, Vec v) {
    constexpr Fp8Format kFormat = fp8_format(D);
    constexpr int kBias = kFormat.bias;
    constexpr int kShift = 23 - kFormat.mantissa;
    const __m512i bits = _mm512_castps_si512(v);
    const __m512i magnitude = _mm512_and_si512(bits, _mm512_set1_epi32(0x7fffffff));
    const __m512i rebased = _mm512_sub_epi32(magnitude, _mm512_set1_epi32((127 - kBias) << 23));
    const __m512i odd = _mm512_and_si512(_mm512_srli_epi32(rebased, kShift), _mm512_set1_epi32(1));
    const __m512i half = _mm512_set1_epi32((1 << (kShift - 1)) - 1);
    const __m512i normal =
        _mm512_srli_epi32(_mm512_add_epi32(rebased, _mm512_add_epi32(odd, half)), kShift);
    const __m512i large = _mm512_set1_epi32((151 - kBias - kFormat.mantissa) << 23);
    const __m512 sum = _mm512_add_ps(_mm512_castsi512_ps(magnitude), _mm512_castsi512_ps(large));
    const __m512i small = _mm512_sub_epi32(_mm512_castps_si512(sum), large);
    const __mmask16 is_small =
        _mm512_cmplt_epi32_mask(magnitude, _mm512_set1_epi32((128 - kBias) << 23));
    const __m512i code = _mm512_min_epu32(_mm512_mask_blend_epi32(is_small, normal, small),
                                          _mm512_set1_epi32(static_cast<int>(kFormat.most)));
    const __mmask16 is_nan = _mm512_cmp_ps_mask(v, v, _CMP_UNORD_Q);
    const __m512i chosen = _mm512_mask_blend_epi32(is_nan, code, _mm512_set1_epi32(0x7f));
    const __m512i sign = _mm512_and_si512(_mm512_srli_epi32(bits, 24), _mm512_set1_epi32(0x80));
    _mm_storeu_si128(static_cast<__m128i*>(to),
                     _mm512_cvtepi32_epi8(_mm512_or_si512(chosen, sign)));
  }

  static void store_int8(std::int8_t* to, Vec v) {
    _mm_storeu_si128(reinterpret_cast<__m128i*>(to), _mm512_cvtepi32_epi8(_mm512_cvtps_epi32(v)));
  }

  using Int = __m512i;
  static constexpr bool kOffsetBytes = false;
  static constexpr bool kByteCuts = false;

  static Int int_zero() { return _mm512_setzero_si512(); }

  static Int int_load(const void* from) { return _mm512_loadu_si512(from); }

  static void int_store(void* to, Int v) { _mm512_storeu_si512(to, v); }

  /// Exponent and mantissa to their places, with another bias; subnormals by a table, what is no
  /// number apart.
  template <DType D>
  static Int widen_fp8(const void* from) {
    constexpr bool kE5m2 = D == DType::kFp8E5m2;
    constexpr Fp8Format kFormat = fp8_format(D);
    const Int words = _mm512_cvtepu8_epi16(_mm256_loadu_si256(static_cast<const __m256i*>(from)));
    const Int magnitude = _mm512_and_si512(words, _mm512_set1_epi16(0x7f));
    const Int rebias = _mm512_set1_epi16((127 - kFormat.bias) << 7);
    Int half = _mm512_add_epi16(_mm512_slli_epi16(magnitude, 7 - kFormat.mantissa), rebias);
    // k 2^-16, or k 2^-9
    const Int small = kE5m2 ? _mm512_set4_epi32(0, 0, 0x38403800, 0x37800000)
                            : _mm512_set4_epi32(0x3c603c40, 0x3c203c00, 0x3bc03b80, 0x3b000000);
    const __mmask32 is_small =
        _mm512_cmplt_epi16_mask(magnitude, _mm512_set1_epi16(1 << kFormat.mantissa));
    half = _mm512_mask_permutexvar_epi16(half, is_small, magnitude, small);
    if constexpr (kE5m2) {
      const __mmask32 is_top = _mm512_cmpgt_epi16_mask(magnitude, _mm512_set1_epi16(0x7b));
      half = _mm512_mask_add_epi16(half, is_top, half, rebias);
    } else {
      const __mmask32 is_nan = _mm512_cmpeq_epi16_mask(magnitude, _mm512_set1_epi16(0x7f));
      half = _mm512_mask_mov_epi16(half, is_nan, _mm512_set1_epi16(0x7fe0));
    }
    // half | words & 0x80 << 8
    return _mm512_ternarylogic_epi32(
        half, _mm512_slli_epi16(words, 8), _mm512_set1_epi16(static_cast<short>(0x8000)), 0xf8);
  }

  /// Of each 16 bits the larger one, unsigned: those of `most`, or of `halves` without the sign.
  static Int max_magnitudes(Int most, Int halves) {
    return _mm512_max_epu16(most, _mm512_and_si512(halves, _mm512_set1_epi16(0x7fff)));
  }

  /// And the smaller one.
  static Int min_magnitudes(Int least, Int halves) {
    return _mm512_min_epu16(least, _mm512_and_si512(halves, _mm512_set1_epi16(0x7fff)));
  }

  static Int int_negate(Int v) { return _mm512_sub_epi32(_mm512_setzero_si512(), v); }

  static Vec to_float(Int v) { return _mm512_cvtepi32_ps(v); }

  template <int J>
  static Vec byte_of(Int v) {
    const Int top = J == 3 ? v : _mm512_slli_epi32(v, 24 - 8 * J);
    return _mm512_cvtepi32_ps(_mm512_srai_epi32(top, 24));
  }

  static Int low_nibbles(Int v) { return _mm512_and_si512(v, _mm512_set1_epi8(15)); }

  static Int high_nibbles(Int v) { return low_nibbles(_mm512_srli_epi16(v, 4)); }

  static void load_affine(const void* from, Int* step, Int* offset) {
    const Int pairs = _mm512_cvtepu16_epi32(_mm256_loadu_si256(static_cast<const __m256i*>(from)));
    const __m128i first = _mm_setr_epi8(0, -1, 0, -1, 4, -1, 4, -1, 8, -1, 8, -1, 12, -1, 12, -1);
    const __m128i second = _mm_setr_epi8(1, 1, 1, 1, 5, 5, 5, 5, 9, 9, 9, 9, 13, 13, 13, 13);
    *step = _mm512_shuffle_epi8(pairs, _mm512_broadcast_i32x4(first));
    *offset = _mm512_shuffle_epi8(pairs, _mm512_broadcast_i32x4(second));
  }

  // A product of 16 bits is two of 8, since the lower one stays below 256.
  static Int scaled_bytes(Int v, Int step, Int offset) {
    return _mm512_sub_epi8(_mm512_mullo_epi16(v, step), offset);
  }

  /// Magnitudes of the bytes of x, and which are negative.
  struct Bytes {
    __m512i magnitude;
    __mmask64 negative;
  };

  static Bytes bytes_of(std::uint32_t four) {
    const __m512i value = _mm512_set1_epi32(static_cast<int>(four));
    return {_mm512_abs_epi8(value), _mm512_movepi8_mask(value)};
  }

  // As in avx2/vec.h; a weight against a zero of x keeps its sign, which its product does not show.
  static Int dot4(Int acc, Bytes x, Int w) {
    const __m512i sign = _mm512_mask_sub_epi8(w, x.negative, _mm512_setzero_si512(), w);
    const __m512i pairs = _mm512_maddubs_epi16(x.magnitude, sign);
    return _mm512_add_epi32(acc, _mm512_madd_epi16(pairs, _mm512_set1_epi16(1)));
  }

  static void load_pairs(const void* from, Vec* first, Vec* second) {
    pairs_of(_mm512_loadu_si512(from), first, second);
  }

  /// The lower and the upper bf16 of each word.
  static void pairs_of(Int words, Vec* first, Vec* second) {
    *first = _mm512_castsi512_ps(_mm512_slli_epi32(words, 16));
    *second = _mm512_castsi512_ps(
        _mm512_and_si512(words, _mm512_set1_epi32(static_cast<int>(0xffff0000u))));
  }

  static Vec add(Vec a, Vec b) { return _mm512_add_ps(a, b); }

  static Vec sub(Vec a, Vec b) { return _mm512_sub_ps(a, b); }

  static Vec mul(Vec a, Vec b) { return _mm512_mul_ps(a, b); }

  static Vec div(Vec a, Vec b) { return _mm512_div_ps(a, b); }

  static Vec fma(Vec a, Vec b, Vec c) { return _mm512_fmadd_ps(a, b, c); }

  static Vec fms(Vec a, Vec b, Vec c) { return _mm512_fmsub_ps(a, b, c); }

  static Vec max(Vec a, Vec b) { return _mm512_max_ps(a, b); }

  static Vec min(Vec a, Vec b) { return _mm512_min_ps(a, b); }

  static Vec select_greater(Vec a, Vec b, Vec yes, Vec no) {
    return _mm512_mask_blend_ps(_mm512_cmp_ps_mask(a, b, _CMP_GT_OQ), no, yes);
  }

  static Vec scale_by_power(Vec v, Vec shifted) {
    const __m512i n = _mm512_sub_epi32(_mm512_castps_si512(shifted), _mm512_set1_epi32(0x4b400000));
    const __m512i half = _mm512_srai_epi32(n, 1);
    const __m512i bias = _mm512_set1_epi32(127);
    const __m512i first = _mm512_slli_epi32(_mm512_add_epi32(half, bias), 23);
    const __m512i second = _mm512_slli_epi32(_mm512_add_epi32(_mm512_sub_epi32(n, half), bias), 23);
    return _mm512_mul_ps(_mm512_mul_ps(v, _mm512_castsi512_ps(first)), _mm512_castsi512_ps(second));
  }

  static Vec scale_by_normal_power(Vec v, Vec shifted) {
    const __m512i n =
        _mm512_sub_epi32(_mm512_castps_si512(shifted), _mm512_set1_epi32(0x4b400000 - 127));
    return _mm512_mul_ps(v, _mm512_castsi512_ps(_mm512_slli_epi32(n, 23)));
  }

  static Vec exponent_of(Vec v) {
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_castps_si512(v), 23));
  }

  static bool any_above(Vec v, Vec limit) { return _mm512_cmp_ps_mask(v, limit, _CMP_GT_OQ) != 0; }

  static bool any_nan(Vec v) { return _mm512_cmp_ps_mask(v, v, _CMP_UNORD_Q) != 0; }

  static Int int_load_part(const void* from, std::size_t count) {
    return _mm512_maskz_loadu_epi16((__mmask32{1} << count) - 1, from);
  }

  static void interleave(Int a, Int b, Int* low, Int* high) {
    *low = _mm512_unpacklo_epi16(a, b);
    *high = _mm512_unpackhi_epi16(a, b);
  }

  static void interleave_quarters(Vec a, Vec b, Vec* first, Vec* second) {
    const __m512d c = _mm512_castps_pd(a);
    const __m512d d = _mm512_castps_pd(b);
    const __m512i lower = _mm512_setr_epi64(0, 1, 8, 9, 2, 3, 10, 11);
    const __m512i upper = _mm512_setr_epi64(4, 5, 12, 13, 6, 7, 14, 15);
    *first = _mm512_castpd_ps(_mm512_permutex2var_pd(c, lower, d));
    *second = _mm512_castpd_ps(_mm512_permutex2var_pd(c, upper, d));
  }

  static Int load_table(const void* from) {
    return _mm512_broadcast_i32x4(_mm_loadu_si128(static_cast<const __m128i*>(from)));
  }

  static Int look_up(Int table, Int bytes) { return _mm512_shuffle_epi8(table, bytes); }

  static void join_bytes(Int lower, Int upper, Int* first, Int* second) {
    *first = _mm512_unpacklo_epi8(lower, upper);
    *second = _mm512_unpackhi_epi8(lower, upper);
  }

  static void set_half(Int* first, Int* second, std::size_t index, std::uint16_t bits) {
    const std::uint64_t mask = std::uint64_t{1} << index;
    const auto value = static_cast<short>(bits);
    *first = _mm512_mask_set1_epi16(*first, static_cast<__mmask32>(mask), value);
    *second = _mm512_mask_set1_epi16(*second, static_cast<__mmask32>(mask >> 32U), value);
  }

  static Int pack_nibbles(Int low, Int high) {
    return _mm512_or_si512(low, _mm512_slli_epi16(high, 4));
  }

  static std::uint64_t name_upper_bytes(
      Int first, Int second, std::uint32_t base, bool zero, Int* lower, Int* names) {
    const Int low = _mm512_set1_epi16(0xff);
    *lower = _mm512_packus_epi16(_mm512_and_si512(first, low), _mm512_and_si512(second, low));
    const Int upper =
        _mm512_packus_epi16(_mm512_srli_epi16(first, 8), _mm512_srli_epi16(second, 8));
    const Int above = _mm512_sub_epi8(_mm512_and_si512(upper, _mm512_set1_epi8(0x7f)),
                                      _mm512_set1_epi8(static_cast<char>(base)));
    __mmask64 named = _mm512_cmple_epu8_mask(above, _mm512_set1_epi8(7));
    const Int with_sign = _mm512_set1_epi8(8);
    Int name = _mm512_or_si512(above, _mm512_and_si512(_mm512_srli_epi16(upper, 4), with_sign));
    if (zero) {
      const __mmask64 none = _mm512_testn_epi8_mask(upper, upper);
      named = none | (named & _mm512_cmpneq_epi8_mask(name, with_sign));
      name = _mm512_mask_mov_epi8(name, none, with_sign);
    }
    *names = _mm512_maskz_mov_epi8(named, name);
    return ~named;
  }

  static float sum(Vec v) {
    const __m256 t = _mm256_add_ps(_mm512_castps512_ps256(v), _mm512_extractf32x8_ps(v, 1));
    const __m128 u = _mm_add_ps(_mm256_castps256_ps128(t), _mm256_extractf128_ps(t, 1));
    const __m128 w = _mm_add_ps(u, _mm_movehl_ps(u, u));
    return _mm_cvtss_f32(_mm_add_ss(w, _mm_movehdup_ps(w)));
  }

  static float max_lane(Vec v) {
    const __m256 t = _mm256_max_ps(_mm512_castps512_ps256(v), _mm512_extractf32x8_ps(v, 1));
    const __m128 u = _mm_max_ps(_mm256_castps256_ps128(t), _mm256_extractf128_ps(t, 1));
    const __m128 w = _mm_max_ps(u, _mm_movehl_ps(u, u));
    return _mm_cvtss_f32(_mm_max_ss(w, _mm_movehdup_ps(w)));
  }

  static Vec sum16(const Vec* v) {
    return fold16(v, [](Vec a, Vec b) { return _mm512_add_ps(a, b); });
  }

  static Vec max16(const Vec* v) {
    return fold16(v, [](Vec a, Vec b) { return _mm512_max_ps(a, b); });
  }

  // Lane i: that of the tree of v[i]. Every step takes one level of the tree of two vectors and
  // leaves both results in one: 16, 8, 4, 2, 1.
  template <class Op>
  static inline __attribute__((always_inline)) Vec fold16(const Vec* v, Op op) {
    Vec t[8];
#pragma GCC unroll 8
    for (int i = 0; i < 8; ++i) {
      t[i] = op(_mm512_shuffle_f32x4(v[2 * i], v[2 * i + 1], 0x44),
                _mm512_shuffle_f32x4(v[2 * i], v[2 * i + 1], 0xee));
    }
    Vec u[4];
#pragma GCC unroll 4
    for (int i = 0; i < 4; ++i) {
      u[i] = op(_mm512_shuffle_f32x4(t[2 * i], t[2 * i + 1], 0x88),
                _mm512_shuffle_f32x4(t[2 * i], t[2 * i + 1], 0xdd));
    }
    Vec w[2];
#pragma GCC unroll 2
    for (int i = 0; i < 2; ++i) {
      const __m512d a = _mm512_castps_pd(u[2 * i]);
      const __m512d b = _mm512_castps_pd(u[2 * i + 1]);
      w[i] = op(_mm512_castpd_ps(_mm512_unpacklo_pd(a, b)),
                _mm512_castpd_ps(_mm512_unpackhi_pd(a, b)));
    }
    const Vec mixed = op(_mm512_shuffle_ps(w[0], w[1], 0x88), _mm512_shuffle_ps(w[0], w[1], 0xdd));
    // Lane 4 j + i holds that of v[4 i + j].
    const __m512i order = _mm512_setr_epi32(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15);
    return _mm512_permutexvar_ps(order, mixed);
  }

  // Pairs of words, pairs of pairs, then quarters of registers.
  static void transpose_words(const std::byte* const* rows, std::size_t at, std::byte* to) {
    Int a[16];
    Int b[16];
#pragma GCC unroll 16
    for (int i = 0; i < 16; ++i)
      a[i] = _mm512_loadu_si512(rows[i] + at);
#pragma GCC unroll 8
    for (int i = 0; i < 16; i += 2) {
      b[i] = _mm512_unpacklo_epi32(a[i], a[i + 1]);
      b[i + 1] = _mm512_unpackhi_epi32(a[i], a[i + 1]);
    }
    // a[4 i + j]: word j of each quarter of four rows.
#pragma GCC unroll 4
    for (int i = 0; i < 16; i += 4) {
      a[i] = _mm512_unpacklo_epi64(b[i], b[i + 2]);
      a[i + 1] = _mm512_unpackhi_epi64(b[i], b[i + 2]);
      a[i + 2] = _mm512_unpacklo_epi64(b[i + 1], b[i + 3]);
      a[i + 3] = _mm512_unpackhi_epi64(b[i + 1], b[i + 3]);
    }
#pragma GCC unroll 4
    for (int i = 0; i < 4; ++i) {
      b[i] = _mm512_shuffle_i32x4(a[i], a[i + 4], 0x88);
      b[i + 4] = _mm512_shuffle_i32x4(a[i], a[i + 4], 0xdd);
      b[i + 8] = _mm512_shuffle_i32x4(a[i + 8], a[i + 12], 0x88);
      b[i + 12] = _mm512_shuffle_i32x4(a[i + 8], a[i + 12], 0xdd);
    }
#pragma GCC unroll 8
    for (int i = 0; i < 8; ++i) {
      _mm512_storeu_si512(to + i * 64, _mm512_shuffle_i32x4(b[i], b[i + 8], 0x88));
      _mm512_storeu_si512(to + (i + 8) * 64, _mm512_shuffle_i32x4(b[i], b[i + 8], 0xdd));
    }
  }

  /// From here to end_flushing(), which takes what this returns, subnormal inputs and results count
  /// as zero, with their sign. No value may be known before and needed within: the compiler sees
  /// only memory change. Assembly, since it would carry loads and stores past _mm_setcsr; and no
  /// destructor, for which this file would share what unwinding needs with others.
  static std::uint32_t begin_flushing() {
    std::uint32_t before;
    __asm__ volatile("stmxcsr %0" : "=m"(before) : : "memory");
    const std::uint32_t flushing = before | 0x8040U;
    __asm__ volatile("ldmxcsr %0" : : "m"(flushing) : "memory");
    return before;
  }

  static void end_flushing(std::uint32_t before) {
    __asm__ volatile("ldmxcsr %0" : : "m"(before) : "memory");
  }
};

}  // namespace tandem::kernels::cpu
