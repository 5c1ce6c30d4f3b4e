// A small closed-loop HTTP client that costs little itself: one thread, epoll, one request at a
// time per connection, no JSON.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace tandem::bench {

struct HttpLoad {
  std::uint16_t port = 0;
  std::string path;
  std::string body;
  std::size_t connections = 1;
  double seconds = 1;
};

struct HttpLoadResult {
  std::uint64_t requests = 0;
  std::uint64_t errors = 0;  ///< answers that were not 200, and broken connections
  std::uint64_t events = 0;  ///< "data: {" seen
  std::uint64_t sent_bytes = 0;
  std::uint64_t received_bytes = 0;
  double seconds = 0;
  double p50_us = 0;
  double p99_us = 0;
};

/// Blocks for about `seconds`; lets requests under way end.
HttpLoadResult run_http_load(const HttpLoad& load);

}  // namespace tandem::bench
