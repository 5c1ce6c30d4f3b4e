// Sampler: logits of one row in, one token out. A pure function of row, parameters and position.
#pragma once

#include "common/base/status.h"
#include "common/core/sampling_params.h"

#include <cstdint>
#include <span>
#include <unordered_map>
#include <vector>

namespace tandem::sample {

/// How often each token is in the output so far, for the penalties.
using TokenCounts = std::unordered_map<core::TokenId, std::int32_t>;

/// True when the parameters look at earlier output: only then counts must be kept.
bool needs_counts(const core::SamplingParams& params);

/// One draw. Everything is borrowed for the call.
struct SampleInput {
  std::span<const float> logits = {};            ///< [vocab_size]
  const core::SamplingParams* params = nullptr;  ///< valid (SamplingParams::validate)
  /// Output so far; may be null when needs_counts() is false.
  const TokenCounts* counts = nullptr;
  /// Ids that may not be drawn before min_new_tokens: the model's end ids and stop_token_ids.
  std::span<const core::TokenId> end_ids = {};
  /// Position of the new token in the output, resumed tokens included.
  std::int32_t output_index = 0;
};

/// What a draw chooses from: weights of ids[i], or of id i when `ids` is empty. Not normalised.
struct Candidates {
  std::span<const core::TokenId> ids;
  std::span<const double> weights;
};

/// Order of work, all in double: frequency and presence penalty (counts of output tokens), end ids
/// masked before min_new_tokens, repetition penalty (output tokens; a negative logit is multiplied,
/// others divided), logit_bias, temperature, softmax; then top-k, top-p and min-p as one joint cut
/// of the distribution sorted by falling probability (lower id first among equals): a token stays
/// when its rank is below top_k, the mass before it is at most top_p, and its probability is at
/// least min_p times the largest. The draw inverts the cumulative sum, in that order (in order of
/// ids when only temperature or min-p apply), at counter_uniform(seed, output_index).
///
/// temperature 0 takes the largest logit, the lowest id among equals. No draw sorts the whole
/// vocabulary. Keeps scratch memory between calls; one thread.
class Sampler {
 public:
  explicit Sampler(std::int32_t vocab_size);

  /// kInternal when the logits hold NaN or +inf, or no finite value is left.
  Result<core::TokenId> sample(const SampleInput& input);

  /// What sample() draws from; valid until the next call. For temperature 0 one candidate.
  Result<Candidates> candidates(const SampleInput& input);

 private:
  /// values_: the row after penalties, masks and bias; also finds the largest.
  Status transform(const SampleInput& input);
  void adjust(const SampleInput& input);
  Candidates all_tokens(const core::SamplingParams& params);
  Candidates best_k(const core::SamplingParams& params);
  Candidates nucleus(const core::SamplingParams& params);
  Candidates above_min_p(const core::SamplingParams& params);
  Candidates cut(const core::SamplingParams& params, double mass);
  /// Fills weights_ with exp((value - largest) / temperature) and returns their sum.
  double weigh(float temperature);

  struct Entry {
    double weight = 0;
    core::TokenId id = 0;
  };

  static bool before(const Entry& a, const Entry& b);

  std::vector<double> values_;
  double largest_ = 0;
  core::TokenId largest_id_ = 0;
  std::vector<double> weights_;
  std::vector<Entry> entries_;
  std::vector<core::TokenId> ids_;
  std::vector<double> kept_weights_;
};

}  // namespace tandem::sample
