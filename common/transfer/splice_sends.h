// Bytes that go into a socket from where they lie (private to the room).
#pragma once

#include "common/transfer/transport.h"

#include <sys/socket.h>

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace tandem::transfer {

/// sendmsg() that hands the kernel the pages of some of its parts, where sendmsg() copies them.
///
/// Why: the copy is a quarter of what a transfer costs the sender, and twice as much once the
/// kernel's buffers no longer come from the caches (docs/benchmarks.md).
///
/// The price: bytes that are accepted may still lie in the sender's memory, and the peer finds
/// what is there when it reads. So only memory may be named in which that is harmless: KV pages,
/// whose units carry a CRC of what they were.
///
/// One thread. SIGPIPE must be blocked or ignored on it: splice() has no flag against it.
/// Source: vmsplice(2), splice(2).
class SpliceSends {
 public:
  using Sendmsg = ssize_t (*)(int, const msghdr*, int);

  /// Shorter parts are copied: taking pages costs as much.
  static constexpr std::size_t kLeastBytes = kListPartBytes;

  SpliceSends() : is_off_(!is_worth_it_here()) {}

  ~SpliceSends();

  SpliceSends(const SpliceSends&) = delete;
  SpliceSends& operator=(const SpliceSends&) = delete;

  /// As sendmsg(fd, &message, flags) of a socket that does not block. Parts that lie in `memory`
  /// stay there; the others, and all where the system has no such way, go through `copy`.
  ssize_t send(
      int fd, const msghdr& message, int flags, std::span<const std::byte> memory, Sendmsg copy);

  /// False where the system has no such way, or no pipe for us now: then all is copied.
  [[nodiscard]] bool ready() { return !is_off_ && open(); }

  /// What was accepted without a copy. Monotonic.
  [[nodiscard]] std::uint64_t spliced_bytes() const { return spliced_bytes_; }

  /// Linux 6.5 sends a pipe's pages together; one at a time, as before, they cost what copying
  /// does. `release` as uname(2) has it.
  static bool is_worth_it(const char* release);
  static bool is_worth_it_here();

 private:
  bool open();
  void close();
  ssize_t splice_parts(int fd, std::span<const iovec> parts, bool more);

  int pipe_[2] = {-1, -1};   ///< empty between calls
  std::vector<iovec> rest_;  ///< of a call, for its memory
  bool is_off_;
  std::uint64_t spliced_bytes_ = 0;
};

}  // namespace tandem::transfer
