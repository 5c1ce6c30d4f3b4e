#include "common/sample/sampler.h"

#include "common/base/random.h"
#include "common/sample/logprobs.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <numeric>

namespace tandem::sample {
namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

core::TokenId draw(const std::vector<float>& logits, core::SamplingParams params, int index = 0) {
  Sampler sampler(static_cast<std::int32_t>(logits.size()));
  const auto token = sampler.sample({.logits = logits, .params = &params, .output_index = index});
  return token.ok() ? *token : -static_cast<core::TokenId>(token.status().code());
}

TEST(Sampler, GreedyTakesTheLowestIdAmongEqualMaxima) {
  core::SamplingParams greedy;
  greedy.temperature = 0;
  EXPECT_EQ(draw({1, 3, 2, 3}, greedy), 1);
  EXPECT_EQ(draw({-kInf, -kInf, -5}, greedy), 2);
  greedy.logit_bias = {{1, -1.0F}};
  EXPECT_EQ(draw({1, 3, 2, 3}, greedy), 3);
}

TEST(Sampler, BrokenLogitsAreAnErrorInEveryMode) {
  struct Row {
    const char* name;
    float temperature;
    float top_p;
    std::int32_t top_k;
    float min_p;
  };

  for (const Row& row : {Row{"greedy", 0, 1, core::kTopKAll, 0},
                         Row{"plain", 1, 1, core::kTopKAll, 0},
                         Row{"top_p", 1, 0.5F, core::kTopKAll, 0},
                         Row{"top_k", 1, 1, 2, 0},
                         Row{"min_p", 1, 1, core::kTopKAll, 0.5F}}) {
    SCOPED_TRACE(row.name);
    core::SamplingParams params;
    params.temperature = row.temperature;
    params.top_p = row.top_p;
    params.top_k = row.top_k;
    params.min_p = row.min_p;
    EXPECT_EQ(draw({1, kNan, 2}, params), -static_cast<int>(Code::kInternal));
    EXPECT_EQ(draw({1, kInf, 2}, params), -static_cast<int>(Code::kInternal));
    EXPECT_EQ(draw({-kInf, -kInf}, params), -static_cast<int>(Code::kInternal));
    EXPECT_EQ(draw({-kInf, 2, -kInf}, params), 1);
  }
}

TEST(Sampler, NoiseIsAFunctionOfSeedAndPositionAlone) {
  Random random(5);
  std::vector<float> logits(300);
  for (float& logit : logits)
    logit = static_cast<float>(random.uniform() * 4);
  core::SamplingParams params;
  params.seed = 42;
  int differs = 0;
  for (int index = 0; index < 50; ++index) {
    const auto token = draw(logits, params, index);
    EXPECT_EQ(token, draw(logits, params, index));
    differs += token != draw(logits, params, index + 1) ? 1 : 0;
  }
  EXPECT_GT(differs, 40);
}

TEST(Sampler, MinNewTokensMasksEndIdsUntilReached) {
  core::SamplingParams params;
  params.temperature = 0;
  params.min_new_tokens = 2;
  const std::vector<float> logits{0, 9, 1};
  const std::vector<core::TokenId> ends{1};
  Sampler sampler(3);
  for (int index = 0; index < 4; ++index) {
    const auto token = sampler.sample(
        {.logits = logits, .params = &params, .end_ids = ends, .output_index = index});
    EXPECT_EQ(*token, index < 2 ? 2 : 1);
  }
}

TEST(Sampler, APenaltyMayLeaveTheRangeOfFloats) {
  core::SamplingParams params;
  params.temperature = 0;
  params.repetition_penalty = 1e-39F;
  ASSERT_TRUE(params.validate(4).ok());
  Sampler sampler(4);
  const auto token = [&](const std::vector<float>& logits, const TokenCounts& counts) {
    return sampler.sample({.logits = logits, .params = &params, .counts = &counts});
  };
  EXPECT_EQ(*token({1, 3, 2, 3}, {{2, 1}}), 2);
  EXPECT_EQ(token({1, kInf, 2, 3}, {{1, 1}}).status().code(), Code::kInternal);
  params.repetition_penalty = 2;
  EXPECT_EQ(*token({-3e38F, -kInf, -kInf, -kInf}, {{0, 1}}), 0);
}

/// The cut of every mode against a full sort.
TEST(Sampler, CandidatesAgreeWithAFullSort) {
  Random random(77);
  for (int round = 0; round < 300; ++round) {
    SCOPED_TRACE("round " + std::to_string(round));
    const auto vocab = static_cast<std::size_t>(2 + random.below(3000));
    std::vector<float> logits(vocab);
    const double scale = random.chance(0.5) ? 1 : 8;
    for (float& logit : logits)
      logit = static_cast<float>(random.uniform() * scale);
    if (random.chance(0.3)) {
      for (float& logit : logits)
        logit = std::round(logit);  // many equal ones
    }
    core::SamplingParams params;
    params.temperature = static_cast<float>(0.2 + random.uniform());
    if (random.chance(0.6)) params.top_k = static_cast<std::int32_t>(1 + random.below(2000));
    if (random.chance(0.6)) params.top_p = static_cast<float>(0.01 + 0.98 * random.uniform());
    if (random.chance(0.4)) params.min_p = static_cast<float>(0.3 * random.uniform());

    std::vector<double> weights(vocab);
    const auto largest = static_cast<double>(*std::max_element(logits.begin(), logits.end()));
    for (std::size_t i = 0; i < vocab; ++i) {
      weights[i] = std::exp((static_cast<double>(logits[i]) - largest) /
                            static_cast<double>(params.temperature));
    }
    std::vector<core::TokenId> order(vocab);
    std::iota(order.begin(), order.end(), 0);
    std::stable_sort(order.begin(), order.end(), [&](auto a, auto b) {
      return weights[static_cast<std::size_t>(a)] > weights[static_cast<std::size_t>(b)];
    });
    const double mass = std::accumulate(weights.begin(), weights.end(), 0.0);
    std::vector<core::TokenId> want;
    double passed = 0;
    for (std::size_t rank = 0; rank < vocab; ++rank) {
      const double weight = weights[static_cast<std::size_t>(order[rank])];
      const bool keep =
          static_cast<std::int64_t>(rank) < params.top_k &&
          (params.top_p >= 1.0F || passed <= static_cast<double>(params.top_p) * mass) &&
          weight >= static_cast<double>(params.min_p);
      if (rank > 0 && !keep) break;
      want.push_back(order[rank]);
      passed += weight;
    }
    Sampler sampler(static_cast<std::int32_t>(vocab));
    const auto got = sampler.candidates({.logits = logits, .params = &params});
    ASSERT_TRUE(got.ok());
    std::vector<core::TokenId> ids(got->ids.begin(), got->ids.end());
    std::sort(ids.begin(), ids.end());
    std::sort(want.begin(), want.end());
    ASSERT_EQ(ids, want);
  }
}

/// A row as the model might give it: some with many equal logits, masked ids, few likely ones.
std::vector<float> random_row(Random& random, std::size_t vocab) {
  std::vector<float> logits(vocab);
  const double scale = random.chance(0.5) ? 4 : 30;
  for (float& logit : logits)
    logit = static_cast<float>((random.uniform() - random.uniform()) * scale);
  if (random.chance(0.3)) {
    for (float& logit : logits)
      logit = std::round(logit);
  }
  if (random.chance(0.3)) {
    for (float& logit : logits)
      logit = random.chance(0.5) ? -kInf : logit;
    logits[random.below(vocab)] = 1;
  }
  return logits;
}

TEST(Sampler, GreedyAgreesWithPlainCodeOnEverySize) {
  Random random(6);
  core::SamplingParams greedy;
  greedy.temperature = 0;
  for (std::size_t vocab = 1; vocab < 300; ++vocab) {
    SCOPED_TRACE("vocabulary " + std::to_string(vocab));
    const auto logits = random_row(random, vocab);
    const auto best = std::max_element(logits.begin(), logits.end());
    EXPECT_EQ(draw(logits, greedy), best - logits.begin());
  }
}

/// sample() looks only at parts of what candidates() lists; both must mean the same draw.
TEST(Sampler, DrawInvertsTheSumOfAllCandidates) {
  Random random(78);
  int far = 0;
  for (int round = 0; round < 400; ++round) {
    SCOPED_TRACE("round " + std::to_string(round));
    const auto vocab = static_cast<std::size_t>(2 + random.below(6000));
    const auto logits = random_row(random, vocab);
    core::SamplingParams params;
    params.seed = random.next();
    params.temperature = static_cast<float>(0.1 + 3 * random.uniform());
    if (random.chance(0.5)) params.top_k = static_cast<std::int32_t>(1 + random.below(4000));
    if (random.chance(0.5)) params.top_p = static_cast<float>(0.5 + 0.5 * random.uniform());
    if (random.chance(0.1)) params.top_p = 0.9999999F;
    if (random.chance(0.3)) params.min_p = static_cast<float>(0.1 * random.uniform());
    Sampler sampler(static_cast<std::int32_t>(vocab));
    const auto list = sampler.candidates({.logits = logits, .params = &params});
    ASSERT_TRUE(list.ok());
    const std::vector<core::TokenId> ids(list->ids.begin(), list->ids.end());
    const std::vector<double> weights(list->weights.begin(), list->weights.end());
    for (int index = 0; index < 8; ++index) {
      const double target = std::accumulate(weights.begin(), weights.end(), 0.0) *
                            counter_uniform(params.seed, static_cast<std::uint64_t>(index), 0);
      std::size_t want = 0;
      for (double passed = weights[0]; passed <= target && want + 1 < ids.size();)
        passed += weights[++want];
      far += want > 1000 ? 1 : 0;
      EXPECT_EQ(*sampler.sample({.logits = logits, .params = &params, .output_index = index}),
                ids[want]);
    }
  }
  EXPECT_GT(far, 50);
}

/// Rows of which each draws from another end of its noise: the ends of blocks and parts count too.
TEST(Sampler, EqualLogitsAreDrawnAlikeFromEndToEnd) {
  constexpr std::size_t kVocab = 3 * 64 + 5;
  const std::vector<float> logits(kVocab, 2.5F);
  for (const std::int32_t top_k : {core::kTopKAll, 100, 1500}) {
    SCOPED_TRACE("top_k " + std::to_string(top_k));
    core::SamplingParams params;
    params.top_k = top_k;
    params.top_p = top_k == core::kTopKAll ? 1.0F : 0.999F;
    const std::size_t kept = std::min(kVocab, static_cast<std::size_t>(top_k));
    std::vector<int> counts(kVocab);
    Sampler sampler(static_cast<std::int32_t>(kVocab));
    for (int index = 0; index < 100 * static_cast<int>(kVocab); ++index) {
      ++counts[static_cast<std::size_t>(
          *sampler.sample({.logits = logits, .params = &params, .output_index = index}))];
    }
    for (std::size_t id = 0; id < kept; ++id)
      EXPECT_GT(counts[id], 40) << id;
    for (std::size_t id = kept; id < kVocab; ++id)
      EXPECT_EQ(counts[id], 0) << id;
  }
}

TEST(Sampler, FrequenciesFollowTheDistribution) {
  const std::vector<float> logits{std::log(0.5F), std::log(0.3F), std::log(0.15F), std::log(0.05F)};
  core::SamplingParams params;
  std::vector<int> counts(4);
  constexpr int kDraws = 20000;
  Sampler sampler(4);
  for (int i = 0; i < kDraws; ++i) {
    params.seed = static_cast<std::uint64_t>(i) * 7919;
    ++counts[static_cast<std::size_t>(
        *sampler.sample({.logits = logits, .params = &params, .output_index = i % 97}))];
  }
  const double want[] = {0.5, 0.3, 0.15, 0.05};
  for (std::size_t i = 0; i < 4; ++i) {
    // Five standard deviations of a binomial count.
    const double deviation = std::sqrt(kDraws * want[i] * (1 - want[i]));
    EXPECT_NEAR(counts[i], kDraws * want[i], 5 * deviation) << i;
  }
}

Result<core::TokenLogprob> logprob_of(const std::vector<float>& logits,
                                      core::TokenId token,
                                      std::int32_t top_count) {
  RowScan scan(static_cast<std::int32_t>(logits.size()));
  return token_logprob(scan, logits, token, top_count);
}

TEST(Logprobs, AreCloseToExactOnesAtEverySize) {
  Random random(8);
  for (std::size_t vocab = 2; vocab < 400; vocab += 3) {
    SCOPED_TRACE("vocabulary " + std::to_string(vocab));
    std::vector<float> logits(vocab);
    for (float& logit : logits)
      logit = static_cast<float>(random.uniform() * 9);
    const auto token = random.below(vocab);
    long double sum = 0;
    for (const float logit : logits)
      sum += std::exp(static_cast<long double>(logit));
    const auto want = static_cast<double>(static_cast<long double>(logits[token]) - std::log(sum));
    const auto got = logprob_of(logits, static_cast<core::TokenId>(token), 3);
    // Half a step of a float below 16.
    EXPECT_NEAR(*got->logprob, want, 0x1p-21);
    auto sorted = logits;
    std::sort(sorted.begin(), sorted.end(), std::greater<>());
    for (std::size_t i = 0; i < got->top.size(); ++i)
      EXPECT_EQ(logits[static_cast<std::size_t>(got->top[i].first)], sorted[i]);
  }
}

TEST(RowScan, KeysOrderByLogitThenById) {
  const std::vector<float> rising{-kInf, -3e38F, -2, -0x1p-140F, 0, 0x1p-140F, 2, 3e38F, kInf};
  for (std::size_t i = 0; i < rising.size(); ++i) {
    EXPECT_EQ(logit_of(rank_key(rising[i], 7)), rising[i]);
    EXPECT_EQ(id_of(rank_key(rising[i], 7)), 7);
    if (i > 0) {
      EXPECT_LT(rank_key(rising[i], 9), rank_key(rising[i - 1], 2));
    }
    EXPECT_LT(rank_key(rising[i], 2), rank_key(rising[i], 9));
  }
  EXPECT_EQ(rank_key(0.0F, 3), rank_key(-0.0F, 3));
}

TEST(Logprobs, TokenAndBestAlternatives) {
  const std::vector<float> logits{0, 2, 1, 2};
  const auto got = logprob_of(logits, 2, 3);
  ASSERT_TRUE(got.ok());
  const double log_sum = std::log(1 + 2 * std::exp(2.0) + std::exp(1.0));
  EXPECT_NEAR(*got->logprob, 1 - log_sum, 1e-6);
  ASSERT_EQ(got->top.size(), 3U);
  EXPECT_EQ(got->top[0].first, 1);
  EXPECT_EQ(got->top[1].first, 3);
  EXPECT_EQ(got->top[2].first, 2);
  EXPECT_EQ(got->top[2].second, *got->logprob);
  EXPECT_EQ(logprob_of(logits, 0, 100)->top.size(), 4U);
  EXPECT_FALSE(logprob_of(std::vector<float>{0, kNan}, 0, 0).ok());
  EXPECT_FALSE(logprob_of(std::vector<float>{-kInf, -kInf}, 0, 0).ok());
  EXPECT_EQ(*logprob_of(std::vector<float>{0, -kInf}, 1, 0)->logprob, -kInf);
}

}  // namespace
}  // namespace tandem::sample
