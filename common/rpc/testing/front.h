// A port that is not gRPC's, as a worker has one: whoever begins with the preface of HTTP/2 is
// handed over.
#pragma once

#include "common/rpc/testing/support.h"

#include <arpa/inet.h>
#include <nghttp2/nghttp2.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <atomic>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

namespace tandem::rpc::testing {

inline constexpr char kPreface[] = NGHTTP2_CLIENT_MAGIC;

/// A listener that is not gRPC's: it peeks and hands over.
class Front {
 public:
  explicit Front(Server* server) : server_(server) {
    thread_ = std::thread([this] { run(); });
  }

  ~Front() {
    stop_ = true;
    thread_.join();
    close(bound_.fd);
  }

  [[nodiscard]] std::string address() const { return bound_.address(); }

  [[nodiscard]] int handed_over() const { return handed_over_; }

 private:
  void run() {
    while (!stop_) {
      pollfd waiting{.fd = bound_.fd, .events = POLLIN, .revents = 0};
      if (poll(&waiting, 1, 5) <= 0) continue;
      const int fd = accept4(bound_.fd, nullptr, nullptr, SOCK_CLOEXEC);
      if (fd < 0) continue;
      char head[sizeof(kPreface) - 1] = {};
      const ssize_t seen = recv(fd, head, sizeof(head), MSG_PEEK | MSG_WAITALL);
      if (seen == static_cast<ssize_t>(sizeof(head)) &&
          std::string(head, sizeof(head)) == kPreface) {
        ++handed_over_;
        (void)server_->accept_fd(fd);
      } else {
        close(fd);
      }
    }
  }

  Server* server_;
  const LoopbackPort bound_ = bind_loopback(256);
  std::atomic<bool> stop_{false};
  std::atomic<int> handed_over_{0};
  std::thread thread_;
};

/// Which server reads a session that a client of ours opens.
enum class ServedBy {
  kGrpc,
  kPool  ///< ServerOptions::io
};

/// A server that has its sessions in this way, and where it is.
struct Served {
  Served(ServedBy by, std::vector<std::shared_ptr<Service>> services, ServerOptions options = {}) {
    options.listen_address = by == ServedBy::kGrpc ? "127.0.0.1:0" : "";
    options.io = by == ServedBy::kGrpc ? nullptr : &io_pool();
    auto made = Server::start(options, std::move(services));
    EXPECT_TRUE(made.ok()) << made.status().message();
    server = std::move(made).value();
    if (by == ServedBy::kPool) front = std::make_unique<Front>(server.get());
    address = front ? front->address() : address_of(*server);
  }

  std::unique_ptr<Server> server;
  std::unique_ptr<Front> front;
  std::string address;
};

inline std::string name_of(const ::testing::TestParamInfo<ServedBy>& info) {
  return info.param == ServedBy::kGrpc ? "Grpc" : "Pool";
}

}  // namespace tandem::rpc::testing
