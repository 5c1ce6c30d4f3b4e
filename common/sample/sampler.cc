#include "common/sample/sampler.h"

#include "common/base/check.h"
#include "common/base/random.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>
#include <numeric>
#include <string>

namespace tandem::sample {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();

/// The stream of counter_uniform that draws tokens.
constexpr std::uint32_t kTokenStream = 0;

/// Larger top_k cut like a nucleus: only one part of it has to be sorted.
constexpr std::int32_t kSortMax = 1024;

/// Down to this one octaves have 64 parts.
constexpr int kFineLeast = -64;

/// Parts of a nucleus: of weights from 2^least on, an octave in 64, or in 4 where that would be too
/// many.
struct Parts {
  int least = 0;

  [[nodiscard]] unsigned shift() const { return least >= kFineLeast ? 46 : 50; }

  [[nodiscard]] std::size_t count() const {
    return (static_cast<std::size_t>(-least) << (52 - shift())) + 1;
  }

  [[nodiscard]] std::size_t of(double weight) const {
    return (std::bit_cast<std::uint64_t>(1.0) - std::bit_cast<std::uint64_t>(weight)) >> shift();
  }
};

constexpr int kLeast = static_cast<int>(kernels::kLeastWeight);

/// All tokens below 2^least together have half of what top_p may leave out at most, so that the cut
/// is not among them. Without top_p a guess.
int least_needed(const core::SamplingParams& params, double mass, std::size_t vocab_size) {
  if (params.top_p >= 1.0F) return kFineLeast;
  const double left_out = (1 - static_cast<double>(params.top_p)) * mass;
  return std::clamp(std::ilogb(left_out / static_cast<double>(vocab_size)) - 1, kLeast, -1);
}

/// The mass before a token may be at most this for top_p to keep it.
double mass_limit(const core::SamplingParams& params, double mass) {
  return params.top_p < 1.0F ? static_cast<double>(params.top_p) * mass
                             : std::numeric_limits<double>::infinity();
}

/// To float. What penalties make too large for one stays finite: infinity means a broken model.
float to_logit(double value) {
  constexpr auto kMost = static_cast<double>(std::numeric_limits<float>::max());
  return static_cast<float>(std::isinf(value) ? value : std::clamp(value, -kMost, kMost));
}

double sum_of(std::span<const double> weights) {
  return std::accumulate(weights.begin(), weights.end(), 0.0);
}

/// The first index at which the cumulative sum from `passed` on exceeds the target; the last one
/// with a weight, should rounding leave the target at the very end.
std::size_t invert(std::span<const double> weights, double passed, double target) {
  std::size_t chosen = 0;
  for (std::size_t i = 0; i < weights.size(); ++i) {
    if (weights[i] == 0) continue;
    chosen = i;
    passed += weights[i];
    if (passed > target) break;
  }
  return chosen;
}

}  // namespace

bool needs_counts(const core::SamplingParams& params) {
  return params.frequency_penalty != 0.0F || params.presence_penalty != 0.0F ||
         params.repetition_penalty != 1.0F;
}

Sampler::Sampler(std::int32_t vocab_size)
    : vocab_size_(static_cast<std::size_t>(vocab_size)), scan_(vocab_size) {
  // Not as they grow: vectors double, and would take up to twice of what the memory plan counts.
  adjusted_.reserve(vocab_size_);
  ids_.reserve(vocab_size_);
  values_.reserve(vocab_size_);
  weights_.reserve(vocab_size_);
  keys_.reserve(vocab_size_);
  part_of_.reserve(vocab_size_);
  part_keys_.reserve(vocab_size_);
  const std::size_t most_parts =
      std::max(Parts{.least = kFineLeast}.count(), Parts{.least = kLeast}.count());
  part_mass_.reserve(most_parts);
  part_size_.reserve(most_parts);
}

std::span<const float> Sampler::adjust(const SampleInput& input) {
  const core::SamplingParams& params = *input.params;
  const bool counted = needs_counts(params) && input.counts != nullptr && !input.counts->empty();
  const bool masked = input.output_index < params.min_new_tokens && !input.end_ids.empty();
  if (!counted && !masked && params.logit_bias.empty()) return input.logits;
  adjusted_.assign(input.logits.begin(), input.logits.end());
  const auto at = [&](core::TokenId id) -> float& {
    return adjusted_[static_cast<std::size_t>(id)];
  };
  // A masked logit stays -inf under all that follows.
  if (masked) {
    for (const core::TokenId id : input.end_ids)
      at(id) = -kInfinity;
  }
  if (counted) {
    const auto penalty = static_cast<double>(params.repetition_penalty);
    for (const auto& [id, count] : *input.counts) {
      double logit = static_cast<double>(at(id));
      logit -= static_cast<double>(params.frequency_penalty) * count;
      logit -= static_cast<double>(params.presence_penalty);
      if (penalty != 1) logit = logit < 0 ? logit * penalty : logit / penalty;
      at(id) = to_logit(logit);
    }
  }
  for (const auto& [id, bias] : params.logit_bias) {
    at(id) = to_logit(static_cast<double>(at(id)) + static_cast<double>(bias));
  }
  return adjusted_;
}

Result<Sampler::Kind> Sampler::look(const SampleInput& input) {
  TANDEM_CHECK(input.logits.size() == vocab_size_, "Sampler: a row of another vocabulary");
  const auto broken = [&](const char* what) {
    return internal_error(what + std::string(" at output position ") +
                          std::to_string(input.output_index));
  };
  if (!scan_.scan(adjust(input))) return broken("the model's logits hold NaN");
  if (scan_.largest() == kInfinity) return broken("the model's logits hold infinity");
  if (scan_.largest() == -kInfinity) return broken("no token is allowed");
  const core::SamplingParams& params = *input.params;
  if (params.temperature == 0.0F || params.top_k == 1) return Kind::kLargest;
  scale_ = kLog2E / static_cast<double>(params.temperature);
  const bool all = static_cast<std::size_t>(params.top_k) >= vocab_size_;
  if (all && params.top_p >= 1.0F) return params.min_p > 0.0F ? Kind::kAboveMinP : Kind::kAll;
  return params.top_k <= kSortMax ? Kind::kBestK : Kind::kNucleus;
}

core::TokenId Sampler::draw_by_id(double noise) {
  const double target = scan_.mass(scale_) * noise;
  const std::span<const double> masses = scan_.block_masses();
  const std::size_t chosen = invert(masses, 0, target);
  double before = 0;
  for (std::size_t b = 0; b < chosen; ++b)
    before += masses[b];
  const std::span<const float> block = scan_.block(chosen);
  double weights[kernels::kLogitBlock];
  scan_.weigh(block, scale_, weights);
  const std::size_t at = invert(std::span(weights).first(block.size()), before, target);
  return static_cast<core::TokenId>(chosen * kernels::kLogitBlock + at);
}

template <class Fn>
void Sampler::each_from(double least_weight, Fn fn) const {
  // Surely not too large: whether a token counts is for its weight to say.
  const double top = static_cast<double>(scan_.largest());
  const double below = -std::log2(least_weight) / scale_;
  const auto least = static_cast<float>(top - below - 1e-6 * (std::abs(top) + below));
  scan_.each_from(least, [&](std::span<const float> logits, const core::TokenId* ids) {
    double weights[RowScan::kHandful];
    scan_.weigh(logits, scale_, weights);
    for (std::size_t i = 0; i < logits.size(); ++i) {
      if (weights[i] >= least_weight) fn(logits[i], ids[i], weights[i]);
    }
  });
}

void Sampler::keep_above_min_p(const core::SamplingParams& params) {
  ids_.clear();
  weights_.clear();
  // The largest weight is 1.
  each_from(static_cast<double>(params.min_p), [&](float, core::TokenId id, double weight) {
    ids_.push_back(id);
    weights_.push_back(weight);
  });
}

void Sampler::decode(std::span<const RankKey> keys) {
  ids_.resize(keys.size());
  values_.resize(keys.size());
  weights_.resize(keys.size());
  for (std::size_t i = 0; i < keys.size(); ++i) {
    ids_[i] = id_of(keys[i]);
    values_[i] = logit_of(keys[i]);
  }
  scan_.weigh(values_, scale_, weights_.data());
}

void Sampler::cut(const core::SamplingParams& params, const Before& before, double most) {
  double mass_before = before.mass;
  std::size_t kept = 0;
  for (; kept < ids_.size(); ++kept) {
    const std::size_t rank = before.count + kept;
    const bool keep = rank < static_cast<std::size_t>(params.top_k) && mass_before <= most &&
                      weights_[kept] >= static_cast<double>(params.min_p);
    if (!keep && rank > 0) break;
    mass_before += weights_[kept];
  }
  ids_.resize(kept);
  weights_.resize(kept);
}

void Sampler::keep_best_k(const core::SamplingParams& params) {
  scan_.best(static_cast<std::size_t>(params.top_k), &keys_);
  decode(keys_);
  const double mass = params.top_p < 1.0F ? scan_.mass(scale_) : 0;
  cut(params, {}, mass_limit(params, mass));
}

void Sampler::keep_nucleus(const core::SamplingParams& params) {
  const double mass = params.top_p < 1.0F ? scan_.mass(scale_) : 0;
  const double most = mass_limit(params, mass);
  const auto most_tokens = static_cast<std::size_t>(params.top_k);
  for (const int least : {least_needed(params, mass, vocab_size_), kLeast}) {
    fill_parts(params.min_p, least);
    whole_ = {};
    whole_parts_ = 0;
    for (; whole_parts_ < part_mass_.size(); ++whole_parts_) {
      const double next_mass = whole_.mass + part_mass_[whole_parts_];
      const std::size_t next_count = whole_.count + part_size_[whole_parts_];
      if (next_mass > most || next_count > most_tokens) {
        decode_part(whole_parts_);
        cut(params, whole_, most);
        return;
      }
      whole_ = {.mass = next_mass, .count = next_count};
    }
    ids_.clear();
    weights_.clear();
    // All that can stay is in these parts.
    if (static_cast<double>(params.min_p) >= std::ldexp(1.0, least)) return;
  }
}

void Sampler::fill_parts(float min_p, int least) {
  const Parts parts{.least = least};
  part_mass_.assign(parts.count(), 0.0);
  part_size_.assign(parts.count(), 0);
  keys_.clear();
  part_of_.clear();
  each_from(std::max(std::ldexp(1.0, least), static_cast<double>(min_p)),
            [&](float logit, core::TokenId id, double weight) {
              const std::size_t part = parts.of(weight);
              keys_.push_back(rank_key(logit, id));
              part_of_.push_back(static_cast<std::uint16_t>(part));
              part_mass_[part] += weight;
              ++part_size_[part];
            });
}

void Sampler::decode_part(std::size_t part) {
  part_keys_.clear();
  for (std::size_t i = 0; i < keys_.size(); ++i) {
    if (part_of_[i] == part) part_keys_.push_back(keys_[i]);
  }
  std::sort(part_keys_.begin(), part_keys_.end());
  decode(part_keys_);
}

core::TokenId Sampler::draw_from_nucleus(double noise) {
  const double target = (whole_.mass + sum_of(weights_)) * noise;
  const std::span<const double> parts = std::span(part_mass_).first(whole_parts_);
  if (target >= whole_.mass && !ids_.empty()) return ids_[invert(weights_, whole_.mass, target)];
  const std::size_t part = invert(parts, 0, target);
  const double before = sum_of(parts.first(part));
  decode_part(part);
  return ids_[invert(weights_, before, target)];
}

Result<core::TokenId> Sampler::sample(const SampleInput& input) {
  TANDEM_TRY(const Kind kind, look(input));
  if (kind == Kind::kLargest) return scan_.largest_id();
  const double noise = counter_uniform(
      input.params->seed, static_cast<std::uint64_t>(input.output_index), kTokenStream);
  if (kind == Kind::kAll) return draw_by_id(noise);
  if (kind == Kind::kNucleus) {
    keep_nucleus(*input.params);
    return draw_from_nucleus(noise);
  }
  kind == Kind::kAboveMinP ? keep_above_min_p(*input.params) : keep_best_k(*input.params);
  return ids_[invert(weights_, 0, sum_of(weights_) * noise)];
}

Result<Candidates> Sampler::candidates(const SampleInput& input) {
  TANDEM_TRY(const Kind kind, look(input));
  if (kind == Kind::kLargest) {
    ids_.assign(1, scan_.largest_id());
    weights_.assign(1, 1.0);
  } else if (kind == Kind::kAll) {
    ids_.resize(vocab_size_);
    std::iota(ids_.begin(), ids_.end(), 0);
    weights_.resize(vocab_size_);
    for (std::size_t b = 0; b < scan_.block_count(); ++b)
      scan_.weigh(scan_.block(b), scale_, weights_.data() + b * kernels::kLogitBlock);
  } else if (kind == Kind::kAboveMinP) {
    keep_above_min_p(*input.params);
  } else if (kind == Kind::kBestK) {
    keep_best_k(*input.params);
  } else {
    keep_nucleus(*input.params);
    std::vector<RankKey> kept;
    for (std::size_t i = 0; i < ids_.size(); ++i)
      kept.push_back(rank_key(values_[i], ids_[i]));
    for (std::size_t i = 0; i < keys_.size(); ++i) {
      if (part_of_[i] < whole_parts_) kept.push_back(keys_[i]);
    }
    std::sort(kept.begin(), kept.end());
    decode(kept);
  }
  return Candidates{.ids = ids_, .weights = weights_};
}

}  // namespace tandem::sample
