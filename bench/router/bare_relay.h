// The least that any router can add: a process between client and server that looks at nothing.
#pragma once

#include "bench/router/child.h"

#include <cstddef>
#include <cstdint>
#include <string>

namespace tandem::bench {

/// Of one request and one answer, with their heads.
struct MessageSizes {
  std::size_t request_bytes = 0;
  std::size_t answer_bytes = 0;
};

/// Both serve one connection after the other until they are killed, print their port on stdout once
/// they listen, and return when they cannot.
int run_bare_server(const MessageSizes& sizes);
int run_bare_relay(std::uint16_t server_port);

/// A server that answers so many bytes to so many, whatever they say, and a relay before it that
/// does nothing but epoll_wait, read and send. `self` is the program whose main() runs them.
class BareRelay {
 public:
  static constexpr const char* kServerCommand = "bare-server";
  static constexpr const char* kRelayCommand = "bare-relay";

  /// Throws when one of them does not start.
  BareRelay(const std::string& self, const MessageSizes& sizes);

  [[nodiscard]] std::uint16_t server_port() const { return server_port_; }

  [[nodiscard]] std::uint16_t relay_port() const { return relay_port_; }

 private:
  Child server_;
  std::uint16_t server_port_;
  Child relay_;
  std::uint16_t relay_port_;
};

}  // namespace tandem::bench
