// take_memory: has the system give memory before it is used.
#pragma once

#include <cstddef>
#include <cstdint>

namespace tandem {

/// The size of a huge page: memory taken in these pieces, cut at multiples of them, can get such.
constexpr std::size_t kMemoryBlockBytes = std::size_t{2} << 20;

/// Has the system give the memory of one block, whose address is `index` times the size of a block,
/// as far as it lies within [begin, end), which is not
/// nothing: all of it as if each page had been written to. What lies
/// there stays as it is, also while others write. False where the system knows no such thing (Linux
/// before 5.14). Any other refusal is none of ours: whoever uses the memory takes it then, and
/// meets the same trouble.
bool take_memory_block(std::uintptr_t begin, std::uintptr_t end, std::uintptr_t index);

}  // namespace tandem
