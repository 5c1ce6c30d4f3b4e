#include "kernels/cpu/avx512/bf16.h"

#include <bit>
#include <cstring>
#include <vector>

namespace tandem::kernels::cpu {

bool bf16_pairs_as_documented() {
  constexpr std::size_t kRows = 4;
  constexpr std::size_t kK = 64;
  constexpr std::size_t kTries = 16;
  std::uint32_t state = 1;
  const auto next = [&state] {
    state = state * 1664525U + 1013904223U;
    return state >> 16;
  };
  alignas(64) std::uint16_t weight[kK * kPanel];
  float x[kRows * kK];
  std::vector<float> scratch(kPackedFloats + 16 * 1024);
  auto* aligned =
      reinterpret_cast<float*>((reinterpret_cast<std::uintptr_t>(scratch.data()) + 63) / 64 * 64);
  const Kernels table[2] = {avx512_bf16_kernels(), emulated_bf16_kernels()};
  for (std::size_t tries = 0; tries < kTries; ++tries) {
    // Exponents from near one down to where products vanish, so that both roundings, the order of
    // the two products and subnormals all show.
    const std::uint32_t lowest = tries % 4 == 0   ? 120
                                 : tries % 4 == 1 ? 100
                                 : tries % 4 == 2 ? 60
                                                  : 0;
    const auto number = [&] {
      const std::uint32_t sign = next() & 0x8000U;
      const std::uint32_t exponent = lowest + next() % (128 - lowest);
      return static_cast<std::uint16_t>(sign | (exponent << 7) | (next() & 0x7fU));
    };
    for (auto& bits : weight)
      bits = number();
    for (auto& value : x)
      value = std::bit_cast<float>(static_cast<std::uint32_t>(number()) << 16);
    float y[2][kRows * kPanel] = {};
    for (int i = 0; i < 2; ++i) {
      table[i].linear({.x = x,
                       .x_stride = kK,
                       .rows = kRows,
                       .weight = reinterpret_cast<const std::byte*>(weight),
                       .panel_bytes = sizeof(weight),
                       .scheme = WeightScheme::kFloat,
                       .dtype = DType::kBf16,
                       .k = kK,
                       .n = kPanel,
                       .panel_begin = 0,
                       .panel_end = 1,
                       .bias = nullptr,
                       .y = y[i],
                       .y_stride = kPanel,
                       .accumulate = false,
                       .scratch = aligned,
                       .packed = false,
                       .x_rows = nullptr,
                       .y_rows = nullptr,
                       .row_scale = nullptr,
                       .next = nullptr});
    }
    if (std::memcmp(y[0], y[1], sizeof(y[0])) != 0) return false;
  }
  return true;
}

}  // namespace tandem::kernels::cpu
