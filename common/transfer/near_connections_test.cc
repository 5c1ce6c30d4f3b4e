// Connections within the machine, which BBR would slow down, and those that are left as they are.
#include "common/transfer/near_connections.h"

#include "common/transfer/loopback_test_support.h"
#include "common/transfer/transport_test_support.h"
#include "common/transfer/ucx_sends.h"

#include <gtest/gtest.h>

#include <fcntl.h>
#include <linux/tcp.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <set>
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

TEST(NearConnections, LongIsWhatGoesToAnotherMachine) {
  EXPECT_TRUE(NearConnections::is_long(1000));
  EXPECT_TRUE(NearConnections::is_long(80'000));
  EXPECT_FALSE(NearConnections::is_long(999)) << "may be a busy machine";
  EXPECT_FALSE(NearConnections::is_long(~0U)) << "no round trip yet";
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

bool use(int fd, const std::string& control) {
  return ::setsockopt(fd,
                      IPPROTO_TCP,
                      TCP_CONGESTION,
                      control.data(),
                      static_cast<socklen_t>(control.size())) == 0;
}

std::string control_of(int fd) {
  std::array<char, 16> name{};
  socklen_t size = name.size();
  EXPECT_EQ(::getsockopt(fd, IPPROTO_TCP, TCP_CONGESTION, name.data(), &size), 0);
  return name.data();
}

constexpr int kDescriptors = 1024;

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

  [[nodiscard]] int fd() const { return fd_; }

 private:
  int fd_ = -1;
  std::thread reader_;
};

constexpr auto kNoBbr = "skipped: this kernel has no BBR for us";
constexpr auto kNotBbr = "skipped: net.ipv4.tcp_congestion_control is not bbr";

/// A socket without a connection.
class Socket {
 public:
  Socket() : fd_(::socket(AF_INET, SOCK_STREAM, 0)) {}

  ~Socket() { ::close(fd_); }

  Socket(const Socket&) = delete;
  Socket& operator=(const Socket&) = delete;

  [[nodiscard]] int fd() const { return fd_; }

 private:
  int fd_ = -1;
};

TEST(NearConnections, SocketsOfUcxStartWithoutBbr) {
  const Socket others;
  if (control_of(others.fd()) != "bbr") GTEST_SKIP() << kNotBbr;
  ScopedUcxSends sends({});
  const Socket of_ucx;
  std::thread([&] { EXPECT_EQ(control_of(Socket().fd()), control_of(others.fd())); }).join();
  EXPECT_EQ(control_of(of_ucx.fd()), "reno");
}

/// UCX connects in either direction: what the peer accepted may be what it sends on.
TEST(NearConnections, NoConnectionOfATransportHasBbr) {
  if (control_of(Socket().fd()) != "bbr") GTEST_SKIP() << kNotBbr;
  std::set<int> before;
  for (int fd = 0; fd < kDescriptors; ++fd)
    if (::fcntl(fd, F_GETFD) >= 0) before.insert(fd);
  testing::Node a({.back_end = testing::BackEnd::kUcxTcp});
  testing::Node b({.back_end = testing::BackEnd::kUcxTcp});
  a.transport->connect(2, b.transport->address());
  b.transport->connect(1, a.transport->address());
  EXPECT_TRUE(a.next<PeerConnectedEvent>());
  EXPECT_TRUE(b.next<PeerConnectedEvent>());
  int sockets = 0;
  for (int fd = 0; fd < kDescriptors; ++fd) {
    std::array<char, 16> name{};
    socklen_t size = name.size();
    if (before.contains(fd) ||
        ::getsockopt(fd, IPPROTO_TCP, TCP_CONGESTION, name.data(), &size) != 0) {
      continue;
    }
    ++sockets;
    EXPECT_STRNE(name.data(), "bbr") << "descriptor " << fd;
  }
  EXPECT_GE(sockets, 4) << "each listens, and there is a connection";
}

TEST(NearConnections, WhatIsAcceptedIsAsTheListener) {
  const Socket listener;
  if (!use(listener.fd(), "bbr")) GTEST_SKIP() << kNoBbr;
  NearConnections::start_without_pacing(listener.fd());
  const auto [caller, peer] = testing::connect_over_loopback(listener.fd());
  EXPECT_EQ(control_of(peer), "reno");
  ::close(caller);
  ::close(peer);
}

TEST(NearConnections, OnlyWhatIsFarIsGivenBackToBbr) {
  const Loopback near;
  const Socket far;
  if (control_of(far.fd()) != "bbr") GTEST_SKIP() << kNotBbr;
  NearConnections connections;
  for (const int fd : {near.fd(), far.fd()}) {
    NearConnections::start_without_pacing(fd);
    EXPECT_EQ(control_of(fd), "reno");
  }
  EXPECT_TRUE(connections.is_near(near.fd()));
  for (int look = 1; look < NearConnections::kLooks; ++look) {
    EXPECT_FALSE(connections.is_near(far.fd())) << "without an address or a round trip";
    EXPECT_EQ(control_of(far.fd()), "reno") << "after look " << look;
  }
  EXPECT_FALSE(connections.is_near(far.fd()));
  EXPECT_EQ(control_of(far.fd()), "bbr");
  EXPECT_TRUE(connections.is_near(near.fd()));
  EXPECT_EQ(control_of(near.fd()), "reno");
}

TEST(NearConnections, ADescriptorsNextConnectionIsLookedAtAnew) {
  NearConnections connections;
  int number = -1;
  {
    const Loopback connection;
    number = connection.fd();
    EXPECT_TRUE(connections.is_near(number));
  }
  const Socket next;
  ASSERT_EQ(::dup2(next.fd(), number), number);
  EXPECT_FALSE(connections.is_near(number));
  ::close(number);
}

TEST(NearConnections, OtherChoicesStay) {
  NearConnections connections;
  const Socket cubic;
  if (!use(cubic.fd(), "cubic")) GTEST_SKIP() << "skipped: this kernel has no CUBIC for us";
  NearConnections::start_without_pacing(cubic.fd());
  for (int look = 0; look <= NearConnections::kLooks; ++look)
    connections.is_near(cubic.fd());
  EXPECT_EQ(control_of(cubic.fd()), "cubic");
}

TEST(NearConnections, OtherChoicesOfNearConnectionsStay) {
  NearConnections connections;
  const Loopback connection;
  ASSERT_TRUE(use(connection.fd(), "reno"));
  EXPECT_TRUE(connections.is_near(connection.fd()));
  EXPECT_EQ(control_of(connection.fd()), "reno");
  // Once left alone, it is whoever changes it later who decides.
  if (!use(connection.fd(), "bbr")) GTEST_SKIP() << kNoBbr;
  EXPECT_TRUE(connections.is_near(connection.fd()));
  EXPECT_EQ(control_of(connection.fd()), "bbr");
}

}  // namespace
}  // namespace tandem::transfer
