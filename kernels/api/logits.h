// Passes over one row of logits, for sampling and log-probabilities. Unlike the rest of the ops
// they compute the same bits on every machine, whatever its family: only sums, products and
// roundings that IEEE 754 fixes, in an order that is part of the definition. (exp of the C library
// is none of that: glibc picks a variant with or without FMA by processor.)
#pragma once

#include "kernels/api/backend.h"

#include <cstddef>

namespace tandem::kernels {

/// Ids of a block: block b is [64 b, 64 b + 64), the last one may be shorter.
inline constexpr std::size_t kLogitBlock = 64;

constexpr std::size_t logit_blocks(std::size_t count) {
  return (count + kLogitBlock - 1) / kLogitBlock;
}

/// A weight of less than 2^kLeastWeight is 0.
inline constexpr double kLeastWeight = -1020;

/// The weight of a logit v is w(v) = 2^((v - largest) * scale), all in double, one rounding for
/// each operation; 2^t is within 2^-51 of itself, relatively. `largest` is the row's, finite; scale
/// is log2(e) / temperature. Values: no NaN, no +inf, any alignment. Functions are pure; any
/// thread; no errors.
struct LogitKernels {
  /// maxima[b] = the largest value of block b, [logit_blocks(count)]. False when a value is NaN;
  /// then maxima are undefined. +inf is allowed here.
  bool (*block_maxima)(const float* values, std::size_t count, float* maxima);

  /// sums[b] = sum of the weights of block b: 16 sums of ids by id % 16, in order of ids, which are
  /// added by halves (i and i + 8, then i and i + 4, ...). `maxima` as block_maxima gives them.
  void (*weight_sums)(const float* values,
                      std::size_t count,
                      const float* maxima,
                      float largest,
                      double scale,
                      double* sums);

  /// weights[i] = w(values[i]).
  void (*weights)(
      const float* values, std::size_t count, float largest, double scale, double* weights);
};

/// The fastest ones of this machine.
const LogitKernels& logit_kernels();

/// Those of kGeneric, kAvx2 or kAvx512; null when the machine lacks the instructions. For tests.
const LogitKernels* logit_kernels(Family family);

}  // namespace tandem::kernels
