#include "common/http/client.h"

#include "common/base/clock.h"
#include "common/http/parser.h"

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
#include <utility>

namespace tandem::http {

namespace {

constexpr std::size_t kHeadBytesMax = 64 * 1024;

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
  const int found =
      ::getaddrinfo(request.host.c_str(), std::to_string(request.port).c_str(), &hints, &list);
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
  const bool v6 = request.host.find(':') != std::string::npos;
  std::string text = request.method + " " + request.path +
                     " HTTP/1.1\r\nhost: " + (v6 ? "[" + request.host + "]" : request.host) + ":" +
                     std::to_string(request.port) + "\r\nconnection: close\r\n";
  for (const auto& [name, value] : request.headers.items())
    text.append(name).append(": ").append(value).append("\r\n");
  if (!request.body.empty() || request.method == "POST" || request.method == "PUT")
    text.append("content-length: ").append(std::to_string(request.body.size())).append("\r\n");
  return text.append("\r\n").append(request.body);
}

// One read; 0 at the end of the input.
Result<std::size_t> receive(int fd, std::string* buffer, Time deadline, const std::string& peer) {
  std::array<char, 16 * 1024> chunk{};
  while (true) {
    const ssize_t got = ::recv(fd, chunk.data(), chunk.size(), 0);
    if (got >= 0) {
      buffer->append(chunk.data(), static_cast<std::size_t>(got));
      return static_cast<std::size_t>(got);
    }
    if (errno == EAGAIN) {
      TANDEM_TRY(wait_for(fd, POLLIN, deadline, peer));
    } else if (errno != EINTR) {
      return unavailable(peer + " closed the connection: " + std::strerror(errno));
    }
  }
}

Status parse_response_head(std::string_view head, Response* response, const std::string& peer) {
  const std::size_t end = head.find("\r\n");
  const std::string_view line = head.substr(0, end);
  const bool sound =
      line.size() >= 12 && line.starts_with("HTTP/1.") && line[8] == ' ' &&
      std::all_of(line.begin() + 9, line.begin() + 12, [](char c) { return c >= '0' && c <= '9'; });
  if (!sound) return data_loss(peer + " did not answer in HTTP/1.1");
  response->status = (line[9] - '0') * 100 + (line[10] - '0') * 10 + (line[11] - '0');
  head.remove_prefix(end + 2);
  while (true) {
    const std::size_t stop = head.find("\r\n");
    if (stop == std::string_view::npos || stop == 0) return {};
    const std::string_view field = head.substr(0, stop);
    head.remove_prefix(stop + 2);
    const std::size_t colon = field.find(':');
    if (colon == std::string_view::npos)
      return data_loss(peer + " sent a header field without ':'");
    std::string_view value = field.substr(colon + 1);
    while (!value.empty() && (value.front() == ' ' || value.front() == '\t'))
      value.remove_prefix(1);
    response->headers.add(field.substr(0, colon), std::string(value));
  }
}

// The rest of the response, of which `buffer` holds the first bytes.
Status read_body(const ClientRequest& request,
                 int fd,
                 std::string buffer,
                 Time deadline,
                 const std::string& peer,
                 Response* response) {
  const bool bodiless =
      request.method == "HEAD" || response->status == 204 || response->status == 304;
  if (bodiless) return {};
  const auto coding = response->headers.find("transfer-encoding");
  const auto length_text = response->headers.find("content-length");
  const std::size_t most = request.response_bytes_max;
  std::optional<std::size_t> length;
  if (!coding && length_text) {
    std::size_t value = 0;
    for (const char c : *length_text) {
      if (c < '0' || c > '9' || value > most)
        return data_loss(peer + " sent an unsound content-length");
      value = value * 10 + static_cast<std::size_t>(c - '0');
    }
    length = value;
  }
  ChunkedDecoder decoder(most);
  while (true) {
    if (coding) {
      buffer.erase(0, decoder.feed(buffer, &response->body));
      if (decoder.error().failed()) return data_loss(peer + ": " + decoder.error().message);
      if (decoder.done()) return {};
    } else {
      response->body.append(buffer);
      buffer.clear();
    }
    if (response->body.size() > most || (length && *length > most)) {
      return data_loss(peer + " sent more than " + std::to_string(most) + " bytes");
    }
    if (length && response->body.size() >= *length) {
      response->body.resize(*length);
      return {};
    }
    TANDEM_TRY(const std::size_t got, receive(fd, &buffer, deadline, peer));
    if (got > 0) continue;
    if (coding || length) return unavailable(peer + " closed the connection in mid-response");
    return {};
  }
}

}  // namespace

Result<Response> request(const ClientRequest& request, Time deadline) {
  const std::string peer = request.host + ":" + std::to_string(request.port);
  TANDEM_TRY(const Socket socket, connect_any(request, deadline, peer));
  TANDEM_TRY(send_all(socket.fd(), request_text(request), deadline, peer));
  std::string buffer;
  Response response;
  while (true) {
    const std::size_t end = buffer.find("\r\n\r\n");
    if (end != std::string::npos) {
      response = Response();
      TANDEM_TRY(parse_response_head(std::string_view(buffer).substr(0, end + 4), &response, peer));
      buffer.erase(0, end + 4);
      if (response.status >= 200) break;
      continue;  // An interim response such as 100 Continue.
    }
    if (buffer.size() > kHeadBytesMax)
      return data_loss(peer + " sent a response head that is too long");
    TANDEM_TRY(const std::size_t got, receive(socket.fd(), &buffer, deadline, peer));
    if (got == 0) return unavailable(peer + " closed the connection without a response");
  }
  TANDEM_TRY(read_body(request, socket.fd(), std::move(buffer), deadline, peer, &response));
  return response;
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
