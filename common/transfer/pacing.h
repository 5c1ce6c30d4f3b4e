// Pacing: a connection that never leaves the machine is not to be slowed down (private to the
// room).
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>
#include <unordered_map>

namespace tandem::transfer {

/// Takes connections within one machine off BBR, where the system's setting
/// (net.ipv4.tcp_congestion_control) put them on it.
///
/// Why: BBR lets segments go by a timer, at the rate that it believes the path to have. Between
/// processes of one machine there is no path to share, and the timer's interrupts are a sixth of
/// what a transfer costs (docs/benchmarks.md). What an administrator chose for a network stays: a
/// connection is near when its shortest round trip is under 10 us, and no network card answers so
/// soon.
///
/// One thread. Source: tcp(7), TCP_INFO and TCP_CONGESTION.
class Pacing {
 public:
  /// Shorter sends say nothing about a connection that carries KV.
  static constexpr std::size_t kLeastBytes = std::size_t{64} << 10U;
  /// Large sends after which a connection that was never near is far.
  static constexpr int kLooks = 64;

  /// Before `bytes` go out on socket `fd`; cheap once it is known what to do.
  void before_send(int fd, std::size_t bytes);

  /// Whether a connection under `control` with this shortest round trip is to go on without.
  static bool is_needless(std::string_view control, std::uint32_t min_rtt_us);

 private:
  struct Seen {
    std::uint64_t cookie = 0;  ///< a descriptor's number is used again, this is not
    int looks_left = 0;
  };

  std::unordered_map<int, Seen> seen_;
};

}  // namespace tandem::transfer
