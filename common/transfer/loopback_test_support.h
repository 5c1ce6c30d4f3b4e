// A TCP connection of a test with itself.
#pragma once

#include <gtest/gtest.h>

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

namespace tandem::transfer::testing {

struct LoopbackEnds {
  int caller = -1;
  int peer = -1;
};

/// By way of `listener`, a socket that is not bound. Both ends are the caller's to close.
inline LoopbackEnds connect_over_loopback(int listener) {
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t size = sizeof address;
  EXPECT_EQ(::bind(listener, reinterpret_cast<sockaddr*>(&address), size), 0);
  EXPECT_EQ(::listen(listener, 1), 0);
  EXPECT_EQ(::getsockname(listener, reinterpret_cast<sockaddr*>(&address), &size), 0);
  LoopbackEnds ends{.caller = ::socket(AF_INET, SOCK_STREAM, 0)};
  EXPECT_EQ(::connect(ends.caller, reinterpret_cast<sockaddr*>(&address), size), 0);
  ends.peer = ::accept(listener, nullptr, nullptr);
  return ends;
}

inline LoopbackEnds connect_over_loopback() {
  const int listener = ::socket(AF_INET, SOCK_STREAM, 0);
  const LoopbackEnds ends = connect_over_loopback(listener);
  ::close(listener);
  return ends;
}

}  // namespace tandem::transfer::testing
