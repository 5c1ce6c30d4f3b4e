#include "common/sample/logprobs.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <string>
#include <utility>

namespace tandem::sample {

Result<core::TokenLogprob> token_logprob(std::span<const float> logits,
                                         core::TokenId token,
                                         std::int32_t top_count) {
  float largest = -std::numeric_limits<float>::infinity();
  bool broken = false;
  for (const float logit : logits) {
    broken |= std::isnan(logit);
    largest = std::max(largest, logit);
  }
  if (broken || !std::isfinite(largest)) {
    return internal_error("the model's logits hold NaN or infinity, or no finite value");
  }
  double sum = 0;
  for (const float logit : logits) {
    sum += std::exp(static_cast<double>(logit) - static_cast<double>(largest));
  }
  const double log_sum = static_cast<double>(largest) + std::log(sum);
  const auto logprob = [&](float logit) {
    return static_cast<float>(static_cast<double>(logit) - log_sum);
  };
  core::TokenLogprob out;
  out.token = token;
  out.logprob = logprob(logits[static_cast<std::size_t>(token)]);
  const auto count = std::min(static_cast<std::size_t>(std::max(top_count, 0)), logits.size());
  if (count == 0) return out;

  using Entry = std::pair<core::TokenId, float>;
  const auto before = [](const Entry& a, const Entry& b) {
    return a.second != b.second ? a.second > b.second : a.first < b.first;
  };
  out.top.reserve(count);
  for (std::size_t i = 0; i < logits.size(); ++i) {
    const Entry entry{static_cast<core::TokenId>(i), logits[i]};
    if (out.top.size() == count && !before(entry, out.top.front())) continue;
    if (out.top.size() == count) {
      std::pop_heap(out.top.begin(), out.top.end(), before);
      out.top.pop_back();
    }
    out.top.push_back(entry);
    std::push_heap(out.top.begin(), out.top.end(), before);
  }
  std::sort_heap(out.top.begin(), out.top.end(), before);
  for (Entry& entry : out.top)
    entry.second = logprob(entry.second);
  return out;
}

}  // namespace tandem::sample
