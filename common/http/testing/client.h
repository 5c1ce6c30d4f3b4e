// For tests only: a raw TCP client that sends exact bytes and reads responses one by one.
#pragma once

#include "common/http/message.h"
#include "common/http/parser.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <cstdint>
#include <cstdlib>
#include <optional>
#include <string>
#include <string_view>

namespace tandem::http {

class TestClient {
 public:
  /// `receive_bytes` > 0 makes the socket's receive buffer small (slow readers).
  explicit TestClient(std::uint16_t port, int receive_bytes = 0)
      : fd_(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
    if (receive_bytes > 0)
      ::setsockopt(fd_, SOL_SOCKET, SO_RCVBUF, &receive_bytes, sizeof receive_bytes);
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_port = htons(port);
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    connected_ = ::connect(fd_, reinterpret_cast<sockaddr*>(&address), sizeof address) == 0;
  }

  ~TestClient() { close(); }

  TestClient(const TestClient&) = delete;
  TestClient& operator=(const TestClient&) = delete;

  [[nodiscard]] bool connected() const { return connected_; }

  [[nodiscard]] int fd() const { return fd_; }

  void close() {
    if (fd_ >= 0) ::close(fd_);
    fd_ = -1;
  }

  /// Closes with a reset instead of an orderly end.
  void reset() {
    const linger hard{.l_onoff = 1, .l_linger = 0};
    ::setsockopt(fd_, SOL_SOCKET, SO_LINGER, &hard, sizeof hard);
    close();
  }

  /// Errors are the server's right (it may have closed already) and show when reading.
  void send(std::string_view bytes) const {
    while (!bytes.empty()) {
      const ssize_t sent = ::send(fd_, bytes.data(), bytes.size(), MSG_NOSIGNAL);
      if (sent <= 0) return;
      bytes.remove_prefix(static_cast<std::size_t>(sent));
    }
  }

  /// Reads once. False at the end of the connection, or when nothing came for 20 s.
  bool read_some() {
    pollfd entry{.fd = fd_, .events = POLLIN, .revents = 0};
    if (::poll(&entry, 1, 20'000) <= 0) return false;
    std::array<char, 65536> chunk{};
    const ssize_t got = ::recv(fd_, chunk.data(), chunk.size(), 0);
    if (got <= 0) return false;
    ++reads_;
    buffer_.append(chunk.data(), static_cast<std::size_t>(got));
    return true;
  }

  /// The next response without its interim ones; nothing when the connection ends before it is
  /// complete. A body that is ended by closing is complete.
  std::optional<Response> read_response(bool head_only = false) {
    std::size_t end = 0;
    while ((end = buffer_.find("\r\n\r\n")) == std::string::npos) {
      if (!read_some()) return std::nullopt;
    }
    Response response;
    parse_head(buffer_.substr(0, end + 2), &response);
    buffer_.erase(0, end + 4);
    if (response.status == 100) {
      ++interim_;
      return read_response(head_only);
    }
    if (head_only || response.status == 204) return response;
    if (response.headers.find("transfer-encoding")) {
      ChunkedDecoder decoder(std::size_t{1} << 30U);
      while (true) {
        buffer_.erase(0, decoder.feed(buffer_, &response.body));
        if (decoder.done()) return response;
        partial_ = response.body;
        if (decoder.error().failed() || !read_some()) return std::nullopt;
      }
    }
    if (const auto length = response.headers.find("content-length")) {
      const std::size_t wanted = std::strtoull(std::string(*length).c_str(), nullptr, 10);
      while (buffer_.size() < wanted) {
        if (!read_some()) return std::nullopt;
      }
      response.body = buffer_.substr(0, wanted);
      buffer_.erase(0, wanted);
      return response;
    }
    while (read_some()) {
    }
    response.body.swap(buffer_);
    return response;
  }

  /// Whether the server ends the connection without saying anything more.
  bool ends_cleanly() {
    while (read_some()) {
    }
    return buffer_.empty();
  }

  /// What was decoded of a response that was cut off.
  [[nodiscard]] const std::string& partial() const { return partial_; }

  std::string& buffer() { return buffer_; }

  [[nodiscard]] int reads() const { return reads_; }

  [[nodiscard]] int interim_count() const { return interim_; }

 private:
  static void parse_head(std::string_view head, Response* response) {
    response->status = std::atoi(std::string(head.substr(9, 3)).c_str());
    std::size_t at = head.find("\r\n") + 2;
    while (at < head.size()) {
      const std::size_t end = head.find("\r\n", at);
      const std::string_view line = head.substr(at, end - at);
      const std::size_t colon = line.find(": ");
      response->headers.add(line.substr(0, colon), std::string(line.substr(colon + 2)));
      at = end + 2;
    }
  }

  int fd_;
  bool connected_ = false;
  std::string buffer_;
  std::string partial_;
  int reads_ = 0;
  int interim_ = 0;
};

}  // namespace tandem::http
