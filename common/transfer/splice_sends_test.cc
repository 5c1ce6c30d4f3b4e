// Sends that leave their bytes where they lie.
#include "common/transfer/splice_sends.h"

#include "common/transfer/loopback_test_support.h"
#include "common/transfer/ucx_sends.h"

#include <gtest/gtest.h>

#include <fcntl.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <optional>
#include <string>
#include <vector>

namespace tandem::transfer {
namespace {

constexpr std::size_t kPart = std::size_t{200} << 10U;

/// A connection whose first end does not block.
class Connection {
 public:
  Connection() {
    const auto ends = testing::connect_over_loopback();
    from_ = ends.caller;
    to_ = ends.peer;
    EXPECT_EQ(::fcntl(from_, F_SETFL, O_NONBLOCK), 0);
  }

  ~Connection() {
    ::close(from_);
    close_peer();
  }

  Connection(const Connection&) = delete;
  Connection& operator=(const Connection&) = delete;

  [[nodiscard]] int from() const { return from_; }

  void close_peer() {
    if (to_ >= 0) ::close(to_);
    to_ = -1;
  }

  [[nodiscard]] std::string read(std::size_t bytes) const {
    std::string got(bytes, '\0');
    EXPECT_EQ(::recv(to_, got.data(), bytes, MSG_WAITALL), static_cast<ssize_t>(bytes));
    return got;
  }

 private:
  int from_ = -1;
  int to_ = -1;
};

int copies = 0;

ssize_t counted_copy(int fd, const msghdr* message, int flags) {
  ++copies;
  return ::sendmsg(fd, message, flags);
}

/// Memory of which bytes may stay where they are, each part another letter; and a message of it, as
/// UCX writes them.
class Sender {
 public:
  explicit Sender(std::size_t parts) : pages_(parts * kPart, ' ') {
    for (std::size_t i = 0; i < pages_.size(); ++i)
      pages_[i] = static_cast<char>('a' + (i / 997) % 26);
  }

  [[nodiscard]] std::string& pages() { return pages_; }

  [[nodiscard]] std::span<const std::byte> memory() const {
    return std::as_bytes(std::span(pages_));
  }

  [[nodiscard]] iovec part(std::size_t offset, std::size_t bytes) {
    return {.iov_base = pages_.data() + offset, .iov_len = bytes};
  }

  /// All of the memory from `offset` on, no part across a multiple of `piece`.
  [[nodiscard]] std::vector<iovec> rest(std::size_t offset, std::size_t piece) {
    std::vector<iovec> parts;
    while (offset < pages_.size()) {
      const std::size_t end = std::min(offset / piece * piece + piece, pages_.size());
      parts.push_back(part(offset, end - offset));
      offset = end;
    }
    return parts;
  }

  ssize_t send(int fd, std::vector<iovec> parts) {
    msghdr message{};
    message.msg_iov = parts.data();
    message.msg_iovlen = parts.size();
    return splice_.send(fd, message, MSG_NOSIGNAL, memory(), &counted_copy);
  }

  [[nodiscard]] std::uint64_t spliced_bytes() const { return splice_.spliced_bytes(); }

 private:
  std::string pages_;
  SpliceSends splice_;
};

iovec part_of(std::string& text) {
  return {.iov_base = text.data(), .iov_len = text.size()};
}

TEST(SpliceSends, EverySystemSinceLinux65) {
  for (const char* release : {"6.5.0", "6.18.44-fc-v657", "7.0", "10.1.2-generic"})
    EXPECT_TRUE(SpliceSends::is_worth_it(release)) << release;
  for (const char* release : {"6.4.99", "6.1.0-28-amd64", "5.15.0", "", "linux"})
    EXPECT_FALSE(SpliceSends::is_worth_it(release)) << release;
}

TEST(SpliceSends, LongPartsOfTheMemoryStayWhereTheyAre) {
  const Connection connection;
  Sender sender(2);
  std::string header = "head>";
  std::string footer(88, '#');
  std::string elsewhere(kPart, '-');
  const std::size_t small = SpliceSends::kLeastBytes - 1;
  const std::string first = sender.pages().substr(0, kPart);
  const std::string second = sender.pages().substr(kPart, small);
  const auto all = header.size() + kPart + footer.size() + small + elsewhere.size();
  ASSERT_EQ(sender.send(connection.from(),
                        {part_of(header),
                         sender.part(0, kPart),
                         part_of(footer),
                         sender.part(kPart, small),
                         part_of(elsewhere)}),
            static_cast<ssize_t>(all));
  const bool splices = SpliceSends::is_worth_it_here();
  EXPECT_EQ(sender.spliced_bytes(), splices ? kPart : 0);
  // All of it is on its way; what was copied does not change any more.
  std::ranges::fill(header, '!');
  std::ranges::fill(footer, '!');
  std::ranges::fill(elsewhere, '!');
  std::ranges::fill(sender.pages(), '!');
  const std::string got = connection.read(all);
  EXPECT_EQ(got.substr(0, 5), "head>");
  EXPECT_EQ(got.substr(5, kPart), splices ? std::string(kPart, '!') : first);
  EXPECT_EQ(got.substr(5 + kPart, 88), std::string(88, '#'));
  EXPECT_EQ(got.substr(5 + kPart + 88, small), second) << "too short to be worth it";
  EXPECT_EQ(got.substr(all - kPart), std::string(kPart, '-')) << "not in the memory";
}

/// Memory of so many kPart, each message a header and all of it in pieces.
void fill_and_send_again(std::size_t parts, std::size_t piece) {
  const Connection connection;
  Sender sender(parts);
  std::string header = "head>";
  const std::size_t whole = parts * kPart;
  std::string sent;
  bool was_full = false;
  // Messages of a header and all pages, until the socket is full in the middle of one; then the
  // rest of that one, as the peer makes room.
  while (!was_full) {
    std::vector<iovec> message = sender.rest(0, piece);
    message.insert(message.begin(), part_of(header));
    const ssize_t took = sender.send(connection.from(), message);
    ASSERT_GT(took, 0);
    sent += (header + sender.pages()).substr(0, static_cast<std::size_t>(took));
    was_full = static_cast<std::size_t>(took) < header.size() + whole;
  }
  ASSERT_EQ(sender.send(connection.from(), sender.rest(0, piece)), -1);
  EXPECT_EQ(errno, EAGAIN);
  std::size_t at = sent.size() % (header.size() + whole);
  std::string got;
  while (at > 0 && at < header.size() + whole) {
    const std::size_t some = std::min<std::size_t>(sent.size() - got.size(), 50'000);
    if (some > 0) got += connection.read(some);
    const std::size_t from = at < header.size() ? 0 : at - header.size();
    const ssize_t took =
        at < header.size()
            ? sender.send(connection.from(), {{header.data() + at, header.size() - at}})
            : sender.send(connection.from(), sender.rest(from, piece));
    if (took < 0) {
      ASSERT_EQ(errno, EAGAIN);
      continue;
    }
    sent += (header + sender.pages()).substr(at, static_cast<std::size_t>(took));
    at += static_cast<std::size_t>(took);
  }
  got += connection.read(sent.size() - got.size());
  EXPECT_EQ(sent.size() % (header.size() + whole), 0U);
  EXPECT_TRUE(got == sent) << "lost, doubled or out of order";
  EXPECT_EQ(sender.spliced_bytes() > 0, SpliceSends::is_worth_it_here());
}

TEST(SpliceSends, WhatAFullSocketDoesNotTakeIsSentAgain) {
  fill_and_send_again(4, 4 * kPart);
}

TEST(SpliceSends, AlsoOfPartsThatFollowEachOther) {
  fill_and_send_again(8, kPart);  // more than the pipe takes at once
  fill_and_send_again(3, std::size_t{40} << 10U);
}

TEST(SpliceSends, APeerThatIsGoneIsAnErrorAndNoSignal) {
  Connection connection;
  ScopedUcxSends blocks({});
  Sender sender(1);
  connection.close_peer();
  // The first finds the connection open, and has it reset.
  (void)sender.send(connection.from(), {sender.part(0, kPart)});
  for (int i = 0; i < 3; ++i) {
    EXPECT_EQ(sender.send(connection.from(), {sender.part(0, kPart)}), -1);
    EXPECT_EQ(errno, EAGAIN) << "as ScopedUcxSends has it";
  }
}

TEST(SpliceSends, TheSignalOfALostPeerDoesNotOutliveTheScope) {
  sigset_t before;
  ASSERT_EQ(::pthread_sigmask(SIG_SETMASK, nullptr, &before), 0);
  ASSERT_EQ(sigismember(&before, SIGPIPE), 0);
  {
    ScopedUcxSends blocks({});
    ASSERT_EQ(::pthread_kill(::pthread_self(), SIGPIPE), 0);
  }
  sigset_t after;
  ASSERT_EQ(::pthread_sigmask(SIG_SETMASK, nullptr, &after), 0);
  EXPECT_EQ(sigismember(&after, SIGPIPE), 0);
}

TEST(SpliceSends, WithoutAPipeAllIsCopied) {
  const Connection connection;
  Sender sender(1);
  rlimit before{};
  ASSERT_EQ(::getrlimit(RLIMIT_NOFILE, &before), 0);
  const rlimit none{.rlim_cur = 0, .rlim_max = before.rlim_max};
  std::string header = "head>";
  std::string footer(88, '#');
  const std::string want = header + sender.pages() + footer;
  copies = 0;
  ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &none), 0);
  const ssize_t sent =
      sender.send(connection.from(), {part_of(header), sender.part(0, kPart), part_of(footer)});
  ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &before), 0);
  ASSERT_EQ(sent, static_cast<ssize_t>(want.size()));
  EXPECT_EQ(sender.spliced_bytes(), 0U);
  EXPECT_EQ(copies, 1) << "a system call is not for each part";
  std::ranges::fill(sender.pages(), '!');
  EXPECT_TRUE(connection.read(want.size()) == want);
  // It is tried again when there may be one.
  ASSERT_EQ(sender.send(connection.from(), {sender.part(0, kPart)}), static_cast<ssize_t>(kPart));
  EXPECT_EQ(sender.spliced_bytes(), SpliceSends::is_worth_it_here() ? kPart : 0);
}

}  // namespace
}  // namespace tandem::transfer
