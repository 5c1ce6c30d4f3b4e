// Rotary frequencies of a config.
#pragma once

#include "common/model/config.h"

#include <vector>

namespace tandem::model {

struct RopeTable {
  /// [head_dim / 2] angle per position of each pair, after scaling.
  std::vector<float> inverse_frequency;
  /// Multiplies cos and sin (yarn's attention factor; else 1).
  float magnitude = 1.0F;
};

/// Su et al. 2021 with the linear, Llama 3.1 and YaRN (Peng et al. 2023, section 3) scalings as
/// transformers' `modeling_rope_utils.py` computes them. Pure.
RopeTable make_rope_table(const ModelConfig& config);

}  // namespace tandem::model
