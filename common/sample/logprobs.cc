#include "common/sample/logprobs.h"

#include <algorithm>
#include <cmath>

namespace tandem::sample {
namespace {

/// Natural logarithm of a finite x >= 1, within 2^-51 of itself (relative to 1 below 3). Not the C
/// library's: that rounds otherwise on processors with FMA.
double log_of(double x) {
  constexpr double kLn2 = 0x1.62e42fefa39efp-1;
  constexpr double kRootHalf = 0x1.6a09e667f3bcdp-1;
  int exponent = 0;
  double part = std::frexp(x, &exponent);
  if (part < kRootHalf) {
    part *= 2;
    --exponent;
  }
  // log(part) = 2 atanh(s), |s| <= 0.172: terms fall by 34.
  const double s = (part - 1) / (part + 1);
  const double square = s * s;
  double series = 0;
  for (int odd = 23; odd >= 1; odd -= 2)
    series = series * square + 1.0 / odd;
  return exponent * kLn2 + 2 * s * series;
}

}  // namespace

Result<core::TokenLogprob> token_logprob(RowScan& scan,
                                         std::span<const float> logits,
                                         core::TokenId token,
                                         std::int32_t top_count) {
  if (!scan.scan(logits) || !std::isfinite(scan.largest())) {
    return internal_error("the model's logits hold NaN or infinity, or no finite value");
  }
  const double log_sum = static_cast<double>(scan.largest()) + log_of(scan.mass(kLog2E));
  const auto logprob = [&](float logit) {
    return static_cast<float>(static_cast<double>(logit) - log_sum);
  };
  core::TokenLogprob out;
  out.token = token;
  out.logprob = logprob(logits[static_cast<std::size_t>(token)]);
  if (top_count <= 0) return out;
  std::vector<RankKey> best;
  scan.best(static_cast<std::size_t>(top_count), &best);
  out.top.reserve(best.size());
  for (const RankKey key : best)
    out.top.emplace_back(id_of(key), logprob(logit_of(key)));
  return out;
}

}  // namespace tandem::sample
