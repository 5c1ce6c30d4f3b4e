#include "common/model/quantization.h"

#include <fmt/format.h>

namespace tandem::model {

std::string_view quantization_name(Quantization quantization) {
  switch (quantization) {
    case Quantization::kNone:
      return "none";
    case Quantization::kInt8WeightOnly:
      return "int8wo";
    case Quantization::kInt4WeightOnly128:
      return "int4wo-128";
    case Quantization::kW8A8Int8:
      return "w8a8_int8";
  }
  return "?";
}

kernels::WeightFormat weight_format(Quantization quantization, kernels::DType dtype) {
  switch (quantization) {
    case Quantization::kNone:
      return dtype;
    case Quantization::kInt8WeightOnly:
      return kernels::WeightScheme::kInt8;
    case Quantization::kInt4WeightOnly128:
      return kernels::WeightScheme::kInt4Group128;
    case Quantization::kW8A8Int8:
      return kernels::WeightScheme::kInt8Dynamic;
  }
  return dtype;
}

Status check_quantization(Quantization quantization, const ModelConfig& config) {
  struct Size {
    const char* name;
    std::int64_t value;
  };

  const Size sizes[] = {{"hidden_size", config.hidden_size},
                        {"num_attention_heads * head_dim", config.query_size()},
                        {"intermediate_size", config.intermediate_size},
                        {"moe_intermediate_size", config.experts.intermediate_size}};
  const kernels::WeightFormat layers = weight_format(quantization, kernels::DType::kF32);
  const bool quantized = kernels::is_quantized(layers.scheme);
  const auto most = static_cast<std::int64_t>(quantized ? kernels::kMaxByteInputs : kernels::kMaxK);
  for (const Size& size : sizes) {
    if (size.value <= most) continue;
    return unimplemented(
        fmt::format("{}: is {}, {}products take up to {}",
                    size.name,
                    size.value,
                    quantized ? fmt::format("{} ", quantization_name(quantization)) : "",
                    most));
  }
  return {};
}

}  // namespace tandem::model
