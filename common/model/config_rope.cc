// rope_theta, rope_scaling and rope_parameters of config.json.
#include "common/json/field.h"
#include "common/model/architecture.h"

#include <fmt/format.h>

#include <optional>

namespace tandem::model {

namespace {

constexpr double kThetaMax = 1e15;
constexpr double kFactorMax = 1e6;

/// A number in (0, max], or nothing when missing or null.
Result<std::optional<double>> positive(const json::Field& field, std::string_view key, double max) {
  TANDEM_TRY(const std::optional<double> value, field.optional_double(key));
  if (value && !(*value > 0.0 && *value <= max)) {
    return field.error(
        fmt::format("{}: is {}, expected a number above 0, at most {}", key, *value, max));
  }
  return value;
}

Result<double> required_positive(const json::Field& field, std::string_view key, double max) {
  TANDEM_TRY(field.at(key));
  TANDEM_TRY(const std::optional<double> value, positive(field, key, max));
  if (!value) return field.error(fmt::format("{}: expected a number, found null", key));
  return *value;
}

/// A number in [least, kFactorMax], or nothing when missing or null.
Result<std::optional<double>> at_least(const json::Field& field,
                                       std::string_view key,
                                       double least) {
  TANDEM_TRY(const std::optional<double> value, field.optional_double(key));
  if (value && !(*value >= least && *value <= kFactorMax)) {
    return field.error(
        fmt::format("{}: is {}, expected a number from {} to {}", key, *value, least, kFactorMax));
  }
  return value;
}

/// By how much positions or waves are stretched. No model that we know shrinks them, and the
/// smallest factors would make frequencies that are no numbers.
Result<double> required_factor(const json::Field& field) {
  TANDEM_TRY(field.at("factor"));
  TANDEM_TRY(const std::optional<double> factor, at_least(field, "factor", 1.0));
  if (!factor) return field.error("factor: expected a number, found null");
  return *factor;
}

Status parse_llama3(const json::Field& field, RopeScaling& scaling) {
  constexpr auto kMax = static_cast<double>(kPositionCountMax);
  TANDEM_TRY(scaling.factor, required_factor(field));
  TANDEM_TRY(scaling.low_freq_factor, required_positive(field, "low_freq_factor", kFactorMax));
  TANDEM_TRY(scaling.high_freq_factor, required_positive(field, "high_freq_factor", kFactorMax));
  TANDEM_TRY(scaling.original_position_count,
             required_positive(field, "original_max_position_embeddings", kMax));
  if (scaling.high_freq_factor <= scaling.low_freq_factor) {
    return field.error(
        fmt::format("high_freq_factor: is {}, expected more than low_freq_factor = {}",
                    scaling.high_freq_factor,
                    scaling.low_freq_factor));
  }
  return {};
}

Status parse_yarn(const json::Field& field, const ModelConfig& config, RopeScaling& scaling) {
  constexpr auto kMax = static_cast<double>(kPositionCountMax);
  TANDEM_TRY(const auto original, positive(field, "original_max_position_embeddings", kMax));
  scaling.original_position_count = original.value_or(static_cast<double>(config.position_count));
  TANDEM_TRY(scaling.factor, required_factor(field));
  TANDEM_TRY(const auto beta_fast, positive(field, "beta_fast", kFactorMax));
  TANDEM_TRY(const auto beta_slow, positive(field, "beta_slow", kFactorMax));
  scaling.beta_fast = beta_fast.value_or(32.0);
  scaling.beta_slow = beta_slow.value_or(1.0);
  if (scaling.beta_fast < scaling.beta_slow) {
    return field.error(fmt::format("beta_fast: is {}, expected at least beta_slow = {}",
                                   scaling.beta_fast,
                                   scaling.beta_slow));
  }
  TANDEM_TRY(scaling.attention_factor, positive(field, "attention_factor", kFactorMax));
  TANDEM_TRY(scaling.mscale, at_least(field, "mscale", 0.0));
  TANDEM_TRY(scaling.mscale_all_dim, at_least(field, "mscale_all_dim", 0.0));
  TANDEM_TRY(const auto truncate, field.optional_bool("truncate"));
  scaling.truncate = truncate.value_or(true);
  return {};
}

/// `field` is rope_scaling or rope_parameters; both name their kind "rope_type" or, before that,
/// "type".
Status parse_scaling(const json::Field& field, ModelConfig& config) {
  TANDEM_TRY(field.as_object());
  TANDEM_TRY(auto kind, field.optional_string("rope_type"));
  if (!kind) {
    TANDEM_TRY(kind, field.optional_string("type"));
  }
  RopeScaling& scaling = config.rope_scaling;
  if (!kind || *kind == "default") {
    if (!kind && field.value().find("factor") != nullptr) return field.error("rope_type: missing");
    return {};
  }
  if (*kind == "linear") {
    scaling.kind = RopeScaling::Kind::kLinear;
    TANDEM_TRY(scaling.factor, required_factor(field));
    return {};
  }
  if (*kind == "llama3") {
    scaling.kind = RopeScaling::Kind::kLlama3;
    return parse_llama3(field, scaling);
  }
  if (*kind == "yarn") {
    scaling.kind = RopeScaling::Kind::kYarn;
    return parse_yarn(field, config, scaling);
  }
  return unimplemented(
      fmt::format("{}.rope_type: '{}' is not supported, expected default, linear, llama3 or yarn",
                  field.path(),
                  kind->substr(0, 60)));
}

}  // namespace

Status parse_rope(const json::Field& root, ModelConfig& config) {
  TANDEM_TRY(const auto theta, positive(root, "rope_theta", kThetaMax));
  config.rope_theta = theta.value_or(10'000.0);
  const auto scaling = root.find("rope_scaling");
  const auto parameters = root.find("rope_parameters");
  if (parameters) {
    // transformers 5 writes theta and scaling into one object; sets per layer type are another
    // model's feature.
    if (parameters->find("full_attention") || parameters->find("sliding_attention")) {
      return unimplemented("rope_parameters: sets per layer type are not supported");
    }
    TANDEM_TRY(const auto nested_theta, positive(*parameters, "rope_theta", kThetaMax));
    if (nested_theta) config.rope_theta = *nested_theta;
    TANDEM_TRY(const auto partial, parameters->optional_double("partial_rotary_factor"));
    if (partial && *partial != 1.0) {
      return unimplemented(fmt::format(
          "rope_parameters.partial_rotary_factor: {} is not supported, expected 1", *partial));
    }
  }
  // An explicit rope_scaling (an override, say) beats the newer form.
  if (scaling) {
    TANDEM_TRY(parse_scaling(*scaling, config));
  } else if (parameters) {
    TANDEM_TRY(parse_scaling(*parameters, config));
  }
  if (config.rope_theta <= 1.0) {
    return invalid_argument(
        fmt::format("rope_theta: is {}, expected a number above 1", config.rope_theta));
  }
  return {};
}

}  // namespace tandem::model
