// A small blocking HTTP client for probing peers (/get_server_info, /health).
#pragma once

#include "common/base/ids.h"
#include "common/base/status.h"
#include "common/http/message.h"

#include <cstddef>
#include <cstdint>
#include <string>

namespace tandem::http {

struct ClientRequest {
  std::string method = "GET";
  std::string host;  ///< a name or an address; one of IPv6 with or without brackets
  std::uint16_t port = 0;
  std::string path = "/";
  Headers headers;
  std::string body;
  std::size_t response_bytes_max = 8 * 1024 * 1024;
};

/// Sends one request over a fresh connection and waits for the whole response, at most until
/// `deadline` on steady_clock(). Blocks the caller: not on an I/O thread. Name lookup is the
/// system's and may take its own time for a name; an address never does.
/// Errors: unavailable (no connection, cut off), deadline_exceeded, data_loss (not HTTP, too long).
Result<Response> request(const ClientRequest& request, Time deadline);

/// GET.
Result<Response> get(const std::string& host,
                     std::uint16_t port,
                     const std::string& path,
                     Time deadline);

}  // namespace tandem::http
