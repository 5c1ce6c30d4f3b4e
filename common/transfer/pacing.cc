#include "common/transfer/pacing.h"

#include <linux/tcp.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <array>
#include <cstddef>

namespace tandem::transfer {
namespace {

constexpr std::string_view kPacing = "bbr";
/// Every kernel has it, and everybody may choose it.
constexpr std::string_view kInstead = "reno";
constexpr std::uint32_t kNearUs = 10;
constexpr std::size_t kNameBytes = 16;  // TCP_CA_NAME_MAX

}  // namespace

bool Pacing::is_needless(std::string_view control, std::uint32_t min_rtt_us) {
  return control == kPacing && min_rtt_us < kNearUs;
}

void Pacing::before_send(int fd, std::size_t bytes) {
  if (bytes < kLeastBytes) return;
  std::uint64_t cookie = 0;
  socklen_t size = sizeof cookie;
  if (::getsockopt(fd, SOL_SOCKET, SO_COOKIE, &cookie, &size) != 0) return;
  Seen& seen = seen_[fd];
  if (seen.cookie != cookie) seen = {.cookie = cookie, .looks_left = kLooks};
  if (seen.looks_left == 0) return;
  --seen.looks_left;
  std::array<char, kNameBytes> name{};
  size = name.size();
  const bool is_tcp = ::getsockopt(fd, IPPROTO_TCP, TCP_CONGESTION, name.data(), &size) == 0;
  const std::string_view control(name.data());
  if (!is_tcp || control != kPacing) {
    seen.looks_left = 0;
    return;
  }
  tcp_info info{};
  size = sizeof info;
  if (::getsockopt(fd, IPPROTO_TCP, TCP_INFO, &info, &size) != 0) return;
  // Kernels before 4.6 do not tell.
  if (size < offsetof(tcp_info, tcpi_min_rtt) + sizeof info.tcpi_min_rtt) return;
  if (!is_needless(control, info.tcpi_min_rtt)) return;
  seen.looks_left = 0;
  // Where it may not be changed, the connection stays as it is.
  (void)::setsockopt(fd, IPPROTO_TCP, TCP_CONGESTION, kInstead.data(), socklen_t{kInstead.size()});
}

}  // namespace tandem::transfer
