#include "common/weights/file_bytes.h"

#include "common/base/descriptor.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <new>
#include <utility>

namespace tandem::weights {
namespace {

std::string errno_text() {
  return std::strerror(errno);  // NOLINT(concurrency-mt-unsafe): glibc's is safe
}

/// Exactly `size` bytes from `offset` on.
Status read_all(
    int fd, std::uint64_t offset, std::byte* out, std::size_t size, const std::string& path) {
  std::size_t done = 0;
  while (done < size) {
    const ssize_t got = ::pread(fd, out + done, size - done, static_cast<off_t>(offset + done));
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return data_loss(fmt::format("{}: cannot read: {}", path, errno_text()));
    if (got == 0) {
      return data_loss(
          fmt::format("{}: ended after {} bytes, expected {}: it was shortened while being read",
                      path,
                      offset + done,
                      offset + size));
    }
    done += static_cast<std::size_t>(got);
  }
  return {};
}

}  // namespace

Result<FileBytes> FileBytes::open(const std::string& path, ReadMode mode, std::uint64_t size_max) {
  // O_NONBLOCK: opening a FIFO must not wait for a writer; it is refused below.
  Descriptor fd(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  if (fd.get() < 0) {
    const std::string message = fmt::format("{}: cannot open: {}", path, errno_text());
    return errno == ENOENT ? not_found(message) : invalid_argument(message);
  }

  struct stat info {};

  if (::fstat(fd.get(), &info) != 0) {
    return invalid_argument(fmt::format("{}: cannot stat: {}", path, errno_text()));
  }
  if (!S_ISREG(info.st_mode)) {
    return invalid_argument(fmt::format("{}: is not a regular file", path));
  }
  // Reading is to wait, also where a file system heeds the flag.
  if (::fcntl(fd.get(), F_SETFL, 0) != 0)
    return invalid_argument(fmt::format("{}: cannot be read: {}", path, errno_text()));
  const auto size = static_cast<std::uint64_t>(info.st_size);
  if (size > size_max) {
    return invalid_argument(fmt::format("{}: has {} bytes, the limit is {}", path, size, size_max));
  }
  FileBytes file;
  if (size == 0) return file;
  if (mode == ReadMode::kMmap) {
    void* address = ::mmap(nullptr, size, PROT_READ, MAP_SHARED, fd.get(), 0);
    if (address == MAP_FAILED) {  // NOLINT: a C macro with a cast in it
      return resource_exhausted(
          fmt::format("{}: cannot map {} bytes: {}", path, size, errno_text()));
    }
    file.data_ = static_cast<const std::byte*>(address);
    file.size_ = size;
    file.mapped_ = true;
    file.fd_ = fd.release();
    file.path_ = path;
    return file;
  }
  auto* copy = new (std::nothrow) std::byte[size];
  if (copy == nullptr) {
    return resource_exhausted(fmt::format("{}: no memory for {} bytes", path, size));
  }
  file.data_ = copy;
  file.size_ = size;
  TANDEM_TRY(read_all(fd.get(), 0, copy, size, path));
  return file;
}

Status FileBytes::read(std::uint64_t offset, std::span<std::byte> out) const {
  if (fd_ >= 0) return read_all(fd_, offset, out.data(), out.size(), path_);
  std::memcpy(out.data(), data_ + offset, out.size());
  return {};
}

bool FileBytes::is_cached(std::uint64_t offset) const {
#if defined(RWF_NOWAIT)
  char byte = 0;

  struct iovec into {
    .iov_base = &byte, .iov_len = 1
  };

  return fd_ >= 0 && ::preadv2(fd_, &into, 1, static_cast<off_t>(offset), RWF_NOWAIT) == 1;
#else
  (void)offset;
  return false;
#endif
}

void FileBytes::close_file() {
  if (fd_ >= 0) ::close(std::exchange(fd_, -1));
}

void FileBytes::release_pages() const {
  // Advice only: where it fails nothing is lost but memory.
  if (mapped_)
    ::madvise(const_cast<std::byte*>(data_),
              size_,
              MADV_DONTNEED);  // NOLINT: madvise takes a mutable pointer
}

FileBytes::~FileBytes() {
  close_file();
  if (data_ == nullptr) return;
  if (mapped_) {
    ::munmap(const_cast<std::byte*>(data_), size_);  // NOLINT: munmap takes a mutable pointer
  } else {
    delete[] data_;
  }
}

}  // namespace tandem::weights
