// Products of bytes on AVX512_VNNI.
#pragma once

#include "kernels/cpu/avx512/vec.h"

namespace tandem::kernels::cpu {

/// Self is a type of one file, so that no instantiation leaves it (see table.h).
template <class Self>
struct WithVnni : Avx512Vec {
  // vpdpbusd takes unsigned bytes for one operand: x + 128. Wrapping sums make the offset's share
  // cancel exactly.
  static constexpr bool kOffsetBytes = true;

  /// 64 values as store_int8 has them, 128 added to each.
  static void store_offset_bytes(void* to, __m512 a, __m512 b, __m512 c, __m512 d) {
    store_offset_words(
        to, a, b, c, d, _mm512_setr_epi32(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15));
  }

  /// The same of two pairs of vectors, four bytes of the one and four of the other in turn.
  static void store_offset_pairs(void* to, __m512 a, __m512 b, __m512 c, __m512 d) {
    store_offset_words(
        to, a, b, c, d, _mm512_setr_epi32(0, 1, 4, 5, 8, 9, 12, 13, 2, 3, 6, 7, 10, 11, 14, 15));
  }

  static __m512i bytes_of(std::uint32_t four) { return _mm512_set1_epi32(static_cast<int>(four)); }

  // Assembly instead of _mm512_dpbusd_epi32: GCC 12 copies the sums before and after each one,
  // which takes twice the time of the products.
  static __m512i dot4(__m512i acc, __m512i x, __m512i w) {
    __asm__("vpdpbusd %2, %1, %0" : "+v"(acc) : "v"(x), "v"(w));
    return acc;
  }

  static __m512i byte_ones() { return _mm512_set1_epi8(1); }

  static __m512i int_add(__m512i a, __m512i b) { return _mm512_add_epi32(a, b); }

  /// A group's steps and offsets, each a word of 32 bits.
  static void load_affine_words(const void* from, __m512i* step, __m512i* offset) {
    const __m512i pairs =
        _mm512_cvtepu16_epi32(_mm256_loadu_si256(static_cast<const __m256i*>(from)));
    *step = _mm512_and_si512(pairs, _mm512_set1_epi32(255));
    *offset = _mm512_srai_epi32(_mm512_slli_epi32(pairs, 16), 24);
  }

  /// acc + step * sum - offset * x_sum, where x_sum is less than 2^15.
  static __m512i add_affine(__m512i acc, __m512i step, __m512i sum, __m512i offset, __m512i x_sum) {
    const __m512i whole = _mm512_add_epi32(acc, _mm512_mullo_epi32(step, sum));
    return _mm512_sub_epi32(whole, _mm512_madd_epi16(offset, x_sum));
  }

 private:
  /// `order`: of words of four bytes, of which a quarter has one of each vector.
  static void store_offset_words(void* to, __m512 a, __m512 b, __m512 c, __m512 d, __m512i order) {
    const __m512i first = _mm512_packs_epi32(_mm512_cvtps_epi32(a), _mm512_cvtps_epi32(b));
    const __m512i second = _mm512_packs_epi32(_mm512_cvtps_epi32(c), _mm512_cvtps_epi32(d));
    const __m512i bytes = _mm512_permutexvar_epi32(order, _mm512_packs_epi16(first, second));
    _mm512_storeu_si512(to, _mm512_xor_si512(bytes, _mm512_set1_epi8(static_cast<char>(0x80))));
  }
};

}  // namespace tandem::kernels::cpu
