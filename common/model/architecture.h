// The list of architectures: each is a short file that names its weights and chooses blocks.
#pragma once

#include "common/base/status.h"
#include "common/json/field.h"
#include "common/model/config.h"

#include <span>
#include <string>
#include <string_view>

namespace tandem::model {

/// Names of a decoder's tensors. Layer tensors are `layer_prefix` + index + "." + name; linear
/// layers add ".weight" and ".bias", norms ".weight". The defaults are those of Llama, which most
/// later models kept.
struct WeightNames {
  std::string_view embedding = "model.embed_tokens";
  std::string_view final_norm = "model.norm";
  std::string_view lm_head = "lm_head";
  std::string_view layer_prefix = "model.layers.";
  std::string_view input_norm = "input_layernorm";
  std::string_view post_attention_norm = "post_attention_layernorm";
  std::string_view query = "self_attn.q_proj";
  std::string_view key = "self_attn.k_proj";
  std::string_view value = "self_attn.v_proj";
  std::string_view output = "self_attn.o_proj";
  std::string_view query_norm = "self_attn.q_norm";
  std::string_view key_norm = "self_attn.k_norm";
  std::string_view gate = "mlp.gate_proj";
  std::string_view up = "mlp.up_proj";
  std::string_view down = "mlp.down_proj";
  // Layers with experts: the router, then expert_prefix + index + one of the last three.
  std::string_view router = "mlp.gate";
  std::string_view expert_prefix = "mlp.experts.";
  std::string_view expert_gate = ".gate_proj";
  std::string_view expert_up = ".up_proj";
  std::string_view expert_down = ".down_proj";
};

struct Architecture {
  std::string_view name;      ///< As in `architectures` of config.json.
  std::int64_t head_dim = 0;  ///< Where config.json has none; 0: hidden_size / heads.
  WeightNames weights;
  /// Sets the fields of `config` that choose blocks (biases, norms of heads, windows) from the
  /// config.json at `root`. The sizes are set already.
  Status (*choose_blocks)(const json::Field& root, ModelConfig& config) = nullptr;
};

extern const Architecture kLlama;
extern const Architecture kMistral;
extern const Architecture kQwen2;
extern const Architecture kQwen3;
extern const Architecture kQwen3Moe;

std::span<const Architecture* const> architectures();

/// Null when there is none of that name.
const Architecture* find_architecture(std::string_view name);

/// Members that the choices of several architectures read.
Result<bool> bool_or(const json::Field& root, std::string_view key, bool fallback);

/// `layer_types` of config.json, where present: the window of "sliding_attention" layers becomes
/// `sliding_window`, of "full_attention" ones 0. Returns false when config.json has no such list.
Result<bool> windows_of_layer_types(const json::Field& root,
                                    std::int64_t sliding_window,
                                    ModelConfig& config);

/// `sliding_window`: `fallback` when missing, 0 (none) when null.
Result<std::int64_t> sliding_window_or(const json::Field& root, std::int64_t fallback);

/// The rule of Qwen2 and Qwen3: only with `use_sliding_window`, and only from layer
/// `max_window_layers` on, unless `layer_types` says it layer by layer.
Status choose_qwen_windows(const json::Field& root, ModelConfig& config);

/// rope_theta, rope_scaling and rope_parameters; position_count is set already.
Status parse_rope(const json::Field& root, ModelConfig& config);

}  // namespace tandem::model
