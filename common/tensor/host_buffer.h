// HostBuffer: owned, aligned, zeroed host memory whose size is bounded by the caller.
#pragma once

#include "common/base/status.h"

#include <cstddef>
#include <cstdint>
#include <string_view>

namespace tandem::tensor {

struct HostBufferOptions {
  std::uint64_t bytes = 0;
  /// The most that the caller's plan allows; more is refused before anything is allocated.
  std::uint64_t bytes_max = 0;
  /// What it is for, named in errors ("kv pool", "activations").
  std::string_view purpose;
  /// Ask the kernel for transparent huge pages, as far as they are whole; a wish, never an error.
  /// Where there is one at least the buffer begins with it: data() is a multiple of 2 MiB.
  bool huge_pages = false;
};

/// Anonymous memory from mmap: page-aligned, zero-filled, resident only where touched. Movable.
/// Threads: a value.
class HostBuffer {
 public:
  static constexpr std::size_t kAlignment = 64;

  HostBuffer() = default;
  ~HostBuffer();
  HostBuffer(HostBuffer&& other) noexcept;
  HostBuffer& operator=(HostBuffer&& other) noexcept;
  HostBuffer(const HostBuffer&) = delete;
  HostBuffer& operator=(const HostBuffer&) = delete;

  /// kResourceExhausted when bytes > bytes_max or when the system has no memory for it; names
  /// purpose and sizes.
  static Result<HostBuffer> allocate(const HostBufferOptions& options);

  [[nodiscard]] std::byte* data() { return data_; }

  [[nodiscard]] const std::byte* data() const { return data_; }

  [[nodiscard]] std::uint64_t size() const { return size_; }

 private:
  std::byte* data_ = nullptr;
  std::uint64_t size_ = 0;
  std::uint64_t mapped_ = 0;
};

}  // namespace tandem::tensor
