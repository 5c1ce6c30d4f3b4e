// What the machine can do, measured in the same run as what is compared with it.
#pragma once

#include "kernels/api/backend.h"

#include <algorithm>
#include <ctime>

namespace tandem::bench {

/// Zeros where the machine lacks the instructions.
struct Limits {
  double read_gb_s = 0;    ///< from memory, all threads
  double fma_gflop_s = 0;  ///< f32 multiply-adds, two operations each, in the family's own vectors
  double bf16_gflop_s =
      0;  ///< products of bf16 weights: tiles or pairs where the family has them, else as fma
  double int8_gop_s = 0;  ///< products of 8 bit, two operations each: tiles, VNNI, or maddubs
  double int4_gop_s = 0;  ///< of 4 bit, where maddubs' sums fit 16 bits; else as of 8 bit
};

/// Whether the family multiplies weights of this format as bf16, or with as many products (int8 by
/// two of bytes on avx512_bf16): bf16_gflop_s is their limit then.
inline bool multiplies_bf16(kernels::Family family, const kernels::WeightFormat& format) {
  switch (format.scheme) {
    case kernels::WeightScheme::kFloat:
      return format.dtype == kernels::DType::kBf16;
    case kernels::WeightScheme::kShortBf16:
      return true;
    case kernels::WeightScheme::kInt8:
      return family == kernels::Family::kAmx || family == kernels::Family::kAvx512Bf16;
    case kernels::WeightScheme::kInt4Group128:
    case kernels::WeightScheme::kInt8Dynamic:
      return false;
  }
  return false;
}

/// The same of attention: scores and sums of values, over keys and values of this type.
inline bool attention_multiplies_bf16(kernels::Family family, kernels::DType kv) {
  return (kv == kernels::DType::kBf16 || kernels::is_fp8(kv)) &&
         (family == kernels::Family::kAmx || family == kernels::Family::kAvx512Bf16);
}

/// With one thread, processor time: neighbours on a shared machine then cost only cache and
/// bandwidth. With several, wall time.
inline bool use_cpu_time = false;

inline double now_s() {
  timespec time{};
  clock_gettime(use_cpu_time ? CLOCK_PROCESS_CPUTIME_ID : CLOCK_MONOTONIC, &time);
  return static_cast<double>(time.tv_sec) + static_cast<double>(time.tv_nsec) * 1e-9;
}

/// Seconds of the fastest of as many runs as the budget allows (at least 3): others share the
/// machine.
template <class Fn>
double best_time(double budget_s, Fn fn) {
  fn();
  double best = 1e30;
  const double end = now_s() + budget_s;
  for (int runs = 0; runs < 3 || now_s() < end; ++runs) {
    const double start = now_s();
    fn();
    best = std::min(best, now_s() - start);
  }
  return best;
}

/// Bytes that lie in memory and not in a cache: some processors have 480 MiB of the latter.
inline constexpr std::size_t kBeyondCaches = std::size_t{1} << 30;

/// About three budgets. Reading is measured over `read_bytes` again and again, since what a model
/// of as many bytes finds in the caches is within its bound; over kBeyondCaches at most.
Limits measure_limits(const kernels::Backend& backend,
                      kernels::ThreadPool& pool,
                      double budget_s,
                      std::size_t read_bytes = kBeyondCaches);

}  // namespace tandem::bench
