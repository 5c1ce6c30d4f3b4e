// Sampler: logits of one row in, one token out. A pure function of row, parameters and position.
#pragma once

#include "common/base/status.h"
#include "common/core/sampling_params.h"
#include "common/sample/row_scan.h"

#include <boost/unordered/unordered_flat_map.hpp>

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace tandem::sample {

/// How often each token is in the output so far, for the penalties. Within what was reserved it
/// counts without allocating.
using TokenCounts = boost::unordered_flat_map<core::TokenId, std::int32_t>;

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

/// What a draw chooses from: weights of ids[i]. Not normalised.
struct Candidates {
  std::span<const core::TokenId> ids;
  std::span<const double> weights;
};

/// Order of work: frequency and presence penalty (counts of output tokens), end ids masked before
/// min_new_tokens, repetition penalty (output tokens; a negative logit is multiplied, others
/// divided), logit_bias, temperature, softmax; then top-k, top-p and min-p as one joint cut of the
/// distribution sorted by falling logit (lower id first among equals): a token stays when its rank
/// is below top_k, the mass before it is at most top_p, and its probability is at least min_p times
/// the largest. The draw inverts the cumulative sum, in that order (in order of ids when only
/// temperature or min-p apply), at counter_uniform(seed, output_index).
///
/// Numerics, the same bits on every machine: penalties and bias in double, each sum and product
/// rounded to double, the logit to float after the penalties and after each bias (what is finite
/// stays so: at most the largest float); weights in double (kernels::LogitKernels). Masses are sums
/// of partial sums: of blocks of ids where the order is that of ids, else of 1/64 octaves of
/// weight, each in order of ids.
///
/// temperature 0 takes the largest logit, the lowest id among equals. A draw sorts top_k tokens, or
/// those whose weights lie in one such part of an octave, never the vocabulary. Asks for all of its
/// scratch memory when it is made; what parameters do not need is never touched. One thread.
class Sampler {
 public:
  /// Scratch for each token of the vocabulary, at most.
  static constexpr std::size_t kBytesPerToken = 39;

  explicit Sampler(std::int32_t vocab_size);

  /// kInternal when the logits hold NaN or +inf, or no finite value is left.
  Result<core::TokenId> sample(const SampleInput& input);

  /// What sample() draws from, all of it, in the order of the draw: for tests. Valid until the next
  /// call. For temperature 0 one candidate.
  Result<Candidates> candidates(const SampleInput& input);

 private:
  /// How a row is drawn from.
  enum class Kind : std::uint8_t {
    kLargest,
    kAll,
    kAboveMinP,
    kBestK,
    kNucleus
  };

  /// Tokens before others in the order of the cut.
  struct Before {
    double mass = 0;
    std::size_t count = 0;
  };

  /// Scans the row after penalties, masks and bias; says how to draw.
  Result<Kind> look(const SampleInput& input);
  /// The row itself when nothing changes it, else adjusted_.
  std::span<const float> adjust(const SampleInput& input);
  /// fn(logit, id, weight) for each token of at least that weight, in order of ids.
  template <class Fn>
  void each_from(double least_weight, Fn fn) const;

  core::TokenId draw_by_id(double noise);
  /// These leave what stays in ids_ and weights_; keep_nucleus() what stays of its last part.
  void keep_above_min_p(const core::SamplingParams& params);
  void keep_best_k(const core::SamplingParams& params);
  void keep_nucleus(const core::SamplingParams& params);
  /// ids_, values_ and weights_ of these keys.
  void decode(std::span<const RankKey> keys);
  /// Keeps the beginning of ids_ and weights_ that top_k, top_p and min_p allow after `before`.
  /// `most`: mass before a token at most.
  void cut(const core::SamplingParams& params, const Before& before, double most);
  /// Tokens with weights of at least 2^least and min_p, by parts of an octave.
  void fill_parts(float min_p, int least);
  void decode_part(std::size_t part);
  core::TokenId draw_from_nucleus(double noise);

  std::size_t vocab_size_;
  RowScan scan_;
  std::vector<float> adjusted_;
  double scale_ = 0;

  std::vector<core::TokenId> ids_;
  std::vector<float> values_;
  std::vector<double> weights_;

  /// Tokens that may stay.
  std::vector<RankKey> keys_;
  /// Nucleus: part of each key; mass and tokens of each part; those that stay as a whole.
  std::vector<std::uint16_t> part_of_;
  std::vector<double> part_mass_;
  std::vector<std::uint32_t> part_size_;
  std::vector<RankKey> part_keys_;
  std::size_t whole_parts_ = 0;
  Before whole_;
};

}  // namespace tandem::sample
