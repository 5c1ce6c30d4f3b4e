// SharedMemory: memory of this process that other processes of the machine may map for reading.
#pragma once

#include "common/base/status.h"

#include <array>
#include <cstddef>
#include <cstdint>
#include <string_view>

namespace tandem {

constexpr std::size_t kMemoryTokenBytes = 16;
/// The name of a pool of KV pages.
constexpr const char* kKvPoolName = "tandem-kv-pool";

/// Where the memory of a process is: /proc/<pid>/fd/<fd>, which only processes of the same machine,
/// user and PID namespace can open. The token, behind the memory, proves that it is that memory.
struct MemoryKey {
  std::uint32_t pid = 0;
  std::uint32_t fd = 0;
  std::array<std::byte, kMemoryTokenBytes> token{};
  friend bool operator==(const MemoryKey&, const MemoryKey&) = default;
};

/// An unnamed file (memfd_create(2)), mapped here for writing and sealed: it can neither shrink nor
/// grow, and after create() nobody maps it for writing (Linux 5.1 and later; before that the seal
/// is missing). It ends with the processes that map it. Zeroed; its pages are taken from the
/// system, and counted to the process that does so, as they are touched. A child that is forked
/// without exec has it too, for writing.
class SharedMemory {
 public:
  /// `name` is what /proc shows it as. unavailable when the system gives no such file, or not of
  /// this size.
  static Result<SharedMemory> create(const char* name, std::size_t bytes);

  SharedMemory(SharedMemory&& other) noexcept;
  SharedMemory& operator=(SharedMemory&& other) noexcept;
  SharedMemory(const SharedMemory&) = delete;
  SharedMemory& operator=(const SharedMemory&) = delete;
  ~SharedMemory();

  [[nodiscard]] std::byte* base() const { return base_; }

  [[nodiscard]] std::size_t bytes() const { return bytes_; }

  /// What PeerMemory::open needs, in another process or in this one.
  [[nodiscard]] MemoryKey key() const;

 private:
  SharedMemory() = default;

  int fd_ = -1;
  std::byte* base_ = nullptr;
  std::size_t bytes_ = 0;
  std::array<std::byte, kMemoryTokenBytes> token_{};
};

/// Another process's SharedMemory, mapped for reading. It stays when its owner ends.
class PeerMemory {
 public:
  /// `name` as given to create(). unavailable when the memory cannot be reached from here, is not
  /// sealed against shrinking, or is not what the key says.
  static Result<PeerMemory> open(const MemoryKey& key, std::string_view name);

  PeerMemory(PeerMemory&& other) noexcept;
  PeerMemory& operator=(PeerMemory&& other) noexcept;
  PeerMemory(const PeerMemory&) = delete;
  PeerMemory& operator=(const PeerMemory&) = delete;
  ~PeerMemory();

  /// Its owner may write to it at any time: what is read twice may differ.
  [[nodiscard]] const std::byte* base() const { return base_; }

  /// As found when it was opened, whatever its owner says: a multiple of 4096.
  [[nodiscard]] std::size_t bytes() const { return bytes_; }

 private:
  PeerMemory(const std::byte* base, std::size_t bytes) : base_(base), bytes_(bytes) {}

  const std::byte* base_ = nullptr;
  std::size_t bytes_ = 0;
};

}  // namespace tandem
