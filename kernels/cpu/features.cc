#include "kernels/cpu/features.h"

#include "kernels/cpu/amx/amx.h"
#include "kernels/cpu/avx512/bf16.h"
#include "kernels/cpu/unit_check.h"

#if defined(__x86_64__)
#include <cpuid.h>
#include <sys/syscall.h>
#include <unistd.h>
#endif

#include <cstdint>

namespace tandem::kernels::cpu {
namespace {

#if defined(__x86_64__)
constexpr std::uint64_t kXcr0Avx = 0x6;      // xmm, ymm
constexpr std::uint64_t kXcr0Avx512 = 0xe6;  // and masks, zmm
constexpr std::uint64_t kXcr0Amx = 0x60000;  // tile configuration and data

std::uint64_t read_xcr0() {
  std::uint32_t low = 0;
  std::uint32_t high = 0;
  __asm__ volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
  return (static_cast<std::uint64_t>(high) << 32) | low;
}

bool bit(unsigned value, int index) {
  return ((value >> index) & 1U) != 0;
}

// ARCH_REQ_XCOMP_PERM for XTILEDATA (18), then ARCH_GET_XCOMP_PERM to see that it was granted.
bool request_tiles() {
  constexpr long kRequest = 0x1023;
  constexpr long kGet = 0x1022;
  constexpr unsigned long kTileData = 18;
  if (syscall(SYS_arch_prctl, kRequest, kTileData) != 0) return false;
  unsigned long granted = 0;
  return syscall(SYS_arch_prctl, kGet, &granted) == 0 && ((granted >> kTileData) & 1UL) != 0;
}

bool pairs_as_documented() {
  return same_products(avx512_bf16_kernels(), emulated_bf16_kernels(), WeightScheme::kFloat);
}

bool tiles_as_documented() {
  const Kernels tiles = amx_kernels();
  const Kernels plain = emulated_amx_kernels();
  return same_products(tiles, plain, WeightScheme::kFloat) &&
         same_products(tiles, plain, WeightScheme::kInt8Dynamic) && same_attention(tiles, plain);
}

Features detect() {
  Features found;
  unsigned a = 0;
  unsigned b = 0;
  unsigned c = 0;
  unsigned d = 0;
  if (__get_cpuid(0, &a, &b, &c, &d) == 0) return found;
  const bool amd = b == 0x68747541 && d == 0x69746e65 && c == 0x444d4163;  // AuthenticAMD
  if (__get_cpuid(1, &a, &b, &c, &d) == 0) return found;
  if (amd) found.read_order = read_order_of_amd(a);
  const bool fma = bit(c, 12);
  const bool osxsave = bit(c, 27);
  const bool avx = bit(c, 28);
  const bool f16c = bit(c, 29);
  if (!osxsave || !avx) return found;
  const std::uint64_t xcr0 = read_xcr0();
  if (__get_cpuid_count(7, 0, &a, &b, &c, &d) == 0) return found;
  found.avx2 = (xcr0 & kXcr0Avx) == kXcr0Avx && bit(b, 5) && fma && f16c;
  found.avx512 = found.avx2 && (xcr0 & kXcr0Avx512) == kXcr0Avx512 && bit(b, 16) && bit(b, 17) &&
                 bit(b, 30) && bit(b, 31);
  found.avx512_vnni = found.avx512 && bit(c, 11);
  const bool vbmi = bit(c, 1);
  unsigned a1 = 0;
  unsigned rest = 0;
  found.avx512_bf16 = found.avx512_vnni && __get_cpuid_count(7, 1, &a1, &rest, &rest, &rest) != 0 &&
                      bit(a1, 5) && pairs_as_documented();
  found.avx512_vbmi = found.avx512_bf16 && vbmi;
  const bool tiles = bit(d, 22) && bit(d, 24) && bit(d, 25);
  found.amx = found.avx512_vbmi && (xcr0 & kXcr0Amx) == kXcr0Amx && tiles && request_tiles() &&
              tiles_as_documented();
  return found;
}
#else
Features detect() {
  return {};
}
#endif

}  // namespace

ReadOrder read_order_of_amd(std::uint32_t signature) {
  constexpr std::uint32_t kZen3And4 = 0x19;
  constexpr std::uint32_t kZen5 = 0x1a;
  const std::uint32_t family = ((signature >> 8U) & 0xfU) + ((signature >> 20U) & 0xffU);
  const std::uint32_t model = ((signature >> 4U) & 0xfU) | ((signature >> 12U) & 0xf0U);
  if (family >= kZen5) return ReadOrder::kNextTile;
  const bool zen4 = family == kZen3And4 && (model >> 4U == 1 || model >= 0x60);
  return zen4 ? ReadOrder::kOneStream : ReadOrder::kSideBySide;
}

const Features& features() {
  static const Features kFound = detect();
  return kFound;
}

}  // namespace tandem::kernels::cpu
