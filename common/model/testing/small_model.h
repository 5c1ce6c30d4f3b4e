// A model on disk that is small enough to look at, and a batch for it.
#pragma once

#include "common/model/model.h"
#include "common/model/testing/config_folder.h"
#include "common/weights/checkpoint.h"

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <fstream>
#include <map>
#include <string>
#include <vector>

namespace tandem::model::testing {

/// Of one layer.
inline constexpr const char* kSmallConfig = R"({
  "architectures": ["Qwen2ForCausalLM"], "vocab_size": 20, "hidden_size": 8,
  "intermediate_size": 12, "num_hidden_layers": 1, "num_attention_heads": 2,
  "num_key_value_heads": 1, "max_position_embeddings": 64, "torch_dtype": "float32"})";

struct FileTensor {
  std::string dtype = "F32";
  std::vector<int> shape;
  std::size_t element_bytes = 4;
};

/// The tensors that kSmallConfig asks for.
inline std::map<std::string, FileTensor> good_tensors() {
  const std::string layer = "model.layers.0.";
  return {{"model.embed_tokens.weight", {.shape = {20, 8}}},
          {"model.norm.weight", {.shape = {8}}},
          {"lm_head.weight", {.shape = {20, 8}}},
          {layer + "input_layernorm.weight", {.shape = {8}}},
          {layer + "post_attention_layernorm.weight", {.shape = {8}}},
          {layer + "self_attn.q_proj.weight", {.shape = {8, 8}}},
          {layer + "self_attn.q_proj.bias", {.shape = {8}}},
          {layer + "self_attn.k_proj.weight", {.shape = {4, 8}}},
          {layer + "self_attn.k_proj.bias", {.shape = {4}}},
          {layer + "self_attn.v_proj.weight", {.shape = {4, 8}}},
          {layer + "self_attn.v_proj.bias", {.shape = {4}}},
          {layer + "self_attn.o_proj.weight", {.shape = {8, 8}}},
          {layer + "mlp.gate_proj.weight", {.shape = {12, 8}}},
          {layer + "mlp.up_proj.weight", {.shape = {12, 8}}},
          {layer + "mlp.down_proj.weight", {.shape = {8, 12}}}};
}

/// A folder with such a model. Goes when this does.
class ModelFolder {
 public:
  ModelFolder() { write_weights(good_tensors()); }

  [[nodiscard]] const std::string& path() const { return folder_.path(); }

  [[nodiscard]] bool is_cached() const {
    return weights::Checkpoint::open(path(), {})->is_cached();
  }

  void write(const std::string& name, const std::string& bytes) const {
    std::ofstream(path() + "/" + name, std::ios::binary) << bytes;
  }

  void write_weights(const std::map<std::string, FileTensor>& tensors) const {
    std::string header = "{";
    std::string data;
    for (const auto& [name, tensor] : tensors) {
      std::size_t count = 1;
      std::string shape;
      for (const int extent : tensor.shape) {
        count *= static_cast<std::size_t>(extent);
        shape += (shape.empty() ? "" : ",") + std::to_string(extent);
      }
      const std::size_t begin = data.size();
      for (std::size_t i = 0; i < count; ++i) {
        const auto value = 0.3F * std::sin(static_cast<float>(begin + i));
        std::string bytes(tensor.element_bytes, '\0');
        if (tensor.element_bytes == 4) std::memcpy(bytes.data(), &value, 4);
        data += bytes;
      }
      header += (header.size() > 1 ? ",\"" : "\"") + name + R"(":{"dtype":")" + tensor.dtype +
                R"(","shape":[)" + shape + R"(],"data_offsets":[)" + std::to_string(begin) + "," +
                std::to_string(data.size()) + "]}";
    }
    header += "}";
    std::string length(8, '\0');
    const std::uint64_t size = header.size();
    std::memcpy(length.data(), &size, 8);
    write("model.safetensors", length + header + data);
  }

 private:
  ConfigFolder folder_{kSmallConfig};
};

inline kernels::ThreadPool& pool() {
  static kernels::ThreadPool one(1);
  return one;
}

inline LoadOptions options_for(const std::string& folder) {
  LoadOptions options;
  options.folder = folder;
  options.backend = kernels::select(kernels::Family::kReference, nullptr);
  options.pool = &pool();
  options.limits = {.token_count_max = 16,
                    .logit_row_count_max = 4,
                    .sequence_count_max = 3,
                    .context_length = 0};
  return options;
}

/// A batch of two sequences in a small arena, all fields good.
struct SmallBatch {
  std::vector<std::int32_t> ids = {1, 2, 3, 4};
  std::vector<std::int32_t> positions = {0, 1, 2, 0};
  std::vector<std::int32_t> sequence = {0, 0, 0, 1};
  std::vector<std::int32_t> first_pages = {2, 0};
  std::vector<std::int32_t> second_pages = {3};
  std::vector<std::int32_t> rows = {2, 3};
  std::vector<SequencePages> pages;
  std::vector<std::byte> arena;
  std::size_t page_size = 2;

  explicit SmallBatch(const Model& model) {
    arena.resize(4 * model.kv_layout(2).page_bytes());
    pages = {{first_pages.data(), first_pages.size()}, {second_pages.data(), second_pages.size()}};
  }

  [[nodiscard]] ForwardBatch batch() {
    return {.token_ids = ids,
            .positions = positions,
            .sequence = sequence,
            .sequences = pages,
            .kv = {.base = arena.data(), .page_count = 4, .page_size = page_size},
            .logit_rows = rows};
  }
};

}  // namespace tandem::model::testing
