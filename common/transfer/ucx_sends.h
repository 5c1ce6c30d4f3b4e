// What is done about the sockets that UCX sends on (private to the room).
#pragma once

#include "common/transfer/near_connections.h"
#include "common/transfer/splice_sends.h"

#include <csignal>
#include <cstddef>
#include <cstdint>
#include <span>

namespace tandem::transfer {

/// While it lives, sendmsg() on this thread says EAGAIN where the connection is broken. UCX then
/// finds the break as it reads, which it does for every event of a connection before it sends.
///
/// Why: when it is a send from the caller's memory that goes on and finds the break, UCX 1.13 ends
/// that send twice and aborts the process (tcp_ep.c, uct_tcp_ep_sendv: the operation is purged with
/// the endpoint, and completed again behind that). A peer that is killed in the middle of a
/// transfer must not take this process along.
///
/// Sockets that are opened on this thread meanwhile start without BBR, which connections that leave
/// the machine get back (near_connections.h). What of large sends lies in `pages` is not copied
/// where they stay within it (splice_sends.h).
///
/// SIGPIPE is blocked on the thread meanwhile.
class ScopedUcxSends {
 public:
  /// Shorter sends say nothing about a connection that carries KV.
  static constexpr std::size_t kLargeBytes = std::size_t{64} << 10U;

  explicit ScopedUcxSends(std::span<const std::byte> pages);
  ~ScopedUcxSends();

  ScopedUcxSends(const ScopedUcxSends&) = delete;
  ScopedUcxSends& operator=(const ScopedUcxSends&) = delete;

  [[nodiscard]] std::uint64_t spliced_bytes() const { return splice_.spliced_bytes(); }

  /// Whether sends to near peers are spliced, and large ones that could have been. Monotonic.
  [[nodiscard]] bool splices() { return splice_.ready(); }

  [[nodiscard]] std::uint64_t near_sends() const { return near_sends_; }

  /// In place of sendmsg() on this thread, which is `next`.
  ssize_t send(int fd, const msghdr& message, int flags, SpliceSends::Sendmsg next);

 private:
  std::span<const std::byte> pages_;
  NearConnections connections_;
  SpliceSends splice_;
  std::uint64_t near_sends_ = 0;
  ScopedUcxSends* outer_ = nullptr;
  sigset_t mask_{};  ///< as it was
};

}  // namespace tandem::transfer
