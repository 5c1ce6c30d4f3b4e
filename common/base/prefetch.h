// prefetch(): begins to load an object.
#pragma once

#include <cstddef>

namespace tandem {

inline constexpr std::size_t kCacheLineBytes = 64;

/// Begins to load what lies from `begin` to `end`.
inline void prefetch_bytes(const std::byte* begin, const std::byte* end) {
  for (; begin < end; begin += kCacheLineBytes)
    __builtin_prefetch(begin);
}

/// Begins to load all of `object` into the caches; changes nothing else. The weights of a forward
/// pass push everything out of them, and to wait for many objects side by side takes a fraction of
/// waiting for each in turn.
template <class T>
void prefetch(const T& object) {
  const auto* bytes = reinterpret_cast<const std::byte*>(&object);
  prefetch_bytes(bytes, bytes + sizeof(T));
}

}  // namespace tandem
