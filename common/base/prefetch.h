// prefetch(): begins to load an object.
#pragma once

#include <cstddef>

namespace tandem {

inline constexpr std::size_t kCacheLineBytes = 64;

/// Begins to load `size` bytes.
inline void prefetch_bytes(const std::byte* begin, std::size_t size) {
  for (std::size_t at = 0; at < size; at += kCacheLineBytes)
    __builtin_prefetch(begin + at);
}

/// Begins to load all of `object` into the caches; changes nothing else. The weights of a forward
/// pass push everything out of them, and to wait for many objects side by side takes a fraction of
/// waiting for each in turn.
template <class T>
void prefetch(const T& object) {
  prefetch_bytes(reinterpret_cast<const std::byte*>(&object), sizeof(T));
}

}  // namespace tandem
