// CRC32C (Castagnoli, RFC 3720 appendix B.4) of KV units on the wire.
#pragma once

#include <cstddef>
#include <cstdint>

namespace tandem {

/// CRC of `size` bytes at `data`, continuing from `crc` (0 to start). Hardware instruction where
/// there is one. With `demote` the bytes, which another core reads next, are left to the caches
/// that cores share, where the processor has an instruction for that (CLDEMOTE): this core takes
/// half as long again, and the other finds them sooner than in this one's caches.
std::uint32_t crc32c(const void* data,
                     std::size_t size,
                     std::uint32_t crc = 0,
                     bool demote = false);

/// Copies `size` bytes from `data` to `out`, which do not overlap, and returns their CRC as
/// crc32c() does, in one pass: the CRC is of what was copied, whoever writes to `data` meanwhile.
/// Without `read_soon` the copy may be left out of the caches.
std::uint32_t crc32c_copy(
    void* out, const void* data, std::size_t size, std::uint32_t crc, bool read_soon);

/// Whether this machine folds by vectors of so many bits (512, 256: AVX-512VL or AVX2 with
/// VPCLMULQDQ), and what the two above do where it does, with the widest ones. Only where it can.
bool crc32c_can_fold(int bits);
std::uint32_t crc32c_folded(
    int bits, const void* data, std::size_t size, std::uint32_t crc = 0, bool demote = false);
std::uint32_t crc32c_copy_folded(
    int bits, void* out, const void* data, std::size_t size, std::uint32_t crc, bool read_soon);

/// What they do on other machines, and with few bytes.
std::uint32_t crc32c_unfolded(const void* data, std::size_t size, std::uint32_t crc = 0);
std::uint32_t crc32c_copy_in_pieces(void* out,
                                    const void* data,
                                    std::size_t size,
                                    std::uint32_t crc);

/// The table version: oracle of the tests.
std::uint32_t crc32c_portable(const void* data, std::size_t size, std::uint32_t crc = 0);

/// CRC of A followed by B, from crc(A), crc(B) and the length of B.
std::uint32_t crc32c_combine(std::uint32_t crc_a, std::uint32_t crc_b, std::size_t size_b);

}  // namespace tandem
