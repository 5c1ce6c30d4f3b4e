// Descriptor: a file descriptor that is closed at the end of its scope.
#pragma once

#include <unistd.h>

#include <utility>

namespace tandem {

/// Owns what it was made with; negative: nothing.
class Descriptor {
 public:
  explicit Descriptor(int fd) : fd_(fd) {}

  Descriptor(const Descriptor&) = delete;
  Descriptor& operator=(const Descriptor&) = delete;

  ~Descriptor() {
    if (fd_ >= 0) ::close(fd_);
  }

  [[nodiscard]] int get() const { return fd_; }

  /// The caller closes it.
  int release() { return std::exchange(fd_, -1); }

 private:
  int fd_;
};

}  // namespace tandem
