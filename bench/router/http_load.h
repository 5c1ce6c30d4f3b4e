// A small closed-loop HTTP client that costs little itself: one thread, epoll, one request at a
// time per connection, no JSON.
#pragma once

#include "bench/router/read_tokens.h"

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>

namespace tandem::bench {

struct HttpLoad {
  std::uint16_t port = 0;
  std::string path = {};
  /// That of the next request, of this connection.
  std::function<std::string(std::size_t connection)> body = {};
  std::size_t connections = 1;
  double seconds = 1;
  /// Goes on until there are as many.
  std::uint64_t least_requests = 0;
  /// Answers are streams of chat chunks and have as many with text; 0: they are not.
  std::int32_t answer_tokens = 0;
  /// Without any answer: then it is given up.
  int silence_ms_max = 10'000;
  /// Told of each token that was read; at most ReadTokens::kConnections connections then.
  ReadTokens* read = nullptr;
};

struct HttpLoadResult {
  std::uint64_t requests = 0;  ///< that were answered, with 200 and each token an event of its own
  std::uint64_t errors = 0;    ///< those that were not, and broken connections
  std::uint64_t tokens = 0;    ///< events with text
  std::uint64_t sent_bytes = 0;
  std::uint64_t received_bytes = 0;
  double seconds = 0;
  double p50_us = 0;
  double p99_us = 0;
  std::string first_error = {};

  /// Why no figure may be made of this; empty when it may.
  [[nodiscard]] std::string problem() const;
};

/// Blocks for about `seconds`; lets requests under way end. After an error there are no new ones.
HttpLoadResult run_http_load(const HttpLoad& load);

}  // namespace tandem::bench
