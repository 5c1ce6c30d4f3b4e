// Where a worker is, as a person writes it on the router's command line.
#pragma once

#include "common/base/status.h"
#include "common/rpc/types.h"

#include <cstdint>
#include <optional>
#include <string>

namespace tandem::fleet {

struct WorkerAddress {
  rpc::Role role = rpc::Role::kUnified;
  std::string host;
  std::uint16_t port = 0;
  /// grpc://: the port speaks gRPC; http://: ask /get_server_info for the gRPC address.
  bool is_grpc = false;
  /// Prefill only: port of its bootstrap service on the same host; unset: as the worker announces
  /// it.
  std::optional<std::uint16_t> bootstrap_port;

  [[nodiscard]] std::string text() const { return host + ":" + std::to_string(port); }
};

/// "http://host:port", "grpc://host:port", "host:port" (http), "[::1]:port". https is refused by
/// name.
Result<WorkerAddress> parse_worker_url(const std::string& url, rpc::Role role);

}  // namespace tandem::fleet
