#include "bench/serve/dataset.h"

#include "common/base/random.h"
#include "common/json/parse.h"
#include "common/json/write.h"
#include "common/token/tokenizer.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <memory>
#include <numbers>

namespace tandem::bench {

namespace {

constexpr std::array<const char*, 32> kWords = {
    "the",  "of", "and", "to",  "in",   "is",   "you",  "that", "it",   "he",   "was",
    "for",  "on", "are", "as",  "with", "his",  "they", "at",   "be",   "this", "have",
    "from", "or", "one", "had", "by",   "word", "but",  "not",  "what", "all"};

// Without a tokenizer four bytes count as a token.
constexpr std::size_t kBytesPerToken = 4;
constexpr std::int64_t kTokensMin = 2;

std::int64_t draw_length(std::int64_t most, double ratio, Random& random) {
  const auto least =
      std::max<std::int64_t>(static_cast<std::int64_t>(static_cast<double>(most) * ratio), 1);
  return least +
         static_cast<std::int64_t>(random.below(static_cast<std::uint64_t>(most - least) + 1));
}

std::vector<Prompt> random_prompts(const Options& options, std::int32_t vocab_size) {
  Random random(options.seed);
  std::vector<Prompt> prompts(options.num_prompts);
  for (Prompt& prompt : prompts) {
    const std::int64_t length =
        draw_length(options.random_input_len, options.random_range_ratio, random);
    prompt.output_len = draw_length(options.random_output_len, options.random_range_ratio, random);
    for (std::int64_t i = 0; i < length; ++i) {
      if (options.api == Api::kChat) {
        prompt.text.append(i == 0 ? "" : " ").append(kWords.at(random.below(kWords.size())));
      } else {
        prompt.ids.push_back(
            static_cast<std::int32_t>(random.below(static_cast<std::uint64_t>(vocab_size))));
      }
    }
  }
  return prompts;
}

// Text of turn `index` of a conversation in ShareGPT's shape or in OpenAI's.
const std::string* turn_text(const json::Value& conversation, std::size_t index) {
  for (const char* list : {"conversations", "conversation", "messages"}) {
    const json::Value* turns = conversation.find(list);
    const json::Array* items = turns == nullptr ? nullptr : turns->if_array();
    if (items == nullptr || items->size() <= index) continue;
    for (const char* member : {"value", "content"}) {
      const json::Value* text = (*items)[index].find(member);
      if (text != nullptr && text->is_string()) return text->if_string();
    }
  }
  return nullptr;
}

Result<std::vector<Prompt>> file_prompts(const Options& options) {
  std::shared_ptr<const token::Tokenizer> tokenizer;
  if (!options.tokenizer.empty()) {
    TANDEM_TRY(tokenizer, token::Tokenizer::load(options.tokenizer));
  }
  const auto count = [&](const std::string& text) {
    return static_cast<std::int64_t>(tokenizer ? tokenizer->encode(text, false).size()
                                               : text.size() / kBytesPerToken);
  };
  TANDEM_TRY(const json::Value file,
             json::parse_file(options.dataset_path, {.max_bytes = std::size_t{2} << 30U}));
  const json::Array* conversations = file.if_array();
  if (conversations == nullptr)
    return invalid_argument(options.dataset_path + ": expected an array of conversations");
  std::vector<std::size_t> order(conversations->size());
  for (std::size_t i = 0; i < order.size(); ++i)
    order[i] = i;
  Random random(options.seed);
  for (std::size_t i = order.size(); i > 1; --i)
    std::swap(order[i - 1], order[random.below(i)]);
  std::vector<Prompt> prompts;
  for (const std::size_t i : order) {
    if (prompts.size() == options.num_prompts) break;
    const std::string* asked = turn_text((*conversations)[i], 0);
    const std::string* answered = turn_text((*conversations)[i], 1);
    if (asked == nullptr || answered == nullptr || count(*asked) < kTokensMin) continue;
    const std::int64_t wanted = options.sharegpt_output_len.value_or(count(*answered));
    if (wanted < kTokensMin) continue;
    prompts.push_back({.text = *asked, .ids = {}, .output_len = wanted});
  }
  if (prompts.empty()) {
    return invalid_argument(options.dataset_path +
                            ": no conversation with a question and an answer");
  }
  return prompts;
}

json::Value ids_value(const std::vector<std::int32_t>& ids) {
  json::Array array;
  array.reserve(ids.size());
  for (const std::int32_t id : ids)
    array.emplace_back(id);
  return {std::move(array)};
}

json::Object native_body(const Options& options, const Prompt& prompt) {
  json::Object sampling;
  sampling.set("temperature", 0.0);
  sampling.set("max_new_tokens", prompt.output_len);
  sampling.set("ignore_eos", options.ignore_eos);
  json::Object body;
  if (prompt.ids.empty()) {
    body.set("text", prompt.text);
  } else {
    body.set("input_ids", ids_value(prompt.ids));
  }
  body.set("sampling_params", std::move(sampling));
  body.set("stream", options.stream);
  return body;
}

json::Object openai_body(const Options& options, const Prompt& prompt) {
  json::Object body;
  body.set("model", options.served_model_name.empty() ? options.model : options.served_model_name);
  if (options.api == Api::kChat) {
    body.set(
        "messages",
        json::Value::array({json::Value::object({{"role", "user"}, {"content", prompt.text}})}));
  } else {
    body.set("prompt", prompt.ids.empty() ? json::Value(prompt.text) : ids_value(prompt.ids));
  }
  body.set("temperature", 0.0);
  body.set("max_tokens", prompt.output_len);
  body.set("ignore_eos", options.ignore_eos);
  body.set("stream", options.stream);
  if (options.stream) body.set("stream_options", json::Value::object({{"include_usage", true}}));
  return body;
}

double draw_exponential(Random& random) {
  return -std::log(1.0 - random.uniform());
}

// Box and Muller.
double draw_normal(Random& random) {
  const double radius = std::sqrt(2 * draw_exponential(random));
  return radius * std::cos(2 * std::numbers::pi * random.uniform());
}

// Gamma with scale 1 (Marsaglia and Tsang, ACM TOMS 26(3), 2000), shape > 0.
double draw_gamma(double shape, Random& random) {
  // Below 1: that of shape + 1, brought down.
  const double down = shape < 1 ? std::pow(1.0 - random.uniform(), 1 / shape) : 1;
  const double d = (shape < 1 ? shape + 1 : shape) - 1.0 / 3;
  const double c = 1 / std::sqrt(9 * d);
  while (true) {
    const double x = draw_normal(random);
    const double root = 1 + c * x;
    if (root <= 0) continue;
    const double v = root * root * root;
    if (std::log(1.0 - random.uniform()) < x * x / 2 + d - d * v + d * std::log(v))
      return d * v * down;
  }
}

// Time to the next request, with mean 1.
double draw_gap(double burstiness, Random& random) {
  if (std::isinf(burstiness)) return 1;
  if (burstiness == 1) return draw_exponential(random);
  return draw_gamma(burstiness, random) / burstiness;
}

}  // namespace

Result<std::vector<Prompt>> make_prompts(const Options& options, std::int32_t vocab_size) {
  if (options.dataset_name == "sharegpt") return file_prompts(options);
  return random_prompts(options, vocab_size);
}

std::string request_body(const Options& options, const Prompt& prompt) {
  json::Object body =
      options.api == Api::kNative ? native_body(options, prompt) : openai_body(options, prompt);
  for (const json::Member& member : options.extra_body)
    body.set(member.key, member.value);
  return json::to_string(json::Value(std::move(body)));
}

std::vector<double> arrival_times(const Options& options, std::size_t count) {
  std::vector<double> times(count, 0.0);
  if (std::isinf(options.request_rate)) return times;
  Random random(options.seed ^ 0x5EEDULL);
  double at = 0;
  for (double& time : times) {
    time = at;
    at += draw_gap(options.burstiness, random) / options.request_rate;
  }
  return times;
}

}  // namespace tandem::bench
