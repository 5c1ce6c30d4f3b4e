#include "common/api/auth.h"
#include "common/api/context.h"
#include "common/api/testing/fixture.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace tandem::api {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

struct KeyRow {
  const char* name;
  const char* authorization;
  bool want;
};

TEST(KeyCheck, Table) {
  const KeyCheck check{obs::Secret("sesame")};
  const KeyRow rows[] = {
      {"right", "Bearer sesame", true},
      {"scheme in lower case", "bearer sesame", true},
      {"none", "", false},
      {"no scheme", "sesame", false},
      {"other scheme", "Basic sesame", false},
      {"wrong", "Bearer open", false},
      {"prefix", "Bearer sesam", false},
      {"longer", "Bearer sesame2", false},
      {"blank after", "Bearer sesame ", false},
      {"two blanks", "Bearer  sesame", false},
      {"case of the key", "Bearer Sesame", false},
      {"empty key", "Bearer ", false},
  };
  for (const KeyRow& row : rows) {
    SCOPED_TRACE(row.name);
    EXPECT_EQ(check.allows(row.authorization), row.want);
  }
  EXPECT_TRUE(KeyCheck{obs::Secret()}.allows(""));
}

TEST(Admin, KeyGuardsEverythingButHealthAndMetrics) {
  ApiOptions options = demo_options();
  options.api_key = obs::Secret("sesame");
  ApiFixture fixture(always("x"), options);
  for (const char* path :
       {"/v1/models", "/get_server_info", "/", "/nothing", "/ping", "/get_load"}) {
    SCOPED_TRACE(path);
    const http::Response refused = fixture.call("GET", path);
    EXPECT_EQ(refused.status, 401);
    EXPECT_EQ(refused.headers.find("www-authenticate"), "Bearer");
    EXPECT_EQ(at(json::parse(refused.body).value(), "error.code"), json::Value("invalid_api_key"));
    EXPECT_NE(fixture.call("GET", path, "", "Authorization: Bearer sesame\r\n").status, 401);
  }
  for (const char* path :
       {"/health", "/health_generate", "/metrics", "/ready", "/readiness", "/liveness"}) {
    SCOPED_TRACE(path);
    EXPECT_EQ(fixture.call("GET", path).status, 200);
  }
  EXPECT_EQ(fixture.call("OPTIONS", "/v1/models").status, 204);
  EXPECT_EQ(fixture.call("POST", "/v1/completions", R"({"prompt":"x"})").status, 401);
  EXPECT_EQ(fixture.call("GET", "/healthy/../v1/models").status, 404);
  EXPECT_TRUE(fixture.generator->requests.empty());
}

TEST(Admin, Models) {
  ApiFixture fixture(always("x"));
  const json::Value list = json::parse(fixture.call("GET", "/v1/models").body).value();
  EXPECT_EQ(at(list, "data.0.id"), json::Value("demo"));
  EXPECT_EQ(at(list, "data.0.max_model_len"), json::Value(256));
  EXPECT_EQ(fixture.call("GET", "/v1/models/demo").status, 200);
  EXPECT_EQ(fixture.call("GET", "/v1/models/%2Fmodels%2Fdemo").status, 200);
  const http::Response unknown = fixture.call("GET", "/v1/models/gpt-9");
  EXPECT_EQ(unknown.status, 404);
  EXPECT_EQ(at(json::parse(unknown.body).value(), "error.code"), json::Value("model_not_found"));
}

TEST(Admin, HealthFollowsReadinessAndProgress) {
  ApiFixture fixture(always("x"));
  EXPECT_EQ(fixture.call("GET", "/health").status, 200);
  EXPECT_EQ(fixture.call("HEAD", "/health").status, 200);
  EXPECT_EQ(fixture.call("GET", "/health_generate").status, 200);
  fixture.generator->is_ready = false;
  EXPECT_EQ(fixture.call("GET", "/health").status, 503);
  EXPECT_EQ(fixture.call("GET", "/health_generate").status, 503);
  EXPECT_EQ(fixture.call("GET", "/liveness").status, 200);
  EXPECT_TRUE(fixture.generator->requests.empty()) << "a probe runs no generation";
}

TEST(Admin, ProgressWatch) {
  ProgressWatch watch;
  core::Load load;
  const auto at_ms = [](std::int64_t ms) { return Time{} + milliseconds(ms); };
  EXPECT_TRUE(watch.check({load}, at_ms(1000), seconds(2)).ok());
  EXPECT_TRUE(watch.check({load}, at_ms(2999), seconds(2)).ok());
  EXPECT_EQ(watch.check({load}, at_ms(3000), seconds(2)).code(), Code::kUnavailable);
  load.progress = 1;
  EXPECT_TRUE(watch.check({load}, at_ms(3001), seconds(2)).ok());
}

TEST(Admin, ServerInfo) {
  ApiFixture fixture(always("x"));
  const http::Response response = fixture.call("GET", "/get_server_info");
  const json::Value body = json::parse(response.body).value();
  EXPECT_EQ(at(body, "tp_size"), json::Value(1));
  EXPECT_EQ(at(body, "api_key"), json::Value("set"));
  EXPECT_THAT(response.body, Not(HasSubstr("hunter2")));
  EXPECT_EQ(at(body, "grpc_port"), json::Value(1234));
  EXPECT_EQ(at(body, "version"), json::Value("0.1.0"));
  EXPECT_EQ(at(body, "served_model_name"), json::Value("demo"));
  EXPECT_EQ(at(body, "internal_states.0.num_running_reqs"), json::Value(2));
  EXPECT_EQ(fixture.call("GET", "/server_info").status, 200);
  const json::Value model = json::parse(fixture.call("GET", "/get_model_info").body).value();
  EXPECT_EQ(at(model, "model_path"), json::Value("/models/demo"));
  EXPECT_EQ(at(model, "is_generation"), json::Value(true));
  EXPECT_EQ(at(model, "architectures.0"), json::Value("Qwen3ForCausalLM"));
}

TEST(Admin, Loads) {
  ApiFixture fixture(always("x"));
  const json::Value old = json::parse(fixture.call("GET", "/get_load").body).value();
  EXPECT_EQ(at(old, "0.num_reqs"), json::Value(3));
  const json::Value loads = json::parse(fixture.call("GET", "/v1/loads?dp_rank=0").body).value();
  EXPECT_EQ(at(loads, "loads.0.token_usage"), json::Value(0.25));
  EXPECT_EQ(fixture.call("GET", "/v1/loads?dp_rank=1").status, 400);
}

TEST(Admin, FlushCache) {
  ApiFixture fixture(always("x"));
  EXPECT_EQ(fixture.call("GET", "/flush_cache").status, 200);
  fixture.generator->flush_status = failed_precondition("requests are running");
  const http::Response busy = fixture.call("POST", "/flush_cache");
  EXPECT_EQ(busy.status, 400);
  EXPECT_THAT(busy.body, HasSubstr("requests are running"));
}

TEST(Admin, TokenizeAndBack) {
  ApiFixture fixture(always("x"));
  const std::string text = "Hello w\xc3\xb6rld";
  const json::Value tokens =
      fixture.post("/tokenize", R"({"prompt":")" + text + R"(","add_special_tokens":false})");
  EXPECT_EQ(at(tokens, "count"), json::Value(ids_of(text).size()));
  EXPECT_EQ(at(tokens, "max_model_len"), json::Value(256));
  const json::Value back =
      fixture.post("/v1/detokenize", R"({"tokens":)" + json::to_string(at(tokens, "tokens")) + "}");
  EXPECT_EQ(at(back, "text"), json::Value(text));
  const json::Value batch = fixture.post("/v1/tokenize", R"({"prompt":["a","a b"]})");
  EXPECT_EQ(at(batch, "count").if_array()->size(), 2U);
  EXPECT_EQ(at(fixture.post("/detokenize", R"({"tokens":[[5],[6]]})"), "text").if_array()->size(),
            2U);
  const json::Value chat =
      fixture.post("/tokenize", R"({"messages":[{"role":"user","content":"hi"}]})");
  EXPECT_EQ(at(chat, "count"), json::Value(ids_of("user: hi\nassistant: ").size()));
  fixture.post("/tokenize", "{}", 400);
  fixture.post("/tokenize", R"({"prompt":")" + std::string(2U << 20U, 'a') + "\"}", 400);
  fixture.post("/detokenize", R"({"tokens":[99999999]})", 400);
  fixture.post("/detokenize", R"({"tokens":"x"})", 400);
}

TEST(Admin, MetricsCountRequests) {
  ApiFixture fixture(always("one two"));
  fixture.post("/v1/completions", R"({"prompt":"x"})");
  fixture.stream("/generate", R"({"text":"x","stream":true})");
  fixture.call("POST", "/generate", "{");
  const std::string text = fixture.call("GET", "/metrics").body;
  for (const char* line : {"sglang:num_requests_total{engine_type=\"unified\",is_streaming="
                           "\"false\",model_name=\"demo\"} 1",
                           "sglang:num_requests_total{engine_type=\"unified\",is_streaming="
                           "\"true\",model_name=\"demo\"} 1",
                           "sglang:num_running_reqs{engine_type=\"unified\",model_name=\"demo\"} 2",
                           "sglang:token_usage{engine_type=\"unified\",model_name=\"demo\"} 0.25",
                           "sglang:time_to_first_token_seconds_count",
                           "sglang:inter_token_latency_seconds_count",
                           "sglang:e2e_request_latency_seconds_count",
                           "sglang:http_responses_total{endpoint=\"/"
                           "generate\",method=\"POST\",status_code=\"400\"} 1"}) {
    EXPECT_THAT(text, HasSubstr(line));
  }
  ApiOptions off = demo_options();
  off.enable_metrics = false;
  ApiFixture closed(always("x"), off);
  EXPECT_EQ(closed.call("GET", "/metrics").status, 404);
}

TEST(Admin, RoutesAndMethods) {
  ApiFixture fixture(always("x"));
  EXPECT_EQ(fixture.call("GET", "/").status, 200);
  EXPECT_EQ(fixture.call("GET", "/ping").status, 200);
  const http::Response unknown = fixture.call("GET", "/v2/everything");
  EXPECT_EQ(unknown.status, 404);
  EXPECT_TRUE(json::parse(unknown.body).ok());
  const http::Response wrong = fixture.call("GET", "/v1/chat/completions");
  EXPECT_EQ(wrong.status, 405);
  EXPECT_EQ(wrong.headers.find("allow"), "POST, OPTIONS");
}

}  // namespace
}  // namespace tandem::api
