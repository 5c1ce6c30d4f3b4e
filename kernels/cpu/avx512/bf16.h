// The avx512_bf16 family, on VDPBF16PS or on its emulation.
#pragma once

#include "kernels/cpu/simd/table.h"

#include <string_view>

namespace tandem::kernels::cpu {

/// Numerics of the avx512_bf16 family.
inline constexpr std::string_view kBf16Numerics = "bf16pairs-simd16-f32fma-v4";

/// Call only where features().avx512_bf16.
Kernels avx512_bf16_kernels();

/// The same bits, sooner over keys of 8 bit. Call only where features().avx512_vbmi.
Kernels avx512_bf16_vbmi_kernels();

/// The same bits in portable code, slowly.
Kernels emulated_bf16_kernels();

}  // namespace tandem::kernels::cpu
