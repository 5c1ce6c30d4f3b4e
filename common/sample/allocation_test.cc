// What a sampler takes from the system: what the memory plan counts when it is made, and nothing in
// a draw: a step has 32 of them.
#include "common/base/random.h"
#include "common/sample/sampler.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <new>

namespace {
std::atomic<int> allocations{0};
std::atomic<std::size_t> allocated{0};
}  // namespace

// For the whole test program; arrays come here too. Not inline: GCC 12 then takes malloc and
// delete, or new and free, for a pair.
[[gnu::noinline]] void* operator new(std::size_t bytes) {
  ++allocations;
  allocated += bytes;
  void* memory = std::malloc(bytes == 0 ? 1 : bytes);
  if (memory == nullptr) std::abort();
  return memory;
}

// What sorts for their buffers call.
[[gnu::noinline]] void* operator new(std::size_t bytes, const std::nothrow_t& /*tag*/) noexcept {
  return operator new(bytes);
}

[[gnu::noinline]] void operator delete(void* memory) noexcept {
  std::free(memory);
}

[[gnu::noinline]] void operator delete(void* memory, std::size_t /*bytes*/) noexcept {
  std::free(memory);
}

namespace tandem::sample {
namespace {

TEST(Sampler, ADrawAllocatesNothing) {
  Random random(3);
  std::vector<float> logits(5000);
  for (float& logit : logits)
    logit = static_cast<float>(random.uniform() * 12);
  const TokenCounts counts{{5, 2}, {99, 1}};
  const Sampler first(1);  // looks for what the processor can do
  const std::size_t before_all = allocated;
  Sampler sampler(static_cast<std::int32_t>(logits.size()));
  // What does not grow with the vocabulary: parts of octaves.
  constexpr std::size_t kFixed = std::size_t{128} * 1024;

  struct Row {
    const char* name;
    float temperature = 1;
    float top_p = 1;
    std::int32_t top_k = core::kTopKAll;
    float min_p = 0;
    float repetition_penalty = 1;
  };

  for (const Row& row : {Row{.name = "greedy", .temperature = 0},
                         Row{.name = "penalty", .temperature = 0, .repetition_penalty = 1.5F},
                         Row{.name = "plain"},
                         Row{.name = "top_p", .top_p = 0.95F},
                         Row{.name = "top_k", .top_k = 50},
                         Row{.name = "top_k and top_p", .top_p = 0.9F, .top_k = 50},
                         Row{.name = "large top_k", .top_k = 2000},
                         Row{.name = "min_p", .min_p = 0.01F}}) {
    SCOPED_TRACE(row.name);
    core::SamplingParams params;
    params.temperature = row.temperature;
    params.top_p = row.top_p;
    params.top_k = row.top_k;
    params.min_p = row.min_p;
    params.repetition_penalty = row.repetition_penalty;
    const SampleInput input{.logits = logits, .params = &params, .counts = &counts};
    const int before = allocations;
    const auto token = sampler.sample(input);
    EXPECT_EQ(allocations, before);
    EXPECT_TRUE(token.ok());
  }
  // Equal ones all count as the best, and as one part.
  std::fill(logits.begin(), logits.end(), 1.0F);
  for (const std::int32_t top_k : {50, 2000, core::kTopKAll}) {
    core::SamplingParams params;
    params.temperature = 1;
    params.top_k = top_k;
    params.top_p = 0.9F;
    params.repetition_penalty = 1.5F;
    ASSERT_TRUE(sampler.sample({.logits = logits, .params = &params, .counts = &counts}).ok());
  }
  EXPECT_LE(allocated - before_all, logits.size() * Sampler::kBytesPerToken + kFixed);
}

}  // namespace
}  // namespace tandem::sample
