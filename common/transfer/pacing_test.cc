// Connections within the machine that BBR slows down, and those that are left as they are.
#include "common/transfer/pacing.h"

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

TEST(Pacing, NeedlessOnlyForBbrWithinTheMachine) {
  struct Row {
    const char* name;
    const char* control;
    std::uint32_t min_rtt_us;
    bool want;
  };

  constexpr Row kRows[] = {
      {"loopback", "bbr", 3, true},
      {"the last that is near", "bbr", 9, true},
      {"the first that is far", "bbr", 10, false},
      {"no round trip yet", "bbr", ~0U, false},
      {"what does not pace", "cubic", 3, false},
      {"a setting for a network of one's own", "dctcp", 3, false},
      {"a newer BBR is somebody's choice", "bbr2", 3, false},
  };
  for (const Row& row : kRows) {
    SCOPED_TRACE(row.name);
    EXPECT_EQ(Pacing::is_needless(row.control, row.min_rtt_us), row.want);
  }
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

  [[nodiscard]] bool is_near() const {
    tcp_info info{};
    socklen_t size = sizeof info;
    EXPECT_EQ(::getsockopt(fd_, IPPROTO_TCP, TCP_INFO, &info, &size), 0);
    return Pacing::is_needless("bbr", info.tcpi_min_rtt);
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

/// Sends until the connection is seen to be near, and once more, while `Pacing` still looks: what
/// comes near only after the last look is far to it, and must be so here.
/// False: this machine does not answer itself within 10 us (emulated and busy ones).
bool send_until_near(const Loopback& connection) {
  for (int sends = 0; sends < Pacing::kLooks; ++sends) {
    const bool is_near = connection.is_near();
    connection.send(kLarge);
    if (is_near) return true;
  }
  return false;
}

TEST(Pacing, LargeSendsOfUcxWithinTheMachineGoOnWithoutBbr) {
  const Loopback connection;
  if (!connection.use("bbr")) GTEST_SKIP() << "skipped: this kernel has no BBR for us";
  if (!send_until_near(connection)) GTEST_SKIP() << "skipped: no short round trips here";
  EXPECT_EQ(connection.control(), "bbr") << "not a send of UCX";
  const ScopedUcxSends sends;
  connection.send(Pacing::kLeastBytes - 1);
  EXPECT_EQ(connection.control(), "bbr") << "a small send";
  connection.send(Pacing::kLeastBytes);
  EXPECT_EQ(connection.control(), "reno");
}

TEST(Pacing, ADescriptorsNextConnectionIsLookedAtAnew) {
  const ScopedUcxSends sends;
  for (int i = 0; i < 2; ++i) {
    const Loopback connection;
    if (!connection.use("bbr")) GTEST_SKIP() << "skipped: this kernel has no BBR for us";
    if (!send_until_near(connection)) GTEST_SKIP() << "skipped: no short round trips here";
    EXPECT_EQ(connection.control(), "reno");
  }
}

TEST(Pacing, OtherChoicesStay) {
  const ScopedUcxSends sends;
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
