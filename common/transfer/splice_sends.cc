#include "common/transfer/splice_sends.h"

#include <fcntl.h>
#include <sys/uio.h>
#include <sys/utsname.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>
#include <cstdio>

namespace tandem::transfer {
namespace {

/// Of the pipe: what everybody may ask for (fs.pipe-max-size), 256 pages.
constexpr int kPipeBytes = 1 << 20;

bool is_in(std::span<const std::byte> memory, const iovec& part) {
  const auto begin = reinterpret_cast<std::uintptr_t>(part.iov_base);
  const auto base = reinterpret_cast<std::uintptr_t>(memory.data());
  return part.iov_len >= SpliceSends::kLeastBytes && part.iov_len <= memory.size() &&
         begin >= base && begin - base <= memory.size() - part.iov_len;
}

/// The system, or this kind of socket, has no such way, and never will.
bool is_refusal(int error) {
  return error == ENOSYS || error == EPERM || error == EINVAL || error == EOPNOTSUPP;
}

std::size_t bytes_of(std::span<const iovec> parts) {
  std::size_t bytes = 0;
  for (const iovec& part : parts)
    bytes += part.iov_len;
  return bytes;
}

/// The first `bytes` of `parts` are done with.
void drop(std::span<iovec>& parts, std::size_t bytes) {
  while (!parts.empty() && bytes >= parts.front().iov_len) {
    bytes -= parts.front().iov_len;
    parts = parts.subspan(1);
  }
  if (parts.empty()) return;
  parts.front().iov_base = static_cast<std::byte*>(parts.front().iov_base) + bytes;
  parts.front().iov_len -= bytes;
}

}  // namespace

SpliceSends::~SpliceSends() {
  close();
}

bool SpliceSends::is_worth_it(const char* release) {
  int major = 0;
  int minor = 0;
  if (std::sscanf(release, "%d.%d", &major, &minor) != 2) return false;
  return major > 6 || (major == 6 && minor >= 5);
}

bool SpliceSends::is_worth_it_here() {
  utsname system{};
  return ::uname(&system) == 0 && is_worth_it(system.release);
}

bool SpliceSends::open() {
  if (pipe_[0] >= 0) return true;
  if (::pipe2(pipe_, O_NONBLOCK | O_CLOEXEC) != 0) return false;
  if (::fcntl(pipe_[1], F_SETPIPE_SZ, kPipeBytes) >= kPipeBytes) return true;
  close();
  return false;
}

void SpliceSends::close() {
  for (int& end : pipe_) {
    if (end >= 0) ::close(end);
    end = -1;
  }
}

ssize_t SpliceSends::send(
    int fd, const msghdr& message, int flags, std::span<const std::byte> memory, Sendmsg copy) {
  const std::span<const iovec> parts(message.msg_iov, message.msg_iovlen);
  ssize_t total = 0;
  std::size_t i = 0;
  bool copies = !ready();
  while (i < parts.size()) {
    const bool in_place = !copies && is_in(memory, parts[i]);
    std::size_t end = i + 1;
    while (end < parts.size() && (copies || in_place == is_in(memory, parts[end])))
      ++end;
    const bool more = end < parts.size() || (flags & MSG_MORE) != 0;
    ssize_t sent = 0;
    if (in_place) {
      sent = splice_parts(fd, parts.subspan(i, end - i), more);
      // Copying says what is wrong with the connection, if anything is.
      copies = sent < 0 && errno != EAGAIN;
      if (copies) continue;
    } else {
      msghdr some = message;
      some.msg_iov = message.msg_iov + i;
      some.msg_iovlen = end - i;
      sent = copy(fd, &some, flags | (more ? MSG_MORE : 0));
    }
    if (sent < 0) return total > 0 ? total : sent;
    total += sent;
    if (static_cast<std::size_t>(sent) < bytes_of(parts.subspan(i, end - i))) return total;
    i = end;
  }
  return total;
}

/// How much of them the socket took, or -1 and errno.
ssize_t SpliceSends::splice_parts(int fd, std::span<const iovec> parts, bool more) {
  std::size_t sent = 0;
  rest_.assign(parts.begin(), parts.end());
  for (std::span<iovec> rest = rest_; !rest.empty();) {
    const ssize_t piped = ::vmsplice(pipe_[1], rest.data(), rest.size(), SPLICE_F_NONBLOCK);
    ssize_t in_pipe = piped;
    ssize_t taken = piped;
    while (in_pipe > 0) {
      taken = ::splice(pipe_[0],
                       nullptr,
                       fd,
                       nullptr,
                       static_cast<std::size_t>(in_pipe),
                       SPLICE_F_NONBLOCK | (more ? SPLICE_F_MORE : 0U));
      if (taken <= 0) break;
      in_pipe -= taken;
      sent += static_cast<std::size_t>(taken);
      spliced_bytes_ += static_cast<std::uint64_t>(taken);
    }
    if (taken <= 0) {
      const int why = taken == 0 ? EAGAIN : errno;
      is_off_ = is_refusal(why);
      close();  // with what the socket did not take
      errno = why;
      return sent > 0 ? static_cast<ssize_t>(sent) : -1;
    }
    drop(rest, static_cast<std::size_t>(piped));
  }
  return static_cast<ssize_t>(sent);
}

}  // namespace tandem::transfer
