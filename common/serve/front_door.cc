#include "common/serve/front_door.h"

#include "common/api/errors.h"
#include "common/base/clock.h"
#include "common/obs/log.h"
#include "common/serve/generation_endpoint.h"
#include "common/serve/request_log.h"

#include <arpa/inet.h>
#include <netdb.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstring>
#include <memory>
#include <utility>

namespace tandem::serve {
namespace {

http::Response starting(const http::Request& request) {
  if (request.path == "/liveness") return {.status = 200, .headers = {}, .body = {}};
  const api::ApiError error = api::to_api_error(unavailable("the server is starting"));
  return {
      .status = error.status, .headers = api::error_headers(error), .body = api::error_body(error)};
}

struct HeldPort {
  int fd = -1;
  std::uint16_t port = 0;
};

/// Binds host:port (0: the system chooses) without listening. gRPC, which like this sets
/// SO_REUSEADDR, can bind it all the same and nobody is given it meanwhile.
Result<HeldPort> hold_port(const std::string& host, std::uint16_t port) {
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = AI_PASSIVE;
  addrinfo* found = nullptr;
  const std::string service = std::to_string(port);
  const std::string where = host + ":" + service;
  if (const int code = getaddrinfo(host.c_str(), service.c_str(), &hints, &found); code != 0) {
    return unavailable("argument --grpc-port: cannot bind " + where + ": " + gai_strerror(code));
  }
  HeldPort held{.fd = socket(found->ai_family, SOCK_STREAM | SOCK_CLOEXEC, 0), .port = port};
  const int on = 1;
  setsockopt(held.fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
  sockaddr_storage bound{};
  socklen_t length = sizeof bound;
  const bool ok = held.fd >= 0 && bind(held.fd, found->ai_addr, found->ai_addrlen) == 0 &&
                  getsockname(held.fd, reinterpret_cast<sockaddr*>(&bound), &length) == 0;
  freeaddrinfo(found);
  if (!ok) {
    // NOLINTNEXTLINE(concurrency-mt-unsafe): the main thread, before others start
    const std::string why = std::strerror(errno);
    if (held.fd >= 0) ::close(held.fd);
    return unavailable("argument --grpc-port: cannot bind " + where + ": " + why);
  }
  held.port = ntohs(bound.ss_family == AF_INET6 ? reinterpret_cast<sockaddr_in6&>(bound).sin6_port
                                                : reinterpret_cast<sockaddr_in&>(bound).sin_port);
  return held;
}

}  // namespace

/// What the listening server asks before and after open().
struct FrontDoor::Gate {
  struct Inside {
    std::shared_ptr<http::Router> router;
    std::function<std::optional<http::Response>(const http::Request&)> admit;
    std::function<std::string(int, std::string_view)> error_body;
    rpc::Server* grpc = nullptr;
  };

  /// Null: not open, or not any more. What it points to stays as long as the gate, which every
  /// connection holds.
  [[nodiscard]] const Inside* inside() const { return present.load(std::memory_order_acquire); }

  std::atomic<const Inside*> present{nullptr};
  std::unique_ptr<const Inside> kept;
};

FrontDoor::FrontDoor(const args::ServerOptions& options)
    : options_(options), gate_(std::make_shared<Gate>()) {}

FrontDoor::~FrontDoor() {
  close({0});
  release_port();
}

void FrontDoor::release_port() {
  if (grpc_hold_fd_ >= 0) ::close(grpc_hold_fd_);
  grpc_hold_fd_ = -1;
}

Result<Ports> FrontDoor::listen() {
  io_ = std::make_shared<async::IoPool>(static_cast<int>(options_.http_threads), "http");
  http::ServerOptions server;
  server.limits.body_bytes = options_.max_body_bytes;
  server.large_threads = static_cast<int>(options_.http_threads);
  server.admit = [gate = gate_](const http::Request& request) -> std::optional<http::Response> {
    const Gate::Inside* const inside = gate->inside();
    return inside ? inside->admit(request) : starting(request);
  };
  server.error_body = [](int status, std::string_view message) {
    api::ApiError error = api::bad_request(std::string(message));
    error.status = status;
    return api::error_body(error);
  };
  server.on_http2 = [gate = gate_](int fd) {
    const Gate::Inside* const inside = gate->inside();
    if (!inside || inside->grpc == nullptr) {
      ::close(fd);
      return;
    }
    if (const Status status = inside->grpc->accept_fd(fd); !status.ok()) {
      obs::warn("grpc_accept_failed", {{"reason", status.message()}});
    }
  };
  auto handler = [gate = gate_](http::Request&& request,
                                std::shared_ptr<http::ResponseWriter> writer) {
    const Gate::Inside* const inside = gate->inside();
    if (!inside) {
      http::Response response = starting(request);
      writer->send(response.status, std::move(response.headers), std::move(response.body));
      return;
    }
    (*inside->router)(std::move(request), std::move(writer));
  };
  http_ = std::make_unique<http::Server>(*io_, std::move(server), std::move(handler));
  TANDEM_TRY(ports_.http, http_->listen(options_.host, options_.port));
  ports_.grpc = ports_.http;
  if (options_.grpc_port) {
    TANDEM_TRY(const HeldPort held, hold_port(options_.host, *options_.grpc_port));
    grpc_hold_fd_ = held.fd;
    ports_.grpc = held.port;
  }
  return ports_;
}

Status FrontDoor::open(FrontDoorSetup setup) {
  if (setup.log_requests) setup.generator = with_request_log(std::move(setup.generator));
  api_ = std::make_unique<api::ApiServer>(setup.api, setup.generator, setup.tokenizer, setup.chat);
  auto router = std::make_shared<http::Router>();
  api_->add_routes(*router);
  if (setup.add_routes) setup.add_routes(*router);
  rpc::ServerOptions grpc;
  grpc.io = io_.get();
  if (options_.grpc_port) grpc.listen_address = options_.host + ":" + std::to_string(ports_.grpc);
  setup.services.push_back(
      rpc::make_generation_service(make_generation_endpoint({.api = api_.get(),
                                                             .options = setup.api,
                                                             .generator = setup.generator,
                                                             .tokenizer = setup.tokenizer})));
  TANDEM_TRY(grpc_, rpc::Server::start(grpc, std::move(setup.services)));
  release_port();
  grpc_->set_serving("tandem.v1.Generation", true);
  auto inside = std::make_unique<Gate::Inside>();
  inside->router = router;
  inside->admit = api::ApiServer::admission(*api_, router);
  inside->grpc = grpc_.get();
  gate_->kept = std::move(inside);
  gate_->present.store(gate_->kept.get(), std::memory_order_release);
  return {};
}

std::shared_ptr<obs::Metrics> FrontDoor::metrics() const {
  return api_ ? api_->metrics() : nullptr;
}

void FrontDoor::close(Duration grace) {
  const Time deadline = steady_clock().now() + grace;  // one for both kinds of client
  if (grpc_) grpc_->set_serving("tandem.v1.Generation", false);
  if (http_) http_->drain(grace);
  gate_->present.store(nullptr, std::memory_order_release);
  if (grpc_) {
    grpc_->shutdown(std::max(Duration{}, deadline - steady_clock().now()));
  }
  http_.reset();
  grpc_.reset();
  io_.reset();
}

}  // namespace tandem::serve
