// Online quantisation: float matrices of a checkpoint become small integers when they are packed.
#pragma once

#include "common/base/status.h"
#include "common/model/config.h"
#include "kernels/api/weight.h"

#include <cstdint>
#include <string_view>

namespace tandem::model {

/// Every matrix of the layers is quantised. Embeddings, norms and biases stay as they are. The head
/// (lm_head, or a copy of tied embeddings) is quantised too, since it is a quarter of a small
/// model's bytes: to 8 bit in every case, with float inputs unless the layers round theirs.
enum class Quantization : std::uint8_t {
  kNone,
  kInt8WeightOnly,     ///< "int8wo": kernels::WeightScheme::kInt8
  kInt4WeightOnly128,  ///< "int4wo-128": kInt4Group128, the head kInt8Dynamic
  kW8A8Int8,           ///< "w8a8_int8": kInt8Dynamic
};

/// The name of the argument's value; "none".
std::string_view quantization_name(Quantization quantization);

/// How the layers' matrices and the head are kept; `dtype` where they are not quantised.
kernels::WeightFormat layer_format(Quantization quantization, kernels::DType dtype);
kernels::WeightFormat head_format(Quantization quantization, kernels::DType dtype);

/// How the router of a mixture of experts is kept, whatever the layers are.
inline constexpr kernels::WeightFormat kRouterFormat = kernels::DType::kF32;

/// Refuses sizes that the scheme's integer sums do not hold, by the name in config.json.
Status check_quantization(Quantization quantization, const ModelConfig& config);

}  // namespace tandem::model
