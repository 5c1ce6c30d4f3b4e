// The amx family, on tiles or on their emulation.
#pragma once

#include "kernels/cpu/simd/table.h"

#include <string_view>

namespace tandem::kernels::cpu {

/// Numerics of the amx family.
inline constexpr std::string_view kAmxNumerics = "amxbf16-simd16-f32fma-v5";

/// Call only where features().amx.
Kernels amx_kernels();

/// The same bits in portable code, slowly: for tests of the tile layout and as the oracle of the
/// tile unit.
Kernels emulated_amx_kernels();

/// amx_kernels() on emulated tiles, for tests of what surrounds them. Call only where
/// features().avx512_vbmi.
Kernels emulated_amx_avx512_kernels();

}  // namespace tandem::kernels::cpu
