#include "bench/router/http_load.h"

#include "bench/router/loopback.h"

#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <chrono>
#include <cstdlib>
#include <string_view>

namespace tandem::bench {

namespace {

double now_s() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

std::size_t count_events(std::string_view text) {
  constexpr std::string_view kMark = "data: {";
  std::size_t count = 0;
  for (std::size_t at = text.find(kMark); at != std::string_view::npos;
       at = text.find(kMark, at + kMark.size()))
    ++count;
  return count;
}

struct Connection {
  int fd = -1;
  double sent_at = 0;
  std::string head;  ///< until the empty line
  bool in_body = false;
  bool chunked = false;
  std::size_t left = 0;
  std::string tail;  ///< of a chunked body, to find its end and events across reads
};

class Load {
 public:
  explicit Load(const HttpLoad& load) : load_(load) {
    message_ = "POST " + load.path +
               " HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-type: application/json" +
               "\r\ncontent-length: " + std::to_string(load.body.size()) + "\r\n\r\n" + load.body;
  }

  HttpLoadResult run() {
    const int poll = ::epoll_create1(EPOLL_CLOEXEC);
    connections_.resize(load_.connections);
    const double began = now_s();
    end_at_ = began + load_.seconds;
    for (std::size_t i = 0; i < connections_.size(); ++i) {
      connections_[i].fd = connect_to_loopback(load_.port);
      if (connections_[i].fd < 0) {
        ++result_.errors;
        continue;
      }
      epoll_event event{.events = EPOLLIN, .data = {.u64 = i}};
      ::epoll_ctl(poll, EPOLL_CTL_ADD, connections_[i].fd, &event);
      send(connections_[i]);
    }
    std::array<epoll_event, 64> events{};
    while (running_ > 0) {
      const int count = ::epoll_wait(poll, events.data(), static_cast<int>(events.size()), 10'000);
      if (count <= 0) break;
      for (int i = 0; i < count; ++i)
        on_readable(connections_[events.at(static_cast<std::size_t>(i)).data.u64]);
    }
    result_.seconds = now_s() - began;
    for (const Connection& connection : connections_) {
      if (connection.fd >= 0) ::close(connection.fd);
    }
    ::close(poll);
    std::sort(latencies_us_.begin(), latencies_us_.end());
    if (!latencies_us_.empty()) {
      result_.p50_us = latencies_us_[latencies_us_.size() / 2];
      result_.p99_us = latencies_us_[latencies_us_.size() * 99 / 100];
    }
    return result_;
  }

 private:
  void send(Connection& connection) {
    connection.in_body = connection.chunked = false;
    connection.head.clear();
    connection.tail.clear();
    connection.sent_at = now_s();
    std::string_view rest = message_;
    while (!rest.empty()) {
      const ssize_t sent = ::send(connection.fd, rest.data(), rest.size(), MSG_NOSIGNAL);
      if (sent <= 0) {
        ++result_.errors;
        return;
      }
      rest.remove_prefix(static_cast<std::size_t>(sent));
      result_.sent_bytes += static_cast<std::uint64_t>(sent);
    }
    ++running_;
  }

  void on_readable(Connection& connection) {
    const ssize_t size = ::recv(connection.fd, buffer_.data(), buffer_.size(), 0);
    if (size <= 0) {
      ++result_.errors;
      --running_;
      ::close(connection.fd);
      connection.fd = -1;
      return;
    }
    result_.received_bytes += static_cast<std::uint64_t>(size);
    if (take(connection, {buffer_.data(), static_cast<std::size_t>(size)})) on_answer(connection);
  }

  void on_answer(Connection& connection) {
    const double now = now_s();
    latencies_us_.push_back((now - connection.sent_at) * 1e6);
    ++result_.requests;
    --running_;
    if (now < end_at_) send(connection);
  }

  bool take(Connection& connection, std::string_view bytes) {
    if (!connection.in_body) {
      connection.head.append(bytes);
      const std::size_t end = connection.head.find("\r\n\r\n");
      if (end == std::string::npos) return false;
      read_head(connection, std::string_view(connection.head).substr(0, end));
      const std::string body = connection.head.substr(end + 4);
      connection.head.clear();
      return take_body(connection, body);
    }
    return take_body(connection, bytes);
  }

  void read_head(Connection& connection, std::string_view head) {
    connection.in_body = true;
    if (!head.starts_with("HTTP/1.1 200")) ++result_.errors;
    connection.chunked = head.find("transfer-encoding: chunked") != std::string_view::npos;
    constexpr std::string_view kLength = "content-length: ";
    const std::size_t at = head.find(kLength);
    connection.left = 0;
    if (at != std::string_view::npos)
      std::from_chars(
          head.data() + at + kLength.size(), head.data() + head.size(), connection.left);
  }

  bool take_body(Connection& connection, std::string_view bytes) {
    if (!connection.chunked) {
      connection.left -= std::min(connection.left, bytes.size());
      return connection.left == 0;
    }
    constexpr std::string_view kEnd = "\r\n0\r\n\r\n";
    // A mark may lie across two reads, so the end of the last one is looked at again; it is shorter
    // than a mark and so never counts twice.
    connection.tail.append(bytes);
    result_.events += count_events(connection.tail);
    const bool ended = std::string_view(connection.tail).ends_with(kEnd);
    constexpr std::size_t kKeep = 6;
    if (connection.tail.size() > kKeep) connection.tail.erase(0, connection.tail.size() - kKeep);
    return ended;
  }

  const HttpLoad& load_;
  std::string message_;
  double end_at_ = 0;
  std::size_t running_ = 0;
  std::vector<Connection> connections_;
  std::vector<double> latencies_us_;
  HttpLoadResult result_;
  std::array<char, 256 * 1024> buffer_{};
};

}  // namespace

HttpLoadResult run_http_load(const HttpLoad& load) {
  return Load(load).run();
}

}  // namespace tandem::bench
