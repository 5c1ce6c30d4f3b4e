#include "common/base/crc32c.h"

#include <array>
#include <cstring>

#if defined(__x86_64__)
#include <nmmintrin.h>
#endif

namespace tandem {
namespace {

constexpr std::uint32_t kPolynomial = 0x82F63B78U;  // reflected

constexpr std::array<std::uint32_t, 256> make_table() {
  std::array<std::uint32_t, 256> table{};
  for (std::uint32_t i = 0; i < 256; ++i) {
    std::uint32_t c = i;
    for (int k = 0; k < 8; ++k)
      c = (c & 1U) != 0 ? (c >> 1U) ^ kPolynomial : c >> 1U;
    table[i] = c;
  }
  return table;
}

constexpr auto kTable = make_table();

/// a * b mod P over GF(2), reflected bit order.
std::uint32_t multiply(std::uint32_t a, std::uint32_t b) {
  std::uint32_t product = 0;
  for (std::uint32_t bit = 0x80000000U; bit != 0; bit >>= 1U) {
    if ((a & bit) != 0) product ^= b;
    b = (b & 1U) != 0 ? (b >> 1U) ^ kPolynomial : b >> 1U;
  }
  return product;
}

/// x^(8 * size) mod P.
std::uint32_t power_of_bytes(std::size_t size) {
  std::uint32_t result = 0x80000000U;  // 1
  std::uint32_t square = 0x00800000U;  // x^8
  for (; size != 0; size >>= 1U) {
    if ((size & 1U) != 0) result = multiply(result, square);
    square = multiply(square, square);
  }
  return result;
}

#if defined(__x86_64__)
__attribute__((target("sse4.2"))) std::uint32_t crc32c_sse42(const unsigned char* p,
                                                             std::size_t size,
                                                             std::uint32_t crc) {
  std::uint64_t c = ~crc;
  // Three independent streams hide the instruction's latency of three cycles; their CRCs are
  // combined after.
  constexpr std::size_t kLane = 4096;
  while (size >= 3 * kLane) {
    std::uint64_t a = c;
    std::uint64_t b = 0;
    std::uint64_t d = 0;
    for (std::size_t i = 0; i < kLane; i += 8) {
      std::uint64_t wa = 0;
      std::uint64_t wb = 0;
      std::uint64_t wd = 0;
      std::memcpy(&wa, p + i, 8);
      std::memcpy(&wb, p + kLane + i, 8);
      std::memcpy(&wd, p + 2 * kLane + i, 8);
      a = _mm_crc32_u64(a, wa);
      b = _mm_crc32_u64(b, wb);
      d = _mm_crc32_u64(d, wd);
    }
    static const std::uint32_t kShift = power_of_bytes(kLane);
    c = multiply(static_cast<std::uint32_t>(a), kShift) ^ b;
    c = multiply(static_cast<std::uint32_t>(c), kShift) ^ d;
    p += 3 * kLane;
    size -= 3 * kLane;
  }
  for (; size >= 8; size -= 8, p += 8) {
    std::uint64_t word = 0;
    std::memcpy(&word, p, 8);
    c = _mm_crc32_u64(c, word);
  }
  auto c32 = static_cast<std::uint32_t>(c);
  for (; size != 0; --size, ++p)
    c32 = _mm_crc32_u8(c32, *p);
  return ~c32;
}
#endif

}  // namespace

std::uint32_t crc32c_portable(const void* data, std::size_t size, std::uint32_t crc) {
  const auto* p = static_cast<const unsigned char*>(data);
  std::uint32_t c = ~crc;
  for (std::size_t i = 0; i < size; ++i)
    c = kTable[(c ^ p[i]) & 0xFFU] ^ (c >> 8U);
  return ~c;
}

std::uint32_t crc32c(const void* data, std::size_t size, std::uint32_t crc) {
#if defined(__x86_64__)
  static const bool kHardware = __builtin_cpu_supports("sse4.2") != 0;
  if (kHardware) return crc32c_sse42(static_cast<const unsigned char*>(data), size, crc);
#endif
  return crc32c_portable(data, size, crc);
}

std::uint32_t crc32c_combine(std::uint32_t crc_a, std::uint32_t crc_b, std::size_t size_b) {
  return multiply(crc_a, power_of_bytes(size_b)) ^ crc_b;
}

}  // namespace tandem
