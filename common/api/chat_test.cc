#include "common/api/testing/fixture.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace tandem::api {
namespace {

using ::testing::HasSubstr;

TEST(Chat, WholeAnswer) {
  ApiFixture fixture(always("Hello w\xc3\xb6rld \xf0\x9f\x99\x82"));
  const json::Value body = fixture.post("/v1/chat/completions", chat(R"("model":"demo","seed":7)"));
  EXPECT_EQ(at(body, "object"), json::Value("chat.completion"));
  EXPECT_EQ(at(body, "model"), json::Value("demo"));
  EXPECT_EQ(at(body, "choices.0.message.role"), json::Value("assistant"));
  EXPECT_EQ(at(body, "choices.0.message.content"),
            json::Value("Hello w\xc3\xb6rld \xf0\x9f\x99\x82"));
  EXPECT_EQ(at(body, "choices.0.finish_reason"), json::Value("stop"));
  EXPECT_TRUE(at(body, "choices.0.logprobs").is_null());
  EXPECT_TRUE(at(body, "usage.prompt_tokens_details").is_null());
  const core::Request request = fixture.generator->request(0);
  EXPECT_EQ(request.input_ids, ids_of("user: hi\nassistant: "));
  EXPECT_EQ(request.sampling.seed, 7U);
  EXPECT_EQ(at(body, "usage.prompt_tokens"), json::Value(request.input_ids.size()));
  EXPECT_EQ(request.sampling.max_new_tokens,
            256 - static_cast<std::int32_t>(request.input_ids.size()))
      << "the rest of the context";
}

TEST(Chat, StreamOrder) {
  ApiFixture fixture(always("one two three"));
  const auto events = fixture.stream(
      "/v1/chat/completions", chat(R"("stream":true,"stream_options":{"include_usage":true})"));
  ASSERT_GE(events.size(), 5U);
  EXPECT_EQ(at(events[0], "choices.0.delta.role"), json::Value("assistant"));
  EXPECT_EQ(at(events[0], "choices.0.delta.content"), json::Value(""));
  std::string text;
  for (std::size_t i = 1; i + 3 < events.size(); ++i) {
    text += *at(events[i], "choices.0.delta.content").if_string();
    EXPECT_TRUE(at(events[i], "choices.0.finish_reason").is_null());
    EXPECT_EQ(at(events[i], "object"), json::Value("chat.completion.chunk"));
    EXPECT_EQ(at(events[i], "id"), at(events[0], "id"));
  }
  EXPECT_EQ(text, "one two three");
  EXPECT_EQ(at(events[events.size() - 3], "choices.0.finish_reason"), json::Value("stop"));
  const json::Value& usage = events[events.size() - 2];
  EXPECT_EQ(at(usage, "choices"), json::Value(json::Array()));
  EXPECT_EQ(at(usage, "usage.completion_tokens"), json::Value(ids_of("one two three").size()));
  EXPECT_EQ(events.back(), json::Value("[DONE]"));
}

TEST(Chat, SeveralChoicesHaveTheirOwnSeedsAndFinish) {
  ApiFixture fixture([](const core::Request& request) {
    return say("seed " + std::to_string(request.sampling.seed % 10));
  });
  const auto events =
      fixture.stream("/v1/chat/completions", chat(R"("stream":true,"n":3,"seed":4)"));
  std::array<int, 3> roles{};
  std::array<int, 3> finishes{};
  std::array<std::string, 3> texts;
  for (const json::Value& event : events) {
    if (event == json::Value("[DONE]")) continue;
    const auto index = static_cast<std::size_t>(*at(event, "choices.0.index").if_int());
    if (!at(event, "choices.0.delta.role").is_null()) ++roles[index];
    if (!at(event, "choices.0.finish_reason").is_null()) ++finishes[index];
    const json::Value content = at(event, "choices.0.delta.content");
    if (content.is_string()) texts[index] += *content.if_string();
  }
  EXPECT_EQ(roles, (std::array<int, 3>{1, 1, 1}));
  EXPECT_EQ(finishes, (std::array<int, 3>{1, 1, 1}));
  EXPECT_EQ(texts[0], "seed 4");
  std::set<std::uint64_t> seeds;
  for (std::size_t i = 0; i < 3; ++i) {
    const core::Request request = fixture.generator->request(i);
    seeds.insert(request.sampling.seed);
    EXPECT_EQ(texts[i], "seed " + std::to_string(request.sampling.seed % 10));
  }
  EXPECT_EQ(seeds.size(), 3U);
}

TEST(Chat, ContinuousUsageOnEveryChunk) {
  ApiFixture fixture(always("a b c"));
  const auto events =
      fixture.stream("/v1/chat/completions",
                     chat(R"("stream":true,"stream_options":{"continuous_usage_stats":true})"));
  std::int64_t last = 0;
  for (const json::Value& event : events) {
    if (event == json::Value("[DONE]")) continue;
    const std::int64_t now = *at(event, "usage.completion_tokens").if_int();
    EXPECT_GE(now, last);
    last = now;
  }
  EXPECT_EQ(last, static_cast<std::int64_t>(ids_of("a b c").size()));
}

TEST(Chat, StopStringAcrossTokensAbortsTheRest) {
  for (const bool streamed : {false, true}) {
    SCOPED_TRACE(streamed);
    ApiFixture fixture([](const core::Request&) {
      Script script = say("the answer is STOPPED here");
      script.endless = true;
      return script;
    });
    const std::string body = chat(R"("stop":["STOPPED","zzz"],"stream":)");
    const std::string request = body.substr(0, body.size() - 1) + (streamed ? "true}" : "false}");
    std::string text;
    json::Value matched;
    if (streamed) {
      for (const json::Value& event : fixture.stream("/v1/chat/completions", request)) {
        if (event == json::Value("[DONE]")) continue;
        const json::Value content = at(event, "choices.0.delta.content");
        if (content.is_string()) text += *content.if_string();
        if (!at(event, "choices.0.finish_reason").is_null())
          matched = at(event, "choices.0.matched_stop");
      }
    } else {
      const json::Value answer = fixture.post("/v1/chat/completions", request);
      text = *at(answer, "choices.0.message.content").if_string();
      matched = at(answer, "choices.0.matched_stop");
    }
    EXPECT_EQ(text, "the answer is ");
    EXPECT_EQ(matched, json::Value("STOPPED"));
    fixture.generator->wait_aborted(1);
  }
}

TEST(Chat, EndTokenIsNotInTheTextButCounts) {
  const core::TokenId end = 3;
  ApiFixture fixture([end](const core::Request&) {
    Script script = say("done");
    script.tokens.push_back(end);
    script.finish.matched_token = end;
    script.group = 100;
    return script;
  });
  const json::Value body = fixture.post("/v1/chat/completions", chat());
  EXPECT_EQ(at(body, "choices.0.message.content"), json::Value("done"));
  EXPECT_EQ(at(body, "choices.0.matched_stop"), json::Value(end));
  EXPECT_EQ(at(body, "usage.completion_tokens"), json::Value(ids_of("done").size() + 1));
}

TEST(Chat, Logprobs) {
  ApiFixture fixture(always("h\xc3\xa9"));
  const json::Value body =
      fixture.post("/v1/chat/completions", chat(R"("logprobs":true,"top_logprobs":2)"));
  const json::Value content = at(body, "choices.0.logprobs.content");
  ASSERT_EQ(content.if_array()->size(), ids_of("h\xc3\xa9").size());
  std::string joined;
  for (const json::Value& entry : *content.if_array()) {
    for (const json::Value& byte : *entry.find("bytes")->if_array())
      joined.push_back(static_cast<char>(*byte.if_int()));
    EXPECT_EQ(entry.find("top_logprobs")->if_array()->size(), 2U);
    EXPECT_EQ(*entry.find("logprob"), json::Value(-0.5));
  }
  EXPECT_EQ(joined, "h\xc3\xa9");
  const auto events =
      fixture.stream("/v1/chat/completions", chat(R"("logprobs":true,"stream":true)"));
  std::size_t tokens = 0;
  for (const json::Value& event : events) {
    const json::Value entries = at(event, "choices.0.logprobs.content");
    if (entries.is_array()) tokens += entries.if_array()->size();
  }
  EXPECT_EQ(tokens, ids_of("h\xc3\xa9").size());
}

TEST(Chat, CacheReportOnlyWhenEnabled) {
  ApiOptions options = demo_options();
  options.enable_cache_report = true;
  ApiFixture fixture(
      [](const core::Request&) {
        Script script = say("x");
        script.cached_tokens = 3;
        return script;
      },
      options);
  const json::Value body = fixture.post("/v1/chat/completions", chat(R"("n":2)"));
  EXPECT_EQ(at(body, "usage.prompt_tokens_details.cached_tokens"), json::Value(3));
}

TEST(Chat, ContinueFinalMessageAndKwargs) {
  ApiFixture fixture(always("x"));
  fixture.post("/v1/chat/completions",
               R"({"messages":[{"role":"user","content":[{"type":"text","text":"a"},)"
               R"({"type":"text","text":"b"}]},{"role":"assistant","content":"Sure, "}],)"
               R"("continue_final_message":true,"chat_template_kwargs":{"name":1}})");
  EXPECT_EQ(fixture.generator->request(0).input_ids, ids_of("user: a b\n1assistant: Sure, "));
}

TEST(Chat, MessagesThatAreChangedStandBesideThoseThatAreNot) {
  ApiFixture fixture(always("x"));
  fixture.post(
      "/v1/chat/completions",
      R"({"messages":[{"role":"system","content":"s"},)"
      R"({"role":"user","content":[{"type":"text","text":"a"},{"type":"text","text":"b"}]},)"
      R"({"role":"assistant","content":null},{"role":"user","content":"c"},)"
      R"({"role":"user","content":[{"type":"text","text":"d"}]}]})");
  EXPECT_EQ(fixture.generator->request(0).input_ids,
            ids_of("system: s\nuser: a b\nassistant: \nuser: c\nuser: d\nassistant: "));
}

TEST(Chat, IgnoredFieldsAndRequestIdComeBack) {
  ApiFixture fixture(always("x"));
  const http::Response response = fixture.call("POST",
                                               "/v1/chat/completions",
                                               chat(R"("user":"me","x y":1,"store":null)"),
                                               "X-Request-Id: abc-1\r\n");
  EXPECT_EQ(response.headers.find("x-tandem-ignored-fields"), "user, x?y");
  EXPECT_EQ(response.headers.find("x-request-id"), "abc-1");
}

TEST(Chat, ErrorBeforeAndWithinAStream) {
  ApiFixture fixture([](const core::Request& request) {
    Script script = say("some words that come first");
    script.finish.kind = core::FinishKind::kAbort;
    script.finish.status = unavailable("the worker is gone");
    if (request.sampling.seed == 1) script.tokens.clear();
    return script;
  });
  const http::Response before =
      fixture.call("POST", "/v1/chat/completions", chat(R"("stream":true,"seed":1)"));
  EXPECT_EQ(before.status, 503);
  EXPECT_EQ(before.headers.find("retry-after"), "1");
  const http::Response within =
      fixture.call("POST", "/v1/chat/completions", chat(R"("stream":true,"seed":2)"));
  EXPECT_EQ(within.status, 200);
  const auto events = ApiFixture::events(within.body);
  EXPECT_EQ(at(events.back(), "error.message"), json::Value("the worker is gone"));
  EXPECT_EQ(at(events.back(), "error.type"), json::Value("service_unavailable_error"));
  EXPECT_THAT(within.body, ::testing::Not(HasSubstr("[DONE]")));
}

TEST(Chat, DisconnectAborts) {
  for (const bool streamed : {false, true}) {
    SCOPED_TRACE(streamed);
    ApiFixture fixture([](const core::Request&) {
      Script script = say("never ending story ");
      script.endless = true;
      script.stepped = true;
      return script;
    });
    http::TestClient client(fixture.port);
    ApiFixture::send(client,
                     "POST",
                     "/v1/chat/completions",
                     chat(std::string(R"("n":2,"stream":)") + (streamed ? "true" : "false")));
    fixture.generator->wait_requests(2);
    if (streamed) {
      fixture.generator->release(2);
      while (client.buffer().find("data:") == std::string::npos)
        ASSERT_TRUE(client.read_some());
    }
    client.reset();
    fixture.generator->wait_aborted(2);
  }
}

// Nothing may be ahead of the client: whatever comes while a piece is under way waits for the next.
TEST(Chat, WhatASlowReaderWaitsForComesTogether) {
  const std::string text = "the cache of the server holds pages of the prompt";
  ApiFixture fixture([&](const core::Request&) { return say(text); });
  http::ServerOptions options = fixture.api.server_options(fixture.router);
  options.write_ahead_bytes = 0;
  http::Server slow(fixture.pool,
                    std::move(options),
                    [router = fixture.router](http::Request&& request, auto writer) {
                      (*router)(std::move(request), std::move(writer));
                    });
  const std::uint16_t port = slow.listen("127.0.0.1", 0).value();
  for (int round = 0; round < 20; ++round) {
    http::TestClient client(port);
    ApiFixture::send(
        client, "POST", "/v1/chat/completions", chat(R"("stream":true,"n":3,"logprobs":true)"));
    const auto response = client.read_response();
    ASSERT_TRUE(response);
    const auto events = ApiFixture::events(response->body);
    std::string got[3];
    std::size_t logprobs[3] = {};
    int ends = 0;
    for (const json::Value& event : events) {
      const json::Value index = at(event, "choices.0.index");
      if (index.if_int() == nullptr) continue;
      const auto choice = static_cast<std::size_t>(*index.if_int());
      const json::Value content = at(event, "choices.0.delta.content");
      if (content.is_string()) got[choice] += *content.if_string();
      const json::Value entries = at(event, "choices.0.logprobs.content");
      if (entries.is_array()) logprobs[choice] += entries.if_array()->size();
      if (at(event, "choices.0.finish_reason").is_string()) ++ends;
    }
    for (std::size_t choice = 0; choice < 3; ++choice) {
      EXPECT_EQ(got[choice], text);
      EXPECT_EQ(logprobs[choice], say(text).tokens.size());
    }
    EXPECT_EQ(ends, 3);
    EXPECT_EQ(events.back(), json::Value("[DONE]"));
  }
}

TEST(Chat, TenStreamsAtOnce) {
  ApiFixture fixture([](const core::Request& request) {
    return say("number " + std::to_string(request.sampling.seed) + " says so");
  });
  std::vector<std::thread> threads;
  for (int i = 0; i < 10; ++i) {
    threads.emplace_back([&fixture, i] {
      std::string text;
      const auto events = fixture.stream("/v1/chat/completions",
                                         chat(R"("stream":true,"seed":)" + std::to_string(i)));
      for (const json::Value& event : events) {
        const json::Value content = at(event, "choices.0.delta.content");
        if (content.is_string()) text += *content.if_string();
      }
      EXPECT_EQ(text, "number " + std::to_string(i) + " says so");
      EXPECT_EQ(events.back(), json::Value("[DONE]"));
    });
  }
  for (std::thread& thread : threads)
    thread.join();
}

}  // namespace
}  // namespace tandem::api
