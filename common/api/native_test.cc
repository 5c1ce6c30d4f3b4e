#include "common/api/testing/fixture.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace tandem::api {
namespace {

using ::testing::HasSubstr;

TEST(Generate, WholeAnswer) {
  ApiFixture fixture(always("fine"));
  const json::Value body = fixture.post(
      "/generate",
      R"({"text":"hello","rid":"my-1","sampling_params":{"max_new_tokens":20,"sampling_seed":5}})");
  EXPECT_EQ(at(body, "text"), json::Value("fine"));
  EXPECT_EQ(at(body, "output_ids").if_array()->size(), ids_of("fine").size());
  EXPECT_EQ(at(body, "meta_info.id"), json::Value("my-1"));
  EXPECT_EQ(at(body, "meta_info.finish_reason.type"), json::Value("stop"));
  EXPECT_EQ(at(body, "meta_info.prompt_tokens"),
            json::Value(fixture.generator->request(0).input_ids.size()));
  EXPECT_EQ(at(body, "meta_info.completion_tokens"), json::Value(ids_of("fine").size()));
  EXPECT_EQ(at(body, "meta_info.cached_tokens"), json::Value(0));
  EXPECT_EQ(at(body, "meta_info.weight_version"), json::Value("default"));
  EXPECT_TRUE(at(body, "meta_info.e2e_latency").is_number());
  EXPECT_TRUE(at(body, "meta_info.output_token_logprobs").is_null());
  EXPECT_TRUE(at(body, "index").is_null());
  EXPECT_EQ(fixture.generator->request(0).sampling.seed, 5U);
  EXPECT_EQ(fixture.generator->request(0).client_id, "my-1");
}

TEST(Generate, PutAndDefaults) {
  ApiFixture fixture(always("a"));
  EXPECT_EQ(fixture.call("PUT", "/generate", R"({"input_ids":[5,6]})").status, 200);
  const core::Request request = fixture.generator->request(0);
  EXPECT_EQ(request.input_ids, (std::vector<core::TokenId>{5, 6}));
  EXPECT_EQ(request.sampling.max_new_tokens, 128);
  EXPECT_FALSE(request.return_logprob);
}

// What it submits answers on the strand, where the client's end is heard too.
TEST(Generate, ALargeRequestIsReadElsewhereAndStartsOnItsStrand) {
  std::thread::id read_on;
  std::thread::id started_on;
  ApiOptions options = demo_options();
  options.draw_seed = [&] {
    read_on = std::this_thread::get_id();
    return std::uint64_t{1};
  };
  ApiFixture fixture(
      [&](const core::Request&) {
        started_on = std::this_thread::get_id();
        return say("a");
      },
      options);
  const auto post = [&](std::size_t bytes) {
    fixture.post("/generate", R"({"input_ids":[5],"pad":")" + std::string(bytes, 'x') + R"("})");
    // Its lock says that both are written.
    fixture.generator->wait_requests(1);
  };
  post(1000);
  EXPECT_EQ(read_on, started_on);
  post(100'000);
  EXPECT_NE(read_on, started_on);
}

TEST(Generate, StreamIsCumulative) {
  ApiFixture fixture(always("one two three"));
  const auto events = fixture.stream("/generate", R"({"text":"x","stream":true})");
  ASSERT_EQ(events.size(), ids_of("one two three").size() + 1);
  std::string last;
  for (std::size_t i = 0; i + 1 < events.size(); ++i) {
    const std::string now = *at(events[i], "text").if_string();
    EXPECT_EQ(now.substr(0, last.size()), last);
    last = now;
    EXPECT_EQ(at(events[i], "output_ids").if_array()->size(), i + 1);
    EXPECT_EQ(at(events[i], "meta_info.finish_reason").is_null(), i + 2 < events.size());
  }
  EXPECT_EQ(last, "one two three");
  EXPECT_EQ(events.back(), json::Value("[DONE]"));
}

TEST(Generate, BatchWithOwnParameters) {
  ApiFixture fixture([](const core::Request& request) {
    Script script;
    script.tokens = ids_of("a b c d");
    script.cached_tokens = request.sampling.max_new_tokens;
    return script;
  });
  const json::Value body =
      fixture.post("/generate",
                   R"({"text":["x","y y"],"rid":["r1","r2"],"return_logprob":[true,false],)"
                   R"("sampling_params":[{"max_new_tokens":1},{"max_new_tokens":2,"stop":" b"}]})");
  ASSERT_EQ(body.if_array()->size(), 2U);
  EXPECT_EQ(at(body, "0.meta_info.id"), json::Value("r1"));
  EXPECT_EQ(at(body, "0.meta_info.finish_reason.type"), json::Value("length"));
  EXPECT_EQ(at(body, "0.meta_info.finish_reason.length"), json::Value(1));
  EXPECT_EQ(at(body, "1.meta_info.finish_reason.matched"), json::Value(" b"));
  EXPECT_EQ(at(body, "1.text"), json::Value("a"));
  EXPECT_EQ(at(body, "1.index"), json::Value(1));
}

TEST(Generate, SeveralOfOnePromptAreAList) {
  ApiFixture fixture(always("x"));
  const json::Value body =
      fixture.post("/generate", R"({"text":"x","rid":"q","sampling_params":{"n":2}})");
  ASSERT_EQ(body.if_array()->size(), 2U);
  EXPECT_EQ(at(body, "1.meta_info.id"), json::Value("q_1"));
}

TEST(Generate, Logprobs) {
  ApiFixture fixture(always("fine"));
  const json::Value body = fixture.post(
      "/generate",
      R"({"text":"hello you","return_logprob":true,"logprob_start_len":0,"top_logprobs_num":2,)"
      R"("return_text_in_logprobs":true})");
  const std::size_t prompt = fixture.generator->request(0).input_ids.size();
  EXPECT_EQ(at(body, "meta_info.input_token_logprobs").if_array()->size(), prompt);
  EXPECT_TRUE(at(body, "meta_info.input_token_logprobs.0.0").is_null());
  EXPECT_TRUE(at(body, "meta_info.input_top_logprobs.0").is_null());
  EXPECT_EQ(at(body, "meta_info.input_top_logprobs.1").if_array()->size(), 2U);
  const json::Value output = at(body, "meta_info.output_token_logprobs");
  ASSERT_EQ(output.if_array()->size(), ids_of("fine").size());
  EXPECT_EQ(at(output, "0.0"), json::Value(-0.5));
  EXPECT_EQ(at(output, "0.1"), json::Value(ids_of("fine").front()));
  EXPECT_EQ(at(body, "meta_info.output_top_logprobs.0").if_array()->size(), 2U);
  std::string text;
  for (const json::Value& triple : *output.if_array())
    text += *at(triple, "2").if_string();
  EXPECT_EQ(text, "fine");
}

TEST(Generate, AbortByNamePrefix) {
  ApiFixture fixture([](const core::Request&) {
    Script script;
    script.tokens = ids_of("on and on ");
    script.endless = true;
    script.stepped = true;
    return script;
  });
  http::TestClient client(fixture.port);
  ApiFixture::send(client, "POST", "/generate", R"({"text":["a","b"],"rid":"job","stream":true})");
  fixture.generator->release(1);
  while (client.buffer().find("data:") == std::string::npos)
    ASSERT_TRUE(client.read_some());
  EXPECT_EQ(fixture.call("POST", "/abort_request", R"({"rid":"other"})").status, 200);
  EXPECT_EQ(fixture.call("POST", "/abort_request", R"({"rid":"job"})").status, 200);
  const auto response = client.read_response();
  ASSERT_TRUE(response);
  const auto events = ApiFixture::events(response->body);
  EXPECT_EQ(at(events[events.size() - 2], "meta_info.finish_reason.type"), json::Value("abort"));
  EXPECT_EQ(fixture.generator->aborted.size(), 2U);
  EXPECT_EQ(fixture.call("POST", "/abort_request", "{}").status, 400);
  EXPECT_EQ(fixture.call("POST", "/abort_request", R"({"abort_all":true})").status, 200);
}

/// A retry may overtake the end of what it repeats: both are answered, and an abort ends both.
TEST(Generate, RequestsOfOneNameAtTheSameTime) {
  ApiFixture fixture([](const core::Request& request) {
    Script script;
    script.tokens = ids_of(request.input_ids.size() > 2 ? "on and on " : "once");
    script.endless = request.input_ids.size() > 2;
    script.stepped = script.endless;
    return script;
  });
  std::vector<std::unique_ptr<http::TestClient>> clients;
  for (int i = 0; i < 2; ++i) {
    clients.push_back(std::make_unique<http::TestClient>(fixture.port));
    ApiFixture::send(*clients.back(), "POST", "/generate", R"({"text":"a long one","rid":"twin"})");
  }
  fixture.generator->wait_requests(2);
  const json::Value third = fixture.post("/generate", R"({"text":"x","rid":"twin"})");
  EXPECT_EQ(at(third, "text"), json::Value("once"));
  EXPECT_EQ(at(third, "meta_info.id"), json::Value("twin"));
  EXPECT_EQ(fixture.call("POST", "/abort_request", R"({"rid":"twin"})").status, 200);
  for (const auto& client : clients) {
    const auto response = client->read_response();
    ASSERT_TRUE(response);
    const auto body = json::parse(response->body);
    ASSERT_TRUE(body.ok()) << response->body;
    EXPECT_EQ(at(*body, "meta_info.finish_reason.type"), json::Value("abort"));
  }
  EXPECT_EQ(fixture.generator->aborted.size(), 2U);
}

TEST(Generate, IgnoredMembersOfParameters) {
  ApiFixture fixture(always("x"));
  const http::Response response = fixture.call(
      "POST", "/generate", R"({"text":"x","priority":3,"sampling_params":{"stream_interval":2}})");
  EXPECT_EQ(response.headers.find("x-tandem-ignored-fields"),
            "priority, sampling_params.stream_interval");
}

struct ErrorRow {
  const char* name;
  const char* body;
  const char* param;
  const char* text;
};

TEST(Generate, BadRequests) {
  const ErrorRow rows[] = {
      {"neither", "{}", "text", "exactly one"},
      {"both", R"({"text":"x","input_ids":[1]})", "text", "exactly one"},
      {"text type", R"({"text":7})", "text", "integer 7"},
      {"text list type", R"({"text":["a",7]})", "text[1]", "integer 7"},
      {"empty list", R"({"text":[]})", "text", "empty"},
      {"empty ids", R"({"input_ids":[]})", "input_ids", "empty"},
      {"id outside", R"({"input_ids":[1,-7]})", "input_ids[1]", "-7"},
      {"nested", R"({"input_ids":[[1],[[2]]]})", "input_ids[1][0]", "array"},
      {"params type", R"({"text":"x","sampling_params":7})", "sampling_params", "integer 7"},
      {"params count",
       R"({"text":["x","y"],"sampling_params":[{}]})",
       "sampling_params",
       "1 entries"},
      {"member",
       R"({"text":"x","sampling_params":{"temperature":"x"}})",
       "sampling_params.temperature",
       "string"},
      {"max", R"({"text":"x","sampling_params":{"max_new_tokens":1000}})", nullptr, "256"},
      {"grammar",
       R"({"text":"x","sampling_params":{"regex":"a"}})",
       "sampling_params.regex",
       "not supported"},
      {"image", R"({"text":"x","image_data":"http://x"})", "image_data", "not supported"},
      {"bootstrap", R"({"text":"x","bootstrap_room":7})", "bootstrap_room", "not supported"},
      {"start",
       R"({"text":"x","return_logprob":true,"logprob_start_len":99})",
       "logprob_start_len",
       "99"},
      {"top",
       R"({"text":"x","return_logprob":true,"top_logprobs_num":129})",
       "top_logprobs_num",
       "129"},
      {"rid", R"({"text":"x","rid":""})", "rid", "characters"},
      {"rid list", R"({"text":["x","y"],"rid":["a"]})", "rid", "1 entries"},
      {"one rid twice", R"({"text":["x","y","z"],"rid":["a","b","a"]})", "rid", "\"a\" names two"},
      {"rid of a choice",
       R"({"text":["x","y"],"rid":["a","a_1"],"sampling_params":[{"n":2},{}]})",
       "rid",
       "\"a_1\" names two"},
      {"stream type", R"({"text":"x","stream":"yes"})", "stream", "yes"},
  };
  ApiFixture fixture(always("x"));
  for (const ErrorRow& row : rows) {
    SCOPED_TRACE(row.name);
    const json::Value body = fixture.post("/generate", row.body, 400);
    EXPECT_THAT(*at(body, "error.message").if_string(), HasSubstr(row.text));
    if (row.param != nullptr) {
      EXPECT_EQ(at(body, "error.param"), json::Value(row.param));
    }
  }
  EXPECT_TRUE(fixture.generator->requests.empty());
}

TEST(Generate, LostTokensAreAnErrorAndRepeatedOnesAreDropped) {
  // Straight from a generator that says index 0, 0, 1 and then 3.
  class Stutter final : public core::Generator {
   public:
    Status submit(core::Request request, core::EventSink sink) override {
      const auto ids = ids_of("a b c d");
      for (const std::int32_t index : {0, 0, 1}) {
        core::TokenEvent event;
        event.first_index = index;
        event.tokens = {ids[static_cast<std::size_t>(index)]};
        sink(std::move(event));
      }
      core::TokenEvent last;
      last.first_index = request.sampling.seed == 1 ? 3 : 2;
      last.tokens = {ids[2]};
      last.finish = core::FinishReason{};
      sink(std::move(last));
      return {};
    }

    void abort(core::RequestId) override {}

    void abort_all() override {}

    void flush_cache(std::function<void(Status)> done) override { done({}); }

    [[nodiscard]] std::vector<core::Load> loads() const override { return {}; }

    [[nodiscard]] Status ready() const override { return {}; }

    [[nodiscard]] std::vector<std::pair<std::string, std::string>> server_info() const override {
      return {};
    }
  };

  async::IoPool pool(2);
  const ApiServer api(demo_options(), std::make_shared<Stutter>(), demo_tokenizer());
  http::Router router;
  api.add_routes(router);
  http::Server server(pool, {}, router);
  const std::uint16_t port = server.listen("127.0.0.1", 0).value();
  const auto ask = [port](int seed) {
    http::TestClient client(port);
    ApiFixture::send(
        client,
        "POST",
        "/generate",
        R"({"text":"x","sampling_params":{"sampling_seed":)" + std::to_string(seed) + "}}");
    return client.read_response().value();
  };
  EXPECT_EQ(at(json::parse(ask(0).body).value(), "output_ids").if_array()->size(), 3U);
  EXPECT_EQ(ask(1).status, 500);
}

}  // namespace
}  // namespace tandem::api
