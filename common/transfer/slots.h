// Slots: memory through which units go to a peer on the same machine, and in which scattered pages
// are put together.
#pragma once

#include "common/base/status.h"

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

namespace tandem::transfer {

constexpr std::size_t kSlotBytes = std::size_t{1} << 20U;
/// A peer has at most half of them, few enough to stay in the processor's caches.
constexpr std::uint32_t kSlotCount = 16;
constexpr std::size_t kSlotTokenBytes = 16;

using SlotToken = std::array<std::byte, kSlotTokenBytes>;

/// Where a process's slots are: /proc/<pid>/fd/<fd>, which only processes of the same machine, user
/// and PID namespace can open. The token, at the end of the memory, proves that it is that memory.
struct SlotOffer {
  std::uint32_t from = 0;  ///< CRC32C of the sender's transport address
  std::uint32_t pid = 0;
  std::uint32_t fd = 0;
  SlotToken token{};
};

/// "TKS1", from, pid, fd (little-endian), token, CRC32C of all before.
constexpr std::size_t kSlotOfferBytes = 4 + 3 * 4 + kSlotTokenBytes + 4;
using SlotOfferBytes = std::array<std::byte, kSlotOfferBytes>;
SlotOfferBytes encode(const SlotOffer& offer);
std::optional<SlotOffer> decode_slot_offer(std::span<const std::byte> bytes);

/// This process's slots: an unnamed file of memory that ends with the processes that map it. One
/// thread.
class SlotMemory {
 public:
  SlotMemory() = default;
  SlotMemory(const SlotMemory&) = delete;
  SlotMemory& operator=(const SlotMemory&) = delete;
  ~SlotMemory();

  /// Called once. The memory is touched when slots are used. unavailable when there is no memory.
  Status create();

  /// False where the system gives no such file: peers cannot map these slots.
  [[nodiscard]] bool shareable() const { return fd_ >= 0; }

  [[nodiscard]] std::byte* slot(std::uint32_t index) const { return base_ + index * kSlotBytes; }

  [[nodiscard]] SlotOffer offer(std::uint32_t from) const;

  /// The one that was given back last, which is the warmest.
  std::optional<std::uint32_t> take();

  void give(std::uint32_t index) { free_.push_back(index); }

  [[nodiscard]] std::size_t free_count() const { return free_.size(); }

 private:
  int fd_ = -1;
  std::byte* base_ = nullptr;
  SlotToken token_{};
  std::vector<std::uint32_t> free_;
};

/// A peer's slots, mapped for reading.
class PeerSlots {
 public:
  /// unavailable when the peer's memory cannot be reached from here, or is not what was offered.
  static Result<std::unique_ptr<PeerSlots>> open(const SlotOffer& offer);

  explicit PeerSlots(const std::byte* base) : base_(base) {}

  PeerSlots(const PeerSlots&) = delete;
  PeerSlots& operator=(const PeerSlots&) = delete;
  ~PeerSlots();

  /// Its owner may write to it at any time: what is read twice may differ.
  [[nodiscard]] const std::byte* slot(std::uint32_t index) const {
    return base_ + index * kSlotBytes;
  }

 private:
  const std::byte* base_;
};

/// False when the user's UCX_TLS leaves out every shared memory transport: then units go over the
/// network also on one machine.
bool slots_allowed(const char* ucx_tls);

}  // namespace tandem::transfer
