// SamplingParams: how one request draws its tokens. Field names are SGLang's.
#pragma once

#include "common/base/status.h"

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

namespace tandem::core {

using TokenId = std::int32_t;

/// "All tokens": the value of top_k that cuts nothing.
inline constexpr std::int32_t kTopKAll = 1 << 30;

struct SamplingParams {
  std::int32_t max_new_tokens = 128;
  std::int32_t min_new_tokens = 0;
  /// 0 is greedy: the highest logit, the lowest id among equals.
  float temperature = 1.0F;
  float top_p = 1.0F;               ///< (0, 1]
  std::int32_t top_k = kTopKAll;    ///< >= 1; -1 in requests means all
  float min_p = 0.0F;               ///< [0, 1]
  float frequency_penalty = 0.0F;   ///< [-2, 2]
  float presence_penalty = 0.0F;    ///< [-2, 2]
  float repetition_penalty = 1.0F;  ///< (0, 2]
  std::vector<std::pair<TokenId, float>> logit_bias;
  /// Ids that end the output, besides the model's own end ids (unless ignore_eos).
  std::vector<TokenId> stop_token_ids;
  bool ignore_eos = false;
  /// Always set when a request reaches a worker: the front door draws one when the client gave
  /// none, so that a second attempt of the same request draws the same noise.
  std::uint64_t seed = 0;

  /// Checked by the front end and by the engine alike. Names the field, the value and what was
  /// expected.
  [[nodiscard]] Status validate(std::int32_t vocab_size) const;
};

/// What is done with the text of a request's output. Handled where text is made (room api), never
/// in the engine.
struct TextParams {
  std::vector<std::string> stop;
  bool skip_special_tokens = true;
  bool no_stop_trim = false;
};

}  // namespace tandem::core
