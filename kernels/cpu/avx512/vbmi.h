// Values of 8 bit as bf16 by looking up both bytes (AVX512_VBMI): a third of the instructions that
// moving their parts takes, few enough to widen where values are used.
#pragma once

#include "kernels/api/dtype.h"

#include <immintrin.h>

#include <cstddef>
#include <cstdint>

namespace tandem::kernels::cpu {

/// V as before, for processors with VBMI. Assembly, since files that include this are compiled for
/// those without it.
template <class V>
struct WithVbmi : V {
  using Int = typename V::Int;

  template <DType D>
  static inline __attribute__((always_inline)) Int widen_fp8(const void* from) {
    Int halves;
    Int none;
    widen<D>(_mm512_castsi256_si512(_mm256_loadu_si256(static_cast<const __m256i*>(from))),
             &halves,
             &none);
    return halves;
  }

  /// 64 values, in the instructions that 32 take.
  template <DType D>
  static inline __attribute__((always_inline)) void widen_fp8(const void* from,
                                                              Int* first,
                                                              Int* second) {
    widen<D>(_mm512_loadu_si512(from), first, second);
  }

  /// Pairs (a, b) of 64 values each: of every 16 those of four into each of `pairs`.
  template <DType D>
  static inline __attribute__((always_inline)) void widen_fp8_pairs(Int a, Int b, Int (&pairs)[4]) {
    join<D>(_mm512_unpacklo_epi8(a, b), &pairs[0], &pairs[1]);
    join<D>(_mm512_unpackhi_epi8(a, b), &pairs[2], &pairs[3]);
  }

 private:
  template <DType D>
  static inline __attribute__((always_inline)) void widen(Int codes, Int* first, Int* second) {
    // In the order in which unpacking makes neighbours of what is.
    const Int order = _mm512_setr_epi64(0, 4, 1, 5, 2, 6, 3, 7);
    join<D>(_mm512_permutexvar_epi64(order, codes), first, second);
  }

  /// Of every 16 codes the first eight as bf16, and the others.
  template <DType D>
  static inline __attribute__((always_inline)) void join(Int codes, Int* first, Int* second) {
    const Int low = look_up(kBytes<D>.low, codes);
    const Int magnitude = look_up(kBytes<D>.high, codes);
    // magnitude | codes & sign
    const Int high = _mm512_ternarylogic_epi32(
        magnitude, codes, _mm512_set1_epi8(static_cast<char>(0x80)), 0xf8);
    *first = _mm512_unpacklo_epi8(low, high);
    *second = _mm512_unpackhi_epi8(low, high);
  }

  static inline __attribute__((always_inline)) Int look_up(const std::uint8_t* table, Int codes) {
    __asm__("vpermi2b %2, %1, %0"
            : "+v"(codes)
            : "v"(_mm512_loadu_si512(table)), "v"(_mm512_loadu_si512(table + 64)));
    return codes;
  }

  struct Bytes {
    std::uint8_t low[128];   ///< of each code without its sign
    std::uint8_t high[128];  ///< likewise
  };

  template <DType D>
  static constexpr Bytes make_bytes() {
    Bytes bytes{};
    for (unsigned code = 0; code < 128; ++code) {
      const std::uint16_t half = f32_to_bf16(fp8_to_f32(static_cast<std::uint8_t>(code), D));
      bytes.low[code] = static_cast<std::uint8_t>(half);
      bytes.high[code] = static_cast<std::uint8_t>(half >> 8U);
    }
    return bytes;
  }

  template <DType D>
  static constexpr Bytes kBytes = make_bytes<D>();
};

}  // namespace tandem::kernels::cpu
