// Memory that peers on the same machine map: how it is offered, and slots, through which units go
// to those that cannot read the pool, and in which scattered pages are put together.
#pragma once

#include "common/base/shared_memory.h"
#include "common/base/status.h"

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <utility>
#include <vector>

namespace tandem::transfer {

constexpr std::size_t kSlotBytes = std::size_t{1} << 20U;
/// A peer has at most half of them, few enough to stay in the processor's caches.
constexpr std::uint32_t kSlotCount = 16;

/// What a process shows its peers of its memory.
enum class MemoryKind : std::uint8_t {
  kSlots,
  kPool
};

struct MemoryOffer {
  MemoryKind kind = MemoryKind::kSlots;
  std::uint32_t from = 0;  ///< CRC32C of the sender's transport address
  MemoryKey key;
  friend bool operator==(const MemoryOffer&, const MemoryOffer&) = default;
};

/// "TKS1" or "TKP1", from, pid, fd (little-endian), token, CRC32C of all before.
constexpr std::size_t kMemoryOfferBytes = 4 + 3 * 4 + kMemoryTokenBytes + 4;
using MemoryOfferBytes = std::array<std::byte, kMemoryOfferBytes>;
MemoryOfferBytes encode(const MemoryOffer& offer);
std::optional<MemoryOffer> decode_memory_offer(std::span<const std::byte> bytes);

/// Of the slots' memory, and of a pool's (SharedMemory::create), as /proc shows them.
constexpr const char* kSlotsName = "tandem-kv-slots";

/// This process's slots. One thread.
class SlotMemory {
 public:
  SlotMemory() = default;
  SlotMemory(const SlotMemory&) = delete;
  SlotMemory& operator=(const SlotMemory&) = delete;
  ~SlotMemory();

  /// Called once. The memory is touched when slots are used. unavailable when there is no memory.
  Status create();

  /// False where the system gives no such file: peers cannot map these slots.
  [[nodiscard]] bool shareable() const { return shared_.has_value(); }

  [[nodiscard]] std::byte* slot(std::uint32_t index) const { return base_ + index * kSlotBytes; }

  /// Pre: shareable().
  [[nodiscard]] MemoryKey key() const { return shared_->key(); }

  /// The one that was given back last, which is the warmest.
  std::optional<std::uint32_t> take();

  void give(std::uint32_t index) { free_.push_back(index); }

  [[nodiscard]] std::size_t free_count() const { return free_.size(); }

 private:
  std::optional<SharedMemory> shared_;
  std::byte* base_ = nullptr;
  std::vector<std::uint32_t> free_;
};

/// A peer's slots, mapped for reading.
class PeerSlots {
 public:
  /// unavailable when the peer's memory cannot be reached from here, or is not what was offered.
  static Result<PeerSlots> open(const MemoryKey& key);

  /// Its owner may write to it at any time: what is read twice may differ.
  [[nodiscard]] const std::byte* slot(std::uint32_t index) const {
    return memory_.base() + index * kSlotBytes;
  }

 private:
  explicit PeerSlots(PeerMemory memory) : memory_(std::move(memory)) {}

  PeerMemory memory_;
};

/// False when the user's UCX_TLS leaves out every shared memory transport: then units go over the
/// network also on one machine.
bool slots_allowed(const char* ucx_tls);

}  // namespace tandem::transfer
