// Connections within the machine that BBR slows down, and those that are left as they are.
#include "common/transfer/near_connections.h"

#include "common/transfer/loopback_test_support.h"
#include "common/transfer/ucx_sends.h"

#include <gtest/gtest.h>

#include <linux/tcp.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <string>
#include <thread>
#include <vector>

namespace tandem::transfer {
namespace {

TEST(NearConnections, ShortIsWhatNoNetworkCardAnswers) {
  EXPECT_TRUE(NearConnections::is_short(3));
  EXPECT_TRUE(NearConnections::is_short(9));
  EXPECT_FALSE(NearConnections::is_short(10));
  EXPECT_FALSE(NearConnections::is_short(~0U)) << "no round trip yet";
}

TEST(NearConnections, OnlyBbrIsNeedless) {
  EXPECT_TRUE(NearConnections::is_needless("bbr"));
  EXPECT_FALSE(NearConnections::is_needless("cubic")) << "does not pace";
  EXPECT_FALSE(NearConnections::is_needless("dctcp")) << "a setting for a network of one's own";
  EXPECT_FALSE(NearConnections::is_needless("bbr2")) << "a newer BBR is somebody's choice";
}

TEST(NearConnections, WhatIsNoTcpSocketIsFar) {
  std::array<int, 2> ends{};
  ASSERT_EQ(::socketpair(AF_UNIX, SOCK_STREAM, 0, ends.data()), 0);
  NearConnections connections;
  EXPECT_FALSE(connections.is_near(ends[0]));
  EXPECT_FALSE(connections.is_near(ends[0])) << "nor later";
  ::close(ends[0]);
  ::close(ends[1]);
  EXPECT_FALSE(connections.is_near(-1));
}

/// A connection over the loopback interface whose other end reads and throws away.
class Loopback {
 public:
  Loopback() {
    const auto [caller, peer] = testing::connect_over_loopback();
    fd_ = caller;
    reader_ = std::thread([peer = peer] {
      std::vector<char> bytes(1U << 20U);
      while (::recv(peer, bytes.data(), bytes.size(), 0) > 0) {
      }
      ::close(peer);
    });
  }

  ~Loopback() {
    ::close(fd_);
    reader_.join();
  }

  Loopback(const Loopback&) = delete;
  Loopback& operator=(const Loopback&) = delete;

  [[nodiscard]] bool use(const std::string& control) const {
    return ::setsockopt(fd_,
                        IPPROTO_TCP,
                        TCP_CONGESTION,
                        control.data(),
                        static_cast<socklen_t>(control.size())) == 0;
  }

  [[nodiscard]] std::string control() const {
    std::array<char, 16> name{};
    socklen_t size = name.size();
    EXPECT_EQ(::getsockopt(fd_, IPPROTO_TCP, TCP_CONGESTION, name.data(), &size), 0);
    return name.data();
  }

  /// As UCX sends: a header and payload, `bytes` in all.
  void send(std::size_t bytes) const {
    std::vector<char> data(bytes, 'x');
    iovec parts[] = {{.iov_base = data.data(), .iov_len = 5},
                     {.iov_base = data.data() + 5, .iov_len = bytes - 5}};
    msghdr message{};
    message.msg_iov = parts;
    message.msg_iovlen = std::size(parts);
    EXPECT_GT(::sendmsg(fd_, &message, MSG_NOSIGNAL), 0);
  }

 private:
  int fd_ = -1;
  std::thread reader_;
};

constexpr std::size_t kLarge = std::size_t{256} << 10U;

TEST(NearConnections, LargeSendsOfUcxWithinTheMachineGoOnWithoutBbr) {
  const Loopback connection;
  if (!connection.use("bbr")) GTEST_SKIP() << "skipped: this kernel has no BBR for us";
  connection.send(kLarge);
  EXPECT_EQ(connection.control(), "bbr") << "not a send of UCX";
  ScopedUcxSends sends({});
  connection.send(ScopedUcxSends::kLargeBytes - 1);
  EXPECT_EQ(connection.control(), "bbr") << "a small send";
  connection.send(ScopedUcxSends::kLargeBytes);
  EXPECT_EQ(connection.control(), "reno");
}

TEST(NearConnections, ADescriptorsNextConnectionIsLookedAtAnew) {
  ScopedUcxSends sends({});
  for (int i = 0; i < 2; ++i) {
    const Loopback connection;
    if (!connection.use("bbr")) GTEST_SKIP() << "skipped: this kernel has no BBR for us";
    connection.send(kLarge);
    EXPECT_EQ(connection.control(), "reno");
  }
}

TEST(NearConnections, OtherChoicesStay) {
  ScopedUcxSends sends({});
  const Loopback connection;
  ASSERT_TRUE(connection.use("reno"));
  connection.send(kLarge);
  EXPECT_EQ(connection.control(), "reno");
  // Once left alone, it is whoever changes it later who decides.
  if (!connection.use("bbr")) GTEST_SKIP() << "skipped: this kernel has no BBR for us";
  connection.send(kLarge);
  EXPECT_EQ(connection.control(), "bbr");
}

}  // namespace
}  // namespace tandem::transfer
