#include "common/base/shared_memory.h"

#include "common/base/descriptor.h"
#include "common/base/random.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <limits>
#include <string>
#include <utility>

// Of Linux 5.1; the C library's headers may be older.
#ifndef F_SEAL_FUTURE_WRITE
#define F_SEAL_FUTURE_WRITE 0x0010
#endif

namespace tandem {

namespace {

/// The token has a page of its own behind the memory.
constexpr std::size_t kPage = 4096;
constexpr int kSeals = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL;
/// MFD_NOEXEC_SEAL: without it vm.memfd_noexec = 2 refuses the file.
constexpr unsigned kNoExecSeal = 0x8;
/// Of statfs(2): TMPFS_MAGIC.
constexpr auto kTmpfs = 0x01021994;

Status failed(const std::string& what) {
  return unavailable("shared memory: " + what + ": " + std::strerror(errno));
}

/// A longer file would end the process with SIGXFSZ.
bool length_allowed(std::size_t bytes) {
  rlimit limit{};
  return ::getrlimit(RLIMIT_FSIZE, &limit) == 0 && bytes <= limit.rlim_cur;
}

/// Refused where a sandbox or vm.memfd_noexec says so.
int unnamed_file(const char* name) {
  constexpr unsigned kFlags = MFD_CLOEXEC | MFD_ALLOW_SEALING;
  const int fd = ::memfd_create(name, kFlags | kNoExecSeal);
  // Linux before 6.3 does not know the flag.
  return fd < 0 && errno == EINVAL ? ::memfd_create(name, kFlags) : fd;
}

}  // namespace

Result<SharedMemory> SharedMemory::create(const char* name, std::size_t bytes) {
  if (bytes == 0 || bytes > std::numeric_limits<std::size_t>::max() / 2)
    return unavailable("shared memory: " + std::to_string(bytes) + " bytes");
  const std::size_t padded = (bytes + kPage - 1) / kPage * kPage;
  if (!length_allowed(padded + kPage)) return unavailable("shared memory: over RLIMIT_FSIZE");
  SharedMemory memory;
  memory.fd_ = unnamed_file(name);
  if (memory.fd_ < 0) return failed("memfd_create");
  if (::ftruncate(memory.fd_, static_cast<off_t>(padded + kPage)) != 0) return failed("ftruncate");
  // Not reserved: a pool is larger than what will be used of it.
  void* base = ::mmap(
      nullptr, padded + kPage, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE, memory.fd_, 0);
  if (base == MAP_FAILED) return failed("mmap");
  (void)::madvise(base, padded + kPage, MADV_DONTDUMP);
  memory.base_ = static_cast<std::byte*>(base);
  memory.bytes_ = padded;
  // After the mapping, which the seal against writing leaves alone.
  if (::fcntl(memory.fd_, F_ADD_SEALS, kSeals | F_SEAL_FUTURE_WRITE) != 0 &&
      ::fcntl(memory.fd_, F_ADD_SEALS, kSeals) != 0)
    return failed("F_ADD_SEALS");
  for (std::size_t i = 0; i < kMemoryTokenBytes; i += sizeof(std::uint64_t)) {
    const std::uint64_t part = system_random();
    std::memcpy(memory.token_.data() + i, &part, sizeof part);
  }
  std::memcpy(memory.base_ + padded, memory.token_.data(), kMemoryTokenBytes);
  return memory;
}

SharedMemory::SharedMemory(SharedMemory&& other) noexcept
    : fd_(std::exchange(other.fd_, -1)),
      base_(std::exchange(other.base_, nullptr)),
      bytes_(std::exchange(other.bytes_, 0)),
      token_(other.token_) {}

SharedMemory& SharedMemory::operator=(SharedMemory&& other) noexcept {
  std::swap(fd_, other.fd_);
  std::swap(base_, other.base_);
  std::swap(bytes_, other.bytes_);
  std::swap(token_, other.token_);
  return *this;
}

SharedMemory::~SharedMemory() {
  if (base_ != nullptr) ::munmap(base_, bytes_ + kPage);
  if (fd_ >= 0) ::close(fd_);
}

MemoryKey SharedMemory::key() const {
  return {.pid = static_cast<std::uint32_t>(::getpid()),
          .fd = static_cast<std::uint32_t>(fd_),
          .token = token_};
}

Result<PeerMemory> PeerMemory::open(const MemoryKey& key, std::string_view name) {
  const std::string path = "/proc/" + std::to_string(key.pid) + "/fd/" + std::to_string(key.fd);
  // In another PID namespace that process is a stranger: what it has there is not even opened.
  std::array<char, 128> target{};
  const ssize_t length = ::readlink(path.c_str(), target.data(), target.size());
  if (length < 0) return failed(path);
  const std::string_view link(target.data(), static_cast<std::size_t>(length));
  const std::string wanted = "/memfd:" + std::string(name);
  if (link != wanted && link != wanted + " (deleted)")
    return unavailable("shared memory: " + path + " is not " + std::string(name));
  // Should it be something else by now, a pipe for one, opening it neither blocks nor does
  // anything.
  const Descriptor file(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY));
  if (file.get() < 0) return failed(path);
  // Sealed: it cannot become shorter while it is read here, which would be a SIGBUS.
  const int seals = ::fcntl(file.get(), F_GET_SEALS);

  struct stat status {};

  struct statfs system {};

  // Of huge pages (MFD_HUGETLB) there may be none left when a hole of it is read: a SIGBUS too.
  if (seals < 0 || (seals & kSeals) != kSeals || ::fstat(file.get(), &status) != 0 ||
      ::fstatfs(file.get(), &system) != 0 || system.f_type != kTmpfs ||
      status.st_size < static_cast<off_t>(2 * kPage) ||
      status.st_size % static_cast<off_t>(kPage) != 0)
    return unavailable("shared memory: " + path + " is not sealed memory with a token");
  const auto bytes = static_cast<std::size_t>(status.st_size) - kPage;
  void* base = ::mmap(nullptr, bytes + kPage, PROT_READ, MAP_SHARED | MAP_NORESERVE, file.get(), 0);
  if (base == MAP_FAILED) return failed("mmap");
  // A dump would take pages for all of it that the peer has never touched.
  (void)::madvise(base, bytes + kPage, MADV_DONTDUMP);
  PeerMemory memory(static_cast<const std::byte*>(base), bytes);
  if (std::memcmp(memory.base_ + bytes, key.token.data(), kMemoryTokenBytes) != 0)
    return unavailable("shared memory: " + path + " belongs to another process");
  return memory;
}

PeerMemory::PeerMemory(PeerMemory&& other) noexcept
    : base_(std::exchange(other.base_, nullptr)), bytes_(std::exchange(other.bytes_, 0)) {}

PeerMemory& PeerMemory::operator=(PeerMemory&& other) noexcept {
  std::swap(base_, other.base_);
  std::swap(bytes_, other.bytes_);
  return *this;
}

PeerMemory::~PeerMemory() {
  if (base_ != nullptr) ::munmap(const_cast<std::byte*>(base_), bytes_ + kPage);
}

}  // namespace tandem
