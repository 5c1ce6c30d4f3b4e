// Whether an instruction computes what its maker documents.
#pragma once

#include "kernels/cpu/simd/table.h"

namespace tandem::kernels::cpu {

/// Whether both tables compute the same bits of products of bf16 (kFloat) or 8 bit (kInt8Dynamic),
/// in milliseconds: an instruction against its emulation. Equal names of numerics promise equal
/// bits between processors of any maker, so one that rounds otherwise must not take the name.
bool same_products(const Kernels& a, const Kernels& b, WeightScheme scheme);

/// The same of attention over bf16 keys in pages: of many rows and of a token alone, from one block
/// of positions into the next. Both take tiles of 40 rows.
bool same_attention(const Kernels& a, const Kernels& b);

}  // namespace tandem::kernels::cpu
