#include "common/tensor/host_buffer.h"

#include "common/base/take_memory.h"

#include <sys/mman.h>

#include <cerrno>
#include <cstring>
#include <string>
#include <utility>

namespace tandem::tensor {
namespace {

constexpr std::uint64_t kPageBytes = 4096;
constexpr std::uint64_t kHugePageBytes = kMemoryBlockBytes;

void* map(std::uint64_t bytes) {
  return mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
}

// From the beginning of a huge page on: what is used first, and most, has one, too.
void* map_huge(std::uint64_t bytes) {
  void* memory = map(bytes + kHugePageBytes);
  if (memory == MAP_FAILED) return memory;
  auto* whole = static_cast<std::byte*>(memory);
  const std::uint64_t before = -reinterpret_cast<std::uintptr_t>(whole) % kHugePageBytes;
  if (before > 0) munmap(whole, before);
  if (before < kHugePageBytes) munmap(whole + before + bytes, kHugePageBytes - before);
#ifdef MADV_HUGEPAGE
  // A part of one would be resident as a whole. A kernel without transparent huge pages answers
  // EINVAL: the buffer is as good, only slower.
  (void)madvise(whole + before, bytes / kHugePageBytes * kHugePageBytes, MADV_HUGEPAGE);
#endif
  return whole + before;
}

std::string describe(const HostBufferOptions& options) {
  return std::string(options.purpose.empty() ? "buffer" : options.purpose) + ": " +
         std::to_string(options.bytes) + " bytes asked";
}

}  // namespace

HostBuffer::~HostBuffer() {
  if (data_ != nullptr) munmap(data_, mapped_);
}

HostBuffer::HostBuffer(HostBuffer&& other) noexcept
    : data_(std::exchange(other.data_, nullptr)),
      size_(std::exchange(other.size_, 0)),
      mapped_(std::exchange(other.mapped_, 0)) {}

HostBuffer& HostBuffer::operator=(HostBuffer&& other) noexcept {
  std::swap(data_, other.data_);
  std::swap(size_, other.size_);
  std::swap(mapped_, other.mapped_);
  return *this;
}

Result<HostBuffer> HostBuffer::allocate(const HostBufferOptions& options) {
  if (options.bytes > options.bytes_max) {
    return resource_exhausted(describe(options) + ", the limit is " +
                              std::to_string(options.bytes_max));
  }
  HostBuffer buffer;
  if (options.bytes == 0) return buffer;
  if (options.bytes > UINT64_MAX - kHugePageBytes - kPageBytes)
    return resource_exhausted(describe(options) + ", more than exists");
  const std::uint64_t mapped = (options.bytes + kPageBytes - 1) / kPageBytes * kPageBytes;
  void* memory = options.huge_pages && mapped >= kHugePageBytes ? map_huge(mapped) : map(mapped);
  if (memory == MAP_FAILED) {
    return resource_exhausted(describe(options) + ", the system refused: " + std::strerror(errno));
  }
  buffer.data_ = static_cast<std::byte*>(memory);
  buffer.size_ = options.bytes;
  buffer.mapped_ = mapped;
  return buffer;
}

}  // namespace tandem::tensor
