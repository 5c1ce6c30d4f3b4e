#include "common/model/decoder_weights.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <initializer_list>
#include <new>
#include <span>
#include <string>
#include <utility>

namespace tandem::model {
namespace {

using kernels::DType;

/// One matrix of the file that goes into a Linear.
struct Part {
  std::string name;  ///< Without ".weight" and ".bias".
  std::int64_t rows = 0;
};

/// Weights are filled when so much of the source waits for it, since threads wait for each other at
/// the end: little where the source takes memory until then, else as much as may be in vain when
/// the weights are no longer wanted.
constexpr std::size_t kOwnedBytesMax = std::size_t{64} << 20;
constexpr std::size_t kWaitingBytesMax = std::size_t{2} << 30;

class Loader {
 public:
  Loader(const ModelConfig& config,
         const WeightNames& names,
         WeightSource& source,
         const PackOptions& options)
      : config_(config), names_(names), source_(source), options_(options) {}

  Result<DecoderWeights> load() {
    DecoderWeights decoder;
    TANDEM_TRY(load_embedding(decoder));
    for (std::int64_t layer = 0; layer < config_.layer_count; ++layer) {
      TANDEM_TRY(
          LayerWeights weights,
          load_layer(fmt::format("{}{}.", names_.layer_prefix, layer), config_.has_experts(layer)));
      decoder.layers.push_back(std::move(weights));
    }
    TANDEM_TRY(decoder.final_norm, norm(std::string(names_.final_norm), config_.hidden_size));
    const std::string_view head = config_.tie_word_embeddings ? names_.embedding : names_.lm_head;
    TANDEM_TRY(decoder.lm_head,
               linear({{std::string(head), config_.vocab_size}}, config_.hidden_size, false));
    TANDEM_TRY(fill());
    return decoder;
  }

 private:
  Result<std::vector<float>> norm(const std::string& name, std::int64_t size) {
    return source_.vector(name + ".weight", size);
  }

  Result<Linear> linear(std::initializer_list<Part> parts, std::int64_t cols, bool with_bias) {
    return packed(parts,
                  cols,
                  with_bias,
                  weight_format(options_.quantization, options_.dtype),
                  options_.late);
  }

  Result<Linear> packed(std::initializer_list<Part> parts,
                        std::int64_t cols,
                        bool with_bias,
                        kernels::WeightFormat format,
                        bool late) {
    std::vector<SourceMatrix> matrices;
    std::vector<kernels::MatrixView> views;
    Linear result;
    for (const Part& part : parts) {
      TANDEM_TRY(SourceMatrix matrix,
                 source_.matrix(part.name + ".weight", {.rows = part.rows, .cols = cols}));
      views.push_back(matrix.view);
      matrices.push_back(std::move(matrix));
      if (!with_bias) continue;
      TANDEM_TRY(const std::vector<float> bias, source_.vector(part.name + ".bias", part.rows));
      result.bias.insert(result.bias.end(), bias.begin(), bias.end());
    }
    std::size_t rows = 0;
    for (const kernels::MatrixView& view : views)
      rows += view.rows;
    result.weight = allocate(rows, static_cast<std::size_t>(cols), format, 1);
    if (result.weight == nullptr) {
      return resource_exhausted(fmt::format(
          "tensor '{}.weight': no memory to pack {} columns", parts.begin()->name, cols));
    }
    if (late && only_moved(views, format)) {
      result.late = std::move(views);
      return result;
    }
    TANDEM_TRY(add(*result.weight, std::move(views), std::move(matrices)));
    return result;
  }

  /// In the format in which the backend keeps such weights.
  [[nodiscard]] std::unique_ptr<kernels::PackedWeight> allocate(std::size_t rows,
                                                                std::size_t cols,
                                                                kernels::WeightFormat format,
                                                                std::size_t count) const {
    const kernels::Backend& backend = *options_.backend;
    return backend.allocate(rows, cols, backend.kept_format(format, cols), count);
  }

  /// Whether packing is as fast as reading: f16 is moved by halves of words.
  static bool only_moved(const std::vector<kernels::MatrixView>& views,
                         kernels::WeightFormat format) {
    return format.scheme == kernels::WeightScheme::kFloat && format.dtype != DType::kF16 &&
           std::all_of(views.begin(), views.end(), [&](const kernels::MatrixView& view) {
             return view.dtype == format.dtype;
           });
  }

  /// One matrix of each expert, in a stack: `name` is that of a matrix within an expert.
  Result<std::unique_ptr<kernels::PackedWeight>> stack(const std::string& prefix,
                                                       std::string_view name,
                                                       MatrixShape shape) {
    std::vector<SourceMatrix> matrices;
    std::vector<kernels::MatrixView> views;
    for (std::int64_t expert = 0; expert < config_.experts.count; ++expert) {
      TANDEM_TRY(
          SourceMatrix matrix,
          source_.matrix(fmt::format("{}{}{}{}.weight", prefix, names_.expert_prefix, expert, name),
                         shape));
      views.push_back(matrix.view);
      matrices.push_back(std::move(matrix));
    }
    auto packed = allocate(static_cast<std::size_t>(shape.rows),
                           static_cast<std::size_t>(shape.cols),
                           weight_format(options_.quantization, options_.dtype),
                           static_cast<std::size_t>(config_.experts.count));
    if (packed == nullptr) {
      return resource_exhausted(
          fmt::format("tensors '{}{}*{}.weight': no memory to pack {} experts",
                      prefix,
                      names_.expert_prefix,
                      name,
                      config_.experts.count));
    }
    TANDEM_TRY(add(*packed, std::move(views), std::move(matrices)));
    return packed;
  }

  /// To be filled with others. What it is filled from stays where it is until then.
  Status add(kernels::PackedWeight& weight,
             std::vector<kernels::MatrixView> views,
             std::vector<SourceMatrix> matrices) {
    for (const kernels::MatrixView& view : views)
      waiting_bytes_ += view.rows * view.cols * kernels::dtype_bytes(view.dtype);
    jobs_.push_back({.to = &weight, .parts = std::move(views), .reader = source_.reader()});
    for (SourceMatrix& matrix : matrices) {
      owned_bytes_ += matrix.storage.size();
      sources_.push_back(std::move(matrix));
    }
    const bool much = owned_bytes_ >= kOwnedBytesMax || waiting_bytes_ >= kWaitingBytesMax;
    return much ? fill() : Status();
  }

  Status fill() {
    if (options_.stop != nullptr && options_.stop->load())
      return cancelled("the weights are no longer wanted");
    if (!options_.backend->fill_exactly(jobs_, *options_.pool))
      return resource_exhausted("no memory to pack weights as plain bf16");
    jobs_.clear();
    sources_.clear();
    waiting_bytes_ = 0;
    owned_bytes_ = 0;
    return source_.take_read_status();
  }

  Result<ExpertWeights> load_experts(const std::string& prefix) {
    const std::int64_t hidden = config_.hidden_size;
    const std::int64_t inner = config_.experts.intermediate_size;
    ExpertWeights experts;
    // Never quantised, and in f32 whatever the dtype: it is small, and a rounding here may change
    // which expert a token goes to.
    TANDEM_TRY(Linear router,
               packed({{prefix + std::string(names_.router), config_.experts.count}},
                      hidden,
                      false,
                      kRouterFormat,
                      false));
    experts.router = std::move(router.weight);
    const MatrixShape in{.rows = inner, .cols = hidden};
    TANDEM_TRY(experts.gate, stack(prefix, names_.expert_gate, in));
    TANDEM_TRY(experts.up, stack(prefix, names_.expert_up, in));
    TANDEM_TRY(experts.down, stack(prefix, names_.expert_down, {.rows = hidden, .cols = inner}));
    return experts;
  }

  Result<LayerWeights> load_layer(const std::string& prefix, bool with_experts) {
    const auto named = [&](std::string_view name) { return prefix + std::string(name); };
    const std::int64_t hidden = config_.hidden_size;
    const std::int64_t kv_size = config_.kv_size();
    LayerWeights layer;
    TANDEM_TRY(layer.input_norm, norm(named(names_.input_norm), hidden));
    TANDEM_TRY(layer.qkv,
               linear({{named(names_.query), config_.query_size()},
                       {named(names_.key), kv_size},
                       {named(names_.value), kv_size}},
                      hidden,
                      config_.qkv_bias));
    if (config_.qk_norm) {
      TANDEM_TRY(layer.query_norm, norm(named(names_.query_norm), config_.head_dim));
      TANDEM_TRY(layer.key_norm, norm(named(names_.key_norm), config_.head_dim));
    }
    TANDEM_TRY(layer.output,
               linear({{named(names_.output), hidden}}, config_.query_size(), config_.output_bias));
    TANDEM_TRY(layer.post_attention_norm, norm(named(names_.post_attention_norm), hidden));
    if (with_experts) {
      TANDEM_TRY(layer.experts, load_experts(prefix));
      return layer;
    }
    TANDEM_TRY(layer.gate_up,
               linear({{named(names_.gate), config_.intermediate_size},
                       {named(names_.up), config_.intermediate_size}},
                      hidden,
                      config_.mlp_bias));
    TANDEM_TRY(layer.down,
               linear({{named(names_.down), hidden}}, config_.intermediate_size, config_.mlp_bias));
    return layer;
  }

  /// Lookups read single rows, so the table stays as the file has it, mapped, unless the compute
  /// dtype rounds it.
  Status load_embedding(DecoderWeights& decoder) {
    const std::string name = std::string(names_.embedding) + ".weight";
    TANDEM_TRY(SourceMatrix matrix,
               source_.matrix(name, {.rows = config_.vocab_size, .cols = config_.hidden_size}));
    decoder.embedding = matrix.view;
    decoder.embedding_storage = std::move(matrix.storage);
    if (matrix.view.dtype == options_.dtype || options_.dtype == DType::kF32) return {};
    return narrow_embedding(decoder, name);
  }

  Status narrow_embedding(DecoderWeights& decoder, const std::string& name) {
    const kernels::MatrixView from = decoder.embedding;
    const std::size_t row_bytes = from.cols * kernels::dtype_bytes(from.dtype);
    // Rows come through the reader, as those of the matrices do: touched in the mapping, a file
    // that is shortened meanwhile would end the process.
    kernels::ElementReader* const reader = source_.reader();
    std::vector<std::byte> rows;
    std::vector<std::byte> storage;
    try {
      if (reader != nullptr) rows.resize(row_bytes * options_.pool->thread_count());
      storage.resize(from.rows * from.cols * kernels::dtype_bytes(options_.dtype));
    } catch (const std::bad_alloc&) {
      return resource_exhausted(fmt::format(
          "tensor '{}': no memory for a copy in {}", name, kernels::dtype_name(options_.dtype)));
    }
    options_.pool->parallel_for(from.rows, [&](std::size_t row, std::size_t worker) {
      const auto* source = static_cast<const std::byte*>(from.data) + row * row_bytes;
      if (reader != nullptr) {
        reader->read(source, row_bytes, rows.data() + worker * row_bytes);
        source = rows.data() + worker * row_bytes;
      }
      for (std::size_t i = 0; i < from.cols; ++i) {
        const float value = widened(source, from.dtype, i);
        const std::uint16_t bits = options_.dtype == DType::kF16 ? kernels::f32_to_f16(value)
                                                                 : kernels::f32_to_bf16(value);
        std::memcpy(storage.data() + (row * from.cols + i) * sizeof bits, &bits, sizeof bits);
      }
    });
    TANDEM_TRY(source_.take_read_status());
    decoder.embedding_storage = std::move(storage);
    decoder.embedding.data = decoder.embedding_storage.data();
    decoder.embedding.dtype = options_.dtype;
    return {};
  }

  const ModelConfig& config_;
  const WeightNames& names_;
  WeightSource& source_;
  const PackOptions& options_;
  std::vector<kernels::PackJob> jobs_;
  std::vector<SourceMatrix> sources_;
  std::size_t waiting_bytes_ = 0;
  std::size_t owned_bytes_ = 0;
};

}  // namespace

Result<DecoderWeights> load_decoder(const ModelConfig& config,
                                    const WeightNames& names,
                                    WeightSource& source,
                                    const PackOptions& options) {
  return Loader(config, names, source, options).load();
}

Status own_embedding(DecoderWeights& decoder) {
  if (!decoder.embedding_storage.empty()) return {};
  const kernels::MatrixView& from = decoder.embedding;
  const std::size_t bytes = from.rows * from.cols * kernels::dtype_bytes(from.dtype);
  try {
    const auto* data = static_cast<const std::byte*>(from.data);
    decoder.embedding_storage.assign(data, data + bytes);
  } catch (const std::bad_alloc&) {
    return resource_exhausted(fmt::format("no memory for {} bytes of embeddings", bytes));
  }
  decoder.embedding.data = decoder.embedding_storage.data();
  return {};
}

}  // namespace tandem::model
