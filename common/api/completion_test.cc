#include "common/api/testing/fixture.h"

#include <gtest/gtest.h>

namespace tandem::api {
namespace {

TEST(Completion, PromptForms) {
  ApiFixture fixture(always("!"));
  const auto count = [&](const std::string& prompt) {
    const json::Value body = fixture.post("/v1/completions", R"({"prompt":)" + prompt + "}");
    return body.find("choices") == nullptr ? 0U : at(body, "choices").if_array()->size();
  };
  EXPECT_EQ(count(R"("one")"), 1U);
  EXPECT_EQ(count(R"(["one","two"])"), 2U);
  EXPECT_EQ(count("[5,6,7]"), 1U);
  EXPECT_EQ(count("[[5,6],[7]]"), 2U);
  EXPECT_EQ(fixture.generator->request(3).input_ids, (std::vector<core::TokenId>{5, 6, 7}));
  EXPECT_EQ(fixture.generator->request(0).sampling.max_new_tokens, 16);
  EXPECT_NE(fixture.generator->request(1).sampling.seed,
            fixture.generator->request(2).sampling.seed)
      << "a drawn seed is drawn for each prompt";
}

TEST(Completion, EchoWithLogprobs) {
  ApiFixture fixture(always(" there"));
  const json::Value body = fixture.post(
      "/v1/completions", R"({"prompt":"hello","echo":true,"logprobs":1,"max_tokens":50})");
  EXPECT_EQ(at(body, "object"), json::Value("text_completion"));
  EXPECT_EQ(at(body, "choices.0.text"), json::Value("hello there"));
  const std::size_t tokens = ids_of("hello").size() + ids_of(" there").size();
  EXPECT_EQ(at(body, "choices.0.logprobs.tokens").if_array()->size(), tokens);
  EXPECT_TRUE(at(body, "choices.0.logprobs.token_logprobs.0").is_null());
  EXPECT_TRUE(at(body, "choices.0.logprobs.top_logprobs.0").is_null());
  EXPECT_EQ(at(body, "choices.0.logprobs.text_offset.0"), json::Value(0));
  EXPECT_EQ(fixture.generator->request(0).logprob_start_len, 0);
  const auto events = fixture.stream(
      "/v1/completions",
      R"({"prompt":"hello","echo":true,"logprobs":1,"max_tokens":50,"stream":true})");
  std::string text;
  std::size_t streamed = 0;
  for (const json::Value& event : events) {
    if (event == json::Value("[DONE]")) continue;
    text += *at(event, "choices.0.text").if_string();
    streamed += at(event, "choices.0.logprobs.tokens").if_array()->size();
  }
  EXPECT_EQ(text, "hello there");
  EXPECT_EQ(streamed, tokens);
}

TEST(Completion, UsageCountsAPromptOnceWhateverN) {
  ApiFixture fixture(always("a b"));
  const json::Value body =
      fixture.post("/v1/completions", R"({"prompt":["hello","hello you"],"n":2})");
  EXPECT_EQ(at(body, "choices").if_array()->size(), 4U);
  EXPECT_EQ(at(body, "choices.3.index"), json::Value(3));
  EXPECT_EQ(at(body, "usage.prompt_tokens"),
            json::Value(fixture.generator->request(0).input_ids.size() +
                        fixture.generator->request(2).input_ids.size()));
  EXPECT_EQ(at(body, "usage.completion_tokens"), json::Value(4 * ids_of("a b").size()));
}

TEST(Completion, LengthAndMinTokens) {
  ApiFixture fixture(always("a b c d e f g"));
  const json::Value body =
      fixture.post("/v1/completions", R"({"prompt":"x","max_tokens":2,"min_tokens":1})");
  EXPECT_EQ(at(body, "choices.0.finish_reason"), json::Value("length"));
  EXPECT_TRUE(at(body, "choices.0.matched_stop").is_null());
  EXPECT_EQ(at(body, "usage.completion_tokens"), json::Value(2));
  EXPECT_EQ(fixture.generator->request(0).sampling.min_new_tokens, 1);
}

}  // namespace
}  // namespace tandem::api
