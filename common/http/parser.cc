#include "common/http/parser.h"

#include <algorithm>
#include <array>
#include <bit>

#ifdef __SSE2__
#include <emmintrin.h>
#endif

namespace tandem::http {

namespace {

constexpr std::size_t kChunkLineBytesMax = 256;
constexpr std::size_t kChunkExtensionBytesMax = 16 * 1024;
constexpr std::size_t kTrailerBytesMax = 8 * 1024;

constexpr std::array<bool, 256> kTokenChars = [] {
  std::array<bool, 256> chars{};
  for (const char c :
       std::string_view("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789"
                        "!#$%&'*+-.^_`|~"))
    chars[static_cast<unsigned char>(c)] = true;
  return chars;
}();

bool is_token_char(char c) {
  return kTokenChars[static_cast<unsigned char>(c)];
}

bool is_token(std::string_view text) {
  return !text.empty() && std::all_of(text.begin(), text.end(), is_token_char);
}

bool is_field_value_char(char c) {
  const auto byte = static_cast<unsigned char>(c);
  return byte == '\t' || (byte >= 0x20U && byte != 0x7FU);
}

std::string_view trim(std::string_view text) {
  while (!text.empty() && (text.front() == ' ' || text.front() == '\t'))
    text.remove_prefix(1);
  while (!text.empty() && (text.back() == ' ' || text.back() == '\t'))
    text.remove_suffix(1);
  return text;
}

[[gnu::cold]] ParseError refuse(int status, std::string message) {
  return {.status = status, .message = std::move(message)};
}

ParseError parse_version(std::string_view version, Request* request) {
  if (version == "HTTP/1.1") {
    request->version_minor = 1;
  } else if (version == "HTTP/1.0") {
    request->version_minor = 0;
  } else if (version.size() == 8 && version.starts_with("HTTP/")) {
    return refuse(505, "this server speaks HTTP/1.1 and HTTP/1.0 here");
  } else {
    return refuse(400, "the request line does not end with HTTP/1.1");
  }
  return {};
}

ParseError parse_target(Request* request) {
  std::string_view target = request->target;
  // Proxies may send the absolute form; scheme and authority say nothing new to us.
  for (const std::string_view scheme : {"http://", "https://"}) {
    if (target.starts_with(scheme)) {
      const std::size_t slash = target.find('/', scheme.size());
      target = slash == std::string_view::npos ? std::string_view("/") : target.substr(slash);
      request->target = std::string(target);
      target = request->target;
      break;
    }
  }
  if (target == "*" && request->method == "OPTIONS") {
    request->path = "*";
    return {};
  }
  if (target.empty() || target.front() != '/')
    return refuse(400, "the request target must be a path that begins with '/'");
  const bool clean = std::all_of(target.begin(), target.end(), [](char c) {
    const auto byte = static_cast<unsigned char>(c);
    return byte > 0x20U && byte < 0x7FU && c != '#';
  });
  if (!clean) return refuse(400, "the request target holds a character that must be escaped");
  const std::size_t question = target.find('?');
  auto path = percent_decode(target.substr(0, question));
  if (!path) return refuse(400, "the request path has a broken or forbidden %-escape");
  request->path = *std::move(path);
  request->query =
      question == std::string_view::npos ? "" : std::string(target.substr(question + 1));
  return {};
}

ParseError parse_request_line(std::string_view line, const Limits& limits, Request* request) {
  if (line.size() > limits.request_line_bytes) return refuse(414, "the request line is too long");
  const std::size_t first = line.find(' ');
  const std::size_t last = line.rfind(' ');
  if (first == std::string_view::npos || first == last || line.find(' ', first + 1) != last)
    return refuse(400, "the request line is not METHOD SP TARGET SP VERSION");
  const std::string_view method = line.substr(0, first);
  if (!is_token(method) || method.size() > 32)
    return refuse(400, "the request method is not a token");
  request->method = std::string(method);
  request->target = std::string(line.substr(first + 1, last - first - 1));
  if (ParseError error = parse_version(line.substr(last + 1), request); error.failed())
    return error;
  return parse_target(request);
}

ParseError read_content_length(const Headers& headers, const Limits& limits, Framing* framing) {
  if (headers.count("content-length") > 1)
    return refuse(400, "content-length is given more than once");
  const std::string_view text = *headers.find("content-length");
  const std::optional<std::uint64_t> length = parse_content_length(text);
  if (!length) return refuse(400, "content-length is not a decimal number");
  if (*length > limits.body_bytes) {
    return refuse(413,
                  "the request body of " + std::string(text) +
                      " bytes is longer than the limit of " + std::to_string(limits.body_bytes) +
                      " bytes");
  }
  framing->content_length = *length;
  return {};
}

ParseError read_transfer_encoding(const Request& request, Framing* framing) {
  const Headers& headers = request.headers;
  if (headers.find("content-length"))
    return refuse(400, "content-length and transfer-encoding together are not accepted");
  if (request.version_minor == 0) return refuse(400, "transfer-encoding is not part of HTTP/1.0");
  if (headers.count("transfer-encoding") > 1)
    return refuse(400, "transfer-encoding is given more than once");
  if (!equals_ignoring_case(*headers.find("transfer-encoding"), "chunked"))
    return refuse(501, "the only transfer-encoding that is accepted is chunked");
  framing->chunked = true;
  return {};
}

void read_connection(const Request& request, Framing* framing) {
  framing->keep_alive = request.version_minor >= 1;
  for (const auto& [name, value] : request.headers.items()) {
    if (name != "connection") continue;
    std::string_view rest = value;
    while (true) {
      const std::size_t comma = rest.find(',');
      const std::string_view option = trim(rest.substr(0, comma));
      if (equals_ignoring_case(option, "close")) {
        framing->keep_alive = false;
        return;
      }
      if (equals_ignoring_case(option, "keep-alive")) framing->keep_alive = true;
      if (comma == std::string_view::npos) break;
      rest.remove_prefix(comma + 1);
    }
  }
}

ParseError read_framing(const Request& request, const Limits& limits, Framing* framing) {
  const std::size_t hosts = request.headers.count("host");
  if (hosts > 1 || (hosts == 0 && request.version_minor >= 1))
    return refuse(400, "an HTTP/1.1 request carries exactly one host field");
  if (request.headers.find("transfer-encoding")) {
    if (ParseError error = read_transfer_encoding(request, framing); error.failed()) return error;
  } else if (request.headers.find("content-length")) {
    if (ParseError error = read_content_length(request.headers, limits, framing); error.failed())
      return error;
  }
  read_connection(request, framing);
  if (const auto expect = request.headers.find("expect")) {
    if (!equals_ignoring_case(*expect, "100-continue"))
      return refuse(417, "the only expectation that is accepted is 100-continue");
    framing->expects_continue = request.version_minor >= 1;
  }
  return {};
}

/// From `pos` on the first NUL, CR or LF, or another byte below 0x0E; buffer.size() when there is
/// none.
std::size_t find_control(std::string_view buffer, std::size_t pos) {
#ifdef __SSE2__
  const __m128i last = _mm_set1_epi8('\r');
  for (; buffer.size() - pos >= sizeof(__m128i); pos += sizeof(__m128i)) {
    const __m128i bytes = _mm_loadu_si128(reinterpret_cast<const __m128i*>(buffer.data() + pos));
    const auto found =
        static_cast<unsigned>(_mm_movemask_epi8(_mm_cmpeq_epi8(_mm_min_epu8(bytes, last), bytes)));
    if (found != 0) return pos + static_cast<std::size_t>(std::countr_zero(found));
  }
#endif
  while (pos < buffer.size() && static_cast<unsigned char>(buffer[pos]) > '\r')
    ++pos;
  return pos;
}

}  // namespace

ParseError parse_field(std::string_view line, Headers* headers) {
  if (line.starts_with(' ') || line.starts_with('\t'))
    return refuse(400, "folded header fields are not accepted");
  const std::size_t colon = line.find(':');
  if (colon == std::string_view::npos) return refuse(400, "a header field has no ':'");
  const std::string_view name = line.substr(0, colon);
  if (!is_token(name)) return refuse(400, "a header field name is not a token");
  const std::string_view value = trim(line.substr(colon + 1));
  if (!is_field_value(value))
    return refuse(400, "header field " + to_lower(name) + " holds a control character");
  headers->add(name, std::string(value));
  return {};
}

std::optional<std::uint64_t> parse_content_length(std::string_view text) {
  constexpr std::size_t kDigitsMax = 18;
  const bool digits = !text.empty() && text.size() <= kDigitsMax &&
                      std::ranges::all_of(text, [](char c) { return c >= '0' && c <= '9'; });
  if (!digits) return std::nullopt;
  std::uint64_t length = 0;
  for (const char c : text)
    length = length * 10 + static_cast<std::uint64_t>(c - '0');
  return length;
}

bool is_field_value(std::string_view text) {
  return std::ranges::all_of(text, is_field_value_char);
}

HeadScan scan_head(std::string_view buffer, const Limits& limits, std::size_t* scanned) {
  HeadScan scan;
  const auto fail = [&scan](int status, std::string message) {
    scan.state = HeadScan::State::kFailed;
    scan.error = refuse(status, std::move(message));
    return scan;
  };
  // What may stand behind a CR that came last time is looked at again with it.
  std::size_t i = find_control(buffer, *scanned - (*scanned > 0 ? 1 : 0));
  for (; i < buffer.size(); i = find_control(buffer, i + 1)) {
    const char c = buffer[i];
    if (c == '\0') return fail(400, "the request head holds a NUL byte");
    if (c == '\n') {
      if (i == 0 || buffer[i - 1] != '\r')
        return fail(400, "lines of the request head must end with CR LF");
      if (i >= 3 && buffer[i - 2] == '\n') {
        if (i + 1 > limits.header_bytes) break;
        scan.state = HeadScan::State::kComplete;
        scan.head_bytes = i + 1;
        return scan;
      }
    } else if (c == '\r' && i + 1 < buffer.size() && buffer[i + 1] != '\n') {
      if (buffer[i + 1] == '\0') return fail(400, "the request head holds a NUL byte");
      return fail(400, "the request head holds a CR that no LF follows");
    }
  }
  *scanned = buffer.size();
  const std::size_t first_line = buffer.substr(0, limits.request_line_bytes + 2).find('\n');
  if (first_line == std::string_view::npos && buffer.size() > limits.request_line_bytes + 1)
    return fail(
        414,
        "the request line is longer than " + std::to_string(limits.request_line_bytes) + " bytes");
  if (buffer.size() >= limits.header_bytes) {
    return fail(
        431, "the request head is longer than " + std::to_string(limits.header_bytes) + " bytes");
  }
  return scan;
}

ParseError parse_head(std::string_view head,
                      const Limits& limits,
                      Request* request,
                      Framing* framing) {
  // What most clients send.
  constexpr std::size_t kFieldsMostly = 8;
  request->headers.reserve(std::min(kFieldsMostly, limits.header_count));
  bool first = true;
  std::size_t fields = 0;
  while (true) {
    const std::size_t end = head.find("\r\n");
    if (end == std::string_view::npos) return refuse(400, "the request head has no end");
    const std::string_view line = head.substr(0, end);
    head.remove_prefix(end + 2);
    if (first) {
      if (ParseError error = parse_request_line(line, limits, request); error.failed())
        return error;
      first = false;
      continue;
    }
    if (line.empty()) break;
    if (++fields > limits.header_count) {
      return refuse(
          431, "there are more than " + std::to_string(limits.header_count) + " header fields");
    }
    if (ParseError error = parse_field(line, &request->headers); error.failed()) return error;
  }
  return read_framing(*request, limits, framing);
}

void ChunkedDecoder::fail(int status, std::string message) {
  error_ = refuse(status, std::move(message));
}

void ChunkedDecoder::feed_size(char c) {
  int digit = -1;
  if (c >= '0' && c <= '9') digit = c - '0';
  if (c >= 'a' && c <= 'f') digit = c - 'a' + 10;
  if (c >= 'A' && c <= 'F') digit = c - 'A' + 10;
  if (digit >= 0) {
    if (++digits_ > 16) return fail(400, "a chunk size has more than 16 digits");
    if (left_ > (body_bytes_max_ >> 4U) + 1)
      return fail(413, "a chunk is longer than the body limit");
    left_ = left_ * 16 + static_cast<std::uint64_t>(digit);
    return;
  }
  if (digits_ == 0) return fail(400, "a chunk does not begin with its size");
  if (c == '\r') {
    state_ = State::kSizeLf;
  } else if (c == ';') {
    state_ = State::kExtension;
  } else {
    fail(400, "a chunk size is not a hexadecimal number");
  }
}

void ChunkedDecoder::feed_trailer(char c) {
  if (++trailer_bytes_ > kTrailerBytesMax) return fail(431, "the trailer fields are too long");
  if (c == '\r') {
    state_ = State::kTrailerLf;
  } else if (c == '\n' || c == '\0') {
    fail(400, "a trailer line must end with CR LF");
  } else {
    ++trailer_line_;
  }
}

std::size_t ChunkedDecoder::feed(std::string_view input, std::string* body) {
  std::size_t i = 0;
  while (i < input.size() && !done() && !error_.failed()) {
    if (state_ == State::kData) {
      const std::size_t n = static_cast<std::size_t>(
          std::min<std::uint64_t>(left_, static_cast<std::uint64_t>(input.size() - i)));
      body->append(input.substr(i, n));
      i += n;
      left_ -= n;
      if (left_ == 0) state_ = State::kDataCr;
      continue;
    }
    const char c = input[i++];
    switch (state_) {
      case State::kSize:
        if (++line_bytes_ > kChunkLineBytesMax) fail(400, "a chunk size line is too long");
        if (!error_.failed()) feed_size(c);
        break;
      case State::kExtension:
        // Extensions carry nothing for us, and a stray LF in one is a known way to smuggle.
        if (++line_bytes_ > kChunkLineBytesMax || ++overhead_bytes_ > kChunkExtensionBytesMax) {
          fail(400, "chunk extensions are too long");
        } else if (c == '\n' || c == '\0') {
          fail(400, "a chunk size line must end with CR LF");
        } else if (c == '\r') {
          state_ = State::kSizeLf;
        }
        break;
      case State::kSizeLf:
        if (c != '\n') {
          fail(400, "a chunk size line must end with CR LF");
        } else if (left_ > body_bytes_max_ - std::min(body->size(), body_bytes_max_)) {
          fail(
              413,
              "the body is longer than the limit of " + std::to_string(body_bytes_max_) + " bytes");
        } else {
          state_ = left_ == 0 ? State::kTrailer : State::kData;
          digits_ = 0;
          line_bytes_ = 0;
        }
        break;
      case State::kDataCr:
        if (c != '\r') fail(400, "chunk data is not followed by CR LF");
        state_ = State::kDataLf;
        break;
      case State::kDataLf:
        if (c != '\n') fail(400, "chunk data is not followed by CR LF");
        state_ = State::kSize;
        break;
      case State::kTrailer:
        feed_trailer(c);
        break;
      case State::kTrailerLf:
        if (c != '\n') {
          fail(400, "a trailer line must end with CR LF");
        } else {
          state_ = trailer_line_ == 0 ? State::kDone : State::kTrailer;
          trailer_line_ = 0;
        }
        break;
      case State::kData:
      case State::kDone:
        break;
    }
  }
  return i;
}

}  // namespace tandem::http
