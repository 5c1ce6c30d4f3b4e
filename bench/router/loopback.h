// TCP within the machine, as the benchmark's own client and its bare relay use it.
#pragma once

#include <cstdint>

namespace tandem::bench {

struct Listener {
  int fd = -1;
  std::uint16_t port = 0;  ///< of the system's choice
};

/// -1 when it cannot be had.
Listener listen_on_loopback();

/// A blocking socket without delay, -1 when nobody listens there.
int connect_to_loopback(std::uint16_t port);

/// The next connection, as connect_to_loopback() makes them; -1 when there is none.
int accept_on_loopback(int listener);

}  // namespace tandem::bench
