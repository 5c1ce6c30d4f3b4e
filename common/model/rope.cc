#include "common/model/rope.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <numbers>

namespace tandem::model {
namespace {

constexpr double kTwoPi = 2.0 * std::numbers::pi;

/// Llama 3.1: long waves are slowed down by `factor`, short ones kept, a smooth step between.
double llama3_frequency(double frequency, const RopeScaling& scaling) {
  const double wave_length = kTwoPi / frequency;
  const double longest = scaling.original_position_count / scaling.low_freq_factor;
  const double shortest = scaling.original_position_count / scaling.high_freq_factor;
  if (wave_length > longest) return frequency / scaling.factor;
  if (wave_length < shortest) return frequency;
  const double smooth = (scaling.original_position_count / wave_length - scaling.low_freq_factor) /
                        (scaling.high_freq_factor - scaling.low_freq_factor);
  return (1.0 - smooth) * frequency / scaling.factor + smooth * frequency;
}

/// YaRN: dimensions that turn more than beta_fast times over the trained context keep their
/// frequency, those under beta_slow are interpolated, a linear ramp between.
struct YarnRamp {
  double low = 0;
  double high = 0;

  [[nodiscard]] double kept_share(double pair) const {
    return 1.0 - std::clamp((pair - low) / (high - low), 0.0, 1.0);
  }
};

YarnRamp yarn_ramp(const ModelConfig& config) {
  const RopeScaling& scaling = config.rope_scaling;
  const auto dim = static_cast<double>(config.head_dim);
  const auto correction_dim = [&](double turns) {
    return dim * std::log(scaling.original_position_count / (turns * kTwoPi)) /
           (2.0 * std::log(config.rope_theta));
  };
  double low = correction_dim(scaling.beta_fast);
  double high = correction_dim(scaling.beta_slow);
  if (scaling.truncate) {
    low = std::floor(low);
    high = std::ceil(high);
  }
  low = std::max(low, 0.0);
  high = std::min(high, dim - 1.0);
  if (low == high) high += 0.001;
  return {low, high};
}

float yarn_magnitude(const RopeScaling& scaling) {
  if (scaling.attention_factor) return static_cast<float>(*scaling.attention_factor);
  const auto mscale = [&](double weight) {
    return scaling.factor <= 1.0 ? 1.0 : 0.1 * weight * std::log(scaling.factor) + 1.0;
  };
  const bool both =
      scaling.mscale.value_or(0.0) != 0.0 && scaling.mscale_all_dim.value_or(0.0) != 0.0;
  return static_cast<float>(both ? mscale(*scaling.mscale) / mscale(*scaling.mscale_all_dim)
                                 : mscale(1.0));
}

}  // namespace

RopeTable make_rope_table(const ModelConfig& config) {
  const RopeScaling& scaling = config.rope_scaling;
  RopeTable table;
  const YarnRamp ramp =
      scaling.kind == RopeScaling::Kind::kYarn ? yarn_ramp(config) : YarnRamp{0.0, 1.0};
  for (std::int64_t pair = 0; pair < config.head_dim / 2; ++pair) {
    const double exponent = static_cast<double>(2 * pair) / static_cast<double>(config.head_dim);
    double frequency = 1.0 / std::pow(config.rope_theta, exponent);
    switch (scaling.kind) {
      case RopeScaling::Kind::kNone:
        break;
      case RopeScaling::Kind::kLinear:
        frequency /= scaling.factor;
        break;
      case RopeScaling::Kind::kLlama3:
        frequency = llama3_frequency(frequency, scaling);
        break;
      case RopeScaling::Kind::kYarn: {
        const double kept = ramp.kept_share(static_cast<double>(pair));
        frequency = frequency / scaling.factor * (1.0 - kept) + frequency * kept;
        break;
      }
    }
    table.inverse_frequency.push_back(static_cast<float>(frequency));
  }
  if (scaling.kind == RopeScaling::Kind::kYarn) table.magnitude = yarn_magnitude(scaling);
  return table;
}

}  // namespace tandem::model
