// The shared kernels (kernels/cpu/simd) for one instruction set.
#include "kernels/cpu/avx2/vec.h"
#include "kernels/cpu/simd/any_linear.h"
#include "kernels/cpu/simd/attention_by_rows.h"
#include "kernels/cpu/simd/move.h"

namespace tandem::kernels::cpu {
namespace {

using V = Avx2Vec;

constexpr Kernels kKernels = {
    .row_step = V::kRowStep,
    .most_rows = nullptr,
    .linear = &AnyLinear<V>::run,
    .norm_row = &Rows<V>::norm,
    .rope_head = &Rows<V>::rope,
    .silu_mul_row = &Rows<V>::silu_mul_row,
    .widen_row = &Rows<V>::widen_row,
    .narrow_row = &Rows<V>::narrow_row,
    .int8_scale = &Quantize<V>::int8_scale,
    .to_int8 = &Quantize<V>::to_int8,
    .to_int4 = &Quantize<V>::to_int4,
    .move_words = &Move<V>::words,
    .shorten = &ShortBf16<V>::shorten,
    .sum_bytes = &Move<V>::sum_bytes,
    .attention = &AttentionByRows<V>::run,
    .attention_rows = &AttentionByRows<V>::most_rows,
    .max = &Rows<V>::max,
    .exp_sum = &Rows<V>::exp_sum,
};

}  // namespace

const Kernels& avx2_kernels() {
  return kKernels;
}

}  // namespace tandem::kernels::cpu
