#include "common/http/server.h"

#include "common/base/clock.h"
#include "common/http/router.h"
#include "common/http/testing/client.h"
#include "common/http/testing/server.h"

#include <gtest/gtest.h>

#include <atomic>
#include <future>
#include <mutex>
#include <thread>
#include <vector>

namespace tandem::http {
namespace {

TEST(Server, KeepAliveAndPipelining) {
  Fixture fixture(echo);
  TestClient client(fixture.port);
  client.send(
      "POST /a HTTP/1.1\r\nHost: x\r\nContent-Length: 3\r\n\r\nabc"
      "GET /b%20c?q=1 HTTP/1.1\r\nHost: x\r\n\r\n"
      "POST /d HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: "
      "chunked\r\n\r\n2\r\nhe\r\n3;x=y\r\nllo\r\n0\r\n"
      "T: v\r\n\r\n");
  EXPECT_EQ(client.read_response()->body, "POST abc");
  const auto second = client.read_response();
  EXPECT_EQ(second->body, "GET ");
  EXPECT_EQ(second->headers.find("x-path"), "/b c");
  EXPECT_EQ(second->headers.find("connection"), "keep-alive");
  EXPECT_EQ(client.read_response()->body, "POST hello");
  client.send("GET / HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n");
  EXPECT_EQ(client.read_response()->headers.find("connection"), "close");
  EXPECT_TRUE(client.ends_cleanly());
}

TEST(Server, PipelinedAnswersKeepTheirOrderWhateverTheThreads) {
  Held held;
  Fixture fixture(held.handler());
  TestClient client(fixture.port);
  std::string all;
  for (int i = 0; i < 20; ++i)
    all += "GET /" + std::to_string(i) + " HTTP/1.1\r\nHost: x\r\n\r\n";
  client.send(all);
  for (int i = 0; i < 20; ++i) {
    // One request at a time: the next is not handed on before this one is answered.
    auto writer = held.take(i);
    EXPECT_EQ(held.count.load(), i + 1);
    std::thread([writer = std::move(writer), i]() mutable {
      writer->send(200, {}, std::to_string(i));
      writer->send(200, {}, "twice");
      writer.reset();
    }).join();
    EXPECT_EQ(client.read_response()->body, std::to_string(i));
  }
}

TEST(Server, ManyConnectionsAtOnce) {
  Fixture fixture(echo);
  std::vector<std::thread> threads;
  for (int t = 0; t < 8; ++t) {
    threads.emplace_back([&, t] {
      TestClient client(fixture.port);
      for (int i = 0; i < 50; ++i) {
        const std::string body(static_cast<std::size_t>(1 + (t * 50 + i) * 37), 'x');
        client.send("POST / HTTP/1.1\r\nHost: x\r\nContent-Length: " + std::to_string(body.size()) +
                    "\r\n\r\n" + body);
        EXPECT_EQ(client.read_response()->body, "POST " + body);
      }
    });
  }
  for (std::thread& thread : threads)
    thread.join();
}

TEST(Server, HeadOptionsAndCors) {
  Router router;
  router.add("GET", "/a", [](Request&&, const std::shared_ptr<ResponseWriter>& writer) {
    writer->send(200, {}, "body");
  });
  router.add("POST", "/p/*", echo);
  Fixture fixture(router);
  TestClient client(fixture.port);
  client.send("HEAD /a HTTP/1.1\r\nHost: x\r\n\r\n");
  const auto head = client.read_response(true);
  EXPECT_EQ(head->headers.find("content-length"), "4");
  client.send(
      "OPTIONS /a HTTP/1.1\r\nHost: x\r\nOrigin: http://b\r\n"
      "Access-Control-Request-Method: POST\r\nAccess-Control-Request-Headers: x-y\r\n\r\n");
  const auto options = client.read_response();
  EXPECT_EQ(options->status, 204);
  EXPECT_EQ(options->headers.find("access-control-allow-origin"), "http://b");
  EXPECT_EQ(options->headers.find("access-control-allow-headers"), "x-y");
  client.send("GET /a HTTP/1.1\r\nHost: x\r\nOrigin: http://b\r\n\r\n");
  const auto get = client.read_response();
  EXPECT_EQ(get->body, "body");
  EXPECT_EQ(get->headers.find("access-control-allow-origin"), "http://b");
  client.send("POST /a HTTP/1.1\r\nHost: x\r\nContent-Length: 0\r\n\r\n");
  const auto wrong = client.read_response();
  EXPECT_EQ(wrong->status, 405);
  EXPECT_EQ(wrong->headers.find("allow"), "GET, HEAD, OPTIONS");
  client.send("GET /nothing HTTP/1.1\r\nHost: x\r\n\r\nPOST /p/q/r HTTP/1.1\r\nHost: x\r\n\r\n");
  EXPECT_EQ(client.read_response()->status, 404);
  EXPECT_EQ(client.read_response()->headers.find("x-path"), "/p/q/r");
}

TEST(Server, ExpectContinue) {
  Fixture fixture(echo);
  TestClient client(fixture.port);
  client.send("POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\nExpect: 100-continue\r\n\r\n");
  while (client.buffer().find("100 Continue") == std::string::npos)
    ASSERT_TRUE(client.read_some());
  client.send("ok");
  EXPECT_EQ(client.read_response()->body, "POST ok");
  EXPECT_EQ(client.interim_count(), 1);
}

TEST(Server, AdmitRefusesBeforeTheBody) {
  ServerOptions options;
  options.admit = [](const Request& request) -> std::optional<Response> {
    if (request.path != "/no") return std::nullopt;
    return Response{.status = 401, .headers = {}, .body = "no"};
  };
  Fixture fixture(echo, std::move(options));
  TestClient client(fixture.port);
  client.send("GET /no HTTP/1.1\r\nHost: x\r\n\r\n");
  EXPECT_EQ(client.read_response()->headers.find("connection"), "keep-alive");
  client.send("POST /no HTTP/1.1\r\nHost: x\r\nContent-Length: 1000000\r\n\r\n");
  const auto refused = client.read_response();
  EXPECT_EQ(refused->status, 401);
  EXPECT_EQ(refused->headers.find("connection"), "close");
}

TEST(Server, StreamLastDataAndTerminatorLeaveTogether) {
  Held held;
  Fixture fixture(held.handler());
  TestClient client(fixture.port);
  client.send("GET / HTTP/1.1\r\nHost: x\r\n\r\n");
  auto writer = held.take(0);
  writer->start_stream(200, {{"content-type", "text/event-stream"}});
  writer->write("data: 1\n\n");
  while (client.buffer().find("data: 1") == std::string::npos)
    ASSERT_TRUE(client.read_some());
  client.buffer().clear();
  const int reads = client.reads();
  const Time before = steady_clock().now();
  writer->end("data: [DONE]\n\n");
  ASSERT_TRUE(client.read_some());
  const Duration took = steady_clock().now() - before;
  EXPECT_EQ(client.reads(), reads + 1);
  EXPECT_EQ(client.buffer(), "e\r\ndata: [DONE]\n\n\r\n0\r\n\r\n");
  RecordProperty("last_chunk_us", static_cast<int>(took.ns / 1000));
}

TEST(Server, WritesQueuedMeanwhileAreGathered) {
  Held held;
  Fixture fixture(held.handler());
  TestClient client(fixture.port);
  client.send("GET / HTTP/1.1\r\nHost: x\r\n\r\n");
  auto writer = held.take(0);
  writer->start_stream(200, {});
  std::string want;
  for (int i = 0; i < 1000; ++i) {
    const std::string piece = std::to_string(i) + ",";
    writer->write(piece);
    want += piece;
  }
  writer->end();
  EXPECT_EQ(client.read_response()->body, want);
}

TEST(Server, Http10StreamEndsByClosing) {
  Held held;
  Fixture fixture(held.handler());
  TestClient client(fixture.port);
  client.send("GET / HTTP/1.0\r\n\r\n");
  auto writer = held.take(0);
  writer->start_stream(200, {});
  writer->write("a");
  writer->end("b");
  const auto response = client.read_response();
  EXPECT_EQ(response->body, "ab");
  EXPECT_FALSE(response->headers.find("transfer-encoding"));
}

struct GoneRow {
  const char* name;
  bool streaming;
  bool reset;
};

TEST(Server, DisconnectIsNoticed) {
  const GoneRow rows[] = {{"fin before the answer", false, false},
                          {"rst before the answer", false, true},
                          {"fin in mid-stream", true, false},
                          {"rst in mid-stream", true, true}};
  for (const GoneRow& row : rows) {
    SCOPED_TRACE(row.name);
    Held held;
    Fixture fixture(held.handler());
    TestClient client(fixture.port);
    client.send("GET / HTTP/1.1\r\nHost: x\r\n\r\n");
    auto writer = held.take(0);
    std::promise<void> gone;
    writer->on_disconnect([&] { gone.set_value(); });
    if (row.streaming) {
      writer->start_stream(200, {});
      writer->write("x");
      ASSERT_TRUE(client.read_some());
    }
    const Time before = steady_clock().now();
    row.reset ? client.reset() : client.close();
    gone.get_future().wait();
    RecordProperty("notice_us", static_cast<int>((steady_clock().now() - before).ns / 1000));
    std::promise<void> late;
    writer->on_disconnect([&] { late.set_value(); });
    late.get_future().wait();
    writer->write("into the void");
    writer->end();
  }
}

TEST(Server, NoDisconnectAfterTheResponse) {
  std::atomic<int> calls{0};
  {
    Fixture fixture([&](Request&&, const std::shared_ptr<ResponseWriter>& writer) {
      writer->on_disconnect([&] { calls.fetch_add(1); });
      writer->send(200, {}, "x");
    });
    TestClient client(fixture.port);
    client.send("GET / HTTP/1.1\r\nHost: x\r\n\r\n");
    EXPECT_TRUE(client.read_response());
  }
  EXPECT_EQ(calls.load(), 0);
}

}  // namespace
}  // namespace tandem::http
