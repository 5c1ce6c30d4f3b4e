#include "common/model/config.h"

#include "common/json/field.h"
#include "common/json/parse.h"
#include "common/model/architecture.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <filesystem>
#include <utility>

namespace tandem::model {

namespace {

constexpr const char* kConfigName = "config.json";
constexpr const char* kGenerationName = "generation_config.json";

Result<const Architecture*> parse_architecture(const json::Field& root) {
  TANDEM_TRY(const json::Field field, root.at("architectures"));
  TANDEM_TRY(const std::vector<std::string> names, field.as_strings());
  if (names.empty()) return field.mismatch("a list with one architecture");
  const Architecture* known = find_architecture(names.front());
  if (known == nullptr) {
    return unimplemented(fmt::format("architectures: '{}' is not supported; this build supports {}",
                                     names.front().substr(0, 100),
                                     supported_architectures()));
  }
  return known;
}

/// What would change the computation and is not built: refused by name.
Status refuse_unbuilt(const json::Field& root) {
  if (const auto quantization = root.find("quantization_config")) {
    TANDEM_TRY(const auto method, quantization->optional_string("quant_method"));
    return unimplemented(
        fmt::format("quantization_config: quantised checkpoints (quant_method {}) are not "
                    "supported by this build",
                    method ? "'" + method->substr(0, 60) + "'" : "not named"));
  }
  TANDEM_TRY(const auto partial, root.optional_double("partial_rotary_factor"));
  if (partial && *partial != 1.0) {
    return unimplemented(
        fmt::format("partial_rotary_factor: {} is not supported, expected 1", *partial));
  }
  TANDEM_TRY(const auto activation, root.optional_string("hidden_act"));
  if (activation && *activation != "silu" && *activation != "swish") {
    return unimplemented(fmt::format("hidden_act: '{}' is not supported, expected 'silu'",
                                     activation->substr(0, 60)));
  }
  return {};
}

Status parse_sizes(const json::Field& root, std::int64_t default_head_dim, ModelConfig& config) {
  struct Size {
    const char* name;
    std::int64_t* value;
    std::int64_t max;
  };

  const Size required[] = {
      {"vocab_size", &config.vocab_size, kVocabSizeMax},
      {"hidden_size", &config.hidden_size, kHiddenSizeMax},
      {"intermediate_size", &config.intermediate_size, kIntermediateSizeMax},
      {"num_hidden_layers", &config.layer_count, kLayerCountMax},
      {"num_attention_heads", &config.head_count, kHeadCountMax},
      {"max_position_embeddings", &config.position_count, kPositionCountMax},
  };
  for (const Size& size : required) {
    TANDEM_TRY(const json::Field field, root.at(size.name));
    TANDEM_TRY(*size.value, field.as_int(1, size.max));
  }
  TANDEM_TRY(const auto kv_heads, root.optional_int("num_key_value_heads", 1, kHeadCountMax));
  config.kv_head_count = kv_heads.value_or(config.head_count);
  if (config.head_count % config.kv_head_count != 0) {
    return invalid_argument(
        fmt::format("num_attention_heads: {} is not a multiple of num_key_value_heads = {}",
                    config.head_count,
                    config.kv_head_count));
  }
  TANDEM_TRY(const auto head_dim, root.optional_int("head_dim", 2, kHeadDimMax));
  if (!head_dim && default_head_dim == 0 && config.hidden_size % config.head_count != 0) {
    return invalid_argument(fmt::format(
        "hidden_size: {} is not a multiple of num_attention_heads = {}, and head_dim is "
        "not given",
        config.hidden_size,
        config.head_count));
  }
  config.head_dim = head_dim.value_or(
      default_head_dim != 0 ? default_head_dim : config.hidden_size / config.head_count);
  if (config.head_dim % 2 != 0 || config.head_dim > kHeadDimMax || config.head_dim < 2) {
    return invalid_argument(fmt::format(
        "head_dim: is {}, expected an even number from 2 to {}", config.head_dim, kHeadDimMax));
  }
  return {};
}

Status parse_dtype(const json::Field& root, ModelConfig& config) {
  for (const char* key : {"dtype", "torch_dtype"}) {
    TANDEM_TRY(const auto name, root.optional_string(key));
    if (!name) continue;
    if (*name == "bfloat16") {
      config.dtype = kernels::DType::kBf16;
    } else if (*name == "float16" || *name == "half") {
      config.dtype = kernels::DType::kF16;
    } else if (*name == "float32" || *name == "float") {
      config.dtype = kernels::DType::kF32;
    } else {
      return invalid_argument(fmt::format(
          "{}: expected bfloat16, float16 or float32, found '{}'", key, name->substr(0, 60)));
    }
    return {};
  }
  return {};
}

Status parse_norm_eps(const json::Field& root, ModelConfig& config) {
  TANDEM_TRY(const auto eps, root.optional_double("rms_norm_eps"));
  config.rms_norm_eps = eps.value_or(1e-6);
  if (!(config.rms_norm_eps > 0.0 && config.rms_norm_eps < 1.0)) {
    return invalid_argument(
        fmt::format("rms_norm_eps: is {}, expected a number between 0 and 1", config.rms_norm_eps));
  }
  return {};
}

/// An id or a list of ids. Unset leaves `ids` as it is, so that the later file wins. -1 means none,
/// as some exporters write it.
Status parse_eos(const json::Field& root, std::int64_t vocab_size, std::vector<std::int32_t>& ids) {
  const auto field = root.find("eos_token_id");
  if (!field) return {};
  std::vector<std::int64_t> found;
  if (field->value().is_array()) {
    TANDEM_TRY(found, field->as_ints(-1, vocab_size - 1));
  } else {
    TANDEM_TRY(const std::int64_t one, field->as_int(-1, vocab_size - 1));
    found.push_back(one);
  }
  constexpr std::size_t kEosCountMax = 1024;
  if (found.size() > kEosCountMax) {
    return field->error(
        fmt::format("lists {} ids, at most {} are allowed", found.size(), kEosCountMax));
  }
  ids.clear();
  for (const std::int64_t id : found) {
    if (id >= 0) ids.push_back(static_cast<std::int32_t>(id));
  }
  std::sort(ids.begin(), ids.end());
  ids.erase(std::unique(ids.begin(), ids.end()), ids.end());
  return {};
}

Status parse_special_ids(const json::Field& root, ModelConfig& config) {
  TANDEM_TRY(parse_eos(root, config.vocab_size, config.eos_ids));
  // Lists of bos ids do not occur for these architectures; pad ids of -1 do.
  const std::pair<const char*, std::optional<std::int32_t>*> single[] = {
      {"bos_token_id", &config.bos_id}, {"pad_token_id", &config.pad_id}};
  for (const auto& [key, target] : single) {
    TANDEM_TRY(const auto id, root.optional_int(key, -1, config.vocab_size - 1));
    if (id && *id >= 0) *target = static_cast<std::int32_t>(*id);
  }
  return {};
}

Status parse_generation(const json::Field& root, ModelConfig& config) {
  TANDEM_TRY(parse_eos(root, config.vocab_size, config.eos_ids));
  GenerationDefaults& defaults = config.generation;
  TANDEM_TRY(defaults.do_sample, root.optional_bool("do_sample"));
  TANDEM_TRY(defaults.top_k, root.optional_int("top_k", -1, kVocabSizeMax));

  struct Number {
    const char* name;
    std::optional<double>* value;
    double min;
    double max;
  };

  const Number numbers[] = {
      {"temperature", &defaults.temperature, 0.0, 1e6},
      {"top_p", &defaults.top_p, 0.0, 1.0},
      {"min_p", &defaults.min_p, 0.0, 1.0},
      {"repetition_penalty", &defaults.repetition_penalty, 0.0, 1e6},
  };
  for (const Number& number : numbers) {
    TANDEM_TRY(*number.value, root.optional_double(number.name));
    if (*number.value && !(**number.value >= number.min && **number.value <= number.max)) {
      return invalid_argument(fmt::format("{}: is {}, expected a number from {} to {}",
                                          number.name,
                                          **number.value,
                                          number.min,
                                          number.max));
    }
  }
  return {};
}

Result<json::Value> parse_object(std::string_view text) {
  TANDEM_TRY(json::Value value, json::parse(text, {.max_bytes = kConfigBytesMax, .max_depth = 32}));
  TANDEM_TRY(json::Field(value).as_object());
  return value;
}

/// config.json with the members of the override in place.
Result<json::Value> merged_config(std::string_view config_text, std::string_view override_json) {
  auto config = parse_object(config_text);
  if (!config.ok()) return config.status().with_context(kConfigName);
  if (override_json.empty()) return config;
  auto overrides = parse_object(override_json);
  if (!overrides.ok()) return overrides.status().with_context("--json-model-override-args");
  for (json::Member& member : *overrides->if_object()) {
    config->if_object()->set(std::move(member.key), std::move(member.value));
  }
  return config;
}

Status parse_root(const json::Field& root, ModelConfig& config) {
  TANDEM_TRY(const Architecture* architecture, parse_architecture(root));
  config.architecture = architecture->name;
  TANDEM_TRY(const auto model_type, root.optional_string("model_type"));
  config.model_type = model_type.value_or("").substr(0, 100);
  TANDEM_TRY(refuse_unbuilt(root));
  TANDEM_TRY(parse_sizes(root, architecture->head_dim, config));
  TANDEM_TRY(parse_norm_eps(root, config));
  TANDEM_TRY(parse_rope(root, config));
  TANDEM_TRY(parse_dtype(root, config));
  TANDEM_TRY(config.tie_word_embeddings, bool_or(root, "tie_word_embeddings", false));
  TANDEM_TRY(parse_special_ids(root, config));
  config.window.assign(static_cast<std::size_t>(config.layer_count), 0);
  return architecture->choose_blocks(root, config);
}

}  // namespace

Result<ModelConfig> parse_config(std::string_view config_text,
                                 std::string_view generation_text,
                                 std::string_view override_json) {
  TANDEM_TRY(const json::Value value, merged_config(config_text, override_json));
  ModelConfig config;
  TANDEM_TRY(parse_root(json::Field(value), config).with_context(kConfigName));
  if (!generation_text.empty()) {
    auto generation = parse_object(generation_text);
    if (!generation.ok()) return generation.status().with_context(kGenerationName);
    TANDEM_TRY(parse_generation(json::Field(*generation), config).with_context(kGenerationName));
  }
  return config;
}

Result<ModelConfig> read_config(const std::string& folder, std::string_view override_json) {
  namespace fs = std::filesystem;
  std::error_code error;
  if (!fs::is_directory(folder, error)) {
    return not_found(fmt::format("{}: is not a folder, expected a model folder", folder));
  }
  const fs::path path = fs::path(folder) / kConfigName;
  if (!fs::exists(path, error)) {
    return not_found(fmt::format("{}: holds no {}, expected a model folder", folder, kConfigName));
  }
  TANDEM_TRY(const std::string config_text, json::read_text_file(path, kConfigBytesMax));
  std::string generation_text;
  const fs::path generation_path = fs::path(folder) / kGenerationName;
  if (fs::exists(generation_path, error)) {
    TANDEM_TRY(generation_text, json::read_text_file(generation_path, kConfigBytesMax));
    if (generation_text.empty()) {
      return invalid_argument(
          fmt::format("{}: is empty, expected an object", generation_path.string()));
    }
  }
  auto config = parse_config(config_text, generation_text, override_json);
  if (!config.ok()) return config.status().with_context(folder);
  return config;
}

std::int64_t ModelConfig::context_length() const {
  double length = static_cast<double>(position_count);
  if (rope_scaling.kind == RopeScaling::Kind::kLinear) length *= rope_scaling.factor;
  if (rope_scaling.kind == RopeScaling::Kind::kYarn) {
    length = std::max(length, rope_scaling.original_position_count * rope_scaling.factor);
  }
  return static_cast<std::int64_t>(std::min(length, static_cast<double>(kPositionCountMax)));
}

std::string ModelConfig::canonical_text() const {
  const RopeScaling& rope = rope_scaling;
  std::string experts_text;
  if (experts.count != 0) {
    experts_text = fmt::format(";experts={},{},{},{},{}",
                               experts.count,
                               experts.per_token,
                               experts.intermediate_size,
                               experts.normalize,
                               fmt::join(experts.in_layer, ","));
  }
  return fmt::format(
      "{};vocab={};hidden={};intermediate={};layers={};heads={};kv_heads={};head_dim={};eps={};"
      "theta={};rope={},{},{},{},{},{},{},{},{},{},{};tied={};bias={},{},{};qk_norm={};window={}{}",
      architecture,
      vocab_size,
      hidden_size,
      intermediate_size,
      layer_count,
      head_count,
      kv_head_count,
      head_dim,
      rms_norm_eps,
      rope_theta,
      static_cast<int>(rope.kind),
      rope.factor,
      rope.original_position_count,
      rope.low_freq_factor,
      rope.high_freq_factor,
      rope.beta_fast,
      rope.beta_slow,
      rope.truncate,
      rope.attention_factor.value_or(-1.0),
      rope.mscale.value_or(-1.0),
      rope.mscale_all_dim.value_or(-1.0),
      tie_word_embeddings,
      qkv_bias,
      output_bias,
      mlp_bias,
      qk_norm,
      fmt::join(window, ","),
      experts_text);
}

}  // namespace tandem::model
