#include "common/http/parser.h"

#include "common/base/random.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

namespace tandem::http {
namespace {

/// A head byte by byte: its size when complete, 0 when more is needed, or the message.
struct Slow {
  std::size_t bytes = 0;
  std::string error;
};

Slow scan_slowly(std::string_view text) {
  for (std::size_t i = 0; i < text.size(); ++i) {
    const bool after_cr = i > 0 && text[i - 1] == '\r';
    if (text[i] == '\0') return {0, "the request head holds a NUL byte"};
    if (text[i] == '\n') {
      if (!after_cr) return {0, "lines of the request head must end with CR LF"};
      if (i >= 3 && text[i - 2] == '\n') return {i + 1, ""};
    } else if (after_cr) {
      return {0, "the request head holds a CR that no LF follows"};
    }
  }
  return {};
}

/// As it arrives in pieces that end at `cuts`.
void expect_scan(const std::string& text, const std::vector<std::size_t>& cuts) {
  SCOPED_TRACE(text);
  const Limits limits;
  std::size_t scanned = 0;
  for (const std::size_t cut : cuts) {
    const std::string_view arrived = std::string_view(text).substr(0, cut);
    const Slow want = scan_slowly(arrived);
    const HeadScan got = scan_head(arrived, limits, &scanned);
    EXPECT_EQ(got.error.message, want.error);
    EXPECT_EQ(got.state == HeadScan::State::kFailed, !want.error.empty());
    EXPECT_EQ(got.state == HeadScan::State::kComplete, want.bytes > 0);
    EXPECT_EQ(got.head_bytes, want.bytes);
    if (got.state != HeadScan::State::kIncomplete) return;
  }
}

TEST(ScanHead, FindsWhatAReaderOfEachByteFinds) {
  const std::string head =
      "POST /generate HTTP/1.1\r\nhost: a\r\nx: \t\x0B\xFF\r\nlonger-name: abc\r\n\r\n";
  expect_scan(head + "{}", {head.size() + 2});
  for (std::size_t first = 0; first <= head.size(); ++first) {
    for (std::size_t second = first; second <= head.size(); ++second)
      expect_scan(head, {first, second, head.size()});
    for (const char c : std::string_view("\0\r\n\x0E ", 5)) {
      std::string damaged = head;
      damaged.insert(first, 1, c);
      expect_scan(damaged, {damaged.size()});
      expect_scan(damaged, {first, first + 1, damaged.size()});
      if (first == head.size()) continue;
      damaged = head;
      damaged[first] = c;
      expect_scan(damaged, {damaged.size()});
    }
  }
}

TEST(ScanHead, AnyBytes) {
  for (std::uint64_t seed = 1; seed <= 3000; ++seed) {
    Random random(seed);
    std::string text;
    for (std::uint64_t i = random.below(80); i > 0; --i) {
      const std::uint64_t what = random.below(12);
      text += what == 0 ? "\r\n" : what == 1 && random.chance(0.1) ? "\n" : std::string(1, 'a');
      if (random.chance(0.01)) text += random.chance(0.5) ? '\r' : '\0';
    }
    std::vector<std::size_t> cuts{random.below(text.size() + 1), random.below(text.size() + 1)};
    std::sort(cuts.begin(), cuts.end());
    cuts.push_back(text.size());
    expect_scan(text, cuts);
  }
}

// What a name of a field or a method may be made of (RFC 9110, 5.6.2).
TEST(ParseHead, TokensOfEveryByte) {
  for (int byte = 1; byte < 0x100; ++byte) {
    const char c = static_cast<char>(byte);
    if (c == '\r' || c == '\n' || c == ':') continue;
    SCOPED_TRACE("byte " + std::to_string(byte));
    Request request;
    Framing framing;
    const std::string head = "GET / HTTP/1.1\r\nhost: a\r\nx" + std::string(1, c) + ": 1\r\n\r\n";
    const bool letter = (byte | 0x20) >= 'a' && (byte | 0x20) <= 'z';
    const bool token = letter || (byte >= '0' && byte <= '9') ||
                       std::string_view("!#$%&'*+-.^_`|~").find(c) != std::string_view::npos;
    EXPECT_EQ(parse_head(head, {}, &request, &framing).status, token ? 0 : 400);
  }
}

TEST(PercentDecode, WithAndWithoutEscapes) {
  EXPECT_EQ(percent_decode("/v1/models"), "/v1/models");
  EXPECT_EQ(percent_decode(""), "");
  EXPECT_EQ(percent_decode("/a%20b%2f"), "/a b/");
  for (const char* bad : {"/a\x1F", "/a\x7F", "/%2", "/%g0", "/%0A", "/%7f", "%20\n"})
    EXPECT_EQ(percent_decode(bad), std::nullopt) << bad;
}

TEST(Headers, NamesAreFoundWithoutCase) {
  Headers headers{{"Content-Length", "1"}, {"content-type", "2"}, {"CONTENT-LENGTH", "3"}};
  EXPECT_EQ(headers.find("content-length"), "1");
  EXPECT_EQ(headers.find("Content-TYPE"), "2");
  EXPECT_EQ(headers.count("CONTENT-Length"), 2U);
  EXPECT_FALSE(headers.find("content-lengtH2").has_value());
  EXPECT_FALSE(headers.find("content-lengti").has_value());
}

}  // namespace
}  // namespace tandem::http
