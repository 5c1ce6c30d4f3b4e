// What UCX sees of a connection that its peer has reset.
#include "common/transfer/ucx_sends.h"

#include "common/transfer/loopback_test_support.h"

#include <gtest/gtest.h>

#include <dlfcn.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <thread>

namespace tandem::transfer {
namespace {

/// One end of a TCP connection whose other end has reset it.
class BrokenConnection {
 public:
  BrokenConnection() {
    const auto [caller, peer] = testing::connect_over_loopback();
    fd_ = caller;
    const linger reset{.l_onoff = 1, .l_linger = 0};
    EXPECT_EQ(::setsockopt(peer, SOL_SOCKET, SO_LINGER, &reset, sizeof reset), 0);
    ::close(peer);
    pollfd broken{.fd = fd_, .events = POLLIN, .revents = 0};
    EXPECT_EQ(::poll(&broken, 1, 20'000), 1);
  }

  ~BrokenConnection() { ::close(fd_); }

  BrokenConnection(const BrokenConnection&) = delete;
  BrokenConnection& operator=(const BrokenConnection&) = delete;

  /// errno of a send.
  [[nodiscard]] int send_error() const {
    char byte = 'x';
    iovec part{.iov_base = &byte, .iov_len = 1};
    msghdr message{};
    message.msg_iov = &part;
    message.msg_iovlen = 1;
    return ::sendmsg(fd_, &message, MSG_NOSIGNAL) < 0 ? errno : 0;
  }

  /// Whether reading tells that the connection has ended: without waiting.
  [[nodiscard]] bool reading_ends() const {
    char byte = 0;
    const ssize_t got = ::recv(fd_, &byte, 1, MSG_DONTWAIT);
    return got == 0 || (got < 0 && errno != EAGAIN);
  }

 private:
  int fd_ = -1;
};

TEST(UcxSends, ABreakIsForReadingToFind) {
  const BrokenConnection connection;
  ScopedUcxSends sends({});
  EXPECT_EQ(connection.send_error(), EAGAIN);
  EXPECT_EQ(connection.send_error(), EAGAIN);
  EXPECT_TRUE(connection.reading_ends());
}

TEST(UcxSends, OthersSeeIt) {
  const BrokenConnection connection;
  { ScopedUcxSends ended({}); }
  ScopedUcxSends here({});
  std::thread([&connection] {
    EXPECT_EQ(connection.send_error(), ECONNRESET);
    EXPECT_EQ(connection.send_error(), EPIPE);
  }).join();
}

/// A library that is loaded later, as UCX is, calls what it finds so.
TEST(UcxSends, LibrariesFindIt) {
  EXPECT_EQ(::dlsym(RTLD_DEFAULT, "sendmsg"), reinterpret_cast<void*>(&::sendmsg));
  EXPECT_NE(::dlsym(RTLD_NEXT, "sendmsg"), reinterpret_cast<void*>(&::sendmsg));
  EXPECT_EQ(::dlsym(RTLD_DEFAULT, "socket"), reinterpret_cast<void*>(&::socket));
  EXPECT_NE(::dlsym(RTLD_NEXT, "socket"), reinterpret_cast<void*>(&::socket));
}

}  // namespace
}  // namespace tandem::transfer
