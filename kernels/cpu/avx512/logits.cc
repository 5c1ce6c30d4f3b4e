// Logits for one instruction set.
#include "kernels/cpu/simd/logits.h"

#include <immintrin.h>

namespace tandem::kernels::cpu {
namespace {

struct Avx512Logits {
  TANDEM_LOGIT_VECTORS(64);

  static Doubles widen(const float* from) { return _mm512_cvtps_pd(_mm256_loadu_ps(from)); }
};

}  // namespace

const LogitKernels& avx512_logits() {
  return Logits<Avx512Logits>::kKernels;
}

}  // namespace tandem::kernels::cpu
