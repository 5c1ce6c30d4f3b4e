// KvArena: the memory of all KV pages of an engine.
#pragma once

#include "common/base/shared_memory.h"
#include "common/base/status.h"

#include <cstddef>
#include <cstdint>
#include <optional>
#include <utility>

namespace tandem::engine {

/// One mapping, zeroed, with huge pages advised: anonymous, or SharedMemory (kKvPoolName). Memory
/// is taken from the system as pages are touched, so an idle server is small; the plan of the
/// worker has checked that it is there.
class KvArena {
 public:
  /// kResourceExhausted with the size when the system refuses, or when it exceeds 2^46 bytes. Where
  /// `shared` is wanted and not to be had the memory is anonymous all the same.
  static Result<KvArena> allocate(std::size_t page_bytes, std::int64_t page_count, bool shared);
  KvArena(KvArena&& other) noexcept;
  KvArena& operator=(KvArena&& other) noexcept;
  KvArena(const KvArena&) = delete;
  KvArena& operator=(const KvArena&) = delete;
  ~KvArena();

  [[nodiscard]] std::byte* base() const { return base_; }

  /// Null when the memory is anonymous.
  [[nodiscard]] const SharedMemory* shared() const { return shared_ ? &*shared_ : nullptr; }

 private:
  KvArena(std::byte* base, std::size_t bytes) : base_(base), bytes_(bytes) {}

  explicit KvArena(SharedMemory shared)
      : base_(shared.base()), bytes_(shared.bytes()), shared_(std::move(shared)) {}

  std::byte* base_ = nullptr;
  std::size_t bytes_ = 0;
  std::optional<SharedMemory> shared_;
};

}  // namespace tandem::engine
