// RowScan: one pass over a row of logits that notes the largest value of every 64 ids, and what can
// be told from these notes without reading the whole row again.
#pragma once

#include "common/core/sampling_params.h"
#include "kernels/api/logits.h"

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace tandem::sample {

/// log2(e): the scale of a weight (kernels::LogitKernels) at temperature 1.
inline constexpr double kLog2E = 0x1.71547652b82fep+0;

/// A token and its logit as one number: the lower, the larger the logit; the lower id first among
/// equals.
using RankKey = std::uint64_t;

RankKey rank_key(float logit, core::TokenId id);
core::TokenId id_of(RankKey key);
float logit_of(RankKey key);

/// Scratch of 12 bytes for 64 ids (and 4 for best()), kept between rows. One thread.
class RowScan {
 public:
  explicit RowScan(std::int32_t vocab_size);

  /// `row` [vocab_size] is borrowed for all other calls, up to the next scan(). False when it holds
  /// NaN; then nothing else may be called.
  bool scan(std::span<const float> row);

  /// May be an infinity; then only block_largest() and largest_id() may be called.
  [[nodiscard]] float largest() const { return largest_; }

  /// The lowest id among equals.
  [[nodiscard]] core::TokenId largest_id() const;

  /// Sum of all weights: block by block, in order of ids. Fills block_masses().
  double mass(double scale);

  [[nodiscard]] std::span<const double> block_masses() const { return masses_; }

  [[nodiscard]] std::size_t block_count() const { return maxima_.size(); }

  [[nodiscard]] float block_largest(std::size_t index) const { return maxima_[index]; }

  [[nodiscard]] std::span<const float> block(std::size_t index) const;

  /// Tokens that each_from() hands over at a time, at most.
  static constexpr std::size_t kHandful = 2 * kernels::kLogitBlock;

  /// fn(logits, ids) for the tokens whose logit is at least `least`, by the handful, in order of
  /// ids.
  template <class Fn>
  void each_from(float least, Fn fn) const {
    float logits[kHandful];
    core::TokenId ids[kHandful];
    std::size_t count = 0;
    for (std::size_t b = 0; b < maxima_.size(); ++b) {
      if (!(maxima_[b] >= least)) continue;
      auto id = static_cast<core::TokenId>(b * kernels::kLogitBlock);
      for (const float logit : block(b)) {
        // No branch, which would be guessed wrong as often as right where half of them count.
        logits[count] = logit;
        ids[count] = id++;
        count += logit >= least ? 1 : 0;
      }
      if (count <= kHandful - kernels::kLogitBlock) continue;
      fn(std::span<const float>(logits, count), ids);
      count = 0;
    }
    if (count > 0) fn(std::span<const float>(logits, count), ids);
  }

  /// weights[i] = weight of values[i], relative to the row's largest logit.
  void weigh(std::span<const float> values, double scale, double* weights) const {
    kernels_.weights(values.data(), values.size(), largest_, scale, weights);
  }

  /// *keys = the `count` best tokens (or all), in order.
  void best(std::size_t count, std::vector<RankKey>* keys);

 private:
  const kernels::LogitKernels& kernels_;
  std::span<const float> row_;
  float largest_ = 0;
  std::vector<float> maxima_;
  std::vector<float> tops_;  ///< maxima of blocks of maxima_
  std::vector<double> masses_;
};

}  // namespace tandem::sample
