// What is done about the sockets that UCX sends on (private to the room).
#pragma once

namespace tandem::transfer {

/// While it lives, sendmsg() on this thread says EAGAIN where the connection is broken. UCX then
/// finds the break as it reads, which it does for every event of a connection before it sends.
///
/// Why: when it is a send from the caller's memory that goes on and finds the break, UCX 1.13 ends
/// that send twice and aborts the process (tcp_ep.c, uct_tcp_ep_sendv: the operation is purged with
/// the endpoint, and completed again behind that). A peer that is killed in the middle of a
/// transfer must not take this process along.
///
/// Large sends also take their connection off BBR where it stays within the machine (pacing.h).
class ScopedUcxSends {
 public:
  ScopedUcxSends();
  ~ScopedUcxSends();

  ScopedUcxSends(const ScopedUcxSends&) = delete;
  ScopedUcxSends& operator=(const ScopedUcxSends&) = delete;
};

}  // namespace tandem::transfer
