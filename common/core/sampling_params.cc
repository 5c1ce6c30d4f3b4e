#include "common/core/sampling_params.h"

#include <fmt/format.h>

#include <cmath>

namespace tandem::core {
namespace {

constexpr std::size_t kStopTokenIdsMax = 1024;
constexpr std::size_t kLogitBiasMax = 4096;

Status number_in(const char* field, float value, float low, float high, bool low_open = false) {
  const bool inside =
      std::isfinite(value) && (low_open ? value > low : value >= low) && value <= high;
  if (inside) return {};
  return invalid_argument(fmt::format("{}: {} is out of range, expected a number in {}{}, {}]",
                                      field,
                                      value,
                                      low_open ? '(' : '[',
                                      low,
                                      high));
}

Status token_known(const char* field, TokenId id, std::int32_t vocab_size) {
  if (id >= 0 && id < vocab_size) return {};
  return invalid_argument(fmt::format(
      "{}: token id {} is outside the vocabulary, expected 0 to {}", field, id, vocab_size - 1));
}

}  // namespace

Status SamplingParams::validate(std::int32_t vocab_size) const {
  if (max_new_tokens < 0) {
    return invalid_argument(
        fmt::format("max_new_tokens: {} is negative, expected 0 or more", max_new_tokens));
  }
  if (min_new_tokens < 0 || min_new_tokens > max_new_tokens) {
    return invalid_argument(
        fmt::format("min_new_tokens: {} is out of range, expected 0 to max_new_tokens={}",
                    min_new_tokens,
                    max_new_tokens));
  }
  TANDEM_TRY(number_in("temperature", temperature, 0.0F, 1000.0F));
  TANDEM_TRY(number_in("top_p", top_p, 0.0F, 1.0F, true));
  if (top_k < 1)
    return invalid_argument(
        fmt::format("top_k: {} is out of range, expected -1 (all) or 1 or more", top_k));
  TANDEM_TRY(number_in("min_p", min_p, 0.0F, 1.0F));
  TANDEM_TRY(number_in("frequency_penalty", frequency_penalty, -2.0F, 2.0F));
  TANDEM_TRY(number_in("presence_penalty", presence_penalty, -2.0F, 2.0F));
  TANDEM_TRY(number_in("repetition_penalty", repetition_penalty, 0.0F, 2.0F, true));
  if (stop_token_ids.size() > kStopTokenIdsMax) {
    return invalid_argument(fmt::format("stop_token_ids: {} entries, expected at most {}",
                                        stop_token_ids.size(),
                                        kStopTokenIdsMax));
  }
  for (const TokenId id : stop_token_ids)
    TANDEM_TRY(token_known("stop_token_ids", id, vocab_size));
  if (logit_bias.size() > kLogitBiasMax) {
    return invalid_argument(fmt::format(
        "logit_bias: {} entries, expected at most {}", logit_bias.size(), kLogitBiasMax));
  }
  for (const auto& [id, bias] : logit_bias) {
    TANDEM_TRY(token_known("logit_bias", id, vocab_size));
    TANDEM_TRY(number_in("logit_bias", bias, -100.0F, 100.0F));
  }
  return {};
}

}  // namespace tandem::core
