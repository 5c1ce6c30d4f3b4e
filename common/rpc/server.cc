#include "common/rpc/server.h"

#include "common/base/clock.h"
#include "common/rpc/internal/callback_queue.h"
#include "common/rpc/internal/channel.h"

#include <grpc/support/log.h>
#include <grpcpp/ext/proto_server_reflection_plugin.h>
#include <grpcpp/health_check_service_interface.h>
#include <grpcpp/security/server_credentials.h>
#include <grpcpp/server.h>
#include <grpcpp/server_builder.h>

#include <arpa/inet.h>
#include <fcntl.h>
#include <netinet/tcp.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <mutex>

namespace tandem::rpc {

namespace {

using Acceptor = grpc::experimental::ExternalConnectionAcceptor;
using ConnectionType = grpc::ServerBuilder::experimental_type::ExternalConnectionType;

// From the preface to the peer's settings; gRPC's own default is two minutes.
constexpr int kHandshakeTimeoutMs = 10'000;

std::atomic<void (*)(char, const char*)> log_sink{nullptr};

void forward_log(gpr_log_func_args* args) {
  constexpr char kLetters[] = {'D', 'I', 'E'};
  if (auto* sink = log_sink.load(); sink != nullptr) sink(kLetters[args->severity], args->message);
}

// Both plugins act on every builder of the process, and must be in place before the first one.
void install_plugins_once() {
  static const bool kDone = [] {
    grpc::EnableDefaultHealthCheckService(true);
    grpc::reflection::InitProtoReflectionServerBuilderPlugin();
    return true;
  }();
  (void)kDone;
}

void add_limits(const ServerOptions& options, grpc::ServerBuilder& builder) {
  const int keepalive_ms = static_cast<int>(options.keepalive.milliseconds());
  builder.SetMaxReceiveMessageSize(static_cast<int>(options.message_bytes_max));
  builder.SetMaxSendMessageSize(static_cast<int>(options.message_bytes_max));
  builder.AddChannelArgument(GRPC_ARG_MAX_CONCURRENT_STREAMS,
                             static_cast<int>(options.streams_per_connection_max));
  builder.AddChannelArgument(GRPC_ARG_KEEPALIVE_TIME_MS, keepalive_ms);
  builder.AddChannelArgument(GRPC_ARG_KEEPALIVE_TIMEOUT_MS, 2 * keepalive_ms);
  builder.AddChannelArgument(GRPC_ARG_KEEPALIVE_PERMIT_WITHOUT_CALLS, 1);
  builder.AddChannelArgument(GRPC_ARG_HTTP2_MAX_PINGS_WITHOUT_DATA, 0);
  // Our clients ping once per interval; half of it leaves room for jitter.
  builder.AddChannelArgument(GRPC_ARG_HTTP2_MIN_RECV_PING_INTERVAL_WITHOUT_DATA_MS,
                             keepalive_ms / 2);
  builder.AddChannelArgument(GRPC_ARG_SERVER_HANDSHAKE_TIMEOUT_MS, kHandshakeTimeoutMs);
  internal::use_steady_window(
      [&builder](const char* name, int value) { builder.AddChannelArgument(name, value); });
  // With port sharing a second server would bind the same port and take half of the connections.
  builder.AddChannelArgument(GRPC_ARG_ALLOW_REUSEPORT, 0);
}

Status prepare_socket(int fd) {
  const int flags = fcntl(fd, F_GETFL, 0);
  if (flags < 0 || fcntl(fd, F_SETFL, flags | O_NONBLOCK) < 0) {
    return invalid_argument("accept_fd: descriptor " + std::to_string(fd) + " is not open");
  }
  sockaddr_storage peer{};
  socklen_t length = sizeof(peer);
  if (getpeername(fd, reinterpret_cast<sockaddr*>(&peer), &length) < 0) {
    return unavailable("accept_fd: the connection is gone already");
  }
  const int on = 1;
  // Fails on a Unix socket, where there is nothing to delay.
  (void)setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
  return {};
}

}  // namespace

struct Server::Impl {
  std::vector<std::shared_ptr<Service>> services;
  ServerOptions options;
  std::unique_ptr<Acceptor> acceptor;
  std::unique_ptr<grpc::Server> server;
  int port = 0;
  // Guards the hand-over of descriptors against shutdown: gRPC drops, and leaks, what it is given
  // after that.
  std::mutex accept_mutex;
  bool stopped = false;

  /// Whether one of the services has taken the connection.
  [[nodiscard]] bool take(int fd) const {
    return options.io != nullptr &&
           std::ranges::any_of(services, [&](const auto& s) { return s->take(fd, options); });
  }
};

Server::Server(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}

Server::~Server() {
  shutdown(Duration{0});
}

Result<std::unique_ptr<Server>> Server::start(const ServerOptions& options,
                                              std::vector<std::shared_ptr<Service>> services) {
  install_plugins_once();
  internal::keep_callback_threads();
  auto impl = std::make_unique<Impl>();
  impl->services = std::move(services);
  impl->options = options;
  grpc::ServerBuilder builder;
  add_limits(options, builder);
  const auto credentials = grpc::InsecureServerCredentials();
  if (!options.listen_address.empty()) {
    const std::size_t colon = options.listen_address.rfind(':');
    if (colon == std::string::npos || colon + 1 == options.listen_address.size()) {
      return invalid_argument("listen address: found '" + options.listen_address +
                              "', expected host:port");
    }
    builder.AddListeningPort(options.listen_address, credentials, &impl->port);
  }
  impl->acceptor =
      builder.experimental().AddExternalConnectionAcceptor(ConnectionType::FROM_FD, credentials);
  for (const auto& service : impl->services)
    builder.RegisterService(service->grpc_service());
  impl->server = builder.BuildAndStart();
  if (impl->server == nullptr || (!options.listen_address.empty() && impl->port == 0)) {
    return unavailable("cannot listen on " + options.listen_address +
                       ": the address is in use or not of this machine");
  }
  return std::unique_ptr<Server>(new Server(std::move(impl)));
}

std::uint16_t Server::port() const {
  return static_cast<std::uint16_t>(impl_->port);
}

Status Server::accept_fd(int fd, std::string_view consumed) {
  Status status = prepare_socket(fd);
  if (status.ok()) {
    const std::lock_guard lock(impl_->accept_mutex);
    if (!impl_->stopped) {
      if (consumed.empty() && impl_->take(fd)) return {};
      Acceptor::NewConnectionParameters parameters;
      parameters.fd = fd;
      if (!consumed.empty()) {
        const grpc::Slice slice(consumed.data(), consumed.size());
        parameters.read_buffer = grpc::ByteBuffer(&slice, 1);
      }
      impl_->acceptor->HandleNewConnection(&parameters);
      return {};
    }
    status = unavailable("the server is shutting down");
  }
  if (fd >= 0) close(fd);
  return status;
}

void Server::set_serving(const std::string& service, bool serving) {
  const std::lock_guard lock(impl_->accept_mutex);
  if (impl_->stopped) return;
  if (auto* health = impl_->server->GetHealthCheckService(); health != nullptr) {
    health->SetServingStatus(service, serving);
  }
}

void Server::shutdown(Duration grace) {
  {
    const std::lock_guard lock(impl_->accept_mutex);
    if (impl_->stopped) return;
    impl_->stopped = true;
  }
  if (auto* health = impl_->server->GetHealthCheckService(); health != nullptr) health->Shutdown();
  for (const auto& service : impl_->services) {
    service->close_all(unavailable("the server is shutting down"));
  }
  const Time deadline = steady_clock().now() + grace;
  impl_->server->Shutdown(std::chrono::system_clock::now() + std::chrono::nanoseconds(grace.ns));
  impl_->server->Wait();
  for (const auto& service : impl_->services)
    service->end_taken(std::max(Duration{}, deadline - steady_clock().now()));
}

void set_log_sink(void (*sink)(char, const char*)) {
  log_sink.store(sink);
  gpr_set_log_function(forward_log);
}

}  // namespace tandem::rpc
