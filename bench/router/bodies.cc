#include "bench/router/bodies.h"

#include <fmt/format.h>

#include <algorithm>

namespace tandem::bench {

namespace {

/// Ids of an end: a block that begins before it is over within it, and another one follows.
constexpr int kTailIds = 32;
/// Times that an end says its number, of six digits.
constexpr int kTailNumbers = 6;

/// Four digits, as ids of any vocabulary here.
std::uint64_t id_of(std::uint64_t value) {
  return 1000 + value % 1000;
}

std::string text_of(std::size_t bytes) {
  std::string text;
  while (text.size() < bytes)
    text += "the quick brown fox jumps over the lazy dog ";
  return text.substr(0, bytes);
}

std::string tail_text(std::uint64_t number) {
  std::string tail;
  for (int i = 0; i < kTailNumbers; ++i)
    tail += fmt::format(" {}", 100'000 + number % 900'000);
  return tail;
}

std::string begin_text(std::uint64_t number) {
  return fmt::format("conversation {} ", 10 + number % kConversations);
}

}  // namespace

IdsBodies::IdsBodies(int prompt_tokens) {
  for (int i = 1 + kTailIds; i < prompt_tokens; ++i)
    middle_ += fmt::format(",{}", 300 + i * 7 % 1500);
}

std::string IdsBodies::body(std::uint64_t number) const {
  std::string body = fmt::format(R"({{"input_ids":[{})", id_of(number % kConversations)) + middle_;
  for (int i = 0; i < kTailIds; ++i)
    body += fmt::format(",{}", id_of(i % 2 == 0 ? number : number / 1000));
  return body + R"(],"sampling_params":{"max_new_tokens":8,"ignore_eos":true,"temperature":0}})";
}

ChatBodies::ChatBodies(const Options& options)
    : head_(fmt::format(R"({{"model":"m","max_tokens":{},"ignore_eos":true,"stream":{})",
                        options.max_tokens,
                        options.stream)) {
  const std::size_t ends = begin_text(0).size() + tail_text(0).size();
  middle_ = text_of(options.text_bytes - std::min(options.text_bytes, ends));
}

std::string ChatBodies::body(std::uint64_t number, std::size_t seed) const {
  return head_ + fmt::format(R"(,"seed":{},"messages":[{{"role":"user","content":")", seed) +
         begin_text(number) + middle_ + tail_text(number) + R"("}]})";
}

}  // namespace tandem::bench
