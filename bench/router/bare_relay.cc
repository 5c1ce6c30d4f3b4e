#include "bench/router/bare_relay.h"

#include "bench/router/loopback.h"

#include <fmt/format.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <stdexcept>
#include <string_view>
#include <utility>

namespace tandem::bench {

namespace {

constexpr std::size_t kBufferBytes = std::size_t{64} << 10;

bool write_all(int fd, std::string_view bytes) {
  while (!bytes.empty()) {
    const ssize_t written = ::send(fd, bytes.data(), bytes.size(), MSG_NOSIGNAL);
    if (written < 0 && errno == EINTR) continue;
    if (written <= 0) return false;
    bytes.remove_prefix(static_cast<std::size_t>(written));
  }
  return true;
}

/// Waits for one of several sockets; for one in the same way, so that the bare server takes the
/// steps of a server of many.
class Readable {
 public:
  Readable() : poll_(::epoll_create1(EPOLL_CLOEXEC)) {}

  Readable(const Readable&) = delete;
  Readable& operator=(const Readable&) = delete;

  ~Readable() { ::close(poll_); }

  void add(int fd) const {
    epoll_event event{.events = EPOLLIN, .data = {.fd = fd}};
    ::epoll_ctl(poll_, EPOLL_CTL_ADD, fd, &event);
  }

  /// (The socket, what it had to read); nothing at its end.
  std::pair<int, std::string_view> next() {
    epoll_event event{};
    int count = 0;
    // A stopped process that goes on again is interrupted here.
    do {
      count = ::epoll_wait(poll_, &event, 1, -1);
    } while (count < 0 && errno == EINTR);
    if (count != 1) return {};
    const ssize_t size = ::read(event.data.fd, buffer_.data(), buffer_.size());
    return {event.data.fd, {buffer_.data(), static_cast<std::size_t>(std::max<ssize_t>(size, 0))}};
  }

 private:
  int poll_;
  std::array<char, kBufferBytes> buffer_{};
};

/// Of that size with its head; filled up with zeros, the length always takes as many digits.
std::string answer_of(std::size_t bytes) {
  const auto head = [](std::size_t body_bytes) {
    return fmt::format("HTTP/1.1 200 OK\r\ncontent-length: {:09}\r\n\r\n", body_bytes);
  };
  const std::size_t head_bytes = head(0).size();
  const std::size_t body_bytes = bytes > head_bytes ? bytes - head_bytes : 0;
  return head(body_bytes) + std::string(body_bytes, 'x');
}

void answer_requests(int client, std::size_t request_bytes, std::string_view answer) {
  Readable readable;
  readable.add(client);
  std::size_t pending = 0;
  while (true) {
    const std::string_view bytes = readable.next().second;
    if (bytes.empty()) return;
    for (pending += bytes.size(); pending >= request_bytes; pending -= request_bytes) {
      if (!write_all(client, answer)) return;
    }
  }
}

void pass_on(int client, int server) {
  Readable readable;
  readable.add(client);
  readable.add(server);
  while (true) {
    const auto [from, bytes] = readable.next();
    if (bytes.empty() || !write_all(from == client ? server : client, bytes)) return;
  }
}

/// serve(socket) for one connection after the other.
template <typename Serve>
int serve_in_turn(const Serve& serve) {
  const Listener listener = listen_on_loopback();
  if (listener.fd < 0) return 1;
  std::printf("%u\n", unsigned{listener.port});
  std::fflush(stdout);
  while (true) {
    const int client = accept_on_loopback(listener.fd);
    if (client < 0 && errno != EINTR && errno != ECONNABORTED) break;
    if (client < 0) continue;
    serve(client);
    ::close(client);
  }
  ::close(listener.fd);
  return 1;
}

std::uint16_t port_of(const Child& child) {
  const int port = std::atoi(child.first_line().c_str());
  if (port == 0) throw std::runtime_error("a bare server or relay did not start");
  return static_cast<std::uint16_t>(port);
}

}  // namespace

int run_bare_server(const MessageSizes& sizes) {
  if (sizes.request_bytes == 0) return 1;
  const std::string answer = answer_of(sizes.answer_bytes);
  return serve_in_turn([&](int client) { answer_requests(client, sizes.request_bytes, answer); });
}

int run_bare_relay(std::uint16_t server_port) {
  return serve_in_turn([server_port](int client) {
    const int server = connect_to_loopback(server_port);
    if (server < 0) return;
    pass_on(client, server);
    ::close(server);
  });
}

BareRelay::BareRelay(const std::string& self, const MessageSizes& sizes)
    : server_({self,
               kServerCommand,
               std::to_string(sizes.request_bytes),
               std::to_string(sizes.answer_bytes)}),
      server_port_(port_of(server_)),
      relay_({self, kRelayCommand, std::to_string(server_port_)}),
      relay_port_(port_of(relay_)) {}

}  // namespace tandem::bench
