// The bytes of one file, read-only: mapped, or copied into memory.
#pragma once

#include "common/base/status.h"

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <utility>

namespace tandem::weights {

/// Where the bytes of a weight file come from.
enum class ReadMode : std::uint8_t {
  kMmap,  ///< Pages are shared with other processes of the host and loaded when first touched.
  kRead,  ///< A private copy: for file systems on which a mapping is slow or may change below us.
};

/// Owns a mapping or a copy of a whole file. Move-only; the bytes stay at one address until it
/// dies. Any thread may read.
///
/// A mapped file that another process shortens while it is in use ends this process with SIGBUS,
/// as for every program that maps weights; choose kRead where that may happen.
class FileBytes {
 public:
  /// Refuses what is not a regular file and files over `size_max` bytes; messages name `path`.
  static Result<FileBytes> open(const std::string& path, ReadMode mode, std::uint64_t size_max);

  FileBytes(FileBytes&& other) noexcept { swap(other); }

  FileBytes& operator=(FileBytes&& other) noexcept {
    FileBytes taken(std::move(other));
    swap(taken);
    return *this;
  }

  FileBytes(const FileBytes&) = delete;
  FileBytes& operator=(const FileBytes&) = delete;
  ~FileBytes();

  [[nodiscard]] std::span<const std::byte> bytes() const { return {data_, size_}; }

  /// Copies `out.size()` bytes from `offset` on, which lie inside the file: from the file itself
  /// while it is open, else from bytes(). Threads of their own may do so at the same time. Into a
  /// buffer that stays in the cache this takes half the time of touching a mapping, which costs a
  /// fault for every few pages and as much again to take them out. kDataLoss when the file cannot
  /// be read any more or was shortened.
  Status read(std::uint64_t offset, std::span<std::byte> out) const;

  /// Whether read() reads the file itself.
  [[nodiscard]] bool is_open() const { return fd_ >= 0; }

  /// Whether the page at `offset`, which lies inside the file, can be read without waiting for a
  /// disk or a network. False where the system cannot tell and for what is not mapped.
  [[nodiscard]] bool is_cached(std::uint64_t offset) const;

  /// read() takes bytes() from now on. For checkpoints of more files than a process may have open.
  void close_file();

  /// Takes a mapping's pages out of this process (they come back from the file when touched), so
  /// that weights which were copied elsewhere do not count twice. A copy stays as it is.
  void release_pages() const;

 private:
  FileBytes() = default;

  void swap(FileBytes& other) noexcept {
    std::swap(data_, other.data_);
    std::swap(size_, other.size_);
    std::swap(mapped_, other.mapped_);
    std::swap(fd_, other.fd_);
    std::swap(path_, other.path_);
  }

  const std::byte* data_ = nullptr;
  std::size_t size_ = 0;
  bool mapped_ = false;
  int fd_ = -1;       ///< Open only beside a mapping.
  std::string path_;  ///< For messages.
};

}  // namespace tandem::weights
