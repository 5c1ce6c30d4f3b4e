#include "common/http/response_reader.h"

#include "common/async/io_pool.h"
#include "common/base/clock.h"
#include "common/http/client.h"
#include "common/http/server.h"

#include <gtest/gtest.h>

#include <memory>
#include <string>

namespace tandem::http {
namespace {

constexpr std::size_t kBodyMax = 1000;

struct Outcome {
  bool whole = false;
  Status status;
  Response response;
};

Outcome read(const std::string& text, std::size_t piece, bool to_head = false) {
  ResponseReader reader(to_head, kBodyMax);
  for (std::size_t at = 0; at < text.size(); at += piece) {
    const auto fed = reader.feed(std::string_view(text).substr(at, piece));
    if (!fed.ok()) return {.whole = false, .status = fed.status(), .response = {}};
    if (*fed) return {.whole = true, .status = {}, .response = reader.take()};
  }
  return {.whole = false, .status = reader.end(), .response = reader.take()};
}

TEST(ResponseReader, ReadsEachFramingInAnyPieces) {
  struct Case {
    std::string text;
    bool to_head;
    bool whole;  ///< told without the end of the connection
    int status;
    std::string body;
  };

  const Case cases[] = {
      {"HTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\nhello", false, true, 200, "hello"},
      {"HTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\nhello and more", false, true, 200, "hello"},
      {"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n", false, true, 200, ""},
      {"HTTP/1.1 200 OK\r\ntransfer-encoding: Chunked\r\n\r\n3\r\nhel\r\n2\r\nlo\r\n0\r\n\r\n",
       false,
       true,
       200,
       "hello"},
      {"HTTP/1.0 503 Service Unavailable\r\n\r\nhello", false, false, 503, "hello"},
      {"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 404\r\ncontent-length: 2\r\n\r\nno",
       false,
       true,
       404,
       "no"},
      {"HTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\n", true, true, 200, ""},
      {"HTTP/1.1 204 No Content\r\ncontent-length: 5\r\n\r\n", false, true, 204, ""},
  };
  for (const Case& c : cases) {
    for (const std::size_t piece : {std::size_t{1}, std::size_t{7}, c.text.size()}) {
      SCOPED_TRACE(c.text + " in pieces of " + std::to_string(piece));
      const Outcome found = read(c.text, piece, c.to_head);
      EXPECT_TRUE(found.status.ok()) << found.status.message();
      EXPECT_EQ(found.whole, c.whole);
      EXPECT_EQ(found.response.status, c.status);
      EXPECT_EQ(found.response.body, c.body);
    }
  }
}

TEST(ResponseReader, RefusesWhatParsersDisagreeAbout) {
  const std::string ok = "HTTP/1.1 200 OK\r\n";
  const std::string long_body(kBodyMax + 1, 'x');
  std::string many_fields;
  for (int i = 0; i < 129; ++i)
    many_fields += "a: b\r\n";
  const std::string cases[] = {
      "SSH-2.0-OpenSSH\r\n\r\n",
      "HTTP/2.0 200 OK\r\n\r\n",
      "HTTP/1.1 20 OK\r\n\r\n",
      "HTTP/1.1 2000 OK\r\n\r\n",
      "HTTP/1.1 000 OK\r\n\r\n",
      "HTTP/1.1 200 OK\ncontent-length: 0\r\n\r\n",
      "HTTP/1.1 200 O\rK\r\n\r\n",
      std::string("HTTP/1.1 200 \0\r\n\r\n", 18),
      ok + many_fields + "\r\n",
      ok + "content-length: 5\r\ntransfer-encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n\r\n",
      ok + "no colon\r\n\r\n",
      ok + "a: b\r\n folded\r\n\r\n",
      ok + "a : b\r\n\r\n",
      ok + "a: b\nc: d\r\n\r\n",
      ok + "content-length: 5\r\ncontent-length: 6\r\n\r\nhello",
      ok + "content-length:\r\n\r\nhello",
      ok + "content-length: -1\r\n\r\nhello",
      ok + "content-length: 99999999999999999999999\r\n\r\nhello",
      ok + "content-length: " + std::to_string(kBodyMax + 1) + "\r\n\r\n",
      ok + "transfer-encoding: gzip, chunked\r\n\r\n0\r\n\r\n",
      ok + "transfer-encoding: chunked\r\n\r\nno size\r\n",
      ok + "\r\n" + long_body,
      ok + "a: " + std::string(70'000, 'x') + "\r\n\r\n",
      std::string(70'000, 'x'),
  };
  for (const std::string& text : cases) {
    for (const std::size_t piece : {std::size_t{1}, std::size_t{4096}, text.size()}) {
      SCOPED_TRACE(text.substr(0, 100) + " in pieces of " + std::to_string(piece));
      const Outcome found = read(text, piece);
      EXPECT_EQ(found.status.code(), Code::kDataLoss);
      EXPECT_FALSE(found.status.message().empty());
    }
  }
}

TEST(ResponseReader, HeadOfTheLongestSizeIsReadInAnyPieces) {
  const std::string start = "HTTP/1.1 200 OK\r\na: ";
  for (const std::size_t size : {64U * 1024U, 64U * 1024U + 1U}) {
    const std::string text = start + std::string(size - start.size(), 'x') + "\r\n\r\n";
    for (const std::size_t piece : {std::size_t{1}, text.size() - 1, text.size()}) {
      SCOPED_TRACE(std::to_string(size) + " bytes in pieces of " + std::to_string(piece));
      EXPECT_EQ(read(text, piece).status.ok(), size == 64U * 1024U);
    }
  }
}

TEST(ResponseReader, ConnectionThatEndsTooEarlyIsUnavailable) {
  for (const char* text : {"",
                           "HTTP/1.1 200 OK\r\ncontent-le",
                           "HTTP/1.1 100 Continue\r\n\r\n",
                           "HTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\nhell",
                           "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n5\r\nhello\r\n"}) {
    SCOPED_TRACE(text);
    EXPECT_EQ(read(text, 3).status.code(), Code::kUnavailable);
  }
}

TEST(Client, AddressOfIpv6MayStandInBrackets) {
  async::IoPool pool{1};
  Server server(pool, {}, [](Request&& request, const std::shared_ptr<ResponseWriter>& writer) {
    writer->send(200, {}, std::string(*request.headers.find("host")));
  });
  const auto port = server.listen("::1", 0);
  if (!port.ok()) GTEST_SKIP() << "no IPv6 here: " << port.status().message();
  for (const char* host : {"::1", "[::1]"}) {
    SCOPED_TRACE(host);
    const auto response = get(host, *port, "/a", steady_clock().now() + seconds(20));
    ASSERT_TRUE(response.ok()) << response.status().message();
    EXPECT_EQ(response->body, "[::1]:" + std::to_string(*port));
  }
}

}  // namespace
}  // namespace tandem::http
