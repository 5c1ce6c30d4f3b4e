// Qwen3, dense (transformers' modeling_qwen3.py): Llama with an RMS norm on every query and key
// head; heads need not divide the hidden size.
#include "common/model/architecture.h"

namespace tandem::model {
namespace {

Status choose(const json::Field& root, ModelConfig& config) {
  config.qk_norm = true;
  TANDEM_TRY(config.qkv_bias, bool_or(root, "attention_bias", false));
  config.output_bias = config.qkv_bias;
  return choose_qwen_windows(root, config);
}

}  // namespace

constinit const Architecture kQwen3{
    .name = "Qwen3ForCausalLM", .head_dim = 128, .weights = {}, .choose_blocks = choose};

}  // namespace tandem::model
