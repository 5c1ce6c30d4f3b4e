// The server's side of HTTP/1.1 (RFC 9112) as pure functions: strict, bounded, no I/O.
#pragma once

#include "common/http/message.h"

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace tandem::http {

struct Limits {
  std::size_t request_line_bytes = 8 * 1024;
  std::size_t header_bytes = 64 * 1024;  ///< request line and all fields together
  std::size_t header_count = 128;
  std::size_t body_bytes = 32 * 1024 * 1024;
};

/// How the body that follows a head is framed, and what the head asks of the connection.
struct Framing {
  bool chunked = false;
  std::uint64_t content_length = 0;
  bool keep_alive = true;
  bool expects_continue = false;
};

/// Why a message was refused; status 0 = it was not.
struct ParseError {
  int status = 0;
  std::string message;

  [[nodiscard]] bool failed() const { return status != 0; }
};

/// Parses a complete head, from the request line up to and including the empty line.
///
/// Refuses what parsers disagree about, so that nobody behind or in front of us can see another
/// message than we do: bare CR or LF, folded fields, white space before ':', two lengths, a length
/// together with Transfer-Encoding, any coding but one `chunked`, no or two Host fields, control
/// characters. Fills `request` (except body) and `framing`.
ParseError parse_head(std::string_view head,
                      const Limits& limits,
                      Request* request,
                      Framing* framing);

/// Adds one header field, given without the end of its line; refuses what parse_head() refuses of
/// one.
ParseError parse_field(std::string_view line, Headers* headers);

/// Whether no character of `text` is a control character but the tab.
bool is_field_value(std::string_view text);

/// The value of content-length: 1 to 18 digits and nothing else.
std::optional<std::uint64_t> parse_content_length(std::string_view text);

/// Looks for the end of a head in `buffer`, scanning from `*scanned` (kept between calls, so that
/// arriving bytes are looked at once).
struct HeadScan {
  enum class State {
    kIncomplete,
    kComplete,
    kFailed
  } state = State::kIncomplete;
  std::size_t head_bytes = 0;  ///< when complete
  ParseError error;            ///< when failed
};

HeadScan scan_head(std::string_view buffer, const Limits& limits, std::size_t* scanned);

/// Decodes a chunked body as it arrives. Work per byte is constant however small the chunks are.
class ChunkedDecoder {
 public:
  explicit ChunkedDecoder(std::size_t body_bytes_max) : body_bytes_max_(body_bytes_max) {}

  /// Takes bytes from the front of `input`, appends data to `body`; returns how many were taken.
  /// Fewer than given once done() or failed.
  std::size_t feed(std::string_view input, std::string* body);

  [[nodiscard]] bool done() const { return state_ == State::kDone; }

  [[nodiscard]] const ParseError& error() const { return error_; }

 private:
  enum class State {
    kSize,
    kExtension,
    kSizeLf,
    kData,
    kDataCr,
    kDataLf,
    kTrailer,
    kTrailerLf,
    kDone,
  };

  void fail(int status, std::string message);
  void feed_size(char c);
  void feed_trailer(char c);

  std::size_t body_bytes_max_;
  State state_ = State::kSize;
  std::uint64_t left_ = 0;
  int digits_ = 0;
  std::size_t line_bytes_ = 0;      ///< of the current size line with its extensions
  std::size_t trailer_bytes_ = 0;   ///< of all trailer fields
  std::size_t trailer_line_ = 0;    ///< bytes in the current trailer line
  std::size_t overhead_bytes_ = 0;  ///< of all extensions: a body cannot be mostly padding
  ParseError error_;
};

}  // namespace tandem::http
