// Products of int8 rows with int8 and int4 weights on AVX512_VNNI, and rows on their way to them;
// everything else as avx512.
#include "kernels/cpu/avx512/vnni.h"

#include "kernels/cpu/simd/fixed_int8.h"
#include "kernels/cpu/simd/narrow_rows.h"

namespace tandem::kernels::cpu {
namespace {

// In this namespace, so that no instantiation leaves this file (see table.h).
struct VnniVec : WithVnni<VnniVec> {};

}  // namespace

void avx512_vnni_linear(const LinearBlock& block) {
  if (block.scheme == WeightScheme::kInt8Dynamic) {
    Linear<VnniVec>::run_tiles<Int8DynamicTile<VnniVec>>(block);
  } else if (block.scheme == WeightScheme::kInt4Group128) {
    Linear<VnniVec>::run_tiles<Int4Tile<VnniVec>>(block);
  } else {
    avx512_kernels().linear(block);
  }
}

void avx512_fixed_int8_linear(const LinearBlock& block) {
  if (block.scheme != WeightScheme::kInt8) return avx512_vnni_linear(block);
  Linear<VnniVec>::run_tiles<FixedInt8Tile<VnniVec>>(block);
}

Kernels avx512_vnni_kernels() {
  Kernels kernels = avx512_kernels();
  kernels.linear = &avx512_vnni_linear;
  kernels.takes_packed = &NarrowRows<VnniVec>::takes_packed;
  kernels.pack_part = &NarrowRows<VnniVec>::pack_part;
  kernels.packs_by_row = true;
  return kernels;
}

}  // namespace tandem::kernels::cpu
