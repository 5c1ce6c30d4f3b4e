// Logits for one instruction set.
#include "kernels/cpu/simd/logits.h"

#include <immintrin.h>

namespace tandem::kernels::cpu {
namespace {

struct Avx2Logits {
  TANDEM_LOGIT_VECTORS(32);

  static Doubles widen(const float* from) { return _mm256_cvtps_pd(_mm_loadu_ps(from)); }
};

}  // namespace

const LogitKernels& avx2_logits() {
  return Logits<Avx2Logits>::kKernels;
}

}  // namespace tandem::kernels::cpu
