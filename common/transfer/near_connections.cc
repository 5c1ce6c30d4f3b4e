#include "common/transfer/near_connections.h"

#include <linux/tcp.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <array>
#include <cstddef>
#include <cstring>
#include <optional>
#include <string>

namespace tandem::transfer {
namespace {

constexpr std::string_view kPacing = "bbr";
/// Every kernel has it, and everybody may choose it.
constexpr std::string_view kInstead = "reno";
constexpr std::uint32_t kNearUs = 10;
/// Within the machine the first round trip is no matter of processes: the kernel answers.
constexpr std::uint32_t kFarUs = 1000;
constexpr std::size_t kNameBytes = 16;  // TCP_CA_NAME_MAX

/// Nothing where the kernel does not tell: before 4.6, and of other sockets than TCP's.
std::optional<std::uint32_t> min_rtt_us(int fd) {
  tcp_info info{};
  socklen_t size = sizeof info;
  if (::getsockopt(fd, IPPROTO_TCP, TCP_INFO, &info, &size) != 0) return std::nullopt;
  if (size < offsetof(tcp_info, tcpi_min_rtt) + sizeof info.tcpi_min_rtt) return std::nullopt;
  return info.tcpi_min_rtt;
}

/// Packets of such a connection have nowhere else to go.
bool has_one_address(int fd) {
  sockaddr_storage own{};
  sockaddr_storage peers{};
  socklen_t own_size = sizeof own;
  socklen_t peers_size = sizeof peers;
  if (::getsockname(fd, reinterpret_cast<sockaddr*>(&own), &own_size) != 0 ||
      ::getpeername(fd, reinterpret_cast<sockaddr*>(&peers), &peers_size) != 0 ||
      own.ss_family != peers.ss_family) {
    return false;
  }
  if (own.ss_family == AF_INET) {
    return reinterpret_cast<const sockaddr_in&>(own).sin_addr.s_addr ==
           reinterpret_cast<const sockaddr_in&>(peers).sin_addr.s_addr;
  }
  return own.ss_family == AF_INET6 &&
         std::memcmp(&reinterpret_cast<const sockaddr_in6&>(own).sin6_addr,
                     &reinterpret_cast<const sockaddr_in6&>(peers).sin6_addr,
                     sizeof(in6_addr)) == 0;
}

/// Empty of what is no TCP socket.
std::string control_of(int fd) {
  std::array<char, kNameBytes> name{};
  socklen_t size = name.size();
  if (::getsockopt(fd, IPPROTO_TCP, TCP_CONGESTION, name.data(), &size) != 0) return {};
  return {name.data(), ::strnlen(name.data(), name.size())};
}

/// Where it may not be changed, the connection stays as it is.
void set_control(int fd, std::string_view control) {
  (void)::setsockopt(
      fd, IPPROTO_TCP, TCP_CONGESTION, control.data(), static_cast<socklen_t>(control.size()));
}

/// Whether sockets start with it. Not by socket(), which is ours on UCX's thread.
bool system_paces() {
  const int fd = static_cast<int>(::syscall(SYS_socket, AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  if (fd < 0) return false;
  const bool paces = NearConnections::is_needless(control_of(fd));
  ::close(fd);
  return paces;
}

}  // namespace

bool NearConnections::is_short(std::uint32_t min_rtt_us) {
  return min_rtt_us < kNearUs;
}

bool NearConnections::is_long(std::uint32_t min_rtt_us) {
  return min_rtt_us >= kFarUs && min_rtt_us != ~std::uint32_t{0};
}

bool NearConnections::is_needless(std::string_view control) {
  return control == kPacing;
}

void NearConnections::start_without_pacing(int fd) {
  if (is_needless(control_of(fd))) set_control(fd, kInstead);
}

bool NearConnections::is_near(int fd) {
  std::uint64_t cookie = 0;
  socklen_t size = sizeof cookie;
  if (::getsockopt(fd, SOL_SOCKET, SO_COOKIE, &cookie, &size) != 0) return false;
  Seen& seen = seen_[fd];
  if (seen.cookie != cookie) seen = {.cookie = cookie, .looks_left = kLooks};
  if (seen.looks_left == 0) return seen.near;
  --seen.looks_left;
  const auto rtt = min_rtt_us(fd);
  seen.near = has_one_address(fd) || (rtt && is_short(*rtt));
  if (seen.near || !rtt || is_long(*rtt)) seen.looks_left = 0;
  const bool is_far = !seen.near && seen.looks_left == 0;
  if (is_far && control_of(fd) == kInstead && system_paces()) set_control(fd, kPacing);
  return seen.near;
}

}  // namespace tandem::transfer
