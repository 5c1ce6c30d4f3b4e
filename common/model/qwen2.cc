// Qwen2 and Qwen2.5 (transformers' modeling_qwen2.py): Llama with biases on q, k and v.
#include "common/model/architecture.h"

namespace tandem::model {
namespace {

Status choose(const json::Field& root, ModelConfig& config) {
  config.qkv_bias = true;
  return choose_qwen_windows(root, config);
}

}  // namespace

constinit const Architecture kQwen2{
    .name = "Qwen2ForCausalLM", .head_dim = 0, .weights = {}, .choose_blocks = choose};

}  // namespace tandem::model
