#include "common/sample/sampler.h"

#include "common/base/check.h"
#include "common/base/random.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <string>

namespace tandem::sample {
namespace {

constexpr double kMasked = -std::numeric_limits<double>::infinity();

/// The stream of counter_uniform that draws tokens.
constexpr std::uint32_t kTokenStream = 0;

/// Larger top_k cut like a nucleus: a heap would cost more than it saves.
constexpr std::int32_t kHeapMax = 1024;

/// Weights relative to the largest; what lies below is looked at only when the nucleus needs it.
constexpr double kLikelyWeight = 0x1p-12;

/// The mass before a token may be at most this for top_p to keep it.
double mass_limit(const core::SamplingParams& params, double mass) {
  return params.top_p < 1.0F ? static_cast<double>(params.top_p) * mass
                             : std::numeric_limits<double>::infinity();
}

}  // namespace

bool needs_counts(const core::SamplingParams& params) {
  return params.frequency_penalty != 0.0F || params.presence_penalty != 0.0F ||
         params.repetition_penalty != 1.0F;
}

Sampler::Sampler(std::int32_t vocab_size)
    : values_(static_cast<std::size_t>(vocab_size)),
      weights_(static_cast<std::size_t>(vocab_size)) {}

bool Sampler::before(const Entry& a, const Entry& b) {
  return a.weight != b.weight ? a.weight > b.weight : a.id < b.id;
}

void Sampler::adjust(const SampleInput& input) {
  const core::SamplingParams& params = *input.params;
  const auto at = [&](core::TokenId id) -> double& {
    return values_[static_cast<std::size_t>(id)];
  };
  const bool counted = needs_counts(params) && input.counts != nullptr;
  if (counted) {
    for (const auto& [id, count] : *input.counts) {
      at(id) -= static_cast<double>(params.frequency_penalty) * count;
      at(id) -= static_cast<double>(params.presence_penalty);
    }
  }
  if (input.output_index < params.min_new_tokens) {
    for (const core::TokenId id : input.end_ids)
      at(id) = kMasked;
  }
  if (counted && params.repetition_penalty != 1.0F) {
    const auto penalty = static_cast<double>(params.repetition_penalty);
    for (const auto& [id, count] : *input.counts) {
      at(id) = at(id) < 0 ? at(id) * penalty : at(id) / penalty;
    }
  }
  for (const auto& [id, bias] : params.logit_bias)
    at(id) += static_cast<double>(bias);
}

Status Sampler::transform(const SampleInput& input) {
  TANDEM_CHECK(input.logits.size() == values_.size(), "Sampler: a row of another vocabulary");
  std::copy(input.logits.begin(), input.logits.end(), values_.begin());
  adjust(input);
  largest_ = kMasked;
  largest_id_ = -1;
  bool broken = false;
  for (std::size_t i = 0; i < values_.size(); ++i) {
    broken |= std::isnan(values_[i]);
    if (values_[i] > largest_) {
      largest_ = values_[i];
      largest_id_ = static_cast<core::TokenId>(i);
    }
  }
  const std::string where = " at output position " + std::to_string(input.output_index);
  if (broken) return internal_error("the model's logits hold NaN" + where);
  if (largest_ == std::numeric_limits<double>::infinity()) {
    return internal_error("the model's logits hold infinity" + where);
  }
  if (largest_id_ < 0) return internal_error("no token is allowed" + where);
  return {};
}

double Sampler::weigh(float temperature) {
  const auto divisor = static_cast<double>(temperature);
  double sum = 0;
  for (std::size_t i = 0; i < values_.size(); ++i) {
    weights_[i] = std::exp((values_[i] - largest_) / divisor);
    sum += weights_[i];
  }
  return sum;
}

Candidates Sampler::all_tokens(const core::SamplingParams& params) {
  weigh(params.temperature);
  return {.ids = {}, .weights = weights_};
}

Candidates Sampler::above_min_p(const core::SamplingParams& params) {
  weigh(params.temperature);
  ids_.clear();
  kept_weights_.clear();
  for (std::size_t i = 0; i < weights_.size(); ++i) {
    // The largest weight is exp(0) = 1.
    if (weights_[i] < static_cast<double>(params.min_p)) continue;
    ids_.push_back(static_cast<core::TokenId>(i));
    kept_weights_.push_back(weights_[i]);
  }
  return {.ids = ids_, .weights = kept_weights_};
}

/// Keeps the prefix of the sorted entries_ that top_p and min_p allow. `mass` is the sum of all
/// weights, used when top_p < 1.
Candidates Sampler::cut(const core::SamplingParams& params, double mass) {
  ids_.clear();
  kept_weights_.clear();
  const double most = mass_limit(params, mass);
  double mass_before = 0;
  for (const Entry& entry : entries_) {
    const bool keep = mass_before <= most && entry.weight >= static_cast<double>(params.min_p);
    if (!keep && !ids_.empty()) break;
    ids_.push_back(entry.id);
    kept_weights_.push_back(entry.weight);
    mass_before += entry.weight;
  }
  return {.ids = ids_, .weights = kept_weights_};
}

/// top_k is small: a heap of the k best while passing over the row once.
Candidates Sampler::best_k(const core::SamplingParams& params) {
  const auto k = static_cast<std::size_t>(params.top_k);
  double mass = 0;
  entries_.clear();
  if (params.top_p < 1.0F) mass = weigh(params.temperature);
  // Chosen by value, which falls with the weight but does not underflow: equal weights of unequal
  // values keep their order.
  for (std::size_t i = 0; i < values_.size(); ++i) {
    const Entry entry{values_[i], static_cast<core::TokenId>(i)};
    if (entries_.size() == k && !before(entry, entries_.front())) continue;
    if (entries_.size() == k) {
      std::pop_heap(entries_.begin(), entries_.end(), before);
      entries_.pop_back();
    }
    entries_.push_back(entry);
    std::push_heap(entries_.begin(), entries_.end(), before);
  }
  std::sort_heap(entries_.begin(), entries_.end(), before);
  for (Entry& entry : entries_) {
    entry.weight = std::exp((entry.weight - largest_) / static_cast<double>(params.temperature));
  }
  return cut(params, mass);
}

/// top_p, or a large top_k: sorts blocks of growing size until the cut is inside them.
Candidates Sampler::nucleus(const core::SamplingParams& params) {
  const double mass = weigh(params.temperature);
  const double most = mass_limit(params, mass);
  const auto k = static_cast<std::size_t>(params.top_k);
  for (const double floor : {kLikelyWeight, 0.0}) {
    entries_.clear();
    for (std::size_t i = 0; i < weights_.size(); ++i) {
      if (weights_[i] < floor || weights_[i] == 0) continue;
      entries_.push_back({weights_[i], static_cast<core::TokenId>(i)});
    }
    double sorted_mass = 0;
    std::size_t sorted = 0;
    for (std::size_t block = 64; sorted < entries_.size() && sorted < k && sorted_mass <= most;
         block *= 4) {
      const auto begin = entries_.begin() + static_cast<std::ptrdiff_t>(sorted);
      sorted = std::min(sorted + block, entries_.size());
      const auto end = entries_.begin() + static_cast<std::ptrdiff_t>(sorted);
      std::partial_sort(begin, end, entries_.end(), before);
      for (auto it = begin; it != end; ++it)
        sorted_mass += it->weight;
    }
    if (sorted_mass <= most && sorted < k && floor > 0) continue;
    entries_.resize(std::min(sorted, k));
    break;
  }
  return cut(params, mass);
}

Result<Candidates> Sampler::candidates(const SampleInput& input) {
  TANDEM_TRY(transform(input));
  const core::SamplingParams& params = *input.params;
  if (params.temperature == 0.0F || params.top_k == 1) {
    ids_.assign(1, largest_id_);
    kept_weights_.assign(1, 1.0);
    return Candidates{.ids = ids_, .weights = kept_weights_};
  }
  const bool all = static_cast<std::size_t>(params.top_k) >= values_.size();
  if (all && params.top_p >= 1.0F) {
    return params.min_p > 0.0F ? above_min_p(params) : all_tokens(params);
  }
  return params.top_k <= kHeapMax ? best_k(params) : nucleus(params);
}

Result<core::TokenId> Sampler::sample(const SampleInput& input) {
  TANDEM_TRY(const Candidates from, candidates(input));
  double sum = 0;
  for (const double weight : from.weights)
    sum += weight;
  const double target =
      sum * counter_uniform(
                input.params->seed, static_cast<std::uint64_t>(input.output_index), kTokenStream);
  std::size_t chosen = 0;
  double passed = 0;
  for (std::size_t i = 0; i < from.weights.size(); ++i) {
    if (from.weights[i] == 0) continue;
    // Also the fallback, should rounding leave the target at the very end.
    chosen = i;
    passed += from.weights[i];
    if (passed > target) break;
  }
  return from.ids.empty() ? static_cast<core::TokenId>(chosen) : from.ids[chosen];
}

}  // namespace tandem::sample
