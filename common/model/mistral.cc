// Mistral (Jiang et al. 2023; transformers' modeling_mistral.py): Llama with a sliding window on
// every layer, and no biases.
#include "common/model/architecture.h"

#include <algorithm>

namespace tandem::model {
namespace {

constexpr std::int64_t kDefaultWindow = 4096;

Status choose(const json::Field& root, ModelConfig& config) {
  TANDEM_TRY(const std::int64_t window, sliding_window_or(root, kDefaultWindow));
  TANDEM_TRY(const bool listed, windows_of_layer_types(root, window, config));
  if (!listed)
    std::fill(config.window.begin(), config.window.end(), static_cast<std::int32_t>(window));
  return {};
}

}  // namespace

constinit const Architecture kMistral{
    .name = "MistralForCausalLM", .head_dim = 0, .weights = {}, .choose_blocks = choose};

}  // namespace tandem::model
