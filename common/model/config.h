// What a model folder says about its model: config.json and generation_config.json, checked.
#pragma once

#include "common/base/status.h"
#include "kernels/api/dtype.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace tandem::model {

/// Limits on what a config.json may ask for. Generous for real models; small enough that products
/// of two extents fit 64 bits and that no allocation is sized by an unchecked number.
inline constexpr std::int64_t kVocabSizeMax = 4'000'000;
inline constexpr std::int64_t kHiddenSizeMax = 65'536;
inline constexpr std::int64_t kIntermediateSizeMax = 524'288;
inline constexpr std::int64_t kLayerCountMax = 1'024;
inline constexpr std::int64_t kExpertCountMax = 1'024;  // kernels::kMaxExperts
inline constexpr std::int64_t kHeadCountMax = 1'024;
inline constexpr std::int64_t kHeadDimMax = 512;
inline constexpr std::int64_t kPositionCountMax = 1LL << 27U;
inline constexpr std::uint64_t kConfigBytesMax = 4U << 20U;

/// How rotary frequencies are stretched beyond the trained context (`rope_scaling`, or the newer
/// `rope_parameters`).
struct RopeScaling {
  enum class Kind : std::uint8_t {
    kNone,
    kLinear,
    kLlama3,
    kYarn
  };
  Kind kind = Kind::kNone;
  double factor = 1.0;
  double original_position_count = 0;        ///< llama3, yarn
  double low_freq_factor = 1.0;              ///< llama3
  double high_freq_factor = 4.0;             ///< llama3
  double beta_fast = 32.0;                   ///< yarn
  double beta_slow = 1.0;                    ///< yarn
  bool truncate = true;                      ///< yarn: whole dimensions at the ramp's ends
  std::optional<double> attention_factor{};  ///< yarn: multiplies cos and sin
  std::optional<double> mscale{};            ///< yarn
  std::optional<double> mscale_all_dim{};    ///< yarn
};

/// Sampling defaults of generation_config.json, for requests that do not say.
struct GenerationDefaults {
  std::optional<bool> do_sample;
  std::optional<double> temperature;
  std::optional<double> top_p;
  std::optional<double> min_p;
  std::optional<std::int64_t> top_k;
  std::optional<double> repetition_penalty;
};

/// The layers that have a mixture of experts in place of the MLP, and their sizes.
struct ExpertConfig {
  std::int64_t count = 0;              ///< num_experts; 0: no layer has them
  std::int64_t per_token = 0;          ///< num_experts_per_tok
  std::int64_t intermediate_size = 0;  ///< moe_intermediate_size, of one expert
  bool normalize = false;              ///< norm_topk_prob
  std::vector<bool> in_layer;          ///< Per layer; empty when count is 0.
};

/// A decoder, as its files describe it. Every number is in range and consistent with the others.
struct ModelConfig {
  std::string architecture;  ///< "Qwen3ForCausalLM"
  std::string model_type;    ///< "qwen3"

  std::int64_t vocab_size = 0;
  std::int64_t hidden_size = 0;
  std::int64_t intermediate_size = 0;
  std::int64_t layer_count = 0;
  std::int64_t head_count = 0;
  std::int64_t kv_head_count = 0;
  std::int64_t head_dim = 0;
  std::int64_t position_count = 0;  ///< max_position_embeddings

  double rms_norm_eps = 1e-6;
  double rope_theta = 10'000.0;
  RopeScaling rope_scaling;

  bool tie_word_embeddings = false;
  bool qkv_bias = false;
  bool output_bias = false;  ///< Bias of the attention's output projection.
  bool mlp_bias = false;
  bool qk_norm = false;  ///< RMS norm of each query and key head before rotation.
  ExpertConfig experts;

  /// Per layer: how many tokens a token sees, itself included; 0 sees all.
  std::vector<std::int32_t> window;

  /// torch_dtype (or dtype) of config.json; unset when it does not say.
  std::optional<kernels::DType> dtype;

  std::vector<std::int32_t> eos_ids;  ///< Sorted; generation_config.json beats config.json.
  std::optional<std::int32_t> bos_id;
  std::optional<std::int32_t> pad_id;
  GenerationDefaults generation;

  /// Positions that the rotary embedding is meant for: `position_count`, stretched by linear or
  /// yarn scaling.
  [[nodiscard]] std::int64_t context_length() const;

  /// All that enters the computation, as text: two configs with the same text describe the same
  /// decoder. Enters the model digest.
  [[nodiscard]] std::string canonical_text() const;

  /// Whether the MLP of that layer is a mixture of experts.
  [[nodiscard]] bool has_experts(std::int64_t layer) const {
    return experts.count != 0 && experts.in_layer[static_cast<std::size_t>(layer)];
  }

  /// Layers with experts.
  [[nodiscard]] std::int64_t expert_layer_count() const {
    return std::count(experts.in_layer.begin(), experts.in_layer.end(), true);
  }

  [[nodiscard]] std::int64_t query_size() const { return head_count * head_dim; }

  [[nodiscard]] std::int64_t kv_size() const { return kv_head_count * head_dim; }
};

/// Reads `folder`/config.json and, where there is one, `folder`/generation_config.json.
/// `override_json` (may be empty) is an object whose members replace those of config.json
/// (--json-model-override-args). Errors name the file, the field, the value
/// found and what was expected.
Result<ModelConfig> read_config(const std::string& folder, std::string_view override_json);

/// The same from text; `generation_text` may be empty.
Result<ModelConfig> parse_config(std::string_view config_text,
                                 std::string_view generation_text,
                                 std::string_view override_json);

/// "LlamaForCausalLM, MistralForCausalLM, ...": the architectures of this build.
std::string supported_architectures();

}  // namespace tandem::model
