// Two processes: the peer is killed or stopped in the middle of a transfer.
#include "common/transfer/transport_test_support.h"

#include <gtest/gtest.h>

#include <signal.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>

namespace tandem::transfer {
namespace {

using testing::BackEnd;
using testing::fill_page;
using testing::Node;
using testing::test_name;
using testing::unit_header;

constexpr std::uint64_t kParent = 1;
constexpr std::uint64_t kChild = 2;
constexpr std::uint64_t kOther = 3;
constexpr std::uint32_t kPages = 64;
constexpr std::uint64_t kPageBytes = 1U << 20U;

void write_text(int fd, const std::string& text) {
  const auto size = static_cast<std::uint32_t>(text.size());
  ASSERT_EQ(::write(fd, &size, sizeof size), static_cast<ssize_t>(sizeof size));
  ASSERT_EQ(::write(fd, text.data(), text.size()), static_cast<ssize_t>(text.size()));
}

std::string read_text(int fd) {
  std::uint32_t size = 0;
  if (::read(fd, &size, sizeof size) != static_cast<ssize_t>(sizeof size) || size > 65536)
    return {};
  std::string text(size, '\0');
  std::size_t have = 0;
  while (have < size) {
    const ssize_t n = ::read(fd, text.data() + have, size - have);
    if (n <= 0) return {};
    have += static_cast<std::size_t>(n);
  }
  return text;
}

std::vector<std::uint32_t> all_pages() {
  std::vector<std::uint32_t> pages(kPages);
  for (std::uint32_t i = 0; i < kPages; ++i)
    pages[i] = i;
  return pages;
}

/// The other process: this test program, run with TANDEM_TRANSFER_CHILD=<fd>,<role>,<back end>.
/// It sends, or receives, until it is killed.
TEST(TransferChild, Main) {
  const char* spec = std::getenv("TANDEM_TRANSFER_CHILD");
  if (spec == nullptr) GTEST_SKIP() << "started by the tests of this program";
  int fd = -1;
  char role = 0;
  char back_end = 0;
  ASSERT_EQ(std::sscanf(spec, "%d,%c,%c", &fd, &role, &back_end), 3);
  Node node({.back_end = back_end == 't'   ? BackEnd::kUcxTcp
                         : back_end == 'p' ? BackEnd::kUcxPool
                                           : BackEnd::kUcx,
             .pages = kPages,
             .page_bytes = kPageBytes});
  for (std::uint32_t page = 0; page < kPages; ++page)
    fill_page(node.memory, page, page);
  write_text(fd, node.transport->address());
  node.transport->connect(kParent, read_text(fd));
  ASSERT_TRUE(node.next<PeerConnectedEvent>());
  if (role == 'r') {
    node.transport->open_landing(test_name(), 0, all_pages());
    write_text(fd, "open");
  } else {
    for (std::uint32_t unit = 0; unit < kPages; ++unit) {
      node.transport->send({.peer = kParent,
                            .header = unit_header(node.memory, unit, unit, 1),
                            .source_pages = {unit}});
    }
  }
  // Ends with the parent: its end of the socket is closed then.
  read_text(fd);
  ::_exit(0);
}

class Child {
 public:
  Child(char role, BackEnd back_end) {
    int fds[2];
    TANDEM_CHECK(::socketpair(AF_UNIX, SOCK_STREAM, 0, fds) == 0);
    fd_ = fds[0];
    const std::string spec = "TANDEM_TRANSFER_CHILD=" + std::to_string(fds[1]) + "," + role + "," +
                             (back_end == BackEnd::kUcxTcp    ? 't'
                              : back_end == BackEnd::kUcxPool ? 'p'
                                                              : 'u');
    std::vector<std::string> variables;
    for (char** v = environ; *v != nullptr; ++v)
      variables.emplace_back(*v);
    variables.push_back(spec);
    std::vector<char*> environment;
    for (std::string& v : variables)
      environment.push_back(v.data());
    environment.push_back(nullptr);
    char program[] = "/proc/self/exe";
    char filter[] = "--gtest_filter=TransferChild.Main";
    char brief[] = "--gtest_brief=1";
    char* arguments[] = {program, filter, brief, nullptr};
    pid_ = ::fork();
    if (pid_ == 0) {
      ::close(fds[0]);
      ::execve("/proc/self/exe", arguments, environment.data());
      ::_exit(127);
    }
    ::close(fds[1]);
  }

  ~Child() {
    end();
    ::close(fd_);
  }

  Child(const Child&) = delete;
  Child& operator=(const Child&) = delete;

  void hurt(int signal_number) const { ::kill(pid_, signal_number); }

  void end() {
    if (pid_ <= 0) return;
    ::kill(pid_, SIGKILL);
    ::waitpid(pid_, nullptr, 0);
    pid_ = 0;
  }

  [[nodiscard]] int fd() const { return fd_; }

 private:
  int fd_ = -1;
  pid_t pid_ = 0;
};

struct Row {
  const char* name;
  BackEnd back_end;
  int signal_number;
};

const Row kRows[] = {
    {"slots, kill -9", BackEnd::kUcx, SIGKILL},
    {"pool, kill -9", BackEnd::kUcxPool, SIGKILL},
    {"tcp, kill -9", BackEnd::kUcxTcp, SIGKILL},
    {"slots, stop", BackEnd::kUcx, SIGSTOP},
    {"pool, stop", BackEnd::kUcxPool, SIGSTOP},
    {"tcp, stop", BackEnd::kUcxTcp, SIGSTOP},
};

/// The receiver gets its pages back, and nothing lands in them afterwards.
TEST(TransferProcesses, SenderDiesInTheMiddle) {
  for (const Row& row : kRows) {
    SCOPED_TRACE(row.name);
    Node node({.back_end = row.back_end, .pages = kPages, .page_bytes = kPageBytes});
    node.transport->open_landing(test_name(), 0, all_pages());
    Child child('s', row.back_end);
    const std::string address = read_text(child.fd());
    ASSERT_FALSE(address.empty());
    node.transport->connect(kChild, address);
    write_text(child.fd(), node.transport->address());
    ASSERT_TRUE(node.next<UnitLandedEvent>());
    child.hurt(row.signal_number);
    // What the link's LinkDown makes the worker do.
    node.transport->disconnect(kChild);
    node.transport->close_landing(test_name());
    ASSERT_TRUE(node.next<LandingClosedEvent>());
    std::fill(node.bytes.begin(), node.bytes.end(), std::byte{0x55});
    if (row.signal_number == SIGSTOP) child.hurt(SIGCONT);
    ::usleep(100'000);  // gives a late byte the chance to prove us wrong
    EXPECT_EQ(std::count(node.bytes.begin(), node.bytes.end(), std::byte{0x55}),
              static_cast<std::ptrdiff_t>(node.bytes.size()));
    EXPECT_EQ(node.count<LandingClosedEvent>(), 0U);
  }
}

/// Every send ends exactly once, so that the sender gets its pages back.
TEST(TransferProcesses, ReceiverDiesInTheMiddle) {
  for (const Row& row : kRows) {
    SCOPED_TRACE(row.name);
    Node node({.back_end = row.back_end, .pages = kPages, .page_bytes = kPageBytes});
    Child child('r', row.back_end);
    const std::string address = read_text(child.fd());
    ASSERT_FALSE(address.empty());
    node.transport->connect(kChild, address);
    write_text(child.fd(), node.transport->address());
    ASSERT_EQ(read_text(child.fd()), "open");
    for (std::uint32_t unit = 0; unit < kPages; ++unit) {
      node.transport->send({.peer = kChild,
                            .header = unit_header(node.memory, unit, unit, 1),
                            .source_pages = {unit}});
    }
    ASSERT_TRUE(node.next<SendDoneEvent>());
    child.hurt(row.signal_number);
    node.transport->disconnect(kChild);
    for (std::uint32_t unit = 1; unit < kPages; ++unit)
      ASSERT_TRUE(node.next<SendDoneEvent>()) << unit;
    child.end();
    EXPECT_EQ(node.count<SendDoneEvent>(), 0U);
  }
}

/// A peer that is stopped before it has taken what fills its socket, and is not wanted any more,
/// delays nobody: the others are served. It may even go on later.
TEST(TransferProcesses, PeerThatIsStoppedDelaysNoOther) {
  Node node({.back_end = BackEnd::kUcxTcp, .pages = kPages, .page_bytes = kPageBytes});
  Child child('r', BackEnd::kUcxTcp);
  const std::string address = read_text(child.fd());
  ASSERT_FALSE(address.empty());
  node.transport->connect(kChild, address);
  write_text(child.fd(), node.transport->address());
  ASSERT_EQ(read_text(child.fd()), "open");
  const auto send_to = [&](std::uint64_t peer, std::uint32_t unit) {
    node.transport->send(
        {.peer = peer, .header = unit_header(node.memory, unit, unit, 1), .source_pages = {unit}});
  };
  send_to(kChild, 0);
  ASSERT_TRUE(node.next<SendDoneEvent>());
  child.hurt(SIGSTOP);
  for (std::uint32_t unit = 1; unit < kPages; ++unit)
    send_to(kChild, unit);
  ::usleep(200'000);  // gives the socket the chance to be full
  node.transport->disconnect(kChild);
  for (std::uint32_t unit = 1; unit < kPages; ++unit)
    ASSERT_TRUE(node.next<SendDoneEvent>()) << unit;

  Node other({.back_end = BackEnd::kUcxTcp, .pages = kPages, .page_bytes = kPageBytes});
  other.transport->connect(kParent, node.transport->address());
  other.transport->open_landing(test_name(), 0, all_pages());
  node.transport->connect(kOther, other.transport->address());
  for (const std::uint32_t unit : {0U, 1U}) {
    if (unit == 1) child.hurt(SIGCONT);
    send_to(kOther, unit);
    const auto done = node.next<SendDoneEvent>();
    ASSERT_TRUE(done);
    EXPECT_TRUE(done->status.ok()) << done->status.message();
    const auto landed = other.next<UnitLandedEvent>();
    ASSERT_TRUE(landed);
    EXPECT_TRUE(landed->crc_ok);
  }
  EXPECT_EQ(node.count<SendDoneEvent>(), 0U);
}

#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
/// What is left of a transport has a thread of UCX's, under which libraries must not be taken down.
TEST(TransferProcesses, NothingIsTakenDownUnderAWorkerThatIsLeft) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  const auto end = [] {
    std::atexit([] { ::_exit(77); });  // as a library's
    {
      Node node({.ends_with_process = true});
      Node peer({.ends_with_process = true});
      node.transport->connect(kChild, peer.transport->address());
      peer.transport->connect(kParent, node.transport->address());
      if (!node.next<PeerConnectedEvent>()) ::_exit(1);
      node.transport->disconnect(kChild);
    }
    std::fputs("and nothing that was written is lost", stderr);
    std::exit(5);
  };
  EXPECT_EXIT(end(), ::testing::ExitedWithCode(5), "is lost");
}
#endif

/// Without a word from the link, UCX itself notices a dead peer.
TEST(TransferProcesses, DeadReceiverIsNoticed) {
  for (const BackEnd back_end : {BackEnd::kUcx, BackEnd::kUcxPool, BackEnd::kUcxTcp}) {
    SCOPED_TRACE(back_end == BackEnd::kUcx       ? "slots"
                 : back_end == BackEnd::kUcxPool ? "pool"
                                                 : "tcp");
    Node node({.back_end = back_end, .pages = kPages, .page_bytes = kPageBytes});
    Child child('r', back_end);
    node.transport->connect(kChild, read_text(child.fd()));
    write_text(child.fd(), node.transport->address());
    ASSERT_EQ(read_text(child.fd()), "open");
    node.transport->send(
        {.peer = kChild, .header = unit_header(node.memory, 0, 0, 1), .source_pages = {0}});
    ASSERT_TRUE(node.next<SendDoneEvent>());
    child.end();
    const auto error = node.next<PeerDataErrorEvent>();
    ASSERT_TRUE(error);
    EXPECT_EQ(error->peer, kChild);
    node.transport->send(
        {.peer = kChild, .header = unit_header(node.memory, 1, 1, 1), .source_pages = {1}});
    const auto done = node.next<SendDoneEvent>();
    ASSERT_TRUE(done);
    EXPECT_FALSE(done->status.ok()) << "an endpoint that failed is never used again";
  }
}

}  // namespace
}  // namespace tandem::transfer
