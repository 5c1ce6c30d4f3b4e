#include "common/core/request.h"
#include "common/core/sampling_params.h"

#include <gtest/gtest.h>

#include <limits>

namespace tandem::core {
namespace {

struct Row {
  const char* name;
  void (*change)(SamplingParams&);
  const char* want;  // part of the message; nullptr: valid
};

constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
constexpr Row kRows[] = {
    {"defaults", [](SamplingParams&) {}, nullptr},
    {"negative temperature", [](SamplingParams& p) { p.temperature = -0.1F; }, "temperature: -0.1"},
    {"nan temperature", [](SamplingParams& p) { p.temperature = kNan; }, "temperature: nan"},
    {"top_p zero", [](SamplingParams& p) { p.top_p = 0.0F; }, "top_p: 0"},
    {"top_p above one", [](SamplingParams& p) { p.top_p = 1.5F; }, "top_p: 1.5"},
    {"top_k zero", [](SamplingParams& p) { p.top_k = 0; }, "top_k: 0"},
    {"min_p", [](SamplingParams& p) { p.min_p = 2; }, "min_p: 2"},
    {"frequency", [](SamplingParams& p) { p.frequency_penalty = 3; }, "frequency_penalty: 3"},
    {"presence", [](SamplingParams& p) { p.presence_penalty = -3; }, "presence_penalty: -3"},
    {"repetition zero",
     [](SamplingParams& p) { p.repetition_penalty = 0; },
     "repetition_penalty: 0"},
    {"max tokens", [](SamplingParams& p) { p.max_new_tokens = -1; }, "max_new_tokens: -1"},
    {"min over max", [](SamplingParams& p) { p.min_new_tokens = 129; }, "min_new_tokens: 129"},
    {"stop id outside",
     [](SamplingParams& p) { p.stop_token_ids = {100}; },
     "stop_token_ids: token id 100"},
    {"bias id negative",
     [](SamplingParams& p) {
       p.logit_bias = {{-1, 1.0F}};
     },
     "logit_bias: token id -1"},
    {"bias too large",
     [](SamplingParams& p) {
       p.logit_bias = {{1, 101.0F}};
     },
     "logit_bias: 101"},
};

TEST(SamplingParams, Validate) {
  for (const Row& row : kRows) {
    SCOPED_TRACE(row.name);
    SamplingParams params;
    row.change(params);
    const Status status = params.validate(100);
    EXPECT_EQ(status.ok(), row.want == nullptr) << status.message();
    if (row.want != nullptr) {
      EXPECT_EQ(status.message().find(row.want), 0U) << status.message();
    }
  }
}

TEST(RequestId, DrawnIdsUse63Bits) {
  for (int i = 0; i < 100; ++i) {
    const RequestId id = draw_request_id();
    EXPECT_NE(id.value, 0U);
    EXPECT_EQ(id.value >> 63U, 0U);
    EXPECT_EQ(to_string(id).size(), 16U);
  }
}

}  // namespace
}  // namespace tandem::core
