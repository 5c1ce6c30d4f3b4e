// FrontDoor: one port for HTTP and gRPC. Bound first; opened when there is something to serve.
#pragma once

#include "common/api/api_server.h"
#include "common/args/options.h"
#include "common/async/io_pool.h"
#include "common/base/status.h"
#include "common/http/router.h"
#include "common/http/server.h"
#include "common/rpc/server.h"
#include "common/serve/process.h"

#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

namespace tandem::serve {

struct FrontDoorSetup {
  api::ApiOptions api;
  std::shared_ptr<core::Generator> generator;
  std::shared_ptr<const token::Tokenizer> tokenizer;
  api::ChatRenderer chat;
  /// Session, pair, ...; the plain Generation service is added here.
  std::vector<std::shared_ptr<rpc::Service>> services;
  /// A line for each request and its end.
  bool log_requests = false;
  /// More routes of the program; may be empty.
  std::function<void(http::Router&)> add_routes;
};

class FrontDoor {
 public:
  explicit FrontDoor(const args::ServerOptions& options);
  /// close({0}).
  ~FrontDoor();
  FrontDoor(const FrontDoor&) = delete;
  FrontDoor& operator=(const FrontDoor&) = delete;

  /// Takes the ports. Requests get 503 until open(). Errors name the flag and the address.
  Result<Ports> listen();
  /// Serves from now on. Once.
  Status open(FrontDoorSetup setup);
  /// Refuses new connections, lets running responses end until `grace` is over, then cuts. May be
  /// called again.
  void close(Duration grace);
  [[nodiscard]] std::shared_ptr<obs::Metrics> metrics() const;

  /// The pool that serves connections, from listen() to close(); lives as long as anybody holds it.
  [[nodiscard]] std::shared_ptr<async::IoPool> io() const { return io_; }

 private:
  struct Gate;

  void release_port();

  args::ServerOptions options_;
  Ports ports_;
  int grpc_hold_fd_ = -1;  ///< keeps --grpc-port ours from listen() to open()
  std::shared_ptr<Gate> gate_;
  std::shared_ptr<async::IoPool> io_;
  std::unique_ptr<http::Server> http_;
  std::unique_ptr<api::ApiServer> api_;
  std::unique_ptr<rpc::Server> grpc_;
};

}  // namespace tandem::serve
