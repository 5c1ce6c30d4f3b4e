#include "common/api/sampling_fields.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <limits>

namespace tandem::api {

namespace {

constexpr std::int64_t kTokensMax = 1 << 30;

// A double that float cannot hold becomes the largest float, which every range check refuses.
float to_float(double value) {
  constexpr double kMost = std::numeric_limits<float>::max();
  return static_cast<float>(std::clamp(value, -kMost, kMost));
}

Status read_float(RequestBody& body, std::string_view name, float* out) {
  TANDEM_TRY(const auto value, body.take_double(name));
  if (value) *out = to_float(*value);
  return {};
}

Status read_stop(RequestBody& body, const ApiLimits& limits, core::TextParams* text) {
  const auto field = body.take("stop");
  if (!field) return {};
  if (field->value().is_string()) {
    text->stop = {*field->value().if_string()};
  } else if (field->value().is_array()) {
    if (field->value().if_array()->size() > limits.stop_count) {
      return field->error(std::to_string(field->value().if_array()->size()) +
                          " entries, expected at most " + std::to_string(limits.stop_count));
    }
    TANDEM_TRY(text->stop, field->as_strings());
  } else {
    return field->mismatch("a string or an array of strings");
  }
  for (const std::string& stop : text->stop) {
    if (stop.empty() || stop.size() > limits.stop_bytes) {
      return field->error("a stop string has " + std::to_string(stop.size()) +
                          " bytes, expected 1 to " + std::to_string(limits.stop_bytes));
    }
  }
  return {};
}

Status read_logit_bias(RequestBody& body, const ApiLimits& limits, core::SamplingParams* out) {
  const auto field = body.take("logit_bias");
  if (!field) return {};
  TANDEM_TRY(const auto members, field->members());
  if (members.size() > limits.logit_bias_count) {
    return field->error(std::to_string(members.size()) + " entries, expected at most " +
                        std::to_string(limits.logit_bias_count));
  }
  for (const auto& [key, value] : members) {
    core::TokenId id = -1;
    const auto end = std::from_chars(key.data(), key.data() + key.size(), id);
    if (end.ec != std::errc() || end.ptr != key.data() + key.size())
      return value.error("the key must be a token id");
    TANDEM_TRY(const double bias, value.as_double());
    out->logit_bias.emplace_back(id, to_float(bias));
  }
  // One order whatever the client's, so that equal requests are equal.
  std::sort(out->logit_bias.begin(), out->logit_bias.end());
  return {};
}

Status read_stop_token_ids(RequestBody& body, core::SamplingParams* out) {
  const auto field = body.take("stop_token_ids");
  if (!field) return {};
  TANDEM_TRY(const auto ids, field->as_ints(0, std::numeric_limits<std::int32_t>::max()));
  out->stop_token_ids.assign(ids.size(), 0);
  std::transform(ids.begin(), ids.end(), out->stop_token_ids.begin(), [](std::int64_t id) {
    return static_cast<core::TokenId>(id);
  });
  return {};
}

Status read_seed(RequestBody& body, std::string_view name, std::optional<std::uint64_t>* out) {
  const auto field = body.take(name);
  if (!field) return {};
  if (const std::uint64_t* large = field->value().if_uint()) {
    *out = *large;
    return {};
  }
  TANDEM_TRY(const std::int64_t value, field->as_int());
  *out = static_cast<std::uint64_t>(value);
  return {};
}

// Once max_new_tokens is known, so that the message can be about the client's own numbers.
Status read_min_tokens(RequestBody& body, std::string_view name, core::SamplingParams* out) {
  TANDEM_TRY(const auto value, body.take_int(name, 0, kTokensMax));
  if (value) out->min_new_tokens = static_cast<std::int32_t>(*value);
  return {};
}

}  // namespace

Status read_shared_sampling(RequestBody& body, const ApiLimits& limits, SamplingFields* out) {
  core::SamplingParams& sampling = out->sampling;
  TANDEM_TRY(read_float(body, "temperature", &sampling.temperature));
  TANDEM_TRY(read_float(body, "top_p", &sampling.top_p));
  TANDEM_TRY(read_float(body, "min_p", &sampling.min_p));
  TANDEM_TRY(read_float(body, "frequency_penalty", &sampling.frequency_penalty));
  TANDEM_TRY(read_float(body, "presence_penalty", &sampling.presence_penalty));
  TANDEM_TRY(read_float(body, "repetition_penalty", &sampling.repetition_penalty));
  TANDEM_TRY(const auto top_k, body.take_int("top_k", -1, kTokensMax));
  if (top_k) sampling.top_k = *top_k == -1 ? core::kTopKAll : static_cast<std::int32_t>(*top_k);
  TANDEM_TRY(const auto n, body.take_int("n", 1, limits.n));
  out->n = static_cast<std::int32_t>(n.value_or(1));
  TANDEM_TRY(read_stop(body, limits, &out->text));
  TANDEM_TRY(read_stop_token_ids(body, &sampling));
  TANDEM_TRY(read_logit_bias(body, limits, &sampling));
  TANDEM_TRY(const auto ignore_eos, body.take_bool("ignore_eos"));
  if (ignore_eos) sampling.ignore_eos = *ignore_eos;
  TANDEM_TRY(const auto skip_special, body.take_bool("skip_special_tokens"));
  out->text.skip_special_tokens = skip_special.value_or(true);
  TANDEM_TRY(const auto no_trim, body.take_bool("no_stop_trim"));
  out->text.no_stop_trim = no_trim.value_or(false);
  static const RequestBody::Names kConstraints{"json_schema", "regex", "ebnf", "structural_tag"};
  TANDEM_TRY(body.refuse(kConstraints, kNoGrammar));
  static const RequestBody::Names kUnbuilt{
      "stop_regex", "custom_logit_processor", "custom_params", "beam_width", "watermark", "choice"};
  return body.refuse(kUnbuilt);
}

Result<SamplingFields> read_openai_sampling(RequestBody& body,
                                            const core::ServedModel& model,
                                            const ApiLimits& limits) {
  SamplingFields out;
  out.sampling = model.default_sampling;
  TANDEM_TRY(read_shared_sampling(body, limits, &out));
  TANDEM_TRY(const auto max_tokens, body.take_int("max_tokens", 0, kTokensMax));
  TANDEM_TRY(const auto max_completion, body.take_int("max_completion_tokens", 0, kTokensMax));
  const auto& chosen = max_completion ? max_completion : max_tokens;
  if (chosen) out.max_new_tokens = static_cast<std::int32_t>(*chosen);
  TANDEM_TRY(read_min_tokens(body, "min_tokens", &out.sampling));
  TANDEM_TRY(read_seed(body, "seed", &out.seed));
  return out;
}

Result<SamplingFields> read_native_sampling(RequestBody& body,
                                            const core::ServedModel& model,
                                            const ApiLimits& limits) {
  SamplingFields out;
  out.sampling = model.default_sampling;
  TANDEM_TRY(read_shared_sampling(body, limits, &out));
  TANDEM_TRY(const auto most, body.take_int("max_new_tokens", 0, kTokensMax));
  if (most) out.max_new_tokens = static_cast<std::int32_t>(*most);
  TANDEM_TRY(read_min_tokens(body, "min_new_tokens", &out.sampling));
  TANDEM_TRY(read_seed(body, "sampling_seed", &out.seed));
  return out;
}

}  // namespace tandem::api
