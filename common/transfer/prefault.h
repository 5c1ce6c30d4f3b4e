// Prefault: has the system give memory to pages that are open for a landing, before units come.
#pragma once

#include "common/base/take_memory.h"
#include "common/base/transfer_name.h"
#include "common/transfer/transport.h"

#include <cstddef>
#include <cstdint>
#include <deque>
#include <span>
#include <vector>

namespace tandem::transfer {

/// A decode worker's pool is memory that nobody has touched until a prompt's KV lands in it. The
/// system then clears each page first, at 0.5 to 10 GB/s (new memory of a virtual machine), and all
/// of a prompt's pages come at once, between its first and its second token. They are open long
/// before: while the prefill worker computes. Only open pages are asked for, so nothing is taken
/// that the request would not take itself.
///
/// Owner: the progress thread of a transport, which asks when it has nothing else to do.
class Prefault {
 public:
  /// What is taken at a time: a huge page, so that the kernel can give one.
  static constexpr std::size_t kBlockBytes = kMemoryBlockBytes;

  /// `memory` is what the transport has; its bytes outlive this.
  explicit Prefault(const PageMemory& memory);

  /// These pages are open for `name`.
  void open(const TransferName& name, std::span<const std::uint32_t> pages);

  /// Nothing more is taken for `name`.
  void close(const TransferName& name);

  /// Whether take_some() has anything to do.
  [[nodiscard]] bool waiting() const { return !queue_.empty(); }

  /// Takes the memory of one block, in the order of the openings. What lies in it stays as it is,
  /// also while it is written. Linux before 5.14 cannot do that: nothing happens then.
  void take_some();

 private:
  struct Block {
    TransferName name;
    std::size_t index = 0;
  };

  [[nodiscard]] std::size_t block_of(std::uintptr_t address) const;

  std::uintptr_t begin_ = 0;  ///< of the pool
  std::uintptr_t end_ = 0;
  std::uint64_t stride_bytes_ = 0;
  std::uint64_t page_bytes_ = 0;
  std::deque<Block> queue_;
  std::vector<bool> taken_;  ///< by block
};

}  // namespace tandem::transfer
