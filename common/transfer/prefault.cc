#include "common/transfer/prefault.h"

#include "common/base/take_memory.h"

namespace tandem::transfer {

Prefault::Prefault(const PageMemory& memory)
    : begin_(reinterpret_cast<std::uintptr_t>(memory.base)),
      end_(begin_ + memory.stride_bytes * memory.page_count),
      stride_bytes_(memory.stride_bytes),
      page_bytes_(memory.part_offsets.empty() ? 0 : memory.part_offsets.back()) {
  if (begin_ != end_ && page_bytes_ != 0) taken_.resize(block_of(end_ - 1) + 1);
}

std::size_t Prefault::block_of(std::uintptr_t address) const {
  return address / kBlockBytes - begin_ / kBlockBytes;
}

void Prefault::open(const TransferName& name, std::span<const std::uint32_t> pages) {
  for (const std::uint32_t page : pages) {
    const std::uintptr_t at = begin_ + page * stride_bytes_;
    if (taken_.empty() || at >= end_) return;
    const std::size_t last = block_of(at + page_bytes_ - 1);
    for (std::size_t index = block_of(at); index <= last; ++index) {
      // Another name's block is asked for again: that name may be closed first.
      const bool asked =
          !queue_.empty() && queue_.back().index == index && queue_.back().name == name;
      if (!taken_[index] && !asked) queue_.push_back({name, index});
    }
  }
}

void Prefault::close(const TransferName& name) {
  std::erase_if(queue_, [&](const Block& block) { return block.name == name; });
}

void Prefault::take_some() {
  // What another transfer has asked for as well is there already.
  while (!queue_.empty() && taken_[queue_.front().index])
    queue_.pop_front();
  if (queue_.empty()) return;
  const std::size_t index = queue_.front().index;
  queue_.pop_front();
  taken_[index] = true;
  if (take_memory_block(begin_, end_, begin_ / kBlockBytes + index)) return;
  taken_.clear();
  queue_.clear();
}

}  // namespace tandem::transfer
