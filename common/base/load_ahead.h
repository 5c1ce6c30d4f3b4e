// load_ahead(): begins to load an object.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>

namespace tandem {

inline constexpr std::size_t kCacheLineBytes = 64;

/// Begins to load the lines that `size` bytes at `begin` lie in.
///
/// By loads whose values nobody waits for, not by prefetches: of what was prefetched between the
/// ops of a pass much was not there when it was looked at (docs/design.md). In assembly, since
/// others may write meanwhile what lies there, and a line's ends may be of other objects.
inline void load_ahead_bytes(const std::byte* begin, std::size_t size) {
  const auto address = reinterpret_cast<std::uintptr_t>(begin);
  for (std::uintptr_t line = address / kCacheLineBytes * kCacheLineBytes; line < address + size;
       line += kCacheLineBytes) {
#if defined(__x86_64__)
    asm volatile("testb %%al, (%0)" : : "r"(line) : "cc");
#else
    __builtin_prefetch(reinterpret_cast<const void*>(line));
#endif
  }
}

/// Begins to load all of `object` into the caches; changes nothing else. The weights of a forward
/// pass push everything out of them, and to wait for many objects side by side takes a fraction of
/// waiting for each in turn.
template <class T>
void load_ahead(const T& object) {
  load_ahead_bytes(reinterpret_cast<const std::byte*>(&object), sizeof(T));
}

/// Begins to load where the first virtual functions of `object`, two dozen at most, are looked up:
/// an object begins with the table's address (Itanium C++ ABI).
template <class T>
void load_virtual_functions_ahead(const T& object) {
  const std::byte* table = nullptr;
  std::memcpy(&table, &object, sizeof(table));
  load_ahead_bytes(table, 3 * kCacheLineBytes);
}

}  // namespace tandem
