// Rows to panels: sixteen rows of 32-bit words become words of sixteen rows. Whatever a panel holds
// (pairs of bf16, f32, four bytes, eight half bytes), its elements only change places here.
#pragma once

#include "kernels/cpu/simd/table.h"

namespace tandem::kernels::cpu {

template <class V>
struct Move {
  /// to[w][lane] = word w of rows[lane], `count` words of kPanel rows; nothing needs alignment.
  static void words(const std::byte* const* rows, std::size_t count, std::byte* to) {
    std::size_t w = 0;
    for (; w + kPanel <= count; w += kPanel)
      V::transpose_words(rows, w * 4, to + w * 4 * kPanel);
    for (; w < count; ++w) {
      for (std::size_t lane = 0; lane < kPanel; ++lane)
        __builtin_memcpy(to + (w * kPanel + lane) * 4, rows[lane] + w * 4, 4);
    }
  }

  /// sums[lane] of the bytes of words[w][lane], `count` words; each lane's sum fits 32 bits.
  static void sum_bytes(const std::byte* words, std::size_t count, std::int32_t* sums) {
    const auto ones = V::bytes_of(0x01010101);
    auto total = V::int_zero();
    for (std::size_t w = 0; w < count; ++w)
      total = V::dot4(total, ones, V::int_load(words + w * 4 * kPanel));
    V::int_store(sums, total);
  }
};

}  // namespace tandem::kernels::cpu
