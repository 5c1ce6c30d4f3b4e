#include "common/sample/row_scan.h"

#include "common/base/check.h"

#include <algorithm>
#include <bit>
#include <functional>
#include <limits>

namespace tandem::sample {

namespace {
constexpr std::uint32_t kSign = 0x80000000U;
}  // namespace

RankKey rank_key(float logit, core::TokenId id) {
  // -0 equals 0.
  const auto bits = std::bit_cast<std::uint32_t>(logit + 0.0F);
  const std::uint32_t falling = (bits & kSign) != 0 ? bits : ~(bits | kSign);
  return (static_cast<RankKey>(falling) << 32U) | static_cast<std::uint32_t>(id);
}

core::TokenId id_of(RankKey key) {
  return static_cast<core::TokenId>(static_cast<std::uint32_t>(key));
}

float logit_of(RankKey key) {
  const auto falling = static_cast<std::uint32_t>(key >> 32U);
  return std::bit_cast<float>((falling & kSign) != 0 ? falling : ~falling & ~kSign);
}

RowScan::RowScan(std::int32_t vocab_size)
    : kernels_(kernels::logit_kernels()),
      maxima_(kernels::logit_blocks(static_cast<std::size_t>(vocab_size))),
      tops_(kernels::logit_blocks(maxima_.size())),
      masses_(maxima_.size()) {}

bool RowScan::scan(std::span<const float> row) {
  TANDEM_CHECK(!row.empty() && kernels::logit_blocks(row.size()) == maxima_.size(),
               "RowScan: a row of another vocabulary");
  row_ = row;
  if (!kernels_.block_maxima(row.data(), row.size(), maxima_.data())) return false;
  kernels_.block_maxima(maxima_.data(), maxima_.size(), tops_.data());
  largest_ = *std::max_element(tops_.begin(), tops_.end());
  return true;
}

std::span<const float> RowScan::block(std::size_t index) const {
  const std::size_t begin = index * kernels::kLogitBlock;
  return row_.subspan(begin, std::min(kernels::kLogitBlock, row_.size() - begin));
}

core::TokenId RowScan::largest_id() const {
  const auto which = std::find(maxima_.begin(), maxima_.end(), largest_) - maxima_.begin();
  const auto begin = static_cast<std::size_t>(which) * kernels::kLogitBlock;
  const auto from = row_.begin() + static_cast<std::ptrdiff_t>(begin);
  return static_cast<core::TokenId>(std::find(from, row_.end(), largest_) - row_.begin());
}

double RowScan::mass(double scale) {
  kernels_.weight_sums(row_.data(), row_.size(), maxima_.data(), largest_, scale, masses_.data());
  double sum = 0;
  for (const double mass : masses_)
    sum += mass;
  return sum;
}

void RowScan::best(std::size_t count, std::vector<RankKey>* keys) {
  keys->clear();
  if (count == 0) return;
  // The count-th largest of the blocks' maxima: as many tokens are at least that large.
  float least = -std::numeric_limits<float>::infinity();
  if (count < maxima_.size()) {
    for (std::size_t b = 0; b < maxima_.size(); ++b)
      keys->push_back(rank_key(maxima_[b], 0));
    const auto at = keys->begin() + static_cast<std::ptrdiff_t>(count - 1);
    std::nth_element(keys->begin(), at, keys->end());
    least = logit_of(*at);
    keys->clear();
  }
  each_from(least, [&](std::span<const float> logits, const core::TokenId* ids) {
    for (std::size_t i = 0; i < logits.size(); ++i)
      keys->push_back(rank_key(logits[i], ids[i]));
  });
  if (keys->size() > count) {
    const auto end = keys->begin() + static_cast<std::ptrdiff_t>(count);
    std::nth_element(keys->begin(), end, keys->end());
    keys->resize(count);
  }
  std::sort(keys->begin(), keys->end());
}

}  // namespace tandem::sample
