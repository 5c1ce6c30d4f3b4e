// Logits for one instruction set.
#include "kernels/cpu/simd/logits.h"

namespace tandem::kernels::cpu {
namespace {

struct GenericLogits {
  TANDEM_LOGIT_VECTORS(16);

  static Doubles widen(const float* from) { return Doubles{from[0], from[1]}; }
};

}  // namespace

const LogitKernels& generic_logits() {
  return Logits<GenericLogits>::kKernels;
}

}  // namespace tandem::kernels::cpu
