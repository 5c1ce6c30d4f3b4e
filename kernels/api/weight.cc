#include "kernels/api/weight.h"

#if defined(__linux__)
#include <sys/mman.h>
#endif

namespace tandem::kernels {
namespace {

constexpr std::size_t kHugePage = std::size_t{2} << 20;

// Streams of weights cross a 4 KiB page every hundred nanoseconds or so; huge pages spare the
// walks. Small weights would only waste most of one.
std::byte* allocate(std::size_t bytes) {
  const std::size_t alignment = bytes >= kHugePage ? kHugePage : 64;
  const std::size_t steps = (bytes + alignment - 1) / alignment;
  void* memory = std::aligned_alloc(alignment, (steps == 0 ? 1 : steps) * alignment);
#if defined(MADV_HUGEPAGE)
  // Up to the last whole huge page: the rest would make a part of one resident that nobody uses. A
  // system without them refuses, which costs only speed.
  if (memory != nullptr && alignment == kHugePage) {
    (void)madvise(memory, bytes / kHugePage * kHugePage, MADV_HUGEPAGE);
  }
#endif
  return static_cast<std::byte*>(memory);
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
      data_(allocate(bytes_), Free{.borrowed = false}) {}

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
  weight.data_ = {memory, Free{.borrowed = true}};
  return weight;
}

}  // namespace tandem::kernels
