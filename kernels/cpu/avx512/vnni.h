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

  static __m512i bytes_of(std::uint32_t four) { return _mm512_set1_epi32(static_cast<int>(four)); }

  // Assembly instead of _mm512_dpbusd_epi32: GCC 12 copies the sums before and after each one,
  // which takes twice the time of the products.
  static __m512i dot4(__m512i acc, __m512i x, __m512i w) {
    __asm__("vpdpbusd %2, %1, %0" : "+v"(acc) : "v"(x), "v"(w));
    return acc;
  }
};

}  // namespace tandem::kernels::cpu
