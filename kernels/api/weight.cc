#include "kernels/api/weight.h"

#if defined(__linux__)
#include <sys/mman.h>
#endif

#include <cstdlib>
#include <mutex>
#include <utility>

namespace tandem::kernels {
namespace {

constexpr std::size_t kHugePage = std::size_t{2} << 20;
// Weights below it have memory of their own, which need not be on huge pages.
constexpr std::size_t kLeastShared = std::size_t{256} << 10;
// Those from here on as well: the part behind the last huge page is next to nothing.
constexpr std::size_t kLeastLarge = std::size_t{16} << 20;
constexpr std::size_t kSlabBytes = std::size_t{64} << 20;
// Of a weight in a slab.
constexpr std::size_t kSlabStep = 4096;

// With huge pages advised, as far as they are whole: a part of one would be resident and nobody's.
// A system without them refuses, which costs only speed.
std::shared_ptr<std::byte> allocate(std::size_t bytes, std::size_t alignment) {
  const std::size_t steps = (bytes + alignment - 1) / alignment;
  void* memory = std::aligned_alloc(alignment, (steps == 0 ? 1 : steps) * alignment);
  if (memory == nullptr) return nullptr;
#if defined(MADV_HUGEPAGE)
  if (alignment == kHugePage) (void)madvise(memory, bytes / kHugePage * kHugePage, MADV_HUGEPAGE);
#endif
  return {static_cast<std::byte*>(memory), [](std::byte* m) { std::free(m); }};
}

// Memory that several weights have one behind the other. What is not used of it is not resident,
// and it goes when the last of them does.
class Slabs {
 public:
  std::shared_ptr<std::byte> take(std::size_t bytes) {
    const std::lock_guard lock(mutex_);
    std::shared_ptr<std::byte> slab = slab_.lock();
    if (slab == nullptr || kSlabBytes - used_ < bytes) {
      slab = allocate(kSlabBytes, kHugePage);
      if (slab == nullptr) return nullptr;
      slab_ = slab;
      used_ = 0;
    }
    std::byte* memory = slab.get() + used_;
    used_ += (bytes + kSlabStep - 1) / kSlabStep * kSlabStep;
    return {std::move(slab), memory};
  }

 private:
  std::mutex mutex_;
  std::weak_ptr<std::byte> slab_;  ///< the one that has room
  std::size_t used_ = 0;           ///< of it; at most kSlabBytes, a multiple of kSlabStep
};

// Streams of weights cross a 4 KiB page every hundred nanoseconds or so; huge pages spare the
// walks. Few weights are a multiple of 2 MiB (in 4 bit many are less), so they share: with small
// pages behind the last huge one of each, weights of 3 MiB were read at 29 GB/s where others came
// at 33.
std::shared_ptr<std::byte> allocate(std::size_t bytes) {
  static Slabs slabs;
  if (bytes < kLeastShared) return allocate(bytes, 64);
  if (bytes >= kLeastLarge) return allocate(bytes, kHugePage);
  return slabs.take(bytes);
}

}  // namespace

PackedWeight::PackedWeight(WeightLayout layout,
                           WeightFormat format,
                           std::size_t n,
                           std::size_t k,
                           std::size_t bytes,
                           std::size_t count)
    : layout_(layout),
      format_(format),
      n_(n),
      k_(k),
      count_(count),
      bytes_(stacked_bytes(count, bytes)),
      data_(allocate(bytes_)) {}

PackedWeight PackedWeight::over(std::byte* memory,
                                WeightLayout layout,
                                WeightFormat format,
                                std::size_t n,
                                std::size_t k,
                                std::size_t bytes) {
  PackedWeight weight;
  weight.layout_ = layout;
  weight.format_ = format;
  weight.n_ = n;
  weight.k_ = k;
  weight.bytes_ = bytes;
  weight.data_ = {memory, [](std::byte*) {}};
  return weight;
}

}  // namespace tandem::kernels
