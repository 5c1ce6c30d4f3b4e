// Products of bf16 pairs in plain code, after the pseudo code of VDPBF16PS in Intel's SDM,
// volume 2.
#include "kernels/cpu/avx512/bf16.h"

#include "kernels/cpu/generic/flushed.h"
#include "kernels/cpu/generic/vec.h"
#include "kernels/cpu/simd/attention_by_rows.h"
#include "kernels/cpu/simd/bf16.h"
#include "kernels/cpu/simd/fixed_int8.h"
#include "kernels/cpu/simd/narrow_rows.h"

#include <cstring>

namespace tandem::kernels::cpu {
namespace {

struct EmulatedBf16Vec : GenericVec {
  static constexpr bool kBf16Pairs = true;

  static Int int_broadcast(std::uint32_t word) {
    Int out;
    for (auto& lane : out.lane)
      std::memcpy(&lane, &word, sizeof(lane));
    return out;
  }

  static Vec dot2(const Vec& acc, const Int& x, const Int& w) {
    return each([&](int i) {
      return Flushed<EmulatedBf16Vec>::dot2(acc.lane[i],
                                            static_cast<std::uint32_t>(x.lane[i]),
                                            static_cast<std::uint32_t>(w.lane[i]));
    });
  }

  static void store_bf16_of_exp(void* to, const Vec& v) { store_bf16(to, v); }

  static Int half_words_of_exp(const Vec& low, const Vec& high) {
    Int out;
    for (int i = 0; i < 16; ++i) {
      const std::uint32_t upper = f32_to_bf16(high.lane[i]);
      out.lane[i] = static_cast<std::int32_t>(f32_to_bf16(low.lane[i]) | upper << 16);
    }
    return out;
  }
};

void linear(const LinearBlock& block) {
  if (block.scheme == WeightScheme::kFloat && block.dtype == DType::kBf16) {
    Linear<EmulatedBf16Vec>::run_tiles<Bf16Tile<EmulatedBf16Vec>>(block);
  } else if (block.scheme == WeightScheme::kInt8) {
    Linear<EmulatedBf16Vec>::run_tiles<FixedInt8Tile<EmulatedBf16Vec>>(block);
  } else {
    generic_kernels().linear(block);
  }
}

}  // namespace

Kernels emulated_bf16_kernels() {
  Kernels kernels = generic_kernels();
  kernels.linear = &linear;
  kernels.attention = &AttentionByRows<EmulatedBf16Vec>::run;
  kernels.attention_rows = &AttentionByRows<EmulatedBf16Vec>::most_rows;
  kernels.takes_packed = &NarrowRows<EmulatedBf16Vec>::takes_packed;
  kernels.pack_part = &NarrowRows<EmulatedBf16Vec>::pack_part;
  kernels.packs_by_row = true;
  return kernels;
}

}  // namespace tandem::kernels::cpu
