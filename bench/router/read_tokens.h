// How far a client is with the answers it reads: memory that it shares with the fake workers.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>

namespace tandem::bench {

/// Tokens of the answer in progress of each connection. A worker that is never far ahead of them
/// meets a client that keeps up: the router then holds nothing back and merges nothing.
class ReadTokens {
 public:
  static constexpr std::size_t kConnections = 256;

  /// All zero, for this process and those that it starts. Throws when there is no such memory.
  ReadTokens();
  /// Those of the process that gave its fd() to this one. Throws when that is none.
  explicit ReadTokens(int fd);
  ReadTokens(const ReadTokens&) = delete;
  ReadTokens& operator=(const ReadTokens&) = delete;
  ~ReadTokens();

  [[nodiscard]] int fd() const { return fd_; }

  /// `connection` < kConnections.
  void set(std::size_t connection, std::int32_t tokens) {
    (*counts_)[connection].store(tokens, std::memory_order_relaxed);
  }

  [[nodiscard]] std::int32_t of(std::size_t connection) const {
    return (*counts_)[connection].load(std::memory_order_relaxed);
  }

 private:
  using Counts = std::array<std::atomic<std::int32_t>, kConnections>;

  void map();

  int fd_;
  Counts* counts_ = nullptr;
};

}  // namespace tandem::bench
