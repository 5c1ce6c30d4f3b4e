// What the server does when a peer or a limit gets in the way.
#include "common/base/clock.h"
#include "common/http/client.h"
#include "common/http/server.h"
#include "common/http/testing/client.h"
#include "common/http/testing/server.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fcntl.h>

#include <array>
#include <future>
#include <thread>
#include <vector>

namespace tandem::http {
namespace {

using ::testing::HasSubstr;

TEST(Server, SlowReaderIsCutOffAtTheBufferBound) {
  Held held;
  ServerOptions options;
  options.write_buffer_bytes = 256 * 1024;
  Fixture fixture(held.handler(), std::move(options));
  TestClient client(fixture.port, 4096);
  client.send("GET / HTTP/1.1\r\nHost: x\r\n\r\n");
  auto writer = held.take(0);
  std::promise<void> gone;
  writer->on_disconnect([&] { gone.set_value(); });
  writer->start_stream(200, {});
  const std::string piece(64 * 1024, 'x');
  std::future<void> noticed = gone.get_future();
  int writes = 0;
  while (noticed.wait_for(std::chrono::milliseconds(1)) != std::future_status::ready) {
    writer->write(piece);
    ASSERT_LT(++writes, 10'000);
  }
  EXPECT_FALSE(client.read_response()) << "cut off, not ended";
}

TEST(Server, TellsWhenASlowReaderHasCaughtUp) {
  Held held;
  Fixture fixture(held.handler());
  // Not as small as may be: the peer then sends only when a timer asks, for minutes.
  TestClient client(fixture.port, 64 * 1024);
  client.send("GET / HTTP/1.1\r\nHost: x\r\n\r\n");
  auto writer = held.take(0);
  writer->start_stream(200, {});
  // More than sockets take: most of it waits. One piece may be larger than what may wait.
  EXPECT_FALSE(writer->write(std::string(std::size_t{16} << 20U, 'x')));
  std::promise<void> drained;
  writer->on_drained([&] { drained.set_value(); });
  auto told = drained.get_future();
  EXPECT_EQ(told.wait_for(std::chrono::seconds(0)), std::future_status::timeout);
  std::thread reader([&] {
    const auto response = client.read_response();
    EXPECT_TRUE(response && response->body.size() == (std::size_t{16} << 20U) + 4);
  });
  told.get();
  EXPECT_TRUE(writer->write("last"));
  writer->end();
  reader.join();
}

TEST(Server, WriteDeadlineEndsAReaderThatTakesNothing) {
  Held held;
  ServerOptions options;
  options.write_timeout = milliseconds(50);
  options.write_buffer_bytes = std::size_t{64} << 20U;
  Fixture fixture(held.handler(), std::move(options));
  TestClient client(fixture.port, 4096);
  client.send("GET / HTTP/1.1\r\nHost: x\r\n\r\n");
  auto writer = held.take(0);
  std::promise<void> gone;
  writer->on_disconnect([&] { gone.set_value(); });
  writer->start_stream(200, {});
  writer->write(std::string(std::size_t{16} << 20U, 'x'));
  gone.get_future().wait();
}

// Sockets hold MiB and ask for more when a third of that is gone: the reader takes longer than the
// deadline for it, but never nothing.
TEST(Server, WriteDeadlineSparesAReaderThatTakesLittle) {
  constexpr auto kTimeout = std::chrono::milliseconds(800);
  for (bool steady = false; !steady;) {
    Held held;
    ServerOptions options;
    options.write_timeout = milliseconds(kTimeout.count());
    Fixture fixture(held.handler(), std::move(options));
    TestClient client(fixture.port, 64 * 1024);
    client.send("GET / HTTP/1.1\r\nHost: x\r\n\r\n");
    auto writer = held.take(0);
    std::promise<void> gone;
    writer->on_disconnect([&] { gone.set_value(); });
    std::future<void> noticed = gone.get_future();
    writer->start_stream(200, {});
    writer->write(std::string(std::size_t{16} << 20U, 'x'));
    steady = true;
    std::array<char, 16 * 1024> chunk{};
    auto last = std::chrono::steady_clock::now();
    const auto end = last + 3 * kTimeout;
    while (last < end && steady) {
      ASSERT_GT(::recv(client.fd(), chunk.data(), chunk.size(), 0), 0);
      std::this_thread::sleep_for(std::chrono::milliseconds(30));
      const auto now = std::chrono::steady_clock::now();
      // A machine that let this thread wait so long says nothing of the server.
      steady = now - last < kTimeout / 2;
      last = now;
    }
    if (!steady) continue;
    EXPECT_EQ(noticed.wait_for(std::chrono::seconds(0)), std::future_status::timeout);
    noticed.wait();  // nobody reads any more
  }
}

// More of them at once than the pool has threads.
TEST(Server, LargeRequestsHoldUpNobodyElse) {
  std::promise<void> small_answered;
  const std::shared_future<void> answered(small_answered.get_future());
  ServerOptions options;
  options.large_body_bytes = 100;
  options.large_threads = 2;
  std::atomic<int> waiting = 0;
  Fixture fixture(
      [&](Request&& request, std::shared_ptr<ResponseWriter> writer) {
        if (request.body.size() > 100) {
          waiting.fetch_add(1);
          waiting.notify_all();
          answered.wait();
        }
        writer->send(200, {}, std::to_string(request.body.size()));
      },
      std::move(options));
  const auto post = [](std::size_t size) {
    return "POST / HTTP/1.1\r\nHost: x\r\nContent-Length: " + std::to_string(size) + "\r\n\r\n" +
           std::string(size, 'x');
  };
  std::vector<std::unique_ptr<TestClient>> large;
  for (std::size_t i = 0; i < 4; ++i) {
    large.push_back(std::make_unique<TestClient>(fixture.port));
    large.back()->send(post(101 + i));
  }
  for (int now = waiting.load(); now < 2; now = waiting.load())
    waiting.wait(now);
  TestClient small(fixture.port);
  small.send(post(100));
  EXPECT_EQ(small.read_response()->body, "100");
  small_answered.set_value();
  for (std::size_t i = 0; i < large.size(); ++i)
    EXPECT_EQ(large[i]->read_response()->body, std::to_string(101 + i));
}

TEST(Server, LargeRequestsAreHandledOffTheStrand) {
  ServerOptions options;
  options.large_body_bytes = 100;
  const auto word = [](const ResponseWriter& writer) {
    return writer.is_on_strand() ? "on" : "off";
  };
  Fixture fixture(
      [word](Request&& /*request*/, const std::shared_ptr<ResponseWriter>& writer) {
        const std::string handled = word(*writer);
        writer->post([word, handled, writer] { writer->send(200, {}, handled + word(*writer)); });
      },
      std::move(options));
  TestClient client(fixture.port);
  client.send("POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\n\r\n" + std::string(100, 'x'));
  EXPECT_EQ(client.read_response()->body, "onon");
  client.send("POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 101\r\n\r\n" + std::string(101, 'x'));
  EXPECT_EQ(client.read_response()->body, "offon");
}

TEST(Server, DroppedWriterAnswers500AndCutsStreams) {
  Held held;
  Fixture fixture(held.handler());
  TestClient client(fixture.port);
  client.send("GET /a HTTP/1.1\r\nHost: x\r\n\r\n");
  held.take(0).reset();
  EXPECT_EQ(client.read_response()->status, 500);
  client.send("GET /b HTTP/1.1\r\nHost: x\r\n\r\n");
  {
    auto writer = held.take(1);
    writer->start_stream(200, {});
    writer->write("part");
  }
  EXPECT_FALSE(client.read_response());
  EXPECT_EQ(client.partial(), "part");
}

TEST(Server, FailSendsTheLastBytesAndCuts) {
  Held held;
  Fixture fixture(held.handler());
  TestClient client(fixture.port);
  client.send("GET /a HTTP/1.1\r\nHost: x\r\n\r\n");
  auto writer = held.take(0);
  writer->start_stream(200, {});
  writer->fail("data: {\"error\":1}\n\n");
  EXPECT_FALSE(client.read_response());
  EXPECT_EQ(client.partial(), "data: {\"error\":1}\n\n");
}

TEST(Server, DeadlinesForSlowSenders) {
  ServerOptions options;
  // Long enough that a busy machine does not hold a client up between connecting and sending.
  options.header_timeout = milliseconds(500);
  options.body_timeout = milliseconds(500);
  options.idle_timeout = milliseconds(500);
  Fixture fixture(echo, std::move(options));
  TestClient silent(fixture.port);
  EXPECT_TRUE(silent.ends_cleanly());
  TestClient head(fixture.port);
  head.send("GET / HTTP/1.1\r\nHo");
  EXPECT_EQ(head.read_response()->status, 408);
  EXPECT_TRUE(head.ends_cleanly());
  TestClient body(fixture.port);
  body.send("POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\n\r\nab");
  EXPECT_EQ(body.read_response()->status, 408);
  TestClient idle(fixture.port);
  idle.send("GET / HTTP/1.1\r\nHost: x\r\n\r\n");
  EXPECT_EQ(idle.read_response()->status, 200);
  EXPECT_TRUE(idle.ends_cleanly());
}

/// Of the three only one is short: a deadline that is not set leaves a longer one in force.
TEST(Server, BodiesAndLaterHeadsHaveDeadlinesOfTheirOwn) {
  const auto with = [](Duration header, Duration body) {
    ServerOptions options;
    options.header_timeout = header;
    options.body_timeout = body;
    options.idle_timeout = seconds(3600);
    return options;
  };
  const std::string request = "POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 4\r\n\r\n";
  const auto expect_408 = [](TestClient& client) {
    const auto response = client.read_response();
    ASSERT_TRUE(response);
    EXPECT_EQ(response->status, 408);
  };
  {
    Fixture fixture(echo, with(seconds(3600), milliseconds(500)));
    TestClient client(fixture.port);
    client.send(request + "ab");
    expect_408(client);
  }
  Fixture fixture(echo, with(milliseconds(500), seconds(3600)));
  TestClient client(fixture.port);
  client.send(request + "abcd");
  const auto response = client.read_response();
  ASSERT_TRUE(response);
  EXPECT_EQ(response->status, 200);
  client.send("POST / HTTP/1.1\r\nHo");
  expect_408(client);
}

TEST(Server, BodyLimitIsAnswered413ThoughTheClientGoesOnSending) {
  ServerOptions options;
  options.limits.body_bytes = 1000;
  Fixture fixture(echo, std::move(options));
  TestClient client(fixture.port);
  client.send("POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 3000000\r\n\r\n" +
              std::string(3'000'000, 'x'));
  const auto response = client.read_response();
  ASSERT_TRUE(response);
  EXPECT_EQ(response->status, 413);
  EXPECT_THAT(response->body, HasSubstr("limit of 1000 bytes"));
}

TEST(Server, TooManyConnections) {
  ServerOptions options;
  options.max_connections = 1;
  Fixture fixture(echo, std::move(options));
  TestClient first(fixture.port);
  first.send("GET / HTTP/1.1\r\nHost: x\r\n\r\n");
  EXPECT_EQ(first.read_response()->status, 200);
  TestClient second(fixture.port);
  EXPECT_EQ(second.read_response()->status, 503);
}

TEST(Server, PortInUseNamesTheFlag) {
  Fixture fixture(echo);
  async::IoPool pool(1);
  Server other(pool, {}, echo);
  const auto result = other.listen("127.0.0.1", fixture.port);
  EXPECT_EQ(result.status().code(), Code::kAlreadyExists);
  EXPECT_THAT(result.status().message(), HasSubstr("--port"));
  EXPECT_THAT(result.status().message(), HasSubstr("127.0.0.1:" + std::to_string(fixture.port)));
  EXPECT_EQ(other.listen("192.0.2.1", 0).status().code(), Code::kInvalidArgument);
}

TEST(Server, DrainLetsResponsesEnd) {
  Held held;
  Fixture fixture(held.handler());
  TestClient busy(fixture.port);
  busy.send("GET / HTTP/1.1\r\nHost: x\r\n\r\n");
  auto writer = held.take(0);  // Before the other client speaks: two connections have no order.
  TestClient idle(fixture.port);
  idle.send("GET /2 HTTP/1.1\r\nHost: x\r\n\r\n");
  held.take(1)->send(200, {}, "");
  EXPECT_TRUE(idle.read_response());
  std::thread drainer([&] { fixture.server.drain(seconds(60)); });
  EXPECT_TRUE(idle.ends_cleanly());
  writer->send(200, {}, "late");
  writer.reset();
  const auto response = busy.read_response();
  EXPECT_EQ(response->body, "late");
  EXPECT_EQ(response->headers.find("connection"), "close");
  busy.close();
  drainer.join();
  EXPECT_EQ(fixture.server.connection_count(), 0U);
  TestClient refused(fixture.port);
  EXPECT_FALSE(refused.connected() && refused.read_some());
}

TEST(Server, Http2ConnectionsAreHandedOverUntouched) {
  std::promise<int> handed;
  ServerOptions options;
  options.on_http2 = [&](int fd) { handed.set_value(fd); };
  Fixture fixture(echo, std::move(options));
  TestClient client(fixture.port);
  constexpr std::string_view kPreface = "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
  client.send(kPreface.substr(0, 3));
  std::this_thread::sleep_for(std::chrono::milliseconds(12));
  client.send(kPreface.substr(3));
  const int fd = handed.get_future().get();
  EXPECT_NE(::fcntl(fd, F_GETFL, 0) & O_NONBLOCK, 0);
  std::array<char, 64> bytes{};
  const ssize_t got = ::recv(fd, bytes.data(), bytes.size(), 0);
  EXPECT_EQ(std::string_view(bytes.data(), static_cast<std::size_t>(got)), kPreface);
  ::close(fd);
  TestClient post(fixture.port);  // Begins with the same letter.
  post.send("PRINT / HTTP/1.1\r\nHost: x\r\n\r\n");
  EXPECT_EQ(post.read_response()->body, "PRINT ");
}

TEST(Client, GetAndItsFailures) {
  Fixture fixture([](Request&& request, const std::shared_ptr<ResponseWriter>& writer) {
    if (request.path == "/stream") {
      writer->start_stream(200, {});
      writer->write("ab");
      writer->end("cd");
    } else if (request.path == "/cut") {
      writer->start_stream(200, {});
      writer->fail("ab");
    } else if (request.path == "/long") {
      writer->send(200, {}, std::string(9U << 20U, 'x'));
    } else if (request.path != "/hang") {
      writer->send(201, {{"x-a", "b"}}, "body of " + request.path);
    } else {
      static std::vector<std::shared_ptr<ResponseWriter>> kept;
      writer->on_disconnect([] { kept.clear(); });
      kept.push_back(writer);
    }
  });
  const auto soon = [] { return steady_clock().now() + seconds(20); };
  const auto plain = get("127.0.0.1", fixture.port, "/x", soon());
  ASSERT_TRUE(plain.ok()) << plain.status().message();
  EXPECT_EQ(plain->status, 201);
  EXPECT_EQ(plain->body, "body of /x");
  EXPECT_EQ(plain->headers.find("X-A"), "b");
  EXPECT_EQ(get("localhost", fixture.port, "/stream", soon())->body, "abcd");
  EXPECT_EQ(get("127.0.0.1", fixture.port, "/cut", soon()).status().code(), Code::kUnavailable);
  EXPECT_EQ(get("127.0.0.1", fixture.port, "/long", soon()).status().code(), Code::kDataLoss);
  EXPECT_EQ(get("127.0.0.1", fixture.port, "/hang", steady_clock().now() + milliseconds(30))
                .status()
                .code(),
            Code::kDeadlineExceeded);
  const std::uint16_t port = fixture.port;
  fixture.server.stop();
  EXPECT_EQ(get("127.0.0.1", port, "/x", soon()).status().code(), Code::kUnavailable);
}

}  // namespace
}  // namespace tandem::http
