#include "common/model/config.h"
#include "common/model/memory_plan.h"
#include "common/model/rope.h"
#include "tests/fuzz/feeds.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <string>
#include <string_view>

namespace tandem::fuzz {
namespace {

constexpr std::string_view kSources[] = {
    "config.json: ", "generation_config.json: ", "--json-model-override-args: "};

void must_be_within(std::int64_t value, std::int64_t most) {
  must(value >= 1 && value <= most, "sizes are within their limits");
}

void check_sizes(const model::ModelConfig& config) {
  must_be_within(config.vocab_size, model::kVocabSizeMax);
  must_be_within(config.hidden_size, model::kHiddenSizeMax);
  must_be_within(config.intermediate_size, model::kIntermediateSizeMax);
  must_be_within(config.layer_count, model::kLayerCountMax);
  must_be_within(config.head_count, model::kHeadCountMax);
  must_be_within(config.kv_head_count, config.head_count);
  must_be_within(config.head_dim, model::kHeadDimMax);
  must_be_within(config.position_count, model::kPositionCountMax);
  must_be_within(config.context_length(), model::kPositionCountMax);
  must(config.head_count % config.kv_head_count == 0, "heads share keys evenly");
  must(config.head_dim % 2 == 0, "heads turn in pairs");
  const auto layers = static_cast<std::size_t>(config.layer_count);
  must(config.window.size() == layers, "each layer has a window");
  must(std::ranges::all_of(config.window, [](std::int32_t w) { return w >= 0; }),
       "no window is negative");
  const model::ExpertConfig& experts = config.experts;
  must(experts.in_layer.size() == (experts.count == 0 ? 0 : layers),
       "each layer has experts or not");
  if (experts.count == 0) return;
  must_be_within(experts.count, model::kExpertCountMax);
  must_be_within(experts.per_token, experts.count);
  must_be_within(experts.intermediate_size, model::kIntermediateSizeMax);
}

void check_ids(const model::ModelConfig& config) {
  const auto known = [&](std::int32_t id) { return id >= 0 && id < config.vocab_size; };
  must(std::ranges::all_of(config.eos_ids, known), "ends are tokens");
  must(std::ranges::is_sorted(config.eos_ids) &&
           std::ranges::adjacent_find(config.eos_ids) == config.eos_ids.end(),
       "in order, each once");
  must(known(config.bos_id.value_or(0)) && known(config.pad_id.value_or(0)), "marks are tokens");
}

void check_rope(const model::ModelConfig& config) {
  const model::RopeTable rope = model::make_rope_table(config);
  must(static_cast<std::int64_t>(rope.inverse_frequency.size()) * 2 == config.head_dim,
       "each pair turns");
  must(std::ranges::all_of(rope.inverse_frequency,
                           [](float f) { return std::isfinite(f) && f >= 0; }),
       "at a speed that is one");
  must(std::isfinite(rope.magnitude) && rope.magnitude > 0, "without going out of sight");
}

/// Every product below 2^63, as the limits promise; UndefinedBehaviorSanitizer looks at the rest.
void check_layout(const model::ModelConfig& config) {
  constexpr std::int64_t kPageSize = 64;
  const model::KvLayout kv = model::make_kv_layout(config, kernels::DType::kF32, kPageSize);
  must(kv.page_bytes() <= std::numeric_limits<std::int64_t>::max() / model::kPositionCountMax,
       "pages for the longest context can be counted");
  must(model::activation_floats_per_token(config) > 0, "and so can what a token needs");
}

}  // namespace

void feed_config(Bytes bytes) {
  // Three texts, a NUL between them.
  const std::string text = text_of(bytes);
  std::array<std::string_view, std::size(kSources)> parts;
  std::string_view rest = text;
  for (std::string_view& part : parts) {
    part = rest.substr(0, rest.find('\0'));
    rest.remove_prefix(std::min(part.size() + 1, rest.size()));
  }
  const auto config = model::parse_config(parts[0], parts[1], parts[2]);
  const auto again = model::parse_config(parts[0], parts[1], parts[2]);
  must(config.ok() == again.ok(), "a file is always the same");
  if (!config.ok()) {
    const std::string& message = config.status().message();
    must(std::ranges::any_of(kSources, [&](std::string_view s) { return message.starts_with(s); }),
         "a refusal names the file");
    return;
  }
  must(config->canonical_text() == again->canonical_text(), "and says the same");
  must(!config->architecture.empty(), "a model has a name");
  must(config->rms_norm_eps > 0 && config->rms_norm_eps < 1, "a norm divides by no zero");
  check_sizes(*config);
  check_ids(*config);
  check_rope(*config);
  check_layout(*config);
}

}  // namespace tandem::fuzz
