// Products of int8 rows with int8 weights on AVX512_VNNI; everything else as avx512.
#include "kernels/cpu/avx512/vec.h"
#include "kernels/cpu/simd/quant.h"

namespace tandem::kernels::cpu {
namespace {

// In this namespace, so that no instantiation leaves this file (see table.h).
struct VnniVec : Avx512Vec {
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

}  // namespace

void avx512_vnni_linear(const LinearBlock& block) {
  if (block.scheme == WeightScheme::kInt8Dynamic) {
    Linear<VnniVec>::run_tiles<Int8DynamicTile<VnniVec>>(block);
  } else {
    avx512_kernels().linear(block);
  }
}

Kernels avx512_vnni_kernels() {
  Kernels kernels = avx512_kernels();
  kernels.linear = &avx512_vnni_linear;
  return kernels;
}

}  // namespace tandem::kernels::cpu
