#include "common/http/client.h"

#include "common/base/clock.h"
#include "common/base/host.h"
#include "common/http/response_reader.h"

#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <memory>
#include <span>
#include <utility>

namespace tandem::http {

namespace {

class Socket {
 public:
  explicit Socket(int fd) : fd_(fd) {}

  Socket(Socket&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}

  Socket& operator=(Socket&&) = delete;

  ~Socket() {
    if (fd_ >= 0) ::close(fd_);
  }

  [[nodiscard]] int fd() const { return fd_; }

 private:
  int fd_;
};

Status wait_for(int fd, short events, Time deadline, const std::string& peer) {
  while (true) {
    const Duration left = deadline - steady_clock().now();
    if (left.ns <= 0) return deadline_exceeded(peer + " did not answer in time");
    pollfd entry{.fd = fd, .events = events, .revents = 0};
    const int ready = ::poll(
        &entry, 1, static_cast<int>(std::min<std::int64_t>(left.milliseconds() + 1, 60'000)));
    if (ready > 0) return {};
    if (ready < 0 && errno != EINTR) return unavailable(peer + ": " + std::strerror(errno));
  }
}

Result<Socket> connect_one(const addrinfo& address, Time deadline, const std::string& peer) {
  Socket socket(::socket(address.ai_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  if (socket.fd() < 0) return unavailable(peer + ": " + std::strerror(errno));
  if (::connect(socket.fd(), address.ai_addr, address.ai_addrlen) != 0) {
    if (errno != EINPROGRESS)
      return unavailable("cannot connect to " + peer + ": " + std::strerror(errno));
    TANDEM_TRY(wait_for(socket.fd(), POLLOUT, deadline, peer));
    int error = 0;
    socklen_t size = sizeof error;
    ::getsockopt(socket.fd(), SOL_SOCKET, SO_ERROR, &error, &size);
    if (error != 0) return unavailable("cannot connect to " + peer + ": " + std::strerror(error));
  }
  const int on = 1;
  ::setsockopt(socket.fd(), IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
  return socket;
}

Result<Socket> connect_any(const ClientRequest& request, Time deadline, const std::string& peer) {
  addrinfo hints{};
  hints.ai_family = AF_UNSPEC;
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* list = nullptr;
  const std::string host(without_brackets(request.host));
  const int found =
      ::getaddrinfo(host.c_str(), std::to_string(request.port).c_str(), &hints, &list);
  if (found != 0)
    return unavailable("cannot resolve " + request.host + ": " + ::gai_strerror(found));
  const std::unique_ptr<addrinfo, decltype(&::freeaddrinfo)> owner(list, &::freeaddrinfo);
  Status last = unavailable("cannot resolve " + request.host + ": no address");
  for (const addrinfo* entry = list; entry != nullptr; entry = entry->ai_next) {
    auto socket = connect_one(*entry, deadline, peer);
    if (socket.ok()) return socket;
    last = socket.status();
  }
  return last;
}

Status send_all(int fd, std::string_view bytes, Time deadline, const std::string& peer) {
  while (!bytes.empty()) {
    const ssize_t sent = ::send(fd, bytes.data(), bytes.size(), MSG_NOSIGNAL);
    if (sent > 0) {
      bytes.remove_prefix(static_cast<std::size_t>(sent));
    } else if (errno == EAGAIN) {
      TANDEM_TRY(wait_for(fd, POLLOUT, deadline, peer));
    } else if (errno != EINTR) {
      return unavailable(peer + " closed the connection: " + std::strerror(errno));
    }
  }
  return {};
}

std::string request_text(const ClientRequest& request) {
  const std::string_view host = without_brackets(request.host);
  const bool v6 = host.find(':') != std::string_view::npos;
  std::string text = request.method + " " + request.path + " HTTP/1.1\r\nhost: " + (v6 ? "[" : "") +
                     std::string(host) + (v6 ? "]:" : ":") + std::to_string(request.port) +
                     "\r\nconnection: close\r\n";
  for (const auto& [name, value] : request.headers.items())
    text.append(name).append(": ").append(value).append("\r\n");
  if (!request.body.empty() || request.method == "POST" || request.method == "PUT")
    text.append("content-length: ").append(std::to_string(request.body.size())).append("\r\n");
  return text.append("\r\n").append(request.body);
}

// One read; 0 at the end of the input.
Result<std::size_t> receive(int fd, std::span<char> to, Time deadline, const std::string& peer) {
  while (true) {
    const ssize_t got = ::recv(fd, to.data(), to.size(), 0);
    if (got >= 0) return static_cast<std::size_t>(got);
    if (errno == EAGAIN) {
      TANDEM_TRY(wait_for(fd, POLLIN, deadline, peer));
    } else if (errno != EINTR) {
      return unavailable(peer + " closed the connection: " + std::strerror(errno));
    }
  }
}

}  // namespace

Result<Response> request(const ClientRequest& request, Time deadline) {
  const std::string peer = request.host + ":" + std::to_string(request.port);
  TANDEM_TRY(const Socket socket, connect_any(request, deadline, peer));
  TANDEM_TRY(send_all(socket.fd(), request_text(request), deadline, peer));
  ResponseReader reader(request.method == "HEAD", request.response_bytes_max);
  std::array<char, 16 * 1024> piece{};
  while (true) {
    TANDEM_TRY(const std::size_t got, receive(socket.fd(), piece, deadline, peer));
    if (got == 0) {
      TANDEM_TRY(reader.end().with_context(peer));
      return reader.take();
    }
    const auto whole = reader.feed({piece.data(), got});
    if (!whole.ok()) return whole.status().with_context(peer);
    if (*whole) return reader.take();
  }
}

Result<Response> get(const std::string& host,
                     std::uint16_t port,
                     const std::string& path,
                     Time deadline) {
  ClientRequest wanted;
  wanted.host = host;
  wanted.port = port;
  wanted.path = path;
  return request(wanted, deadline);
}

}  // namespace tandem::http
