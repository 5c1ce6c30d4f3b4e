// Folders for tests that load models with random weights.
#pragma once

#include "common/base/check.h"

#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <string>
#include <system_error>

namespace tandem::model::testing {

/// A folder with nothing but a config.json. Goes when this does.
class ConfigFolder {
 public:
  explicit ConfigFolder(const std::string& config) {
    TANDEM_CHECK(::mkdtemp(path_.data()) != nullptr, "cannot make a folder for the test");
    std::ofstream(path_ + "/config.json") << config;
  }

  ConfigFolder(const ConfigFolder&) = delete;
  ConfigFolder& operator=(const ConfigFolder&) = delete;

  ~ConfigFolder() {
    std::error_code error;
    std::filesystem::remove_all(path_, error);
  }

  [[nodiscard]] const std::string& path() const { return path_; }

 private:
  std::string path_ = (std::filesystem::temp_directory_path() / "tandem_model_XXXXXX").string();
};

/// A mixture of experts: 2 of 12 in each of two layers of three.
inline constexpr const char* kSmallMixture = R"({"architectures":["Qwen3MoeForCausalLM"],
    "vocab_size":2048,"hidden_size":64,"intermediate_size":96,"num_hidden_layers":3,
    "num_attention_heads":4,"num_key_value_heads":2,"head_dim":16,"max_position_embeddings":2048,
    "num_experts":12,"num_experts_per_tok":2,"moe_intermediate_size":40,"norm_topk_prob":true,
    "mlp_only_layers":[1],"torch_dtype":"bfloat16","eos_token_id":2})";

}  // namespace tandem::model::testing
