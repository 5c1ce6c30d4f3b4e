// Values of 8 bit as bf16 by looking up both bytes (AVX512_VBMI): half of the instructions that
// moving their parts takes.
#pragma once

#include "kernels/api/dtype.h"

#include <immintrin.h>

#include <cstddef>
#include <cstdint>

namespace tandem::kernels::cpu {

/// V as before, for processors with VBMI. Assembly for the reason that vnni.h has.
template <class V>
struct WithVbmi : V {
  using Int = typename V::Int;

  template <DType D>
  static inline __attribute__((always_inline)) Int widen_fp8(const void* from) {
    const Int codes = _mm512_broadcast_i64x4(_mm256_loadu_si256(static_cast<const __m256i*>(from)));
    // The lower bytes in the lower half, the upper ones in the upper half.
    Int bytes = codes;
    look_up(kBytes<D>.low, 0xffffffffU, bytes);
    look_up(kBytes<D>.high, ~std::uint64_t{0xffffffffU}, bytes);
    // bytes | codes & sign
    bytes = _mm512_ternarylogic_epi32(bytes, codes, _mm512_loadu_si512(kBytes<D>.sign), 0xf8);
    Int halves;
    __asm__("vpermb %1, %2, %0"
            : "=v"(halves)
            : "v"(bytes), "v"(_mm512_loadu_si512(kBytes<D>.order)));
    return halves;
  }

 private:
  static inline __attribute__((always_inline)) void look_up(const std::uint8_t* table,
                                                            std::uint64_t where,
                                                            Int& codes) {
    __asm__("vpermi2b %2, %1, %0%{%3%}"
            : "+v"(codes)
            : "v"(_mm512_loadu_si512(table)),
              "v"(_mm512_loadu_si512(table + 64)),
              "Yk"(static_cast<__mmask64>(where)));
  }

  struct Bytes {
    std::uint8_t low[128];   ///< of each code without its sign
    std::uint8_t high[128];  ///< likewise
    std::uint8_t sign[64];
    std::uint8_t order[64];
  };

  template <DType D>
  static constexpr Bytes make_bytes() {
    Bytes bytes{};
    for (unsigned code = 0; code < 128; ++code) {
      const std::uint16_t half = f32_to_bf16(fp8_to_f32(static_cast<std::uint8_t>(code), D));
      bytes.low[code] = static_cast<std::uint8_t>(half);
      bytes.high[code] = static_cast<std::uint8_t>(half >> 8U);
    }
    for (unsigned i = 0; i < 32; ++i) {
      bytes.sign[32 + i] = 0x80;
      bytes.order[2 * i] = static_cast<std::uint8_t>(i);
      bytes.order[2 * i + 1] = static_cast<std::uint8_t>(32 + i);
    }
    return bytes;
  }

  template <DType D>
  static constexpr Bytes kBytes = make_bytes<D>();
};

}  // namespace tandem::kernels::cpu
