// Server: a gRPC server over the services of this room, with health, reflection and limits.
#pragma once

#include "common/base/ids.h"
#include "common/base/status.h"

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace grpc {
class Service;
}  // namespace grpc

namespace tandem::async {
class IoPool;
}  // namespace tandem::async

namespace tandem::rpc {

struct ServerOptions;

/// A gRPC service that a Server can hold. Made by make_session_service and its like.
class Service {
 public:
  virtual ~Service() = default;

  /// For Server alone.
  virtual grpc::Service* grpc_service() = 0;
  /// Ends all open streams with `status`; no new ones are taken. Any thread.
  virtual void close_all(const Status& status) = 0;

  /// Takes over a connected socket, of which nothing was read, from a peer that speaks with this
  /// service alone in a way of its own, and serves it on options.io. False: gRPC is to serve it.
  virtual bool take(int /*fd*/, const ServerOptions& /*options*/) { return false; }

  /// Waits `grace` for what was taken to end, then cancels it; no callback runs after that, if the
  /// pool still runs.
  virtual void end_taken(Duration /*grace*/) {}
};

struct ServerOptions {
  /// "host:port" to listen on (port 0: the system picks), or empty: connections come through
  /// accept_fd only.
  std::string listen_address;
  std::size_t message_bytes_max = 64U << 20U;
  std::uint32_t streams_per_connection_max = 4096;
  /// Pings that find no answer within three of these end a connection.
  Duration keepalive = seconds(1);
  bool reflection = true;
  /// Serves sessions that come through accept_fd from routers of ours, without gRPC's server
  /// (session.h). Borrowed; runs until shutdown has returned. Without it gRPC serves all.
  async::IoPool* io = nullptr;
};

/// Threads: every method from any thread; start and shutdown once each.
class Server {
 public:
  /// kUnavailable when the address cannot be bound (names it), kInvalidArgument when it is
  /// malformed.
  static Result<std::unique_ptr<Server>> start(const ServerOptions& options,
                                               std::vector<std::shared_ptr<Service>> services);
  /// shutdown({0}) when that has not been called.
  ~Server();
  Server(const Server&) = delete;
  Server& operator=(const Server&) = delete;

  /// The bound port; 0 without a listening address.
  [[nodiscard]] std::uint16_t port() const;

  /// Takes over a connected TCP socket whose next unread bytes are the HTTP/2 connection preface
  /// (peek, do not consume). The descriptor belongs to the server afterwards, on error too (it is
  /// closed). `consumed` holds bytes that were read from the socket already, if any.
  Status accept_fd(int fd, std::string_view consumed = {});

  /// grpc.health.v1: `service` "" stands for the whole server. Services start as NOT_SERVING
  /// except "".
  void set_serving(const std::string& service, bool serving);

  /// Refuses new calls, ends the streams with kUnavailable, waits at most `grace` for the rest to
  /// end, then cancels it. Returns when no callback of any service will run any more.
  void shutdown(Duration grace);

 private:
  struct Impl;
  explicit Server(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

/// Where gRPC's own log lines go: (severity 'D' | 'I' | 'E', text). Without a sink only errors are
/// printed, by gRPC, on stderr. A plain function, called on any thread; nullptr silences.
void set_log_sink(void (*sink)(char severity, const char* text));

}  // namespace tandem::rpc
