// The table of the avx512_bf16 family: avx512 with products of bf16 weights on VDPBF16PS, and
// of int8 and int4 ones on VPDPBUSD (every processor with the former has the latter).
#include "kernels/cpu/avx512/bf16.h"

#include "kernels/cpu/avx512/vbmi.h"
#include "kernels/cpu/avx512/vnni.h"
#include "kernels/cpu/simd/attention_by_rows.h"
#include "kernels/cpu/simd/bf16.h"
#include "kernels/cpu/simd/narrow_rows.h"
#include "kernels/cpu/simd/short_linear.h"

namespace tandem::kernels::cpu {
namespace {

// In this namespace, so that no instantiation leaves this file (see table.h).
struct Avx512Bf16Vec : WithVnni<Avx512Bf16Vec> {
  static constexpr bool kBf16Pairs = true;

  static Int int_broadcast(std::uint32_t word) { return _mm512_set1_epi32(static_cast<int>(word)); }

  // Assembly for the reason that vnni.h has.
  static Vec dot2(Vec acc, Int x, Int w) {
    __asm__("vdpbf16ps %2, %1, %0" : "+v"(acc) : "v"(x), "v"(w));
    return acc;
  }

  /// store_bf16() of what Rows::exp() gives: nothing there is subnormal, which alone the
  /// instruction takes otherwise.
  static void store_bf16_of_exp(void* to, Vec v) {
    __m256i halves;
    __asm__("vcvtneps2bf16 %1, %0" : "=v"(halves) : "v"(v));
    _mm256_storeu_si256(static_cast<__m256i*>(to), halves);
  }

  /// Words of two such values, the same bits.
  static Int half_words_of_exp(Vec low, Vec high) {
    Int halves;
    __asm__("vcvtne2ps2bf16 %1, %2, %0" : "=v"(halves) : "v"(low), "v"(high));
    const Int order = _mm512_set_epi16(31,
                                       15,
                                       30,
                                       14,
                                       29,
                                       13,
                                       28,
                                       12,
                                       27,
                                       11,
                                       26,
                                       10,
                                       25,
                                       9,
                                       24,
                                       8,  //
                                       23,
                                       7,
                                       22,
                                       6,
                                       21,
                                       5,
                                       20,
                                       4,
                                       19,
                                       3,
                                       18,
                                       2,
                                       17,
                                       1,
                                       16,
                                       0);
    return _mm512_permutexvar_epi16(order, halves);
  }
};

void linear(const LinearBlock& block) {
  using PlainTile = Bf16Tile<Avx512Bf16Vec>;
  if (block.scheme == WeightScheme::kFloat && block.dtype == DType::kBf16) {
    Linear<Avx512Bf16Vec>::run_tiles<PlainTile>(block);
  } else if (block.scheme == WeightScheme::kShortBf16) {
    ShortTile<Avx512Bf16Vec, PlainTile>::run(block);
  } else {
    avx512_fixed_int8_linear(block);
  }
}

}  // namespace

Kernels avx512_bf16_kernels() {
  Kernels kernels = avx512_kernels();
  kernels.linear = &linear;
  kernels.attention = &AttentionByRows<Avx512Bf16Vec>::run;
  kernels.attention_rows = &AttentionByRows<Avx512Bf16Vec>::most_rows;
  kernels.takes_packed = &NarrowRows<Avx512Bf16Vec>::takes_packed;
  kernels.pack_part = &NarrowRows<Avx512Bf16Vec>::pack_part;
  kernels.packs_by_row = true;
  return kernels;
}

Kernels avx512_bf16_vbmi_kernels() {
  Kernels kernels = avx512_bf16_kernels();
  kernels.attention = &AttentionByRows<WithVbmi<Avx512Bf16Vec>>::run;
  return kernels;
}

}  // namespace tandem::kernels::cpu
