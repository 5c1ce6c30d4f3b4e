#include "common/model/architecture.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstddef>

namespace tandem::model {
namespace {

constexpr const Architecture* kAll[] = {&kLlama, &kMistral, &kQwen2, &kQwen3, &kQwen3Moe};

// Defaults of transformers' configuration_qwen2.py and configuration_qwen3.py.
constexpr std::int64_t kQwenWindow = 4096;
constexpr std::int64_t kQwenMaxWindowLayers = 28;

}  // namespace

std::span<const Architecture* const> architectures() {
  return kAll;
}

const Architecture* find_architecture(std::string_view name) {
  const auto* found = std::find_if(std::begin(kAll),
                                   std::end(kAll),
                                   [&](const Architecture* known) { return known->name == name; });
  return found == std::end(kAll) ? nullptr : *found;
}

std::string supported_architectures() {
  std::string names;
  for (const Architecture* known : kAll) {
    if (!names.empty()) names += ", ";
    names += known->name;
  }
  return names;
}

Result<bool> bool_or(const json::Field& root, std::string_view key, bool fallback) {
  TANDEM_TRY(const std::optional<bool> value, root.optional_bool(key));
  return value.value_or(fallback);
}

Result<std::int64_t> sliding_window_or(const json::Field& root, std::int64_t fallback) {
  if (root.value().find("sliding_window") == nullptr) return fallback;
  TANDEM_TRY(const std::optional<std::int64_t> window,
             root.optional_int("sliding_window", 1, kPositionCountMax));
  return window.value_or(0);
}

Result<bool> windows_of_layer_types(const json::Field& root,
                                    std::int64_t sliding_window,
                                    ModelConfig& config) {
  const std::optional<json::Field> field = root.find("layer_types");
  if (!field) return false;
  TANDEM_TRY(const std::vector<json::Field> types, field->items());
  if (types.size() != static_cast<std::size_t>(config.layer_count)) {
    return field->error(fmt::format(
        "has {} entries, expected num_hidden_layers = {}", types.size(), config.layer_count));
  }
  for (std::size_t layer = 0; layer < types.size(); ++layer) {
    TANDEM_TRY(const std::string_view type, types[layer].as_string());
    if (type == "full_attention") {
      config.window[layer] = 0;
    } else if (type == "sliding_attention") {
      if (sliding_window == 0) {
        return types[layer].error("is \"sliding_attention\", but sliding_window is off");
      }
      config.window[layer] = static_cast<std::int32_t>(sliding_window);
    } else {
      return types[layer].mismatch("\"full_attention\" or \"sliding_attention\"");
    }
  }
  return true;
}

Status choose_qwen_windows(const json::Field& root, ModelConfig& config) {
  TANDEM_TRY(const bool used, bool_or(root, "use_sliding_window", false));
  TANDEM_TRY(const std::int64_t configured, sliding_window_or(root, kQwenWindow));
  const std::int64_t window = used ? configured : 0;
  TANDEM_TRY(const std::optional<std::int64_t> first,
             root.optional_int("max_window_layers", 0, kLayerCountMax));
  TANDEM_TRY(const bool listed, windows_of_layer_types(root, window, config));
  if (listed || window == 0) return {};
  for (std::int64_t layer = first.value_or(kQwenMaxWindowLayers); layer < config.layer_count;
       ++layer) {
    config.window[static_cast<std::size_t>(layer)] = static_cast<std::int32_t>(window);
  }
  return {};
}

}  // namespace tandem::model
