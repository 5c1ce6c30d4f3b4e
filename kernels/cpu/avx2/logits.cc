// Logits for one instruction set.
#include "kernels/cpu/simd/logits.h"

namespace tandem::kernels::cpu {
namespace {

struct Avx2Logits {
  TANDEM_LOGIT_VECTORS(32);
};

}  // namespace

const LogitKernels& avx2_logits() {
  return Logits<Avx2Logits>::kKernels;
}

}  // namespace tandem::kernels::cpu
