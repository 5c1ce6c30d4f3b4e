#include "common/http/connection.h"
#include "common/obs/log.h"

#include <boost/asio/post.hpp>
#include <boost/system/error_code.hpp>

#include <netdb.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <cstring>
#include <vector>

namespace tandem::http {

namespace {

using boost::system::error_code;
using Acceptor = boost::asio::basic_socket_acceptor<boost::asio::ip::tcp, Strand>;

constexpr int kBacklog = 1024;
constexpr Duration kAcceptRetry = milliseconds(50);
constexpr Duration kForcedCloseWait = seconds(5);

struct AddressList {
  addrinfo* first = nullptr;

  AddressList() = default;

  ~AddressList() {
    if (first != nullptr) ::freeaddrinfo(first);
  }

  AddressList(const AddressList&) = delete;
  AddressList& operator=(const AddressList&) = delete;
};

std::string endpoint_text(const boost::asio::ip::tcp::endpoint& endpoint) {
  const bool v6 = endpoint.address().is_v6();
  return (v6 ? "[" : "") + endpoint.address().to_string() + (v6 ? "]:" : ":") +
         std::to_string(endpoint.port());
}

Status bind_error(const std::string& flag, const std::string& where, int error) {
  const std::string start = "cannot listen on " + where + " (" + flag + "): ";
  if (error == EADDRINUSE) return already_exists(start + "the port is in use by another process");
  if (error == EACCES) return permission_denied(start + "ports below 1024 need a privilege");
  if (error == EADDRNOTAVAIL)
    return invalid_argument(start + "no interface of this machine has that address");
  return unavailable(start + std::strerror(error));
}

Result<int> open_listener(const std::string& host, std::uint16_t port, const std::string& flag) {
  const std::string where = host + ":" + std::to_string(port);
  addrinfo hints{};
  hints.ai_family = AF_UNSPEC;
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = AI_PASSIVE;
  AddressList list;
  const int found = ::getaddrinfo(
      host.empty() ? nullptr : host.c_str(), std::to_string(port).c_str(), &hints, &list.first);
  if (found != 0)
    return invalid_argument("cannot listen on " + where + " (--host): " + ::gai_strerror(found));
  int last_error = EADDRNOTAVAIL;
  for (const addrinfo* entry = list.first; entry != nullptr; entry = entry->ai_next) {
    const int fd = ::socket(entry->ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (fd < 0) {
      last_error = errno;
      continue;
    }
    const int on = 1;
    ::setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
    if (::bind(fd, entry->ai_addr, entry->ai_addrlen) == 0 && ::listen(fd, kBacklog) == 0)
      return fd;
    last_error = errno;
    ::close(fd);
  }
  return bind_error(flag, where, last_error);
}

}  // namespace

class Server::Impl : public std::enable_shared_from_this<Server::Impl> {
 public:
  Impl(async::IoPool& pool, ServerOptions options, Handler handler)
      : pool_(pool),
        core_(std::make_shared<ServerCore>(pool.context().get_executor())),
        strand_(boost::asio::make_strand(pool.context())),
        acceptor_(strand_),
        retry_(strand_) {
    core_->options = std::move(options);
    core_->handler = std::move(handler);
  }

  Result<std::uint16_t> listen(const std::string& host, std::uint16_t port) {
    TANDEM_TRY(const int fd, open_listener(host, port, core_->options.port_flag));
    sockaddr_storage address{};
    socklen_t size = sizeof address;
    ::getsockname(fd, reinterpret_cast<sockaddr*>(&address), &size);
    const bool v6 = address.ss_family == AF_INET6;
    error_code error;
    acceptor_.assign(v6 ? boost::asio::ip::tcp::v6() : boost::asio::ip::tcp::v4(), fd, error);
    if (error) {
      ::close(fd);
      return unavailable("cannot listen on " + host + ": " + error.message());
    }
    const std::uint16_t bound = acceptor_.local_endpoint(error).port();
    boost::asio::post(strand_, [self = shared_from_this()] { self->accept(); });
    return bound;
  }

  void drain(Duration timeout) {
    {
      // Under the lock of the connections: one accepted now is in the snapshot or is dropped.
      const std::lock_guard lock(core_->mutex);
      core_->draining.store(true);
    }
    boost::asio::post(strand_, [self = shared_from_this()] {
      error_code error;
      self->acceptor_.close(error);
      self->retry_.cancel();
    });
    for (const auto& connection : snapshot())
      connection->drain();
    const bool empty = wait_until_empty(timeout);
    end_large();
    if (empty) return;
    for (const auto& connection : snapshot())
      connection->close_now();
    // Bounded, because a pool that has been stopped already closes nothing any more.
    const bool stopped = pool_.context().stopped();
    wait_until_empty(stopped ? Duration{} : kForcedCloseWait);
    if (!stopped) return;
    // What is left for the pool would keep alive what keeps it.
    for (const auto& connection : snapshot())
      connection->discard_tasks();
    core_->ready->clear();
  }

  /// Waits for what runs there; what has not begun is dropped.
  void end_large() {
    std::unique_ptr<async::IoPool> large;
    const std::lock_guard lock(core_->mutex);
    large.swap(core_->large);
  }

  [[nodiscard]] std::size_t connection_count() const {
    const std::lock_guard lock(core_->mutex);
    return core_->connections.size();
  }

 private:
  void accept() {
    if (core_->draining.load() || !acceptor_.is_open()) return;
    acceptor_.async_accept(boost::asio::make_strand(pool_.context()),
                           [self = shared_from_this()](const error_code& error, Socket socket) {
                             if (error) return self->on_accept_error(error);
                             self->take(std::move(socket));
                             self->accept();
                           });
  }

  void on_accept_error(const error_code& error) {
    if (core_->draining.load() || error == boost::asio::error::operation_aborted) return;
    // Out of file descriptors, mostly: existing connections will end and free some.
    obs::warn("http_accept_failed", {{"reason", error.message()}});
    retry_.expires_after(std::chrono::nanoseconds(kAcceptRetry.ns));
    retry_.async_wait([self = shared_from_this()](const error_code& timer_error) {
      if (!timer_error) self->accept();
    });
  }

  void take(Socket socket) {
    error_code error;
    const auto remote = socket.remote_endpoint(error);
    if (error) return;
    if (connection_count() >= core_->options.max_connections) return turn_away(socket);
    auto connection = std::make_shared<Connection>(core_, std::move(socket), endpoint_text(remote));
    {
      const std::lock_guard lock(core_->mutex);
      if (core_->draining.load()) return;
      core_->connections.emplace(connection.get(), connection);
    }
    connection->start();
  }

  // One attempt to say why; the peer's request is not read.
  void turn_away(Socket& socket) {
    const std::string body = core_->error_body(503, "too many connections");
    const std::string text =
        "HTTP/1.1 503 Service Unavailable\r\ncontent-type: application/json\r\nretry-after: "
        "1\r\nconnection: close\r\ncontent-length: " +
        std::to_string(body.size()) + "\r\n\r\n" + body;
    [[maybe_unused]] const ssize_t sent =
        ::send(socket.native_handle(), text.data(), text.size(), MSG_DONTWAIT | MSG_NOSIGNAL);
  }

  std::vector<std::shared_ptr<Connection>> snapshot() {
    std::vector<std::shared_ptr<Connection>> all;
    const std::lock_guard lock(core_->mutex);
    for (const auto& [key, weak] : core_->connections) {
      if (auto connection = weak.lock()) all.push_back(std::move(connection));
    }
    return all;
  }

  bool wait_until_empty(Duration timeout) {
    std::unique_lock lock(core_->mutex);
    return core_->empty.wait_for(
        lock, std::chrono::nanoseconds(timeout.ns), [this] { return core_->connections.empty(); });
  }

  async::IoPool& pool_;
  std::shared_ptr<ServerCore> core_;
  Strand strand_;
  Acceptor acceptor_;
  boost::asio::steady_timer retry_;
};

Server::Server(async::IoPool& pool, ServerOptions options, Handler handler)
    : impl_(std::make_shared<Impl>(pool, std::move(options), std::move(handler))) {}

Server::~Server() {
  stop();
}

Result<std::uint16_t> Server::listen(const std::string& host, std::uint16_t port) {
  return impl_->listen(host, port);
}

void Server::drain(Duration timeout) {
  impl_->drain(timeout);
}

void Server::stop() {
  impl_->drain(Duration{});
}

std::size_t Server::connection_count() const {
  return impl_->connection_count();
}

}  // namespace tandem::http
