#include "common/bootstrap/bootstrap_server.h"

#include "common/async/io_pool.h"
#include "common/bootstrap/directory.h"
#include "common/bootstrap/http_routes.h"
#include "common/http/router.h"
#include "common/http/server.h"
#include "common/obs/log.h"
#include "common/rpc/bootstrap.h"
#include "common/rpc/server.h"

#include <utility>

namespace tandem::bootstrap {

struct BootstrapServer::Impl {
  explicit Impl(BootstrapOptions options_in)
      : options(std::move(options_in)), directory(std::make_shared<Directory>(options)) {}

  BootstrapOptions options;
  std::shared_ptr<Directory> directory;
  std::unique_ptr<rpc::Server> grpc;
  std::unique_ptr<async::IoPool> pool;
  std::unique_ptr<http::Server> http;
};

BootstrapServer::BootstrapServer(BootstrapOptions options)
    : impl_(std::make_unique<Impl>(std::move(options))) {}

BootstrapServer::~BootstrapServer() {
  stop();
}

Result<std::uint16_t> BootstrapServer::start(const std::string& host, std::uint16_t port) {
  TANDEM_CHECK(impl_->http == nullptr, "BootstrapServer::start, once");
  TANDEM_TRY(impl_->grpc, rpc::Server::start({}, {rpc::make_bootstrap_service(impl_->directory)}));
  auto router = std::make_shared<http::Router>();
  add_routes(*router, impl_->directory, impl_->options.metrics);
  http::ServerOptions options;
  options.port_flag = impl_->options.port_flag;
  options.limits.body_bytes = impl_->options.body_bytes_max;
  options.admit = [router](const http::Request& request) { return router->check(request); };
  options.on_http2 = [grpc = impl_->grpc.get()](int fd) {
    const Status status = grpc->accept_fd(fd);
    if (!status.ok()) obs::debug("bootstrap_connection_refused", {{"reason", status}});
  };
  impl_->pool = std::make_unique<async::IoPool>(impl_->options.io_threads, "bootstrap");
  impl_->http = std::make_unique<http::Server>(
      *impl_->pool,
      std::move(options),
      [router](http::Request&& request, std::shared_ptr<http::ResponseWriter> writer) {
        (*router)(std::move(request), std::move(writer));
      });
  auto bound = impl_->http->listen(host, port);
  if (!bound.ok()) stop();
  return bound;
}

void BootstrapServer::stop() {
  // The listener first: it hands connections to the gRPC server.
  if (impl_->http) impl_->http->drain(impl_->options.stop_grace);
  if (impl_->grpc) impl_->grpc->shutdown(impl_->options.stop_grace);
  impl_->http.reset();
  impl_->pool.reset();
  impl_->grpc.reset();
}

}  // namespace tandem::bootstrap
