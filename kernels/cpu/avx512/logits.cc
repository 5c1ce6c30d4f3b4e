// Logits for one instruction set.
#include "kernels/cpu/simd/logits.h"

namespace tandem::kernels::cpu {
namespace {

struct Avx512Logits {
  TANDEM_LOGIT_VECTORS(64);
};

}  // namespace

const LogitKernels& avx512_logits() {
  return Logits<Avx512Logits>::kKernels;
}

}  // namespace tandem::kernels::cpu
