#include "common/model/rope.h"

#include "common/model/workspace.h"

#include <gtest/gtest.h>

#include <cmath>
#include <vector>

namespace tandem::model {
namespace {

struct Row {
  const char* name;
  double theta;
  RopeScaling scaling;
  std::vector<double> want;  ///< Computed apart, with the formulas of transformers, in float64.
  double magnitude;
};

std::vector<Row> rows() {
  using Kind = RopeScaling::Kind;
  std::vector<Row> all;
  all.push_back({"plain",
                 10'000,
                 {},
                 {1, 0.316227766, 0.1, 0.0316227766, 0.01, 0.00316227766, 0.001, 0.000316227766},
                 1.0});
  all.push_back(
      {"linear",
       10'000,
       {.kind = Kind::kLinear, .factor = 4},
       {0.25, 0.0790569415, 0.025, 0.00790569415, 0.0025, 0.000790569415, 0.00025, 7.90569415e-05},
       1.0});
  all.push_back({"llama3",
                 500'000,
                 {.kind = Kind::kLlama3,
                  .factor = 8,
                  .original_position_count = 64,
                  .low_freq_factor = 1,
                  .high_freq_factor = 4},
                 {1,
                  0.0794030092,
                  0.00470075387,
                  0.000911583092,
                  0.000176776695,
                  3.4281022e-05,
                  6.64786987e-06,
                  1.28917317e-06},
                 1.0});
  const RopeScaling yarn{.kind = Kind::kYarn, .factor = 4, .original_position_count = 2048};
  const std::vector<double> yarn_want = {
      1, 0.316227766, 0.1, 0.025693506, 0.00625, 0.00138349648, 0.00025, 7.90569415e-05};
  all.push_back({"yarn", 10'000, yarn, yarn_want, 1.13862944});
  RopeScaling whole = yarn;
  whole.truncate = false;
  all.push_back(
      {"yarn without truncation",
       10'000,
       whole,
       {1, 0.316227766, 0.1, 0.0238701923, 0.00505697152, 0.000811290382, 0.00025, 7.90569415e-05},
       1.13862944});
  RopeScaling factor = yarn;
  factor.attention_factor = 0.5;
  all.push_back({"yarn with attention_factor", 10'000, factor, yarn_want, 0.5});
  RopeScaling mscale = yarn;
  mscale.mscale = 0.707;
  mscale.mscale_all_dim = 0.5;
  all.push_back({"yarn with mscale",
                 10'000,
                 mscale,
                 yarn_want,
                 (0.0707 * std::log(4.0) + 1.0) / (0.05 * std::log(4.0) + 1.0)});
  return all;
}

TEST(Rope, FrequenciesFollowTheScaling) {
  for (const Row& row : rows()) {
    SCOPED_TRACE(row.name);
    ModelConfig config;
    config.head_dim = 16;
    config.rope_theta = row.theta;
    config.rope_scaling = row.scaling;
    const RopeTable table = make_rope_table(config);
    ASSERT_EQ(table.inverse_frequency.size(), row.want.size());
    for (std::size_t i = 0; i < row.want.size(); ++i) {
      EXPECT_NEAR(table.inverse_frequency[i], row.want[i], 2e-7 * row.want[i]) << i;
    }
    EXPECT_NEAR(table.magnitude, row.magnitude, 1e-6);
  }
}

// Rows come when they are asked for, in any order, and are then the formula's.
TEST(RopeTables, RowsAreComputedWhenReached) {
  ModelConfig config;
  config.head_dim = 8;
  config.rope_theta = 10'000;
  kernels::ThreadPool pool(2);
  auto tables = RopeTables::make(config, 1000);
  ASSERT_TRUE(tables.ok());
  const std::vector<float> frequency = make_rope_table(config).inverse_frequency;
  const auto is_computed = [&](std::size_t position) {
    for (std::size_t pair = 0; pair < 4; ++pair) {
      const auto angle = static_cast<double>(static_cast<float>(position) * frequency[pair]);
      if (tables->cos()[position * 4 + pair] != static_cast<float>(std::cos(angle))) return false;
      if (tables->sin()[position * 4 + pair] != static_cast<float>(std::sin(angle))) return false;
    }
    return true;
  };
  EXPECT_FALSE(is_computed(0));
  for (const std::int32_t position : {999, 300, 0, 299}) {
    const std::int32_t batch[] = {position, position};
    tables->reach(batch, pool);
    EXPECT_TRUE(is_computed(static_cast<std::size_t>(position))) << position;
  }
  EXPECT_FALSE(is_computed(600)) << "nobody has asked for it";
  const std::int32_t rest[] = {5, 767, 512, 998};
  tables->reach(rest, pool);
  for (std::size_t position = 0; position < 1000; ++position)
    EXPECT_TRUE(is_computed(position)) << position;
}

}  // namespace
}  // namespace tandem::model
