#include "common/http/response_reader.h"

#include <algorithm>
#include <utility>

namespace tandem::http {

namespace {

constexpr Limits kLimits;  // of a head: those of requests

bool is_digit(char c) {
  return c >= '0' && c <= '9';
}

/// "HTTP/1.1 200 OK"; the phrase may be missing.
Status parse_status_line(std::string_view line, Response* response) {
  constexpr std::string_view kVersion = "HTTP/1.";
  constexpr std::size_t kCodeAt = kVersion.size() + 2;
  constexpr std::size_t kCodeEnd = kCodeAt + 3;
  const bool sound = line.size() >= kCodeEnd && line.starts_with(kVersion) &&
                     is_digit(line[kCodeAt - 2]) && line[kCodeAt - 1] == ' ' &&
                     std::ranges::all_of(line.substr(kCodeAt, 3), is_digit) &&
                     line[kCodeAt] != '0' && (line.size() == kCodeEnd || line[kCodeEnd] == ' ') &&
                     is_field_value(line);
  if (!sound) return data_loss("the answer is not HTTP/1.1");
  response->status = 0;
  for (const char c : line.substr(kCodeAt, 3))
    response->status = response->status * 10 + (c - '0');
  return {};
}

/// A head without the empty line behind it.
Status parse_response_head(std::string_view head, Response* response) {
  std::size_t end = std::min(head.find("\r\n"), head.size());
  TANDEM_TRY(parse_status_line(head.substr(0, end), response));
  while (end < head.size()) {
    head.remove_prefix(end + 2);
    end = std::min(head.find("\r\n"), head.size());
    const ParseError error = parse_field(head.substr(0, end), &response->headers);
    if (error.failed()) return data_loss(error.message);
    if (response->headers.items().size() > kLimits.header_count)
      return data_loss("the response has too many header fields");
  }
  return {};
}

}  // namespace

Result<bool> ResponseReader::feed(std::string_view bytes) {
  constexpr std::string_view kEnd = "\r\n\r\n";
  // The end may have begun in the piece before.
  std::size_t from = arrived_.size() - std::min(arrived_.size(), kEnd.size() - 1);
  arrived_.append(bytes);
  while (!in_body_) {
    const std::size_t end = arrived_.find(kEnd, from);
    // Without an end so far, the end of the head is not before the last bytes.
    const std::size_t begun = arrived_.size() - std::min(arrived_.size(), kEnd.size() - 1);
    if (std::min(end, begun) > kLimits.header_bytes) {
      return data_loss("the head of the response is longer than " +
                       std::to_string(kLimits.header_bytes) + " bytes");
    }
    if (end == std::string::npos) return false;
    from = 0;
    response_ = Response();
    TANDEM_TRY(parse_response_head(std::string_view(arrived_).substr(0, end), &response_));
    arrived_.erase(0, end + kEnd.size());
    if (response_.status < 200) continue;
    in_body_ = true;
    TANDEM_TRY(begin_body());
  }
  return read_body();
}

Status ResponseReader::begin_body() {
  const Headers& headers = response_.headers;
  const auto coding = headers.find("transfer-encoding");
  const auto length = headers.find("content-length");
  if (coding && length)
    return data_loss("the response has a content-length and a transfer-encoding");
  if (to_head_ || response_.status == 204 || response_.status == 304) {
    length_ = 0;
  } else if (coding) {
    if (headers.count("transfer-encoding") > 1 || !equals_ignoring_case(*coding, "chunked"))
      return data_loss("the response has another transfer-encoding than chunked");
    chunked_ = true;
  } else if (length) {
    length_ = parse_content_length(*length);
    if (headers.count("content-length") > 1 || !length_)
      return data_loss("content-length of the response is not one decimal number");
    if (*length_ > body_bytes_max_) {
      return data_loss("the response has " + std::string(*length) + " bytes, at most " +
                       std::to_string(body_bytes_max_) + " are read");
    }
  }
  return {};
}

Result<bool> ResponseReader::read_body() {
  if (chunked_) {
    arrived_.erase(0, chunks_.feed(arrived_, &response_.body));
    if (chunks_.error().failed()) return data_loss(chunks_.error().message);
    return chunks_.done();
  }
  const std::size_t left = length_.value_or(body_bytes_max_) - response_.body.size();
  if (!length_ && arrived_.size() > left) {
    return data_loss("the response is longer than " + std::to_string(body_bytes_max_) + " bytes");
  }
  response_.body.append(arrived_, 0, left);
  arrived_.clear();
  return response_.body.size() == length_;
}

Status ResponseReader::end() const {
  if (!in_body_) return unavailable("the connection was closed without a response");
  if (chunked_ || length_) return unavailable("the connection was closed in mid-response");
  return {};
}

}  // namespace tandem::http
