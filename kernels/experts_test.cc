// Mixture of experts: which experts a token gets, and that its sums are the same bits whoever else
// is in the batch.
#include "kernels/test_util.h"

#include <algorithm>
#include <cmath>
#include <numeric>

namespace tandem::kernels {
namespace {

using testing::kInf;
using testing::kNan;
using testing::Matrix;
using testing::Rng;
using testing::rounds_inputs;
using testing::same_bits;

std::vector<const Backend*> all_backends() {
  std::vector<const Backend*> backends = testing::vector_backends();
  backends.push_back(&testing::reference());
  return backends;
}

struct Routed {
  std::vector<std::int32_t> ids;
  std::vector<float> weights;
};

Routed route(const Backend& backend,
             const std::vector<float>& logits,
             std::size_t experts,
             std::size_t top_k,
             bool normalize,
             ThreadPool& pool) {
  const std::size_t tokens = logits.size() / experts;
  Routed out{std::vector<std::int32_t>(tokens * top_k, -7),
             std::vector<float>(tokens * top_k, -7.0F)};
  backend.route({.logits = logits.data(),
                 .tokens = tokens,
                 .experts = experts,
                 .top_k = top_k,
                 .normalize = normalize,
                 .ids = out.ids.data(),
                 .weights = out.weights.data()},
                pool);
  return out;
}

TEST(Route, TakesTheLargestAndGivesTheirProbabilities) {
  ThreadPool pool(2);
  // softmax of log(1), log(4), log(2), log(3): tenths.
  const std::vector<float> logits = {
      std::log(1.0F), std::log(4.0F), std::log(2.0F), std::log(3.0F)};
  for (const Backend* backend : all_backends()) {
    SCOPED_TRACE(family_name(backend->family()));
    const Routed whole = route(*backend, logits, 4, 3, false, pool);
    EXPECT_EQ(whole.ids, (std::vector<std::int32_t>{1, 3, 2}));
    const float tenths[] = {0.4F, 0.3F, 0.2F};
    for (std::size_t r = 0; r < 3; ++r)
      EXPECT_NEAR(whole.weights[r], tenths[r], 1e-6F);
    const Routed normalized = route(*backend, logits, 4, 3, true, pool);
    EXPECT_EQ(normalized.ids, whole.ids);
    const float ninths[] = {4 / 9.0F, 3 / 9.0F, 2 / 9.0F};
    for (std::size_t r = 0; r < 3; ++r)
      EXPECT_NEAR(normalized.weights[r], ninths[r], 1e-6F);
  }
}

TEST(Route, TheLowerIdWinsTies) {
  ThreadPool pool(1);
  std::vector<float> logits(40, 1.0F);
  logits[17] = 2.0F;
  logits[30] = 2.0F;
  for (const Backend* backend : all_backends()) {
    SCOPED_TRACE(family_name(backend->family()));
    EXPECT_EQ(route(*backend, logits, 40, 5, true, pool).ids,
              (std::vector<std::int32_t>{17, 30, 0, 1, 2}));
  }
}

TEST(Route, MatchesTheReferenceAloneAndInABatch) {
  ThreadPool one(1);
  ThreadPool three(3);
  for (const auto& [experts, top_k] : {std::pair<std::size_t, std::size_t>{1, 1},
                                       {8, 2},
                                       {15, 15},
                                       {128, 8},
                                       {kMaxExperts, kMaxExperts}}) {
    Rng rng(experts);
    constexpr std::size_t kTokens = 37;
    const std::vector<float> logits = rng.reals(kTokens * experts, 9.0F);
    for (const bool normalize : {false, true}) {
      const Routed want = route(testing::reference(), logits, experts, top_k, normalize, one);
      Routed first;
      for (const Backend* backend : testing::vector_backends()) {
        SCOPED_TRACE(std::string(family_name(backend->family())) + " " + std::to_string(experts));
        const Routed got = route(*backend, logits, experts, top_k, normalize, three);
        ASSERT_EQ(got.ids, want.ids);
        // exp to about 1 ulp, and a sum of as many of them.
        for (std::size_t i = 0; i < got.weights.size(); ++i)
          ASSERT_NEAR(got.weights[i], want.weights[i], 4e-6F * want.weights[i]);
        if (first.ids.empty()) first = got;
        EXPECT_TRUE(same_bits(got.weights, first.weights)) << "families differ";
        const std::vector<float> row(logits.begin() + static_cast<std::ptrdiff_t>(5 * experts),
                                     logits.begin() + static_cast<std::ptrdiff_t>(6 * experts));
        const Routed alone = route(*backend, row, experts, top_k, normalize, one);
        EXPECT_TRUE(same_bits(alone.weights, testing::pick(got.weights, {5}, top_k)));
      }
    }
  }
}

TEST(Route, RowsThatAreNotFiniteStayAmongThemselves) {
  ThreadPool pool(1);
  constexpr std::size_t kExperts = 20;
  Rng rng(3);
  std::vector<float> logits = rng.reals(5 * kExperts);
  logits[kExperts + 19] = kNan;
  std::fill_n(logits.begin() + 2 * kExperts, kExperts, kNan);
  logits[3 * kExperts + 2] = kInf;
  logits[4 * kExperts + 2] = -kInf;
  for (const Backend* backend : all_backends()) {
    SCOPED_TRACE(family_name(backend->family()));
    const Routed got = route(*backend, logits, kExperts, 3, true, pool);
    for (std::size_t t = 0; t < 5; ++t) {
      const bool bad = t >= 1 && t <= 3;
      for (std::size_t r = 0; r < 3; ++r) {
        EXPECT_EQ(std::isnan(got.weights[t * 3 + r]), bad) << t;
        EXPECT_TRUE(!bad || got.ids[t * 3 + r] == static_cast<std::int32_t>(r)) << t;
        EXPECT_TRUE(t != 4 || got.ids[t * 3 + r] != 2);
      }
    }
  }
}

/// The experts of one layer, and the tokens that go to them.
struct Problem {
  std::size_t tokens;
  std::size_t experts;
  std::size_t top_k;
  std::size_t hidden;
  std::size_t inner;
};

struct Experts {
  std::unique_ptr<PackedWeight> gate;
  std::unique_ptr<PackedWeight> up;
  std::unique_ptr<PackedWeight> down;
};

/// The same values for every backend and format.
Experts pack_experts(const Backend& backend,
                     const Problem& p,
                     WeightFormat format,
                     ThreadPool& pool) {
  Rng rng(p.hidden * 31 + p.inner);
  const auto stack = [&](std::size_t n, std::size_t k) {
    std::vector<Matrix> matrices;
    std::vector<MatrixView> views;
    matrices.reserve(p.experts);
    for (std::size_t e = 0; e < p.experts; ++e) {
      const std::vector<float> values = rng.reals(n * k, 2.0F / std::sqrt(static_cast<float>(k)));
      matrices.emplace_back(n, k, DType::kF32, values, e % 2 != 0);
      views.push_back(matrices.back().view());
    }
    const WeightFormat store = testing::had(backend, format, k);
    auto packed = backend.pack_stack(views, store, pool);
    EXPECT_EQ(packed->count(), p.experts);
    EXPECT_EQ(packed->bytes(), stacked_bytes(p.experts, backend.packed_bytes(n, k, store)));
    return packed;
  };
  Experts out;
  out.gate = stack(p.inner, p.hidden);
  out.up = stack(p.inner, p.hidden);
  out.down = stack(p.hidden, p.inner);
  return out;
}

/// Tokens, their experts, and what they are added to.
struct Input {
  std::vector<float> x;
  std::vector<float> y;
  Routed routed;
};

Input make_input(const Problem& p) {
  ThreadPool pool(1);
  Rng rng(p.tokens + 5);
  // The first experts are more popular: groups of all sizes, some empty.
  std::vector<float> logits = rng.reals(p.tokens * p.experts, 2.0F);
  for (std::size_t i = 0; i < logits.size(); ++i)
    logits[i] -= static_cast<float>(i % p.experts) * 0.3F;
  Input in;
  in.x = rng.reals(p.tokens * p.hidden);
  in.y = rng.reals(p.tokens * p.hidden);
  in.routed = route(testing::reference(), logits, p.experts, p.top_k, true, pool);
  return in;
}

Input some(const Input& in, const Problem& p, const std::vector<std::size_t>& tokens) {
  Input out;
  out.x = testing::pick(in.x, tokens, p.hidden);
  out.y = testing::pick(in.y, tokens, p.hidden);
  out.routed.weights = testing::pick(in.routed.weights, tokens, p.top_k);
  for (const std::size_t t : tokens) {
    out.routed.ids.insert(out.routed.ids.end(),
                          in.routed.ids.begin() + static_cast<std::ptrdiff_t>(t * p.top_k),
                          in.routed.ids.begin() + static_cast<std::ptrdiff_t>((t + 1) * p.top_k));
  }
  return out;
}

std::vector<float> run(const Backend& backend,
                       const Experts& experts,
                       const Problem& p,
                       const Input& in,
                       ThreadPool& pool) {
  const std::size_t tokens = in.x.size() / p.hidden;
  const std::size_t rows = tokens * p.top_k;
  // What the op works in starts as NaN: nothing of it may be read before it is written.
  std::vector<float> inner(rows * 2 * p.inner, kNan);
  std::vector<std::int32_t> sorted(rows, -1);
  std::vector<float> sorted_weights(rows, kNan);
  std::vector<float> y = in.y;
  backend.expert_mlp({.x = in.x.data(),
                      .gate = experts.gate.get(),
                      .up = experts.up.get(),
                      .down = experts.down.get(),
                      .ids = in.routed.ids.data(),
                      .weights = in.routed.weights.data(),
                      .tokens = tokens,
                      .top_k = p.top_k,
                      .y = y.data(),
                      .inner = inner.data(),
                      .rows = sorted.data(),
                      .row_weights = sorted_weights.data()},
                     pool);
  return y;
}

constexpr WeightFormat kFormats[] = {DType::kF32,
                                     DType::kF16,
                                     DType::kBf16,
                                     WeightScheme::kInt8,
                                     WeightScheme::kInt4Group128,
                                     WeightScheme::kInt8Dynamic,
                                     WeightScheme::kShortBf16};

std::string name_of(const Backend& backend, std::size_t format) {
  const char* names[] = {"f32", "f16", "bf16", "int8", "int4", "int8 dynamic", "short bf16"};
  return std::string(family_name(backend.family())) + " " + names[format];
}

double largest_difference(const std::vector<float>& a, const std::vector<float>& b) {
  double largest = 0;
  for (std::size_t i = 0; i < a.size(); ++i) {
    const double difference = std::abs(static_cast<double>(a[i]) - static_cast<double>(b[i]));
    largest = std::isnan(difference) ? 1e30 : std::max(largest, difference);
  }
  return largest;
}

/// The MLPs from the ops that are tested by themselves: products with single weights, silu_mul.
std::vector<float> by_single_ops(const Backend& backend,
                                 const Problem& p,
                                 WeightFormat format,
                                 const Input& in,
                                 ThreadPool& pool) {
  Rng rng(p.hidden * 31 + p.inner);
  const auto weights = [&](std::size_t n, std::size_t k) {
    std::vector<std::unique_ptr<PackedWeight>> out;
    for (std::size_t e = 0; e < p.experts; ++e) {
      const Matrix matrix(
          n, k, DType::kF32, rng.reals(n * k, 2.0F / std::sqrt(static_cast<float>(k))));
      const MatrixView view = matrix.view();
      out.push_back(backend.pack({&view, 1}, testing::had(backend, format, k), pool));
    }
    return out;
  };
  const auto gate = weights(p.inner, p.hidden);
  const auto up = weights(p.inner, p.hidden);
  const auto down = weights(p.hidden, p.inner);
  std::vector<float> y = in.y;
  for (std::size_t t = 0; t < p.tokens; ++t) {
    std::vector<std::size_t> ranks(p.top_k);
    std::iota(ranks.begin(), ranks.end(), t * p.top_k);
    std::sort(ranks.begin(), ranks.end(), [&](std::size_t a, std::size_t b) {
      return in.routed.ids[a] < in.routed.ids[b];
    });
    for (const std::size_t rank : ranks) {
      const auto e = static_cast<std::size_t>(in.routed.ids[rank]);
      std::vector<float> gated(p.inner);
      std::vector<float> upped(p.inner);
      std::vector<float> out(p.hidden);
      const float* x = in.x.data() + t * p.hidden;
      backend.linear({.x = x, .weight = gate[e].get(), .y = gated.data(), .tokens = 1}, pool);
      backend.linear({.x = x, .weight = up[e].get(), .y = upped.data(), .tokens = 1}, pool);
      backend.silu_mul({.gate = gated.data(),
                        .up = upped.data(),
                        .out = gated.data(),
                        .tokens = 1,
                        .dim = p.inner},
                       pool);
      backend.linear({.x = gated.data(), .weight = down[e].get(), .y = out.data(), .tokens = 1},
                     pool);
      for (std::size_t i = 0; i < p.hidden; ++i) {
        const float term = in.routed.weights[rank] * out[i];
        y[t * p.hidden + i] += term;
      }
    }
  }
  return y;
}

// To the bit: the documented order of sums, from ops that have their own tests.
TEST(ExpertMlp, IsItsProductsAddedByRisingExpert) {
  const Problem problems[] = {{1, 1, 1, 16, 16},
                              {1, 8, 2, 64, 48},
                              {3, 8, 8, 33, 17},
                              {29, 6, 3, 50, 31},
                              {64, 5, 2, 130, 129}};
  ThreadPool pool(2);
  for (const Backend* backend : testing::vector_backends()) {
    for (const Problem& p : problems) {
      const Input in = make_input(p);
      for (std::size_t f = 0; f < std::size(kFormats); ++f) {
        SCOPED_TRACE(name_of(*backend, f) + " T=" + std::to_string(p.tokens) +
                     " H=" + std::to_string(p.hidden));
        const Experts experts = pack_experts(*backend, p, kFormats[f], pool);
        EXPECT_TRUE(same_bits(run(*backend, experts, p, in, pool),
                              by_single_ops(*backend, p, kFormats[f], in, pool)));
      }
    }
  }
}

TEST(ExpertMlp, MatchesTheReference) {
  const Problem p{.tokens = 41, .experts = 9, .top_k = 3, .hidden = 96, .inner = 40};
  const Input in = make_input(p);
  ThreadPool pool(2);
  for (const Backend* backend : testing::vector_backends()) {
    for (std::size_t f = 0; f < std::size(kFormats); ++f) {
      SCOPED_TRACE(name_of(*backend, f));
      const std::vector<float> want = run(testing::reference(),
                                          pack_experts(testing::reference(), p, kFormats[f], pool),
                                          p,
                                          in,
                                          pool);
      const std::vector<float> got =
          run(*backend, pack_experts(*backend, p, kFormats[f], pool), p, in, pool);
      // Values of order 1: three chained products of up to 96 terms. Tiles and
      // pairs round their inputs to bf16 (2^-9 each); a rounding of inputs to 8 bit may fall to the
      // other side (a step is 1/127 of the largest).
      const bool tiles = rounds_inputs(*backend, kFormats[f]);
      const bool dynamic = rounds_to_bytes(kFormats[f].scheme);
      EXPECT_LT(largest_difference(got, want), tiles ? 0.05 : dynamic ? 0.03 : 2e-5);
      EXPECT_GT(largest_difference(got, in.y), 0.1) << "the experts add something";
    }
  }
}

TEST(ExpertMlp, RowsAreTheSameBitsInEveryBatchThreadCountAndFamily) {
  const Problem p{.tokens = 150, .experts = 7, .top_k = 3, .hidden = 80, .inner = 72};
  const Input in = make_input(p);
  ThreadPool one(1);
  ThreadPool five(5);
  for (std::size_t f = 0; f < std::size(kFormats); ++f) {
    std::vector<float> first;
    for (const Backend* backend : all_backends()) {
      SCOPED_TRACE(name_of(*backend, f));
      const Experts experts = pack_experts(*backend, p, kFormats[f], five);
      const std::vector<float> whole = run(*backend, experts, p, in, one);
      EXPECT_TRUE(same_bits(run(*backend, experts, p, in, five), whole));
      // amx and avx512_bf16 have numbers of their own for bf16 and weights of 8 and 4 bit, and the
      // reference for everything.
      const bool shared =
          backend->family() != Family::kReference && !rounds_inputs(*backend, kFormats[f]);
      if (shared && first.empty()) first = whole;
      EXPECT_TRUE(!shared || same_bits(whole, first)) << "families differ";
      Rng rng(11);
      for (const std::size_t count : {1U, 2U, 5U, 16U, 90U}) {
        std::vector<std::size_t> tokens(count);
        for (std::size_t& t : tokens)
          t = rng.below(p.tokens);
        EXPECT_TRUE(same_bits(run(*backend, experts, p, some(in, p, tokens), five),
                              testing::pick(whole, tokens, p.hidden)))
            << count << " tokens";
      }
    }
  }
}

TEST(ExpertMlp, StridesNoTokensAndNanInOneRow) {
  const Problem p{.tokens = 9, .experts = 4, .top_k = 2, .hidden = 40, .inner = 24};
  Input in = make_input(p);
  ThreadPool pool(2);
  constexpr std::size_t kStride = 57;
  for (const Backend* backend : all_backends()) {
    SCOPED_TRACE(family_name(backend->family()));
    const Experts experts = pack_experts(*backend, p, DType::kF32, pool);
    const std::vector<float> want = run(*backend, experts, p, in, pool);
    std::vector<float> x(p.tokens * kStride, kNan);
    std::vector<float> y(p.tokens * kStride, -3.0F);
    for (std::size_t t = 0; t < p.tokens; ++t) {
      std::copy_n(in.x.begin() + static_cast<std::ptrdiff_t>(t * p.hidden),
                  p.hidden,
                  x.begin() + static_cast<std::ptrdiff_t>(t * kStride));
      std::copy_n(in.y.begin() + static_cast<std::ptrdiff_t>(t * p.hidden),
                  p.hidden,
                  y.begin() + static_cast<std::ptrdiff_t>(t * kStride));
    }
    x[4 * kStride + 3] = kNan;
    std::vector<float> inner(p.tokens * p.top_k * 2 * p.inner);
    std::vector<std::int32_t> rows(p.tokens * p.top_k);
    std::vector<float> row_weights(p.tokens * p.top_k);
    ExpertMlpArgs args{.x = x.data(),
                       .x_stride = kStride,
                       .gate = experts.gate.get(),
                       .up = experts.up.get(),
                       .down = experts.down.get(),
                       .ids = in.routed.ids.data(),
                       .weights = in.routed.weights.data(),
                       .tokens = 0,
                       .top_k = p.top_k,
                       .y = y.data(),
                       .y_stride = kStride,
                       .inner = inner.data(),
                       .rows = rows.data(),
                       .row_weights = row_weights.data()};
    const std::vector<float> before = y;
    backend->expert_mlp(args, pool);
    EXPECT_EQ(y, before) << "no tokens";
    args.tokens = p.tokens;
    backend->expert_mlp(args, pool);
    for (std::size_t t = 0; t < p.tokens; ++t) {
      for (std::size_t i = 0; i < kStride; ++i) {
        const float got = y[t * kStride + i];
        if (i >= p.hidden) {
          EXPECT_EQ(got, -3.0F);
        } else if (t == 4) {
          EXPECT_TRUE(std::isnan(got));
        } else {
          EXPECT_EQ(got, want[t * p.hidden + i]);
        }
      }
    }
  }
}

}  // namespace
}  // namespace tandem::kernels
