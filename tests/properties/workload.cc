#include "tests/properties/workload.h"

#include <bit>
#include <cstring>
#include <utility>

namespace tandem::properties {
namespace {

bool same_bits(float a, float b) {
  return std::bit_cast<std::uint32_t>(a) == std::bit_cast<std::uint32_t>(b);
}

bool same(const core::TokenLogprob& a, const core::TokenLogprob& b) {
  if (a.token != b.token || a.logprob.has_value() != b.logprob.has_value()) return false;
  if (a.logprob && !same_bits(*a.logprob, *b.logprob)) return false;
  if (a.top.size() != b.top.size()) return false;
  for (std::size_t i = 0; i < a.top.size(); ++i) {
    if (a.top[i].first != b.top[i].first || !same_bits(a.top[i].second, b.top[i].second)) {
      return false;
    }
  }
  return true;
}

std::string compare(const char* what,
                    const std::vector<core::TokenLogprob>& a,
                    const std::vector<core::TokenLogprob>& b) {
  if (a.size() != b.size()) {
    return std::to_string(a.size()) + " and " + std::to_string(b.size()) + " " + what;
  }
  for (std::size_t i = 0; i < a.size(); ++i) {
    if (!same(a[i], b[i])) return std::string(what) + " differ at " + std::to_string(i);
  }
  return "";
}

core::SamplingParams random_sampling(Random& random, std::int32_t vocab_size) {
  const auto token = [&] {
    return static_cast<core::TokenId>(random.below(static_cast<std::uint64_t>(vocab_size)));
  };
  const auto between = [&](double low, double high) {
    return static_cast<float>(low + (high - low) * random.uniform());
  };
  core::SamplingParams p;
  p.seed = random.next();
  p.max_new_tokens = 1 + static_cast<std::int32_t>(random.below(16));
  p.temperature = random.chance(0.3) ? 0.0F : between(0.2, 1.5);
  if (random.chance(0.3)) p.top_k = 1 + static_cast<std::int32_t>(random.below(50));
  if (random.chance(0.3)) p.top_p = between(0.3, 0.99);
  if (random.chance(0.2)) p.min_p = between(0.0, 0.3);
  if (random.chance(0.2)) p.frequency_penalty = between(-1, 1);
  if (random.chance(0.2)) p.presence_penalty = between(-1, 1);
  if (random.chance(0.2)) p.repetition_penalty = between(0.8, 1.5);
  if (random.chance(0.2)) p.logit_bias = {{token(), 4.0F}, {token(), -4.0F}};
  if (random.chance(0.2)) p.stop_token_ids = {token(), token()};
  p.ignore_eos = random.chance(0.5);
  if (random.chance(0.3)) {
    p.min_new_tokens =
        static_cast<std::int32_t>(random.below(static_cast<std::uint64_t>(p.max_new_tokens) + 1));
  }
  return p;
}

}  // namespace

core::EventSink Outcome::sink() {
  return [this](core::TokenEvent&& event) { take(std::move(event)); };
}

void Outcome::take(core::TokenEvent&& event) {
  if (finish_) disorder_ = "an event after the end";
  if (event.first_index != static_cast<std::int32_t>(tokens_.size())) {
    disorder_ = "an event at index " + std::to_string(event.first_index) + ", expected " +
                std::to_string(tokens_.size());
  }
  tokens_.insert(tokens_.end(), event.tokens.begin(), event.tokens.end());
  logprobs_.insert(logprobs_.end(), event.logprobs.begin(), event.logprobs.end());
  if (!event.prompt_logprobs.empty()) prompt_logprobs_ = std::move(event.prompt_logprobs);
  cached_tokens_ = event.cached_tokens;
  finish_ = std::move(event.finish);
}

void Outcome::start_after(const Outcome& earlier, std::size_t token_count) {
  const auto count = static_cast<std::ptrdiff_t>(token_count);
  tokens_.assign(earlier.tokens_.begin(), earlier.tokens_.begin() + count);
  logprobs_.assign(earlier.logprobs_.begin(), earlier.logprobs_.begin() + count);
}

std::string Outcome::difference(const Outcome& other) const {
  if (!disorder_.empty()) return disorder_;
  if (!other.disorder_.empty()) return other.disorder_;
  if (!finish_ || !other.finish_) return "not finished";
  if (finish_->kind == core::FinishKind::kAbort) return finish_->status.message();
  if (tokens_ != other.tokens_) return "tokens differ";
  if (finish_->kind != other.finish_->kind ||
      finish_->matched_token != other.finish_->matched_token) {
    return "finish reasons differ";
  }
  const auto text = compare("logprobs", logprobs_, other.logprobs_);
  return text.empty() ? compare("prompt logprobs", prompt_logprobs_, other.prompt_logprobs_) : text;
}

std::vector<core::Request> random_requests(std::uint64_t seed,
                                           std::size_t count,
                                           std::int32_t vocab_size) {
  Random random(seed);
  const auto fill = [&](std::vector<core::TokenId>& tokens, std::size_t size) {
    while (tokens.size() < size) {
      tokens.push_back(
          static_cast<core::TokenId>(random.below(static_cast<std::uint64_t>(vocab_size))));
    }
  };
  std::vector<std::vector<core::TokenId>> prefixes(6);
  for (std::size_t i = 0; i < prefixes.size(); ++i) {
    // Each second prefix goes on from the one before it.
    if (i % 2 == 1) prefixes[i] = prefixes[i - 1];
    fill(prefixes[i], prefixes[i].size() + 3 + random.below(20));
  }
  std::vector<core::Request> out(count);
  for (std::size_t i = 0; i < count; ++i) {
    core::Request& r = out[i];
    r.id = {i + 1};
    if (random.chance(0.7)) r.input_ids = prefixes[random.below(prefixes.size())];
    const std::size_t most = random.chance(0.03) ? 160 : 20;
    fill(r.input_ids, r.input_ids.size() + 1 + random.below(most));
    r.sampling = random_sampling(random, vocab_size);
    r.return_logprob = true;
    r.top_logprobs_num = static_cast<std::int32_t>(random.below(4));
    if (random.chance(0.2)) {
      r.logprob_start_len = static_cast<std::int32_t>(random.below(r.input_ids.size()));
    }
  }
  return out;
}

}  // namespace tandem::properties
