// Llama 1 to 3 (Touvron et al. 2023; transformers' modeling_llama.py): full attention, biases only
// where config.json asks for them.
#include "common/model/architecture.h"

namespace tandem::model {
namespace {

Status choose(const json::Field& root, ModelConfig& config) {
  TANDEM_TRY(config.qkv_bias, bool_or(root, "attention_bias", false));
  config.output_bias = config.qkv_bias;
  TANDEM_TRY(config.mlp_bias, bool_or(root, "mlp_bias", false));
  return {};
}

}  // namespace

constinit const Architecture kLlama{
    .name = "LlamaForCausalLM", .head_dim = 0, .weights = {}, .choose_blocks = choose};

}  // namespace tandem::model
