#include "common/api/testing/fixture.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace tandem::api {
namespace {

using ::testing::HasSubstr;

struct ErrorRow {
  const char* name;
  const char* path;
  std::string body;
  int status;
  const char* param;
  const char* text;
};

TEST(OpenAi, BadRequestsNameFieldValueAndExpectation) {
  const char* chat_path = "/v1/chat/completions";
  const char* path = "/v1/completions";
  const std::string deep = std::string(100, '[') + std::string(100, ']');
  const std::string many(40, 'x');
  std::string members;
  for (int i = 0; i < 300; ++i)
    members += "\"a" + std::to_string(i) + "\":1,";
  const ErrorRow rows[] = {
      {"no body", chat_path, "", 400, nullptr, "no body"},
      {"not json", chat_path, "{", 400, nullptr, "JSON"},
      {"array", chat_path, "[]", 400, nullptr, "expected a JSON object"},
      {"invalid utf-8", chat_path, "{\"a\":\"\xff\"}", 400, nullptr, "UTF-8"},
      {"deep", chat_path, "{\"a\":" + deep + "}", 400, nullptr, "JSON"},
      {"no messages", chat_path, "{}", 400, "messages", "missing"},
      {"messages type", chat_path, R"({"messages":"x"})", 400, "messages", "string \"x\""},
      {"among many members",
       chat_path,
       "{" + members + R"("messages":"x"})",
       400,
       "messages",
       "string \"x\""},
      {"no message", chat_path, R"({"messages":[]})", 400, "messages", "empty"},
      {"message type", chat_path, R"({"messages":[7]})", 400, "messages[0]", "integer 7"},
      {"no role", chat_path, R"({"messages":[{"content":"x"}]})", 400, nullptr, "role"},
      {"role",
       chat_path,
       R"({"messages":[{"role":"king","content":"x"}]})",
       400,
       "messages[0].role",
       "king"},
      {"content type",
       chat_path,
       R"({"messages":[{"role":"user","content":5}]})",
       400,
       "messages[0].content",
       "integer 5"},
      {"image part",
       chat_path,
       R"({"messages":[{"role":"user","content":[{"type":"image_url","image_url":{"url":"http://x"}}]}]})",
       400,
       "messages[0].content[0].type",
       "image_url"},
      {"template refuses",
       chat_path,
       R"({"messages":[{"role":"user","content":"explode"}]})",
       400,
       "messages",
       "alternate"},
      {"temperature type", chat_path, chat(R"("temperature":"hot")"), 400, "temperature", "hot"},
      {"temperature range", chat_path, chat(R"("temperature":-1)"), 400, "temperature", "-1"},
      {"temperature huge",
       chat_path,
       chat(R"("temperature":1e300)"),
       400,
       "temperature",
       "out of range"},
      {"top_p", chat_path, chat(R"("top_p":0)"), 400, "top_p", "0"},
      {"top_k", chat_path, chat(R"("top_k":0)"), 400, "top_k", "0"},
      {"n zero", chat_path, chat(R"("n":0)"), 400, "n", "0"},
      {"n large", chat_path, chat(R"("n":129)"), 400, "n", "129"},
      {"n fraction", chat_path, chat(R"("n":1.5)"), 400, "n", "1.5"},
      {"max_tokens", chat_path, chat(R"("max_tokens":-5)"), 400, "max_tokens", "-5"},
      {"over the context",
       chat_path,
       chat(R"("max_tokens":4000)"),
       400,
       nullptr,
       "maximum context length is 256"},
      {"stop type", chat_path, chat(R"("stop":5)"), 400, "stop", "integer 5"},
      {"stop empty", chat_path, chat(R"("stop":[""])"), 400, "stop", "0 bytes"},
      {"stop many",
       chat_path,
       chat(R"("stop":[)" + std::string("\"a\"") +
            [] {
              std::string s;
              for (int i = 0; i < 40; ++i)
                s += ",\"a\"";
              return s;
            }() +
            "]"),
       400,
       "stop",
       "41 entries"},
      {"top_logprobs alone",
       chat_path,
       chat(R"("top_logprobs":2)"),
       400,
       "top_logprobs",
       "logprobs"},
      {"top_logprobs large",
       chat_path,
       chat(R"("logprobs":true,"top_logprobs":21)"),
       400,
       "top_logprobs",
       "21"},
      {"logit_bias key",
       chat_path,
       chat(R"("logit_bias":{"x":1})"),
       400,
       "logit_bias.x",
       "token id"},
      {"logit_bias id",
       chat_path,
       chat(R"("logit_bias":{"99999999":1})"),
       400,
       "logit_bias",
       "99999999"},
      {"stream_options",
       chat_path,
       chat(R"("stream_options":{"include_usage":true})"),
       400,
       "stream_options",
       "stream"},
      {"rid", chat_path, chat(R"("rid":"a\r\nb")"), 400, "rid", "characters"},
      {"tools", chat_path, chat(R"("tools":[{"type":"function"}])"), 400, "tools", "not supported"},
      {"response_format",
       chat_path,
       chat(R"("response_format":{"type":"json_object"})"),
       400,
       "response_format.type",
       "json_object"},
      {"regex", chat_path, chat(R"("regex":"a+")"), 400, "regex", "not supported"},
      {"lora", chat_path, chat(R"("lora_path":"x")"), 400, "lora_path", "not supported"},
      {"lora among many members",
       chat_path,
       chat(members + R"("lora_path":"x")"),
       400,
       "lora_path",
       "not supported"},
      {"processor",
       chat_path,
       chat(R"("custom_logit_processor":"x")"),
       400,
       "custom_logit_processor",
       "not supported"},
      {"template by request",
       chat_path,
       chat(R"("chat_template_kwargs":{"chat_template":"x"})"),
       400,
       "chat_template_kwargs.chat_template",
       "server"},
      {"unknown model", chat_path, chat(R"("model":"gpt-9")"), 404, "model", "gpt-9"},
      {"model type", chat_path, chat(R"("model":7)"), 400, "model", "integer 7"},
      {"no prompt", path, "{}", 400, "prompt", "missing"},
      {"prompt type", path, R"({"prompt":{}})", 400, "prompt", "token ids"},
      {"empty prompt", path, R"({"prompt":""})", 400, nullptr, "empty"},
      {"mixed prompt", path, R"({"prompt":[1,"a"]})", 400, "prompt[1]", "string \"a\""},
      {"id outside", path, R"({"prompt":[1,99999999]})", 400, "prompt[1]", "99999999"},
      {"id negative", path, R"({"prompt":[-1]})", 400, "prompt[0]", "-1"},
      {"id fraction", path, R"({"prompt":[1.5]})", 400, "prompt[0]", "1.5"},
      {"suffix", path, R"({"prompt":"x","suffix":"y"})", 400, "suffix", "not supported"},
      {"best_of", path, R"({"prompt":"x","best_of":3})", 400, "best_of", "n=1"},
      {"logprobs large", path, R"({"prompt":"x","logprobs":21})", 400, "logprobs", "21"},
      {"huge text",
       path,
       R"({"prompt":")" + std::string(100'000, 'a') + "\"}",
       400,
       nullptr,
       "context length"},
      {"min over max",
       path,
       R"({"prompt":"x","max_tokens":2,"min_tokens":3})",
       400,
       "min_new_tokens",
       "3"},
  };
  ApiFixture fixture(always("x"));
  for (const ErrorRow& row : rows) {
    SCOPED_TRACE(row.name);
    const http::Response response = fixture.call("POST", row.path, row.body);
    EXPECT_EQ(response.status, row.status);
    const auto body = json::parse(response.body);
    ASSERT_TRUE(body.ok()) << response.body;
    EXPECT_THAT(*at(*body, "error.message").if_string(), HasSubstr(row.text));
    if (row.param != nullptr) {
      EXPECT_EQ(at(*body, "error.param"), json::Value(row.param)) << response.body;
    }
    EXPECT_EQ(at(*body, "code"), json::Value(row.status));
  }
  EXPECT_TRUE(fixture.generator->requests.empty()) << "nothing reached the generator";
}

TEST(OpenAi, ErrorCodes) {
  ApiFixture fixture(always("x"));
  EXPECT_EQ(at(fixture.post("/v1/completions", R"({"prompt":"x","model":"y"})", 404), "error.code"),
            json::Value("model_not_found"));
  EXPECT_EQ(
      at(fixture.post("/v1/completions", R"({"prompt":"x","max_tokens":999})", 400), "error.code"),
      json::Value("context_length_exceeded"));
  fixture.generator->submit_status = resource_exhausted("the queue is full");
  const http::Response full = fixture.call("POST", "/v1/completions", R"({"prompt":"x","n":2})");
  EXPECT_EQ(full.status, 429);
  EXPECT_EQ(full.headers.find("retry-after"), "1");
  const http::Response form = fixture.call(
      "POST", "/v1/completions", "", "Content-Type: application/x-www-form-urlencoded\r\n");
  EXPECT_EQ(form.status, 400);
  EXPECT_THAT(form.body, HasSubstr("application/json"));
}

}  // namespace
}  // namespace tandem::api
