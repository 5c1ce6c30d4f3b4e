#include "common/transfer/ucx_sends.h"

#include <dlfcn.h>
#include <sys/socket.h>

#include <cerrno>
#include <ctime>

namespace tandem::transfer {
namespace {

thread_local ScopedUcxSends* current = nullptr;

/// Errors after which a TCP connection is shut, so that reading it says so, too.
bool is_broken(int error) {
  return error == EPIPE || error == ECONNRESET || error == ECONNABORTED || error == ETIMEDOUT ||
         error == EHOSTUNREACH || error == ENETUNREACH;
}

sigset_t only_sigpipe() {
  sigset_t set;
  sigemptyset(&set);
  sigaddset(&set, SIGPIPE);
  return set;
}

}  // namespace

ScopedUcxSends::ScopedUcxSends(std::span<const std::byte> pages) : pages_(pages), outer_(current) {
  const sigset_t pipe = only_sigpipe();
  ::pthread_sigmask(SIG_BLOCK, &pipe, &mask_);
  current = this;
}

ScopedUcxSends::~ScopedUcxSends() {
  current = outer_;
  // Whoever had it blocked before may wait for it; nobody else is to be hit by ours.
  if (sigismember(&mask_, SIGPIPE) == 0) {
    const sigset_t pipe = only_sigpipe();
    const timespec at_once{};
    (void)::sigtimedwait(&pipe, nullptr, &at_once);
  }
  ::pthread_sigmask(SIG_SETMASK, &mask_, nullptr);
}

ssize_t ScopedUcxSends::send(int fd, const msghdr& message, int flags, SpliceSends::Sendmsg next) {
  std::size_t bytes = 0;
  for (std::size_t i = 0; i < message.msg_iovlen; ++i)
    bytes += message.msg_iov[i].iov_len;
  const bool splices = bytes >= kLargeBytes && connections_.is_near(fd);
  near_sends_ += splices && splice_.ready() ? 1 : 0;
  const ssize_t sent =
      splices ? splice_.send(fd, message, flags, pages_, next) : next(fd, &message, flags);
  if (sent < 0 && is_broken(errno)) errno = EAGAIN;
  return sent;
}

}  // namespace tandem::transfer

/// Both in place of libc's, for every library of the process: UCX has no other door to what its
/// sockets say, and start with.
extern "C" __attribute__((visibility("default"))) ssize_t sendmsg(int fd,
                                                                  const msghdr* message,
                                                                  int flags) {
  static const auto kNext = reinterpret_cast<decltype(&::sendmsg)>(::dlsym(RTLD_NEXT, "sendmsg"));
  if (tandem::transfer::current == nullptr) return kNext(fd, message, flags);
  return tandem::transfer::current->send(fd, *message, flags, kNext);
}

extern "C" __attribute__((visibility("default"))) int socket(int domain, int type, int protocol) {
  static const auto kNext = reinterpret_cast<decltype(&::socket)>(::dlsym(RTLD_NEXT, "socket"));
  const int fd = kNext(domain, type, protocol);
  if (fd >= 0 && tandem::transfer::current != nullptr) {
    tandem::transfer::NearConnections::start_without_pacing(fd);
  }
  return fd;
}
