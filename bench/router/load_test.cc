#include "bench/router/bodies.h"
#include "bench/router/http_load.h"
#include "bench/router/loopback.h"
#include "bench/router/read_tokens.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <set>
#include <string>
#include <thread>
#include <utility>
#include <vector>

namespace tandem::bench {
namespace {

using ::testing::HasSubstr;
using ::testing::IsEmpty;

/// Answers requests of one connection with the same bytes, in pieces, and then closes it.
class Server {
 public:
  Server(std::vector<std::string> pieces, int answers)
      : listener_(listen_on_loopback()), pieces_(std::move(pieces)), answers_(answers) {
    thread_ = std::thread([this] { serve(); });
  }

  Server(const Server&) = delete;
  Server& operator=(const Server&) = delete;

  ~Server() {
    thread_.join();
    ::close(listener_.fd);
  }

  [[nodiscard]] std::uint16_t port() const { return listener_.port; }

  /// Of the last request.
  [[nodiscard]] const std::string& request() const { return request_; }

 private:
  void serve() {
    const int client = accept_on_loopback(listener_.fd);
    char buffer[4096];
    for (int i = 0; i < answers_; ++i) {
      const ssize_t size = ::recv(client, buffer, sizeof buffer, 0);
      if (size <= 0) break;
      request_.assign(buffer, static_cast<std::size_t>(size));
      for (const std::string& piece : pieces_) {
        (void)::send(client, piece.data(), piece.size(), MSG_NOSIGNAL);
        std::this_thread::sleep_for(std::chrono::milliseconds(2));
      }
    }
    ::close(client);
  }

  Listener listener_;
  std::vector<std::string> pieces_;
  int answers_;
  std::string request_;
  std::thread thread_;
};

HttpLoad load_on(std::uint16_t port) {
  return {.port = port,
          .path = "/generate",
          .body = [](std::size_t /*connection*/) { return std::string("{}"); },
          .seconds = 0};
}

const std::string kWhole = "HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n{}";
const std::string kStreamHead = "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n";
const std::string kRole = R"(data: {"choices":[{"delta":{"role":"assistant","content":""}}]})";
const std::string kText = R"(data: {"choices":[{"delta":{"content":"a"}}]})";
const std::string kEnd = "\r\n0\r\n\r\n";

TEST(HttpLoad, CountsAnswers) {
  Server server({kWhole}, 3);
  HttpLoad load = load_on(server.port());
  load.least_requests = 3;
  const HttpLoadResult result = run_http_load(load);
  EXPECT_EQ(result.requests, 3u);
  EXPECT_EQ(result.received_bytes, 3 * kWhole.size());
  EXPECT_THAT(result.problem(), IsEmpty());
}

TEST(HttpLoad, SendsTheBodyOfEachRequest) {
  Server server({kWhole}, 2);
  HttpLoad load = load_on(server.port());
  load.least_requests = 2;
  int number = 0;
  load.body = [&](std::size_t connection) {
    return "body " + std::to_string(++number) + " of " + std::to_string(connection);
  };
  EXPECT_THAT(run_http_load(load).problem(), IsEmpty());
  EXPECT_THAT(server.request(), HasSubstr("content-length: 11\r\n\r\nbody 2 of 0"));
}

// A figure over fast refusals would look good.
TEST(HttpLoad, AnotherStatusIsNoRequestAndSpoilsTheResult) {
  Server server({"HTTP/1.1 503 Service Unavailable\r\ncontent-length: 0\r\n\r\n"}, 2);
  HttpLoad load = load_on(server.port());
  load.seconds = 10;
  const HttpLoadResult result = run_http_load(load);
  EXPECT_EQ(result.requests, 0u);
  EXPECT_EQ(result.errors, 1u);
  EXPECT_EQ(result.problem(), "HTTP/1.1 503 Service Unavailable");
}

TEST(HttpLoad, BrokenConnectionSpoilsTheResult) {
  Server server({kWhole}, 2);
  HttpLoad load = load_on(server.port());
  load.least_requests = 3;
  const HttpLoadResult result = run_http_load(load);
  EXPECT_EQ(result.requests, 2u);
  EXPECT_EQ(result.problem(), "a connection broke");
}

TEST(HttpLoad, SilenceSpoilsTheResult) {
  // It waits for another request, so the connection stays.
  Server server({"HTTP/1.1 200 OK\r\n"}, 2);
  HttpLoad load = load_on(server.port());
  load.silence_ms_max = 1;
  EXPECT_EQ(run_http_load(load).problem(), "no answer for too long");
}

TEST(HttpLoad, NobodyThereIsAProblem) {
  const Listener listener = listen_on_loopback();
  ::close(listener.fd);
  EXPECT_EQ(run_http_load(load_on(listener.port)).problem(), "nobody listens");
}

TEST(HttpLoad, CountsTextsOnceWhereverTheyAreCut) {
  const std::string stream = kRole + "\n\n" + kText + "\n\n" + kText + "\n\ndata: [DONE]" + kEnd;
  for (std::size_t cut = 1; cut < stream.size(); ++cut) {
    SCOPED_TRACE(cut);
    ReadTokens read;
    Server server({kStreamHead + stream.substr(0, cut), stream.substr(cut)}, 1);
    HttpLoad load = load_on(server.port());
    load.answer_tokens = 2;
    load.read = &read;
    const HttpLoadResult result = run_http_load(load);
    EXPECT_THAT(result.problem(), IsEmpty());
    EXPECT_EQ(result.tokens, 2u);
    EXPECT_EQ(read.of(0), 2);
  }
}

// Tokens that the router merged cost less than those that it did not: no figure is made of them.
TEST(HttpLoad, MergedTokensSpoilTheResult) {
  Server server({kStreamHead + kRole + "\n\n" + kText + kEnd}, 1);
  HttpLoad load = load_on(server.port());
  load.answer_tokens = 2;
  const HttpLoadResult result = run_http_load(load);
  EXPECT_EQ(result.requests, 0u);
  EXPECT_EQ(result.problem(), "an answer has 1 events with text instead of 2");
}

TEST(ReadTokens, AreShared) {
  ReadTokens ours;
  const ReadTokens theirs(::dup(ours.fd()));
  ours.set(ReadTokens::kConnections - 1, 7);
  EXPECT_EQ(theirs.of(ReadTokens::kConnections - 1), 7);
  EXPECT_EQ(theirs.of(0), 0);
}

/// The bodies without the numbers of their requests and conversations.
template <class Body>
void expect_conversations(const Body& body) {
  std::set<std::string> whole;
  std::set<std::string> begins;
  for (std::uint64_t number = 0; number < 4 * kConversations; ++number) {
    const std::string text = body(number);
    EXPECT_EQ(text.size(), body(0).size()) << "a relay of fixed sizes takes them";
    whole.insert(text);
    begins.insert(text.substr(0, text.size() / 2));
  }
  EXPECT_EQ(whole.size(), 4 * kConversations);
  EXPECT_EQ(begins.size(), kConversations);
}

TEST(Bodies, BelongToConversationsAndDiffer) {
  const IdsBodies ids(450);
  expect_conversations([&](std::uint64_t number) { return ids.body(number); });
  const ChatBodies chat({.max_tokens = 8, .text_bytes = 1800});
  expect_conversations([&](std::uint64_t number) { return chat.body(number); });
}

TEST(Bodies, HaveTheLengthsThatWereAskedFor) {
  const std::string ids = IdsBodies(450).body(12345);
  const std::string list = ids.substr(0, ids.find(']'));
  EXPECT_EQ(std::count(list.begin(), list.end(), ','), 449);
  const std::string chat = ChatBodies({.max_tokens = 8, .text_bytes = 1800}).body(12345, 3);
  const std::size_t begin = chat.find("conversation");
  EXPECT_EQ(chat.find("\"}]}") - begin, 1800u);
  EXPECT_THAT(chat, HasSubstr(R"("stream":false,"seed":3,)"));
}

}  // namespace
}  // namespace tandem::bench
