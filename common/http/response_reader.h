// The client's side of HTTP/1.1 (RFC 9112) as a value that is fed: strict, bounded, no I/O.
#pragma once

#include "common/base/status.h"
#include "common/http/message.h"
#include "common/http/parser.h"

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace tandem::http {

/// Reads the response to one request, on a connection that nobody else uses: interim responses
/// (100 Continue, ...) are passed over, and what comes behind the response is not looked at.
class ResponseReader {
 public:
  /// `to_head`: the request was HEAD, whose response has no body whatever its fields say.
  ResponseReader(bool to_head, std::size_t body_bytes_max)
      : to_head_(to_head), body_bytes_max_(body_bytes_max), chunks_(body_bytes_max) {}

  /// Takes what has arrived; true when the response is whole. In which pieces it arrives changes
  /// nothing. Not to be called again after that, nor after data_loss (not HTTP, or too long).
  Result<bool> feed(std::string_view bytes);

  /// The peer sends no more and feed() was not true yet: ok when the response ends with the
  /// connection, else unavailable.
  [[nodiscard]] Status end() const;

  /// The response, once, when it is whole.
  Response take() { return std::move(response_); }

 private:
  Result<bool> read_body();
  Status begin_body();

  bool to_head_;
  std::size_t body_bytes_max_;
  std::string arrived_;  ///< and not taken yet
  bool in_body_ = false;
  Response response_;
  bool chunked_ = false;
  ChunkedDecoder chunks_;
  std::optional<std::uint64_t> length_;  ///< of the body, when it is known
};

}  // namespace tandem::http
