// Which TCP connections stay within the machine, and what is done about them (private to the
// room).
#pragma once

#include <cstdint>
#include <string_view>
#include <unordered_map>

namespace tandem::transfer {

/// Tells connections within one machine from others: both ends have one address, or the shortest
/// round trip is under 10 us, within which no network card answers. Only those that are found far
/// go by BBR, where the system's setting (net.ipv4.tcp_congestion_control) is that.
///
/// Why: BBR lets segments go by a timer, at the rate that it believes the path to have. Between
/// processes of one machine there is no path to share, and the timer makes a transfer up to three
/// times as long (docs/benchmarks.md). It stays with a connection that BBR had once, whatever has
/// it afterwards (bbr_init() of Linux sets sk_pacing_status, nothing takes it back), so sockets
/// start without. What an administrator chose for a network holds there from the first send of 64
/// KiB on if it takes a millisecond, from the 64th if it takes less, and not for shorter sends.
///
/// One thread. Source: tcp(7), TCP_INFO and TCP_CONGESTION; socket(7), SO_COOKIE.
class NearConnections {
 public:
  /// Times that a connection is looked at; one that was never near by then is far.
  static constexpr int kLooks = 64;

  /// Before a send that is worth a look on socket `fd`; cheap once it is known what the connection
  /// is. A connection that start_without_pacing() had is given back to BBR when it is far. False
  /// for what is no TCP socket.
  bool is_near(int fd);

  /// For a socket that has no connection yet; those that a listening one accepts are as it is.
  static void start_without_pacing(int fd);

  /// Whether no network card answers so soon.
  static bool is_short(std::uint32_t min_rtt_us);
  /// Whether it surely goes to another machine. No round trip yet (~0): not said.
  static bool is_long(std::uint32_t min_rtt_us);
  /// Whether near connections are to do without `control`.
  static bool is_needless(std::string_view control);

 private:
  struct Seen {
    std::uint64_t cookie = 0;  ///< a descriptor's number is used again, this is not
    int looks_left = 0;
    bool near = false;
  };

  std::unordered_map<int, Seen> seen_;
};

}  // namespace tandem::transfer
