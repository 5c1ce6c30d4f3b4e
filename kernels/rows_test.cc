#include "kernels/test_util.h"

#include <algorithm>
#include <cmath>

namespace tandem::kernels {
namespace {

using testing::kInf;
using testing::kNan;
using testing::Matrix;
using testing::Rng;
using testing::same_bits;

constexpr std::size_t kSizes[] = {1, 2, 7, 8, 15, 16, 17, 31, 32, 33, 63, 64, 65, 128, 200};

std::string label(const Backend& backend, std::size_t size) {
  return std::string(family_name(backend.family())) + " size " + std::to_string(size);
}

void expect_near(const std::vector<float>& got,
                 const std::vector<float>& want,
                 double relative,
                 double absolute) {
  ASSERT_EQ(got.size(), want.size());
  for (std::size_t i = 0; i < want.size(); ++i) {
    const double limit = relative * std::abs(static_cast<double>(want[i])) + absolute;
    ASSERT_NEAR(static_cast<double>(got[i]), static_cast<double>(want[i]), limit) << i;
  }
}

// One row of floats that starts one float off vector alignment.
struct Rows {
  Rows(std::size_t rows, std::size_t dim, std::uint64_t seed, float scale = 1.0F)
      : data(rows * dim + 1) {
    Rng rng(seed);
    for (float& value : data)
      value = scale * rng.real();
  }

  float* begin() { return data.data() + 1; }

  std::vector<float> data;
};

TEST(RmsNorm, MatchesTheReferenceAloneAndInABatch) {
  ThreadPool one(1);
  ThreadPool three(3);
  constexpr std::size_t kRows = 9;
  for (const Backend* backend : testing::vector_backends()) {
    for (const std::size_t dim : kSizes) {
      SCOPED_TRACE(label(*backend, dim));
      Rows x(kRows, dim, dim);
      Rows weight(1, dim, dim + 1);
      Rows residual(kRows, dim, dim + 2);
      for (const bool fused : {false, true}) {
        const auto run =
            [&](const Backend& which, std::size_t first, std::size_t rows, ThreadPool& pool) {
              std::vector<float> sums(residual.begin() + first * dim,
                                      residual.begin() + (first + rows) * dim);
              std::vector<float> y(rows * dim);
              which.rms_norm({.x = x.begin() + first * dim,
                              .residual = fused ? sums.data() : nullptr,
                              .weight = weight.begin(),
                              .y = y.data(),
                              .rows = rows,
                              .dim = dim,
                              .eps = 1e-5F},
                             pool);
              y.insert(y.end(), sums.begin(), sums.end());
              return y;
            };
        const std::vector<float> whole = run(*backend, 0, kRows, one);
        expect_near(whole, run(testing::reference(), 0, kRows, one), 1e-6, 1e-7);
        EXPECT_TRUE(same_bits(run(*backend, 0, kRows, three), whole));
        const std::vector<float> alone = run(*backend, 4, 1, three);
        EXPECT_EQ(std::memcmp(alone.data(), whole.data() + 4 * dim, dim * sizeof(float)), 0);
        EXPECT_TRUE(same_bits(run(*select(Family::kGeneric, nullptr), 0, kRows, one), whole));
      }
    }
  }
}

TEST(RmsNorm, InPlaceWithStridesAndExtremeValues) {
  ThreadPool pool(1);
  for (const Backend* backend : testing::vector_backends()) {
    SCOPED_TRACE(family_name(backend->family()));
    std::vector<float> x = {3, 4, 100, kNan, 1, 100, 0, 0, 100};
    const std::vector<float> weight = {1, 2};
    backend->rms_norm({.x = x.data(),
                       .x_stride = 3,
                       .weight = weight.data(),
                       .y = x.data(),
                       .y_stride = 3,
                       .rows = 3,
                       .dim = 2,
                       .eps = 1e-6F},
                      pool);
    EXPECT_NEAR(x[0], 3 / std::sqrt(12.5), 1e-6);
    EXPECT_NEAR(x[1], 2 * 4 / std::sqrt(12.5), 1e-6);
    EXPECT_TRUE(std::isnan(x[3]) && std::isnan(x[4]));
    EXPECT_EQ(x[6], 0.0F);
    EXPECT_EQ(x[2] + x[5] + x[8], 300.0F);
  }
}

TEST(HeadNorm, EqualsRmsNormOfEveryHead) {
  ThreadPool pool(2);
  constexpr std::size_t kTokens = 5;
  constexpr std::size_t kHeads = 3;
  constexpr std::size_t kDim = 24;
  constexpr std::size_t kStride = kHeads * kDim + 10;
  for (const Backend* backend : testing::vector_backends()) {
    SCOPED_TRACE(family_name(backend->family()));
    Rows x(kTokens, kStride, 1);
    Rows weight(1, kDim, 2);
    std::vector<float> want(x.data);
    for (std::size_t t = 0; t < kTokens; ++t) {
      float* row = want.data() + 1 + t * kStride;
      backend->rms_norm({.x = row, .weight = weight.begin(), .y = row, .rows = kHeads, .dim = kDim},
                        pool);
    }
    backend->head_norm({.x = x.begin(),
                        .x_stride = kStride,
                        .weight = weight.begin(),
                        .tokens = kTokens,
                        .heads = kHeads,
                        .head_dim = kDim},
                       pool);
    EXPECT_TRUE(same_bits(x.data, want));
  }
}

TEST(Rope, MatchesTheReference) {
  ThreadPool pool(3);
  constexpr std::size_t kTokens = 6;
  constexpr std::size_t kHeads = 2;
  const std::vector<std::int32_t> positions = {0, 7, 3, 3, 39, 1};
  for (const Backend* backend : testing::vector_backends()) {
    for (const std::size_t head_dim : {2U, 6U, 16U, 30U, 32U, 34U, 64U, 80U, 128U}) {
      for (const std::size_t rotary_dim : {std::size_t{0}, head_dim / 4 * 2}) {
        SCOPED_TRACE(label(*backend, head_dim));
        const std::size_t half = (rotary_dim == 0 ? head_dim : rotary_dim) / 2;
        Rows cos(40, half, 1);
        Rows sin(40, half, 2);
        const Rows x(kTokens, kHeads * head_dim, 3);
        const auto run = [&](const Backend& which) {
          std::vector<float> out = x.data;
          which.rope({.x = out.data() + 1,
                      .positions = positions.data(),
                      .cos = cos.begin(),
                      .sin = sin.begin(),
                      .tokens = kTokens,
                      .heads = kHeads,
                      .head_dim = head_dim,
                      .rotary_dim = rotary_dim},
                     pool);
          return out;
        };
        const std::vector<float> got = run(*backend);
        expect_near(got, run(testing::reference()), 1e-6, 2e-7);
        EXPECT_TRUE(same_bits(got, run(*select(Family::kGeneric, nullptr))));
      }
    }
  }
}

TEST(SiluMul, MatchesTheReferenceOverTheWholeRange) {
  ThreadPool pool(2);
  for (const Backend* backend : testing::vector_backends()) {
    for (const std::size_t dim : kSizes) {
      SCOPED_TRACE(label(*backend, dim));
      constexpr std::size_t kTokens = 4;
      Rows fused(kTokens, 2 * dim, dim, 30.0F);
      const auto run = [&](const Backend& which) {
        std::vector<float> out(kTokens * dim);
        which.silu_mul({.gate = fused.begin(),
                        .up = fused.begin() + dim,
                        .in_stride = 2 * dim,
                        .out = out.data(),
                        .tokens = kTokens,
                        .dim = dim},
                       pool);
        return out;
      };
      const std::vector<float> got = run(*backend);
      expect_near(got, run(testing::reference()), 1e-6, 1e-30);
      EXPECT_TRUE(same_bits(got, run(*select(Family::kGeneric, nullptr))));
    }
  }
}

struct SiluRow {
  const char* name;
  float gate;
  float want;
};

TEST(SiluMul, Extremes) {
  ThreadPool pool(1);
  const SiluRow rows[] = {
      {"zero", 0.0F, 0.0F},
      {"large", 100.0F, 100.0F},
      {"larger", 1e30F, 1e30F},
      {"negative", -200.0F, -0.0F},
      {"infinity", kInf, kInf},
      {"nan", kNan, kNan},
      {"minus inf", -kInf, kNan},
  };
  for (const Backend* backend : testing::vector_backends()) {
    for (const SiluRow& row : rows) {
      SCOPED_TRACE(std::string(row.name) + " " + std::string(family_name(backend->family())));
      std::vector<float> gate(19, row.gate);  // a full vector and a tail
      const std::vector<float> up(19, 1.0F);
      backend->silu_mul(
          {.gate = gate.data(), .up = up.data(), .out = gate.data(), .tokens = 1, .dim = 19}, pool);
      for (const float value : gate) {
        if (std::isnan(row.want)) {
          EXPECT_TRUE(std::isnan(value));
        } else {
          EXPECT_EQ(value, row.want);
        }
      }
    }
  }
}

TEST(Embedding, GathersAndWidensExactly) {
  ThreadPool pool(2);
  constexpr std::size_t kVocab = 11;
  const std::vector<std::int32_t> ids = {10, 0, 3, 3, 9};
  std::vector<const Backend*> backends = testing::vector_backends();
  backends.push_back(&testing::reference());
  for (const Backend* backend : backends) {
    for (const std::size_t hidden : kSizes) {
      for (const DType dtype : {DType::kF32, DType::kF16, DType::kBf16}) {
        SCOPED_TRACE(label(*backend, hidden));
        Rng rng(hidden);
        const Matrix table(kVocab, hidden, dtype, rng.reals(kVocab * hidden, 100.0F), true);
        std::vector<float> out(ids.size() * hidden);
        backend->embedding(
            {.table = table.view(), .ids = ids.data(), .tokens = ids.size(), .out = out.data()},
            pool);
        for (std::size_t t = 0; t < ids.size(); ++t) {
          for (std::size_t i = 0; i < hidden; ++i) {
            ASSERT_EQ(out[t * hidden + i],
                      load_element(table.view(), static_cast<std::size_t>(ids[t]), i));
          }
        }
      }
    }
  }
}

// Every rounding case of the narrow types, through write_kv, against the scalar conversion.
TEST(WriteKv, RoundsLikeTheScalarConversion) {
  ThreadPool pool(1);
  std::vector<float> values = {0.0F,          -0.0F,    1e-45F,   -1e-40F,    1.00390625F,
                               1.01171875F,   2049.0F,  2051.0F,  65504.0F,   65519.9F,
                               65520.0F,      0x1p-24F, 0x1p-25F, 0x1.8p-25F, 0x1.ffep-15F,
                               3.4028235e38F, kInf,     -kInf,    kNan,       -kNan};
  Rng rng(21);
  while (values.size() < 499)
    values.push_back(std::bit_cast<float>(static_cast<std::uint32_t>(rng.next())));
  for (const Backend* backend : testing::vector_backends()) {
    for (const DType dtype : {DType::kF16, DType::kBf16, DType::kF32}) {
      SCOPED_TRACE(label(*backend, dtype_bytes(dtype)));
      testing::Pool kv({.page_size = 1,
                        .kv_heads = 1,
                        .head_dim = values.size(),
                        .dtype = dtype,
                        .lengths = {1}});
      const std::vector<std::int32_t> zero = {0};
      backend->write_kv(
          {.k = values.data(), .v = values.data(), .batch = kv.batch(zero, zero), .kv = kv.layer()},
          pool);
      const std::byte* row = kv.layer().base + kv.layer().layer_offset_bytes;
      for (std::size_t i = 0; i < values.size(); ++i) {
        std::byte want[4];
        store_element(want, dtype, 0, values[i]);
        ASSERT_EQ(std::memcmp(row + i * dtype_bytes(dtype), want, dtype_bytes(dtype)), 0)
            << i << " " << values[i];
        ASSERT_EQ(
            std::memcmp(row + (values.size() + i) * dtype_bytes(dtype), want, dtype_bytes(dtype)),
            0);
      }
    }
  }
}

TEST(PrepareHeads, IsItsOpsOneAfterTheOther) {
  constexpr std::size_t kHeads = 6;
  const std::vector<std::int32_t> sequence = {1, 0, 0, 1, 1};
  const std::vector<std::int32_t> position = {0, 0, 8, 2, 1};
  ThreadPool one(1);
  ThreadPool three(3);
  for (const Backend* backend : testing::vector_backends()) {
    for (const std::size_t dim : {6U, 32U, 50U}) {
      for (const bool norms : {false, true}) {
        SCOPED_TRACE(label(*backend, dim));
        const testing::Pool::Options options = {
            .kv_heads = 2, .head_dim = dim, .dtype = DType::kBf16, .lengths = {9, 3}};
        const std::size_t stride = (kHeads + 2 * options.kv_heads) * dim + 3;
        Rng rng(dim);
        const std::vector<float> qkv = rng.reals(sequence.size() * stride);
        const std::vector<float> weight = rng.reals(2 * dim);
        const std::vector<float> angles = rng.reals(9 * dim);
        const auto run = [&](bool at_once, ThreadPool& threads) {
          std::vector<float> x = qkv;
          const testing::Pool pool(options);
          const PrepareHeadsArgs args = {.q = x.data(),
                                         .k = x.data() + kHeads * dim,
                                         .v = x.data() + (kHeads + options.kv_heads) * dim,
                                         .stride = stride,
                                         .heads = kHeads,
                                         .q_norm = norms ? weight.data() : nullptr,
                                         .k_norm = norms ? weight.data() + dim : nullptr,
                                         .eps = 1e-5F,
                                         .cos = angles.data(),
                                         .sin = angles.data() + 9 * (dim / 2),
                                         .batch = pool.batch(sequence, position),
                                         .kv = pool.layer()};
          if (at_once) {
            backend->prepare_heads(args, threads);
          } else {
            backend->Backend::prepare_heads(args, threads);
          }
          return std::pair(x, pool.memory());
        };
        const auto want = run(false, one);
        EXPECT_FALSE(same_bits(want.first, qkv));
        for (ThreadPool* threads : {&one, &three}) {
          const auto got = run(true, *threads);
          EXPECT_TRUE(same_bits(got.first, want.first));
          EXPECT_EQ(got.second, want.second);
        }
      }
    }
  }
}

TEST(LogSoftmax, MatchesTheReference) {
  std::vector<const Backend*> backends = testing::vector_backends();
  const Backend& generic = *select(Family::kGeneric, nullptr);
  for (const Backend* backend : backends) {
    for (const std::size_t size : {1U, 15U, 16U, 17U, 255U, 256U, 257U, 1000U, 20001U}) {
      SCOPED_TRACE(label(*backend, size));
      Rng rng(size);
      std::vector<float> logits = rng.reals(size, 20.0F);
      if (size > 20) logits[3] = logits[size - 1] = -kInf;
      const LogSoftmaxStats got = backend->log_softmax_stats(logits);
      const LogSoftmaxStats want = testing::reference().log_softmax_stats(logits);
      EXPECT_EQ(got.max, want.max);
      EXPECT_NEAR(got.log_sum, want.log_sum, 2e-6);
      EXPECT_EQ(got.log_sum, generic.log_softmax_stats(logits).log_sum);
      EXPECT_NEAR(got.log_prob(logits[0]), want.log_prob(logits[0]), 2e-6);
    }
    const std::vector<float> nothing(40, -kInf);
    EXPECT_EQ(backend->log_softmax_stats(nothing).max, -kInf);
    EXPECT_EQ(backend->log_softmax_stats({}).max, -kInf);
    EXPECT_TRUE(
        std::isnan(backend->log_softmax_stats(std::vector<float>{1.0F, kNan, 0.0F}).log_sum));
  }
}

struct PickRow {
  const char* name;
  std::vector<float> values;
  std::int32_t best;
  std::vector<std::int32_t> top3;
};

TEST(Argmax, AndTopKPreferTheLowestIdAndSkipNan) {
  const PickRow rows[] = {
      {"empty", {}, -1, {}},
      {"one", {5}, 0, {0}},
      {"ties", {1, 7, 7, 7, 7}, 1, {1, 2, 3}},
      {"falling", {9, 8, 7, 6}, 0, {0, 1, 2}},
      {"rising", {1, 2, 3, 4}, 3, {3, 2, 1}},
      {"nan first", {kNan, 1, 2}, 2, {2, 1}},
      {"all nan", {kNan, kNan}, -1, {}},
      {"minus inf only", {-kInf, -kInf}, 0, {0, 1}},
      {"inf", {1, kInf, kInf}, 1, {1, 2, 0}},
      {"zeros of signs", {-0.0F, 0.0F, -1}, 0, {0, 1, 2}},
  };
  for (const PickRow& row : rows) {
    SCOPED_TRACE(row.name);
    EXPECT_EQ(argmax(row.values), row.best);
    std::vector<TopEntry> top(3);
    top.resize(top_k(row.values, 3, top.data()));
    std::vector<std::int32_t> ids;
    for (const TopEntry& entry : top)
      ids.push_back(entry.id);
    EXPECT_EQ(ids, row.top3);
  }
}

TEST(TopK, EqualsASortForManySizes) {
  Rng rng(77);
  for (const std::size_t size : {1U, 10U, 1000U}) {
    std::vector<float> values(size);
    for (float& value : values)
      value = static_cast<float>(rng.below(50));  // many ties
    std::vector<TopEntry> sorted;
    for (std::size_t i = 0; i < size; ++i)
      sorted.push_back({.id = static_cast<std::int32_t>(i), .value = values[i]});
    std::stable_sort(sorted.begin(), sorted.end(), [](const TopEntry& a, const TopEntry& b) {
      return a.value > b.value;
    });
    for (const std::size_t count : {0U, 1U, 5U, 1000U, 5000U}) {
      std::vector<TopEntry> top(std::min(count, size));
      ASSERT_EQ(top_k(values, count, top.data()), top.size());
      for (std::size_t i = 0; i < top.size(); ++i)
        ASSERT_EQ(top[i].id, sorted[i].id) << size << " " << count;
    }
  }
}

TEST(Select, NamesAndReasons) {
  for (const char* name :
       {"auto", "reference", "generic", "avx2", "avx512", "avx512_bf16", "amx"}) {
    Family family = Family::kAuto;
    ASSERT_TRUE(parse_family(name, &family));
    EXPECT_EQ(family_name(family), name);
    std::string reason;
    const Backend* backend = select(family, &reason);
    EXPECT_EQ(backend == nullptr, !reason.empty());
    if (backend == nullptr) {
      EXPECT_NE(reason.find(name), std::string::npos);
    }
  }
  Family family = Family::kAvx2;
  EXPECT_FALSE(parse_family("sse9", &family));
  EXPECT_EQ(family, Family::kAvx2);
  ASSERT_NE(select(Family::kAuto, nullptr), nullptr);
  EXPECT_EQ(select(Family::kAuto, nullptr)->family(), available_families().back());
}

}  // namespace
}  // namespace tandem::kernels
