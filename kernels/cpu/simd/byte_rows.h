// Rows of keys and values of 8 bit as bf16, in which every such value is exact: whoever computes
// with them computes as with bf16.
#pragma once

#include "kernels/cpu/simd/rows.h"

#include <cstddef>

namespace tandem::kernels::cpu {

template <class V>
struct ByteRows {
  using Int = typename V::Int;

  /// 32 values.
  static inline __attribute__((always_inline)) Int halves(const std::byte* from, DType dtype) {
    return dtype == DType::kFp8E5m2 ? V::template widen_fp8<DType::kFp8E5m2>(from)
                                    : V::template widen_fp8<DType::kFp8E4m3>(from);
  }

  /// The first `count` (< 32) of 32, zero behind them.
  static Int halves_of_part(const std::byte* from, DType dtype, std::size_t count) {
    alignas(32) std::byte padded[32];
    for (std::size_t i = 0; i < 32; ++i)
      padded[i] = i < count ? from[i] : std::byte{0};
    return halves(padded, dtype);
  }

  /// A row of `count`, in whole 32, zeros behind the last.
  template <DType D>
  static inline __attribute__((always_inline)) void widen_as(const std::byte* from,
                                                             std::size_t count,
                                                             std::byte* to) {
    std::size_t i = 0;
    for (; i + 64 <= count; i += 64) {
      Int first;
      Int second;
      halves_as<D>(from + i, &first, &second);
      V::int_store(to + i * 2, first);
      V::int_store(to + i * 2 + 64, second);
    }
    for (; i + 32 <= count; i += 32)
      V::int_store(to + i * 2, V::template widen_fp8<D>(from + i));
    if (i < count) V::int_store(to + i * 2, halves_of_part(from + i, D, count - i));
  }

  /// kRows rows of `count`, a multiple of 64, `offset` behind those of `rows`, one behind the
  /// other. To begin costs as much as 64 values: rows one at a time are half as fast.
  template <std::size_t kRows>
  static void widen_rows(const std::byte* const* rows,
                         std::size_t offset,
                         DType dtype,
                         std::size_t count,
                         std::byte* to) {
    if (dtype == DType::kFp8E5m2)
      return widen_rows_as<DType::kFp8E5m2, kRows>(rows, offset, count, to);
    widen_rows_as<DType::kFp8E4m3, kRows>(rows, offset, count, to);
  }

  /// A row, as widen_as().
  static void widen(const std::byte* from, DType dtype, std::size_t count, std::byte* to) {
    if (dtype == DType::kFp8E5m2) widen_as<DType::kFp8E5m2>(from, count, to);
    if (dtype == DType::kFp8E4m3) widen_as<DType::kFp8E4m3>(from, count, to);
  }

 private:
  template <DType D, std::size_t kRows>
  static __attribute__((noinline)) void widen_rows_as(const std::byte* const* rows,
                                                      std::size_t offset,
                                                      std::size_t count,
                                                      std::byte* to) {
#pragma GCC unroll 1
    for (std::size_t row = 0; row < kRows; ++row, to += count * 2)
      widen_as<D>(rows[row] + offset, count, to);
  }

  template <DType D>
  static inline __attribute__((always_inline)) void halves_as(const std::byte* from,
                                                              Int* first,
                                                              Int* second) {
    if constexpr (requires { V::template widen_fp8<D>(from, first, second); }) {
      V::template widen_fp8<D>(from, first, second);
    } else {
      *first = V::template widen_fp8<D>(from);
      *second = V::template widen_fp8<D>(from + 32);
    }
  }
};

}  // namespace tandem::kernels::cpu
