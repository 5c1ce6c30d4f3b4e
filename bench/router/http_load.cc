#include "bench/router/http_load.h"

#include "bench/router/loopback.h"

#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <charconv>
#include <chrono>
#include <string_view>
#include <vector>

namespace tandem::bench {

namespace {

double now_s() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

/// Of a chunk with text; the one that opens a stream says "role" first, and the last one nothing.
constexpr std::string_view kTextMark = R"("delta":{"content":")";

std::int32_t count_texts(std::string_view bytes) {
  std::int32_t count = 0;
  for (std::size_t at = bytes.find(kTextMark); at != std::string_view::npos;
       at = bytes.find(kTextMark, at + kTextMark.size()))
    ++count;
  return count;
}

struct Connection {
  int fd = -1;
  double sent_at = 0;
  std::string head;  ///< until the empty line
  bool in_body = false;
  bool failed = false;  ///< its status is not 200
  bool chunked = false;
  std::size_t left = 0;
  std::string tail;  ///< of a chunked body, to find its end and texts across reads
  std::int32_t tokens = 0;
};

class Load {
 public:
  explicit Load(const HttpLoad& load)
      : load_(load),
        head_("POST " + load.path +
              " HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-type: application/json" +
              "\r\ncontent-length: ") {}

  HttpLoadResult run() {
    const int poll = ::epoll_create1(EPOLL_CLOEXEC);
    connections_.resize(load_.connections);
    const double began = now_s();
    end_at_ = began + load_.seconds;
    for (std::size_t i = 0; i < connections_.size(); ++i) {
      connections_[i].fd = connect_to_loopback(load_.port);
      if (connections_[i].fd < 0) {
        fail("nobody listens");
        continue;
      }
      epoll_event event{.events = EPOLLIN, .data = {.u64 = i}};
      ::epoll_ctl(poll, EPOLL_CTL_ADD, connections_[i].fd, &event);
      send(i);
    }
    read_answers(poll);
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
  void read_answers(int poll) {
    std::array<epoll_event, 64> events{};
    while (running_ > 0) {
      const int count =
          ::epoll_wait(poll, events.data(), static_cast<int>(events.size()), load_.silence_ms_max);
      if (count < 0 && errno == EINTR) continue;
      if (count <= 0) return fail("no answer for too long");
      for (int i = 0; i < count; ++i)
        on_readable(events.at(static_cast<std::size_t>(i)).data.u64);
    }
  }

  void fail(std::string_view why) {
    ++result_.errors;
    if (result_.first_error.empty()) result_.first_error = why;
  }

  void send(std::size_t index) {
    Connection& connection = connections_[index];
    connection.in_body = connection.failed = connection.chunked = false;
    connection.head.clear();
    connection.tail.clear();
    connection.tokens = 0;
    if (load_.read != nullptr) load_.read->set(index, 0);
    const std::string body = load_.body(index);
    const std::string message = head_ + std::to_string(body.size()) + "\r\n\r\n" + body;
    connection.sent_at = now_s();
    std::string_view rest = message;
    while (!rest.empty()) {
      const ssize_t sent = ::send(connection.fd, rest.data(), rest.size(), MSG_NOSIGNAL);
      if (sent <= 0) return fail("a connection broke");
      rest.remove_prefix(static_cast<std::size_t>(sent));
      result_.sent_bytes += static_cast<std::uint64_t>(sent);
    }
    ++running_;
  }

  void on_readable(std::size_t index) {
    Connection& connection = connections_[index];
    const ssize_t size = ::recv(connection.fd, buffer_.data(), buffer_.size(), 0);
    if (size <= 0) {
      fail("a connection broke");
      --running_;
      ::close(connection.fd);
      connection.fd = -1;
      return;
    }
    result_.received_bytes += static_cast<std::uint64_t>(size);
    const bool ended = take(connection, {buffer_.data(), static_cast<std::size_t>(size)});
    if (load_.read != nullptr) load_.read->set(index, connection.tokens);
    if (ended) on_answer(index);
  }

  void on_answer(std::size_t index) {
    const Connection& connection = connections_[index];
    const double now = now_s();
    --running_;
    result_.tokens += static_cast<std::uint64_t>(connection.tokens);
    if (load_.answer_tokens != connection.tokens && !connection.failed) {
      fail("an answer has " + std::to_string(connection.tokens) + " events with text instead of " +
           std::to_string(load_.answer_tokens));
    } else if (!connection.failed) {
      ++result_.requests;
      latencies_us_.push_back((now - connection.sent_at) * 1e6);
    }
    const bool enough = now >= end_at_ && result_.requests >= load_.least_requests;
    if (result_.errors == 0 && !enough) send(index);
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
    connection.failed = !head.starts_with("HTTP/1.1 200");
    if (connection.failed) fail(head.substr(0, head.find("\r\n")));
    connection.chunked = head.find("transfer-encoding: chunked") != std::string_view::npos;
    constexpr std::string_view kLength = "content-length: ";
    const std::size_t at = head.find(kLength);
    connection.left = 0;
    if (at != std::string_view::npos)
      std::from_chars(
          head.data() + at + kLength.size(), head.data() + head.size(), connection.left);
  }

  static bool take_body(Connection& connection, std::string_view bytes) {
    if (!connection.chunked) {
      connection.left -= std::min(connection.left, bytes.size());
      return connection.left == 0;
    }
    constexpr std::string_view kEnd = "\r\n0\r\n\r\n";
    // A mark may lie across two reads, so the end of the last one is looked at again; it is shorter
    // than a mark and so never counts twice.
    connection.tail.append(bytes);
    connection.tokens += count_texts(connection.tail);
    const bool ended = std::string_view(connection.tail).ends_with(kEnd);
    constexpr std::size_t kKeep = kTextMark.size() - 1;
    static_assert(kKeep >= kEnd.size());
    if (connection.tail.size() > kKeep) connection.tail.erase(0, connection.tail.size() - kKeep);
    return ended;
  }

  const HttpLoad& load_;
  std::string head_;  ///< of each request, up to its length
  double end_at_ = 0;
  std::size_t running_ = 0;
  std::vector<Connection> connections_;
  std::vector<double> latencies_us_;
  HttpLoadResult result_;
  std::array<char, 256 * 1024> buffer_{};
};

}  // namespace

std::string HttpLoadResult::problem() const {
  if (errors > 0) return first_error;
  return requests == 0 ? "no answer" : "";
}

HttpLoadResult run_http_load(const HttpLoad& load) {
  return Load(load).run();
}

}  // namespace tandem::bench
