// What this machine can run, asked at run time (cpuid and XCR0), never at build time.
#pragma once

#include <cstdint>

namespace tandem::kernels::cpu {

/// In what order weights are read fastest, by few rows above all, which processors differ in
/// (docs/kernels.md).
enum class ReadOrder : std::uint8_t {
  kSideBySide,  ///< panels side by side, lines asked for further on in each of them
  kNextTile,    ///< as they lie in memory, lines of the next panels asked for: AMD's from Zen 5 on
  kOneStream,   ///< one panel after the other where its sums keep up with memory, of bytes without
                ///< asking; else side by side: AMD's Zen 4
};

struct Features {
  bool avx2 = false;         ///< AVX2, FMA, F16C, and the OS saves ymm
  bool avx512 = false;       ///< F, BW, VL, DQ, and the OS saves zmm
  bool avx512_vnni = false;  ///< avx512, and VNNI
  bool avx512_bf16 = false;  ///< avx512_vnni, and BF16 with the documented roundings
  bool avx512_vbmi = false;  ///< avx512_bf16, and VBMI
  bool amx = false;  ///< TILE, BF16 and INT8, avx512_vbmi too, the OS saves tiles, this process was
                     ///< allowed to use them, and they compute what is documented
  ReadOrder read_order = ReadOrder::kSideBySide;
};

/// Of an AMD processor with that family and model, as cpuid's leaf 1 says them in eax. Hypervisors
/// show these as they are, whatever instructions they hide.
ReadOrder read_order_of_amd(std::uint32_t signature);

/// Asked once. The first call asks the kernel for leave to use tiles (arch_prctl), for the whole
/// process; call it before other threads start if they are to use AMX.
const Features& features();

}  // namespace tandem::kernels::cpu
