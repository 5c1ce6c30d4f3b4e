// Raw HTTP/1.x messages, sound and broken, each with the status that it must get. Every row is sent
// twice: in one piece and byte by byte, because where a packet ends must not matter. After a
// refusal the connection must end; after an acceptance it must go on.
#include "common/async/io_pool.h"
#include "common/http/server.h"
#include "common/http/testing/client.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace tandem::http {
namespace {

struct Row {
  const char* name;
  std::string bytes;
  int status;
  const char* body = nullptr;  ///< what the echo handler must have seen
};

const std::string kHost = "Host: x\r\n";

std::string get(const std::string& fields) {
  return "GET / HTTP/1.1\r\n" + fields + "\r\n";
}

std::string post(const std::string& fields, const std::string& body) {
  return "POST / HTTP/1.1\r\n" + kHost + fields + "\r\n" + body;
}

std::string chunked(const std::string& body) {
  return post("Transfer-Encoding: chunked\r\n", body);
}

std::string repeat(const std::string& text, std::size_t count) {
  std::string out;
  out.reserve(text.size() * count);
  for (std::size_t i = 0; i < count; ++i)
    out += text;
  return out;
}

const std::vector<Row>& rows() {
  static const std::vector<Row> kRows{
      // Request line.
      {"line_plain", get(kHost), 200},
      {"line_crlf_before", "\r\n" + get(kHost), 200},
      {"line_http10", "GET / HTTP/1.0\r\n\r\n", 200},
      {"line_http10_host", "GET / HTTP/1.0\r\nHost: x\r\n\r\n", 200},
      {"line_bare_lf", "GET / HTTP/1.1\nHost: x\n\n", 400},
      {"line_bare_cr", "GET / HTTP/1.1\rHost: x\r\r", 400},
      {"line_cr_in_target", "GET /a\rb HTTP/1.1\r\nHost: x\r\n\r\n", 400},
      {"line_nul", std::string("GET /\0 HTTP/1.1\r\nHost: x\r\n\r\n", 29), 400},
      {"line_no_version", "GET /\r\nHost: x\r\n\r\n", 400},
      {"line_two_spaces", "GET  / HTTP/1.1\r\nHost: x\r\n\r\n", 400},
      {"line_space_after", "GET / HTTP/1.1 \r\nHost: x\r\n\r\n", 400},
      {"line_space_before", " GET / HTTP/1.1\r\nHost: x\r\n\r\n", 400},
      {"line_tab", "GET\t/ HTTP/1.1\r\nHost: x\r\n\r\n", 400},
      {"line_space_in_target", "GET /a b HTTP/1.1\r\nHost: x\r\n\r\n", 400},
      {"line_version_09", "GET / HTTP/0.9\r\nHost: x\r\n\r\n", 505},
      {"line_version_12", "GET / HTTP/1.2\r\nHost: x\r\n\r\n", 505},
      {"line_version_2", "GET / HTTP/2.0\r\nHost: x\r\n\r\n", 505},
      {"line_version_case", "GET / http/1.1\r\nHost: x\r\n\r\n", 400},
      {"line_version_short", "GET / HTTP/1\r\nHost: x\r\n\r\n", 400},
      {"line_long", "GET /" + std::string(9000, 'a') + " HTTP/1.1\r\nHost: x\r\n\r\n", 414},
      {"line_endless", std::string(9000, 'a'), 414},
      {"line_just_fits", "GET /" + std::string(8000, 'a') + " HTTP/1.1\r\nHost: x\r\n\r\n", 200},
      {"line_garbage", "\x16\x03\x01\x02\x01\x01\xfc\x03\x03\r\n\r\n", 400},
      {"line_empty_head", "\r\n\r\n\r\n\r\nX\r\n\r\n", 400},
      // Method.
      {"method_odd_token", "G!T / HTTP/1.1\r\nHost: x\r\n\r\n", 200},
      {"method_not_token", "G(T / HTTP/1.1\r\nHost: x\r\n\r\n", 400},
      {"method_empty", " / HTTP/1.1\r\nHost: x\r\n\r\n", 400},
      {"method_long", std::string(33, 'G') + " / HTTP/1.1\r\nHost: x\r\n\r\n", 400},
      {"method_utf8", "G\xc3\xa9T / HTTP/1.1\r\nHost: x\r\n\r\n", 400},
      {"method_connect", "CONNECT a:1 HTTP/1.1\r\nHost: x\r\n\r\n", 400},
      // Target.
      {"path_absolute", "GET http://h/p?q HTTP/1.1\r\nHost: x\r\n\r\n", 200},
      {"path_absolute_bare", "GET http://h HTTP/1.1\r\nHost: x\r\n\r\n", 200},
      {"path_star", "OPTIONS * HTTP/1.1\r\nHost: x\r\n\r\n", 200},
      {"path_star_get", "GET * HTTP/1.1\r\nHost: x\r\n\r\n", 400},
      {"path_relative", "GET a HTTP/1.1\r\nHost: x\r\n\r\n", 400},
      {"path_ftp", "GET ftp://h/p HTTP/1.1\r\nHost: x\r\n\r\n", 400},
      {"path_fragment", "GET /a#b HTTP/1.1\r\nHost: x\r\n\r\n", 400},
      {"path_escape", "GET /%41 HTTP/1.1\r\nHost: x\r\n\r\n", 200},
      {"path_escape_cut", "GET /%4 HTTP/1.1\r\nHost: x\r\n\r\n", 400},
      {"path_escape_bad", "GET /%zz HTTP/1.1\r\nHost: x\r\n\r\n", 400},
      {"path_escape_nul", "GET /%00 HTTP/1.1\r\nHost: x\r\n\r\n", 400},
      {"path_escape_lf", "GET /%0a HTTP/1.1\r\nHost: x\r\n\r\n", 400},
      {"path_raw_utf8", "GET /\xc3\xa9 HTTP/1.1\r\nHost: x\r\n\r\n", 400},
      {"path_control", "GET /\x01 HTTP/1.1\r\nHost: x\r\n\r\n", 400},
      // Fields.
      {"hdr_no_host", "GET / HTTP/1.1\r\n\r\n", 400},
      {"hdr_two_hosts", get("Host: x\r\nHost: y\r\n"), 400},
      {"hdr_empty_host", get("Host:\r\n"), 200},
      {"hdr_no_colon", get(kHost + "abc\r\n"), 400},
      {"hdr_space_before_colon", get(kHost + "a : b\r\n"), 400},
      {"hdr_empty_name", get(kHost + ": b\r\n"), 400},
      {"hdr_name_space", get(kHost + "a b: c\r\n"), 400},
      {"hdr_name_utf8", get(kHost + "\xc3\xa9: c\r\n"), 400},
      {"hdr_fold_space", get(kHost + "a: b\r\n c\r\n"), 400},
      {"hdr_fold_tab", get(kHost + "a: b\r\n\tc\r\n"), 400},
      {"hdr_fold_first", "GET / HTTP/1.1\r\n Host: x\r\n\r\n", 400},
      {"hdr_bare_cr", get(kHost + "a: b\rc\r\n"), 400},
      {"hdr_bare_lf", get(kHost + "a: b\nc: d\r\n"), 400},
      {"hdr_nul", get(kHost + std::string("a: b\0c\r\n", 8)), 400},
      {"hdr_control", get(kHost + "a: b\x01\r\n"), 400},
      {"hdr_delete", get(kHost + "a: b\x7f\r\n"), 400},
      {"hdr_value_latin1", get(kHost + "a: \xe9\r\n"), 200},
      {"hdr_value_tab", get(kHost + "a:\tb\tc\t\r\n"), 200},
      {"hdr_value_empty", get(kHost + "a:\r\n"), 200},
      {"hdr_many", get(kHost + repeat("a: b\r\n", 127)), 200},
      {"hdr_too_many", get(kHost + repeat("a: b\r\n", 128)), 431},
      {"hdr_large", get(kHost + "a: " + std::string(60'000, 'b') + "\r\n"), 200},
      {"hdr_too_large", get(kHost + "a: " + std::string(70'000, 'b') + "\r\n"), 431},
      {"hdr_too_large_in_all",
       get(kHost + repeat("a: " + std::string(7000, 'b') + "\r\n", 10)),
       431},
      {"hdr_expect_other", post("Expect: 200-maybe\r\nContent-Length: 0\r\n", ""), 417},
      {"hdr_upgrade_ignored", get(kHost + "Connection: Upgrade\r\nUpgrade: h2c\r\n"), 200},
      // Framing by length.
      {"frm_length", post("Content-Length: 3\r\n", "abc"), 200, "abc"},
      {"frm_length_zero", post("Content-Length: 0\r\n", ""), 200, ""},
      {"frm_length_leading_zeros", post("Content-Length: 003\r\n", "abc"), 200, "abc"},
      {"frm_length_plus", post("Content-Length: +3\r\n", "abc"), 400},
      {"frm_length_minus", post("Content-Length: -3\r\n", "abc"), 400},
      {"frm_length_hex", post("Content-Length: 0x3\r\n", "abc"), 400},
      {"frm_length_text", post("Content-Length: three\r\n", "abc"), 400},
      {"frm_length_empty", post("Content-Length:\r\n", "abc"), 400},
      {"frm_length_list", post("Content-Length: 3, 3\r\n", "abc"), 400},
      {"frm_length_twice", post("Content-Length: 3\r\nContent-Length: 3\r\n", "abc"), 400},
      {"frm_length_twice_other", post("Content-Length: 3\r\nContent-Length: 4\r\n", "abc"), 400},
      {"frm_length_overflow", post("Content-Length: 99999999999999999999\r\n", ""), 400},
      {"frm_length_over_limit", post("Content-Length: 2000000\r\n", ""), 413},
      {"frm_no_length", post("", ""), 200, ""},
      {"frm_get_with_body", "GET / HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\n\r\nab", 200, "ab"},
      // Framing by chunks.
      {"frm_chunked", chunked("3\r\nabc\r\n0\r\n\r\n"), 200, "abc"},
      {"frm_chunked_case", post("transfer-encoding: CHUNKED\r\n", "1\r\na\r\n0\r\n\r\n"), 200, "a"},
      {"frm_chunked_hex", chunked("A\r\n0123456789\r\n0\r\n\r\n"), 200, "0123456789"},
      {"frm_chunked_zeros", chunked("0003\r\nabc\r\n000\r\n\r\n"), 200, "abc"},
      {"frm_chunked_extension", chunked("3;a=\"b\"\r\nabc\r\n0;x\r\n\r\n"), 200, "abc"},
      {"frm_chunked_trailer", chunked("3\r\nabc\r\n0\r\nT: v\r\nU: w\r\n\r\n"), 200, "abc"},
      {"frm_chunked_and_length",
       post("Transfer-Encoding: chunked\r\nContent-Length: 3\r\n", "0\r\n\r\n"),
       400},
      {"frm_length_and_chunked",
       post("Content-Length: 3\r\nTransfer-Encoding: chunked\r\n", "0\r\n\r\n"),
       400},
      {"frm_chunked_twice",
       post("Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n", "0\r\n\r\n"),
       400},
      {"frm_chunked_list", post("Transfer-Encoding: chunked, chunked\r\n", "0\r\n\r\n"), 501},
      {"frm_gzip_chunked", post("Transfer-Encoding: gzip, chunked\r\n", "0\r\n\r\n"), 501},
      {"frm_identity", post("Transfer-Encoding: identity\r\n", "abc"), 501},
      {"frm_te_xchunked", post("Transfer-Encoding: xchunked\r\n", "0\r\n\r\n"), 501},
      {"frm_te_vtab",
       post("Transfer-Encoding: \x0b"
            "chunked\r\n",
            "0\r\n\r\n"),
       400},
      {"frm_te_http10", "POST / HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", 400},
      {"frm_chunk_no_size", chunked("\r\nabc\r\n0\r\n\r\n"), 400},
      {"frm_chunk_bad_size", chunked("g\r\nabc\r\n0\r\n\r\n"), 400},
      {"frm_chunk_minus", chunked("-3\r\nabc\r\n0\r\n\r\n"), 400},
      {"frm_chunk_0x", chunked("0x3\r\nabc\r\n0\r\n\r\n"), 400},
      {"frm_chunk_space", chunked(" 3\r\nabc\r\n0\r\n\r\n"), 400},
      {"frm_chunk_space_after", chunked("3 \r\nabc\r\n0\r\n\r\n"), 400},
      {"frm_chunk_bare_lf", chunked("3\nabc\r\n0\r\n\r\n"), 400},
      {"frm_chunk_lf_in_extension", chunked("3;a\nb\r\nabc\r\n0\r\n\r\n"), 400},
      {"frm_chunk_too_long", chunked("2\r\nabc\r\n0\r\n\r\n"), 400},
      {"frm_chunk_no_crlf", chunked("3\r\nabc0\r\n\r\n"), 400},
      {"frm_chunk_17_digits", chunked("00000000000000003\r\nabc\r\n0\r\n\r\n"), 400},
      {"frm_chunk_overflow", chunked("ffffffffffffffff\r\n"), 413},
      {"frm_chunk_over_limit", chunked("1e8480\r\n"), 413},
      {"frm_chunk_long_extension",
       chunked("3;" + std::string(300, 'a') + "\r\nabc\r\n0\r\n\r\n"),
       400},
      {"frm_chunk_padding", chunked(repeat("1;" + std::string(200, 'a') + "\r\na\r\n", 100)), 400},
      {"frm_trailer_bare_lf", chunked("0\r\nT: v\n\r\n"), 400},
      {"frm_trailer_endless", chunked("0\r\n" + std::string(9000, 'a')), 431},
      {"frm_sum_over_limit",
       chunked(repeat("400\r\n" + std::string(1024, 'a') + "\r\n", 1100)),
       413},
  };
  return kRows;
}

struct Echo {
  Echo()
      : server(pool, options(), [](Request&& request, const auto& writer) {
          writer->send(200, {}, request.body);
        }) {
    port = server.listen("127.0.0.1", 0).value();
  }

  static ServerOptions options() {
    ServerOptions out;
    out.limits.body_bytes = std::size_t{1} << 20U;
    return out;
  }

  async::IoPool pool{2};
  Server server;
  std::uint16_t port = 0;
};

void check(const Row& row, TestClient& client) {
  const auto response = client.read_response();
  ASSERT_TRUE(response) << "no answer";
  EXPECT_EQ(response->status, row.status) << response->body;
  if (row.status != 200) {
    EXPECT_NE(response->body.find("\"error\""), std::string::npos);
    EXPECT_EQ(response->headers.find("connection"), "close");
    client.buffer().clear();
    EXPECT_TRUE(client.ends_cleanly()) << "a refused connection must end: " << client.buffer();
    return;
  }
  if (row.body != nullptr) {
    EXPECT_EQ(response->body, row.body);
  }
  if (row.bytes.find("HTTP/1.0") != std::string::npos) return;
  client.send(post("Content-Length: 5\r\n", "again"));
  const auto next = client.read_response();
  ASSERT_TRUE(next) << "the connection must go on";
  EXPECT_EQ(next->body, "again");
}

TEST(HttpRaw, InOnePiece) {
  Echo echo;
  for (const Row& row : rows()) {
    SCOPED_TRACE(row.name);
    TestClient client(echo.port);
    client.send(row.bytes);
    check(row, client);
  }
  EXPECT_GE(rows().size(), 80U);
}

TEST(HttpRaw, ByteByByte) {
  Echo echo;
  for (const Row& row : rows()) {
    if (row.bytes.size() > 400) continue;
    SCOPED_TRACE(row.name);
    TestClient client(echo.port);
    for (const char c : row.bytes)
      client.send(std::string_view(&c, 1));
    check(row, client);
  }
}

TEST(HttpRaw, HalfAMillionOneByteChunks) {
  Echo echo;
  TestClient client(echo.port);
  client.send(chunked(repeat("1\r\na\r\n", 500'000) + "0\r\n\r\n"));
  const auto response = client.read_response();
  ASSERT_TRUE(response);
  EXPECT_EQ(response->body.size(), 500'000U);
}

// What follows a refused message must never be served as a request of its own (smuggling).
TEST(HttpRaw, NothingAfterARefusalIsServed) {
  Echo echo;
  const std::string hidden = post("Content-Length: 6\r\n", "hidden");
  for (const std::string& first :
       {post("Transfer-Encoding: chunked\r\nContent-Length: 4\r\n", "0\r\n\r\n"),
        post("Content-Length: 0\r\nContent-Length: 99\r\n", ""),
        chunked("zz\r\n"),
        post("Transfer-Encoding : chunked\r\n", "0\r\n\r\n")}) {
    TestClient client(echo.port);
    client.send(first + hidden);
    const auto response = client.read_response();
    ASSERT_TRUE(response);
    EXPECT_EQ(response->status, 400);
    while (client.read_some()) {
    }
    EXPECT_EQ(client.buffer().find("hidden"), std::string::npos);
  }
}

}  // namespace
}  // namespace tandem::http
