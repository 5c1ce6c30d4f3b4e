// prefetch(): begins to load an object. append_lines(): what somebody else is to load.
#pragma once

#include <cstddef>
#include <vector>

namespace tandem {

inline constexpr std::size_t kCacheLineBytes = 64;

/// Begins to load all of `object` into the caches; changes nothing else. The weights of a forward
/// pass push everything out of them, and to wait for many objects side by side takes a fraction of
/// waiting for each in turn.
template <class T>
void prefetch(const T& object) {
  const auto* bytes = reinterpret_cast<const std::byte*>(&object);
  for (std::size_t at = 0; at < sizeof(T); at += kCacheLineBytes)
    __builtin_prefetch(bytes + at);
}

/// Adds an address in each line of `object`, which stays where it is.
template <class T>
void append_lines(const T& object, std::vector<const void*>* lines) {
  const auto* bytes = reinterpret_cast<const std::byte*>(&object);
  for (std::size_t at = 0; at < sizeof(T); at += kCacheLineBytes)
    lines->push_back(bytes + at);
  // It may begin within a line.
  lines->push_back(bytes + sizeof(T) - 1);
}

}  // namespace tandem
