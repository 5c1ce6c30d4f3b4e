#include "common/http/message.h"
#include "common/http/parser.h"
#include "tests/fuzz/feeds.h"

#include <algorithm>
#include <cstddef>
#include <numeric>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace tandem::fuzz {
namespace {

constexpr std::size_t kCuts = 4;

constexpr http::Limits small_limits() {
  return {.request_line_bytes = 256, .header_bytes = 1024, .header_count = 8, .body_bytes = 512};
}

// A cut is one byte: what has arrived by then is too short for a line that is too long, which is
// found in a piece with another status than in a whole.
static_assert(small_limits().request_line_bytes > 0xFF);

/// The head as it arrives up to each of `ends` in turn.
http::HeadScan scan(std::string_view text, const std::vector<std::size_t>& ends) {
  std::size_t scanned = 0;
  http::HeadScan found;
  for (const std::size_t end : ends) {
    found = http::scan_head(text.substr(0, end), small_limits(), &scanned);
    if (found.state != http::HeadScan::State::kIncomplete) break;
  }
  return found;
}

bool is_clean(std::string_view text) {
  return std::ranges::all_of(
      text, [](char c) { return static_cast<unsigned char>(c) >= 0x20U && c != 0x7F; });
}

void check_head(std::string_view head) {
  const http::Limits limits = small_limits();
  http::Request request;
  http::Framing framing;
  const http::ParseError error = http::parse_head(head, limits, &request, &framing);
  if (error.failed()) {
    must(error.status >= 400 && error.status < 600, "a refusal has a status of its own");
    must(!error.message.empty() && is_clean(error.message), "and says why in one line");
    return;
  }
  must(framing.content_length <= limits.body_bytes, "no body is longer than the limit");
  must(!framing.chunked || framing.content_length == 0, "a body has one length");
  must(request.headers.items().size() <= limits.header_count, "fields are limited");
  must(is_clean(request.path) && is_clean(request.target), "a path steers nothing");
  must(request.target == "*" || request.target.starts_with('/'), "a target is a path");
  // As this parser read it, any other one does.
  std::string again = request.method + " " + request.target + " HTTP/1." +
                      std::to_string(request.version_minor) + "\r\n";
  for (const auto& [name, value] : request.headers.items()) {
    must(name == http::to_lower(name), "names are in lower case");
    must(value.find_first_of(std::string_view("\r\n\0", 3)) == std::string::npos,
         "a value is one line");
    again += name + ": " + value + "\r\n";
  }
  again += "\r\n";
  http::Limits room = limits;
  room.header_bytes = again.size() + 1;
  std::size_t scanned = 0;
  must(http::scan_head(again, room, &scanned).head_bytes == again.size(), "a head has one end");
  http::Request same;
  http::Framing same_framing;
  must(!http::parse_head(again, limits, &same, &same_framing).failed(), "what was read is a head");
  must(same.method == request.method && same.target == request.target &&
           same.path == request.path && same.query == request.query &&
           same.headers.items() == request.headers.items(),
       "and the same one");
  must(same_framing.chunked == framing.chunked &&
           same_framing.content_length == framing.content_length &&
           same_framing.keep_alive == framing.keep_alive &&
           same_framing.expects_continue == framing.expects_continue,
       "with the same body behind it");
  for (const auto& value :
       {http::query_value(request.query, "a"), http::percent_decode(request.query)})
    must(!value || is_clean(*value), "no escape is a control character");
}

struct Chunked {
  std::string body;
  std::size_t taken = 0;
  bool done = false;
  std::string error;

  bool operator==(const Chunked&) const = default;
};

Chunked decode(std::string_view text, const std::vector<std::size_t>& ends) {
  http::ChunkedDecoder decoder(small_limits().body_bytes);
  Chunked out;
  std::size_t from = 0;
  for (const std::size_t end : ends) {
    while (from < end && !decoder.done() && !decoder.error().failed()) {
      const std::size_t took = decoder.feed(text.substr(from, end - from), &out.body);
      must(took > 0 && took <= end - from, "a decoder takes what it is given");
      from += took;
    }
  }
  out.taken = from;
  out.done = decoder.done();
  out.error = decoder.error().message;
  must(out.body.size() <= small_limits().body_bytes, "a body is within its limit");
  return out;
}

/// A whole chunked body as RFC 9112, 7.1 writes it, at the front of `text`, whatever its size;
/// nothing where there is none.
std::optional<Chunked> read_slowly(std::string_view text) {
  Chunked out;
  const auto line = [&]() -> std::optional<std::string_view> {
    const std::size_t end = text.find("\r\n", out.taken);
    if (end == std::string_view::npos) return std::nullopt;
    const std::string_view found = text.substr(out.taken, end - out.taken);
    out.taken = end + 2;
    if (found.find_first_of(std::string_view("\r\n\0", 3)) != std::string_view::npos)
      return std::nullopt;
    return found;
  };
  while (true) {
    const auto head = line();
    if (!head) return std::nullopt;
    const std::string digits(head->substr(0, head->find(';')));
    const bool number = !digits.empty() && digits.size() <= 16 &&
                        digits.find_first_not_of("0123456789abcdefABCDEF") == std::string::npos;
    if (!number) return std::nullopt;
    const std::uint64_t size = std::stoull(digits, nullptr, 16);
    if (size == 0) break;
    if (size > text.size() || text.substr(out.taken).size() < size + 2) return std::nullopt;
    out.body += text.substr(out.taken, size);
    out.taken += size;
    if (text.substr(out.taken, 2) != "\r\n") return std::nullopt;
    out.taken += 2;
  }
  while (true) {
    const auto trailer = line();
    if (!trailer) return std::nullopt;
    if (trailer->empty()) break;
  }
  out.done = true;
  return out;
}

/// What is so short passes no limit of a line.
constexpr std::size_t kShort = 250;

void check_body(std::string_view text, const Chunked& found) {
  const std::optional<Chunked> wanted = read_slowly(text);
  if (found.done) must(wanted && found == *wanted, "a body is what its chunks say");
  if (wanted && text.size() <= kShort) must(found.done, "and what is one is read");
}

}  // namespace

void feed_http(Bytes bytes) {
  if (bytes.size() < kCuts) return;
  const std::string text = text_of(bytes.subspan(kCuts));
  const auto cut = [&](std::size_t size) {
    std::vector<std::size_t> ends = {size};
    for (std::size_t i = 0; i < kCuts; ++i)
      ends.push_back(std::min<std::size_t>(bytes[i], size));
    std::ranges::sort(ends);
    return ends;
  };
  const http::HeadScan head = scan(text, {text.size()});
  const http::HeadScan arrived = scan(text, cut(text.size()));
  must(arrived.state == head.state, "pieces make no other head");
  must(arrived.head_bytes == head.head_bytes, "nor one of another size");
  std::size_t body = 0;
  if (head.state == http::HeadScan::State::kComplete) {
    body = head.head_bytes;
    check_head(std::string_view(text).substr(0, body));
  }
  const std::string_view rest = std::string_view(text).substr(body);
  std::vector<std::size_t> each(rest.size());
  std::iota(each.begin(), each.end(), std::size_t{1});
  const Chunked at_once = decode(rest, {rest.size()});
  must(decode(rest, each) == at_once, "nor another body");
  must(decode(rest, cut(rest.size())) == at_once, "however it arrives");
  check_body(rest, at_once);
}

}  // namespace tandem::fuzz
