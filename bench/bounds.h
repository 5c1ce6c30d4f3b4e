// What an op of a model takes at least on a machine.
#pragma once

#include "bench/limits.h"
#include "bench/timed_backend.h"

#include <algorithm>

namespace tandem::bench {

/// Time that the machine cannot do without, to read `bytes` and multiply.
inline double bound_s(const OpCost& cost, double bytes, const Limits& limits) {
  double compute = cost.flops / limits.fma_gflop_s * 1e-9;
  compute += cost.bf16_flops / limits.bf16_gflop_s * 1e-9;
  if (cost.int8_ops > 0 && limits.int8_gop_s > 0) {
    compute += cost.int8_ops / limits.int8_gop_s * 1e-9;
  }
  return std::max(bytes / limits.read_gb_s * 1e-9, compute);
}

/// The same, to read what is there.
inline double bound_s(const OpCost& cost, const Limits& limits) {
  return bound_s(cost, cost.bytes, limits);
}

/// Time to multiply each of `tokens` tokens with every parameter, as ../shared/bench/PEERS.md
/// counts a prompt: with the head, which only one token meets, and without attention.
inline double parameters_bound_s(const OpCost& cost, double tokens, const Limits& limits) {
  const double peak = cost.int8_ops > 0     ? limits.int8_gop_s
                      : cost.bf16_flops > 0 ? limits.bf16_gflop_s
                                            : limits.fma_gflop_s;
  return peak > 0 ? 2 * cost.parameters * tokens / peak * 1e-9 : 0;
}

}  // namespace tandem::bench
