// Logits for one instruction set.
#include "kernels/cpu/simd/logits.h"

namespace tandem::kernels::cpu {
namespace {

struct GenericLogits {
  TANDEM_LOGIT_VECTORS(16);
};

}  // namespace

const LogitKernels& generic_logits() {
  return Logits<GenericLogits>::kKernels;
}

}  // namespace tandem::kernels::cpu
