#include "common/http/response_reader.h"
#include "tests/fuzz/feeds.h"

#include <algorithm>
#include <cstddef>
#include <numeric>
#include <string>
#include <string_view>
#include <vector>

namespace tandem::fuzz {
namespace {

constexpr std::size_t kCuts = 4;
constexpr std::size_t kBodyMax = 512;

struct Read {
  bool whole = false;
  Status error;
  Status end;  ///< if the peer closes then
  http::Response response;
};

/// As it arrives up to each of `ends` in turn.
Read read(std::string_view text, bool to_head, const std::vector<std::size_t>& ends) {
  http::ResponseReader reader(to_head, kBodyMax);
  Read out;
  std::size_t from = 0;
  for (const std::size_t end : ends) {
    const auto fed = reader.feed(text.substr(from, end - from));
    from = end;
    if (!fed.ok()) {
      out.error = fed.status();
      return out;
    }
    if (*fed) {
      out.whole = true;
      break;
    }
  }
  if (!out.whole) out.end = reader.end();
  out.response = reader.take();
  return out;
}

bool same(const Read& a, const Read& b) {
  // A body that is too long may be told by its chunk's size or by its bytes: the code is the same.
  if (a.error.code() != b.error.code() || a.whole != b.whole) return false;
  return a.end.code() == b.end.code() && a.response.status == b.response.status &&
         a.response.headers.items() == b.response.headers.items() &&
         a.response.body == b.response.body;
}

}  // namespace

void feed_response(Bytes bytes) {
  if (bytes.size() < kCuts) return;
  const std::string text = text_of(bytes.subspan(kCuts));
  const bool to_head = (bytes[0] & 1U) != 0;
  std::vector<std::size_t> cuts = {text.size()};
  for (std::size_t i = 0; i < kCuts; ++i)
    cuts.push_back(std::min<std::size_t>(bytes[i], text.size()));
  std::ranges::sort(cuts);
  std::vector<std::size_t> each(text.size());
  std::iota(each.begin(), each.end(), std::size_t{1});

  const Read at_once = read(text, to_head, {text.size()});
  must(same(read(text, to_head, cuts), at_once), "pieces make no other response");
  must(same(read(text, to_head, each), at_once), "however small they are");
  must(at_once.error.ok() || at_once.error.code() == Code::kDataLoss, "what is no HTTP is lost");
  must(at_once.end.ok() || at_once.end.code() == Code::kUnavailable, "a cut is an absence");
  const http::Response& response = at_once.response;
  must(response.body.size() <= kBodyMax, "a body is within its limit");
  const bool complete = at_once.error.ok() && at_once.end.ok();
  if (!complete) return;
  must(response.status >= 200 && response.status <= 999, "an interim response is not the response");
  must(!to_head || response.body.empty(), "HEAD asks for no body");
  for (const auto& [name, value] : response.headers.items()) {
    must(name == http::to_lower(name), "names are in lower case");
    must(value.find_first_of(std::string_view("\r\n\0", 3)) == std::string::npos,
         "a value is one line");
  }
}

}  // namespace tandem::fuzz
