// Every variant of the passes over logits against plain code, bit for bit, and 2^t against long
// double.
#include "kernels/api/logits.h"

#include "kernels/test_util.h"

#include <algorithm>
#include <cmath>

namespace tandem::kernels {
namespace {

using testing::kInf;
using testing::kNan;
using testing::Rng;

constexpr double kLog2E = 1.4426950408889634;
constexpr std::size_t kSizes[] = {1, 2, 3, 7, 8, 9, 15, 17, 63, 64, 65, 127, 128, 130, 1000, 4097};

struct Variant {
  const char* name;
  const LogitKernels* kernels;
};

/// Those of this machine.
std::vector<Variant> variants() {
  std::vector<Variant> out{{"generic", logit_kernels(Family::kGeneric)}};
  if (const auto* avx2 = logit_kernels(Family::kAvx2)) out.push_back({"avx2", avx2});
  if (const auto* avx512 = logit_kernels(Family::kAvx512)) out.push_back({"avx512", avx512});
  return out;
}

/// Starts one float off vector alignment.
struct Row {
  Row(std::size_t count, std::uint64_t seed, float scale) : data(count + 1) {
    Rng rng(seed);
    for (float& value : data)
      value = scale * rng.real();
    // What real rows hold too: masked ids, both zeros, subnormals.
    if (count > 4) {
      data[1 + rng.below(count)] = -kInf;
      data[1 + rng.below(count)] = -0.0F;
      data[1 + rng.below(count)] = 0x1p-140F;
    }
    std::copy(data.begin() + 1, data.end(), std::back_inserter(values));
    largest = *std::max_element(values.begin(), values.end());
  }

  [[nodiscard]] const float* begin() const { return data.data() + 1; }

  std::vector<float> data;
  std::vector<float> values;
  float largest;
};

TEST(Logits, BlockMaximaAgreeWithPlainCode) {
  for (const Variant& variant : variants()) {
    for (const std::size_t count : kSizes) {
      SCOPED_TRACE(std::string(variant.name) + " size " + std::to_string(count));
      const Row row(count, count, 5);
      std::vector<float> maxima(logit_blocks(count) + 1, 77.0F);
      EXPECT_TRUE(variant.kernels->block_maxima(row.begin(), count, maxima.data()));
      for (std::size_t b = 0; b < logit_blocks(count); ++b) {
        const auto from = row.values.begin() + static_cast<std::ptrdiff_t>(b * kLogitBlock);
        const auto size = std::min(kLogitBlock, count - b * kLogitBlock);
        EXPECT_EQ(maxima[b], *std::max_element(from, from + static_cast<std::ptrdiff_t>(size)));
      }
      EXPECT_EQ(maxima.back(), 77.0F);
    }
  }
}

TEST(Logits, NanIsFoundAtEveryPlaceAndInfinityIsNot) {
  for (const Variant& variant : variants()) {
    SCOPED_TRACE(variant.name);
    constexpr std::size_t kCount = 197;
    std::vector<float> maxima(logit_blocks(kCount));
    for (std::size_t at = 0; at < kCount; ++at) {
      std::vector<float> values(kCount, -3.0F);
      values[at] = kInf;
      EXPECT_TRUE(variant.kernels->block_maxima(values.data(), kCount, maxima.data()));
      EXPECT_EQ(maxima[at / kLogitBlock], kInf);
      values[at] = kNan;
      EXPECT_FALSE(variant.kernels->block_maxima(values.data(), kCount, maxima.data())) << at;
      values[at] = -kNan;
      EXPECT_FALSE(variant.kernels->block_maxima(values.data(), kCount, maxima.data())) << at;
    }
  }
}

TEST(Logits, WeightsAreCloseToExactPowers) {
  for (const Variant& variant : variants()) {
    for (const double temperature : {1.0, 0.01, 0.7, 3.0}) {
      SCOPED_TRACE(std::string(variant.name) + " temperature " + std::to_string(temperature));
      const Row row(20000, 9, 12);
      std::vector<double> weights(row.values.size());
      const double scale = kLog2E / temperature;
      variant.kernels->weights(row.begin(), weights.size(), row.largest, scale, weights.data());
      for (std::size_t i = 0; i < weights.size(); ++i) {
        const double t =
            (static_cast<double>(row.values[i]) - static_cast<double>(row.largest)) * scale;
        if (t < kLeastWeight) {
          ASSERT_EQ(weights[i], 0) << t;
        } else {
          const long double exact = std::exp2(static_cast<long double>(t));
          ASSERT_NEAR(static_cast<double>(weights[i] / exact), 1, 0x1p-51) << t;
        }
        if (row.values[i] == row.largest) {
          ASSERT_EQ(weights[i], 1);
        }
      }
    }
  }
}

TEST(Logits, VariantsAgreeBitForBitAndWithTheWrittenOrderOfSums) {
  const LogitKernels& plain = *logit_kernels(Family::kGeneric);
  for (const Variant& variant : variants()) {
    for (const std::size_t count : kSizes) {
      for (const double temperature : {1.0, 0.001}) {
        SCOPED_TRACE(std::string(variant.name) + " size " + std::to_string(count));
        const Row row(count, count + 3, 6);
        const double scale = kLog2E / temperature;
        std::vector<float> maxima(logit_blocks(count));
        ASSERT_TRUE(plain.block_maxima(row.begin(), count, maxima.data()));
        std::vector<double> want(count);
        plain.weights(row.begin(), count, row.largest, scale, want.data());
        std::vector<double> weights(count + 1, 77.0);
        variant.kernels->weights(row.begin(), count, row.largest, scale, weights.data());
        EXPECT_EQ(weights.back(), 77.0);
        weights.pop_back();
        EXPECT_EQ(weights, want);
        std::vector<double> sums(logit_blocks(count));
        variant.kernels->weight_sums(
            row.begin(), count, maxima.data(), row.largest, scale, sums.data());
        for (std::size_t b = 0; b < sums.size(); ++b) {
          double lane[16] = {};
          for (std::size_t i = b * kLogitBlock; i < std::min(count, (b + 1) * kLogitBlock); ++i)
            lane[i % 16] += want[i];
          for (const std::size_t half : {8U, 4U, 2U, 1U}) {
            for (std::size_t i = 0; i < half; ++i)
              lane[i] += lane[i + half];
          }
          EXPECT_EQ(sums[b], lane[0]) << "block " << b;
        }
      }
    }
  }
}

}  // namespace
}  // namespace tandem::kernels
