#include "kernels/api/backend.h"
#include "kernels/cpu/amx/amx.h"
#include "kernels/cpu/avx512/bf16.h"
#include "kernels/cpu/cpu_backend.h"
#include "kernels/cpu/features.h"
#include "kernels/ref/ref_backend.h"

namespace tandem::kernels {
namespace {

struct FamilyName {
  Family family;
  std::string_view name;
};

constexpr FamilyName kFamilies[] = {
    {Family::kAuto, "auto"},
    {Family::kReference, "reference"},
    {Family::kGeneric, "generic"},
    {Family::kAvx2, "avx2"},
    {Family::kAvx512, "avx512"},
    {Family::kAvx512Bf16, "avx512_bf16"},
    {Family::kAmx, "amx"},
};

std::string missing(Family family) {
  switch (family) {
    case Family::kAvx2:
      return "kernel family avx2 needs a processor with AVX2, FMA and F16C; this one lacks one of "
             "them";
    case Family::kAvx512:
      return "kernel family avx512 needs AVX-512 F, BW, VL and DQ, enabled by the system; not so "
             "here";
    case Family::kAvx512Bf16:
      return "kernel family avx512_bf16 needs a processor with AVX-512 VNNI and BF16 that rounds "
             "as "
             "documented; not so here";
    case Family::kAmx:
      return "kernel family amx needs AMX-BF16, AMX-INT8 and AVX-512 with BF16 and VBMI that "
             "compute as documented, and leave of the system to use tiles; not so here";
    default:
      return "unknown kernel family " + std::to_string(static_cast<int>(family));
  }
}

#if defined(TANDEM_KERNELS_X86)
/// Kernels that know how this machine reads memory.
cpu::Kernels for_this_machine(cpu::Kernels kernels) {
  kernels.read_order = cpu::features().read_order;
  return kernels;
}
#endif

}  // namespace

std::string_view family_name(Family family) {
  for (const FamilyName& row : kFamilies) {
    if (row.family == family) return row.name;
  }
  return "?";
}

bool parse_family(std::string_view name, Family* family) {
  for (const FamilyName& row : kFamilies) {
    if (row.name != name) continue;
    *family = row.family;
    return true;
  }
  return false;
}

const Backend* select(Family requested, std::string* reason) {
  static const ReferenceBackend kReference;
  static const CpuBackend kGeneric(Family::kGeneric, CpuBackend::kNumerics, cpu::generic_kernels());
  if (requested == Family::kAuto) requested = available_families().back();
  if (requested == Family::kReference) return &kReference;
  if (requested == Family::kGeneric) return &kGeneric;
#if defined(TANDEM_KERNELS_X86)
  static const CpuBackend kAvx2(
      Family::kAvx2, CpuBackend::kNumerics, for_this_machine(cpu::avx2_kernels()));
  const cpu::Features& have = cpu::features();
  static const CpuBackend kAvx512(
      Family::kAvx512,
      CpuBackend::kNumerics,
      for_this_machine(have.avx512_vnni ? cpu::avx512_vnni_kernels() : cpu::avx512_kernels()));
  if (requested == Family::kAvx2 && have.avx2) return &kAvx2;
  if (requested == Family::kAvx512 && have.avx512) return &kAvx512;
  if (requested == Family::kAvx512Bf16 && have.avx512_bf16) {
    static const CpuBackend kBf16(
        Family::kAvx512Bf16,
        cpu::kBf16Numerics,
        for_this_machine(have.avx512_vbmi ? cpu::avx512_bf16_vbmi_kernels()
                                          : cpu::avx512_bf16_kernels()));
    return &kBf16;
  }
  if (requested == Family::kAmx && have.amx) {
    static const CpuBackend kAmx(
        Family::kAmx, cpu::kAmxNumerics, for_this_machine(cpu::amx_kernels()));
    return &kAmx;
  }
#endif
  if (reason != nullptr) *reason = missing(requested);
  return nullptr;
}

std::vector<Family> available_families() {
  std::vector<Family> families = {Family::kReference, Family::kGeneric};
#if defined(TANDEM_KERNELS_X86)
  const cpu::Features& have = cpu::features();
  if (have.avx2) families.push_back(Family::kAvx2);
  if (have.avx512) families.push_back(Family::kAvx512);
  if (have.avx512_bf16) families.push_back(Family::kAvx512Bf16);
  if (have.amx) families.push_back(Family::kAmx);
#endif
  return families;
}

}  // namespace tandem::kernels
