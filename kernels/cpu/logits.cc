#include "kernels/api/logits.h"

#include "kernels/cpu/features.h"
#include "kernels/cpu/simd/logits.h"

namespace tandem::kernels {

const LogitKernels* logit_kernels(Family family) {
  if (family == Family::kGeneric) return &cpu::generic_logits();
#if defined(TANDEM_KERNELS_X86)
  if (family == Family::kAvx2 && cpu::features().avx2) return &cpu::avx2_logits();
  if (family == Family::kAvx512 && cpu::features().avx512) return &cpu::avx512_logits();
#endif
  return nullptr;
}

const LogitKernels& logit_kernels() {
  for (const Family family : {Family::kAvx512, Family::kAvx2}) {
    if (const LogitKernels* kernels = logit_kernels(family)) return *kernels;
  }
  return cpu::generic_logits();
}

}  // namespace tandem::kernels
