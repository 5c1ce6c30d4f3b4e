// KvArena: the memory of all KV pages of an engine.
#pragma once

#include "common/base/status.h"

#include <cstddef>
#include <cstdint>

namespace tandem::engine {

/// One anonymous mapping, zeroed, with huge pages advised. Memory is taken from the system as pages
/// are touched, so an idle server is small; the plan of the worker has checked that it is there.
class KvArena {
 public:
  /// kResourceExhausted with the size when the system refuses, or when it exceeds 2^46 bytes.
  static Result<KvArena> allocate(std::size_t page_bytes, std::int64_t page_count);
  KvArena(KvArena&& other) noexcept;
  KvArena& operator=(KvArena&& other) noexcept;
  KvArena(const KvArena&) = delete;
  KvArena& operator=(const KvArena&) = delete;
  ~KvArena();

  [[nodiscard]] std::byte* base() const { return base_; }

 private:
  KvArena(std::byte* base, std::size_t bytes) : base_(base), bytes_(bytes) {}

  std::byte* base_ = nullptr;
  std::size_t bytes_ = 0;
};

}  // namespace tandem::engine
