// BootstrapServer: discovery over gRPC and SGLang's HTTP routes, both on one port. prefill-server
// embeds it; bootstrap-server is nothing else.
#pragma once

#include "common/base/ids.h"
#include "common/base/status.h"
#include "common/cluster/dp_rank_table.h"
#include "common/cluster/registry.h"

#include <cstdint>
#include <memory>
#include <string>

namespace tandem::bootstrap {

struct BootstrapOptions {
  cluster::RegistryOptions registry{};
  cluster::DpRankTableOptions rooms{};
  int io_threads = 1;
  std::uint64_t body_bytes_max = 64U << 20U;
  /// Serves GET /metrics.
  bool metrics = false;
  /// What a complaint about the address names.
  std::string port_flag = "--disaggregation-bootstrap-port";
  /// How long stop() lets running answers take.
  Duration stop_grace = milliseconds(500);
};

/// Threads: start and stop from one thread, once each.
class BootstrapServer {
 public:
  explicit BootstrapServer(BootstrapOptions options);
  /// stop().
  ~BootstrapServer();
  BootstrapServer(const BootstrapServer&) = delete;
  BootstrapServer& operator=(const BootstrapServer&) = delete;

  /// Binds and serves; `port` 0 lets the system choose. Returns the port. The error names the flag
  /// and the address.
  Result<std::uint16_t> start(const std::string& host, std::uint16_t port);
  void stop();

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace tandem::bootstrap
