#include "common/transfer/ucx_sends.h"

#include "common/transfer/pacing.h"

#include <dlfcn.h>
#include <sys/socket.h>

#include <cerrno>

namespace tandem::transfer {
namespace {

thread_local int scopes = 0;

/// Errors after which a TCP connection is shut, so that reading it says so, too.
bool is_broken(int error) {
  return error == EPIPE || error == ECONNRESET || error == ECONNABORTED || error == ETIMEDOUT ||
         error == EHOSTUNREACH || error == ENETUNREACH;
}

void before_send(int fd, const msghdr& message) {
  thread_local Pacing pacing;
  std::size_t bytes = 0;
  for (std::size_t i = 0; i < message.msg_iovlen; ++i)
    bytes += message.msg_iov[i].iov_len;
  pacing.before_send(fd, bytes);
}

}  // namespace

ScopedUcxSends::ScopedUcxSends() {
  ++scopes;
}

ScopedUcxSends::~ScopedUcxSends() {
  --scopes;
}

}  // namespace tandem::transfer

/// In place of libc's, for every library of the process: UCX has no other door to what its sockets
/// say.
extern "C" __attribute__((visibility("default"))) ssize_t sendmsg(int fd,
                                                                  const msghdr* message,
                                                                  int flags) {
  static const auto kNext = reinterpret_cast<decltype(&::sendmsg)>(::dlsym(RTLD_NEXT, "sendmsg"));
  if (tandem::transfer::scopes > 0) tandem::transfer::before_send(fd, *message);
  const ssize_t sent = kNext(fd, message, flags);
  if (sent < 0 && tandem::transfer::scopes > 0 && tandem::transfer::is_broken(errno))
    errno = EAGAIN;
  return sent;
}
