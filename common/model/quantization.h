// Online quantisation: float matrices of a checkpoint become small integers when they are packed.
#pragma once

#include "common/base/status.h"
#include "common/model/config.h"
#include "kernels/api/weight.h"

#include <cstdint>
#include <string_view>

namespace tandem::model {

/// Every matrix of the layers is quantised, and the head (lm_head, or a copy of tied embeddings) as
/// they are: it is a linear layer like them, and up to a third of what a small model reads for a
/// token. Embeddings, norms and biases stay as they are, and the router of a mixture of experts.
enum class Quantization : std::uint8_t {
  kNone,
  kInt8WeightOnly,     ///< "int8wo": kernels::WeightScheme::kInt8
  kInt4WeightOnly128,  ///< "int4wo-128": kernels::WeightScheme::kInt4Group128
  kW8A8Int8,           ///< "w8a8_int8": kInt8Dynamic
};

/// The name of the argument's value; "none".
std::string_view quantization_name(Quantization quantization);

/// How matrices are kept; `dtype` where they are not quantised.
kernels::WeightFormat weight_format(Quantization quantization, kernels::DType dtype);

/// How the router of a mixture of experts is kept, whatever the layers are.
inline constexpr kernels::WeightFormat kRouterFormat = kernels::DType::kF32;

/// Refuses sizes that the scheme's integer sums do not hold, by the name in config.json.
Status check_quantization(Quantization quantization, const ModelConfig& config);

}  // namespace tandem::model
