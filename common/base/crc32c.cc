#include "common/base/crc32c.h"

#include <algorithm>
#include <array>
#include <cstring>

#if defined(__x86_64__)
#include <immintrin.h>
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
/// Of the last few bytes; `c` is the register, not inverted.
__attribute__((target("sse4.2"))) std::uint32_t crc32c_tail(const unsigned char* p,
                                                            std::size_t size,
                                                            std::uint32_t c) {
  std::uint64_t wide = c;
  for (; size >= 8; size -= 8, p += 8) {
    std::uint64_t word = 0;
    std::memcpy(&word, p, 8);
    wide = _mm_crc32_u64(wide, word);
  }
  c = static_cast<std::uint32_t>(wide);
  for (; size != 0; --size, ++p)
    c = _mm_crc32_u8(c, *p);
  return c;
}

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
  return ~crc32c_tail(p, size, static_cast<std::uint32_t>(c));
}

/// The two factors that move 128 bits on by `bytes`: x^(8 bytes + 32) for their low half and
/// x^(8 bytes - 32) for the high one, shifted by one because the bits are reflected
/// (crc32c_fold.inc).
struct Fold {
  explicit Fold(std::size_t bytes)
      : low(std::uint64_t{power_of_bytes(bytes + 4)} << 1U),
        high(std::uint64_t{power_of_bytes(bytes - 4)} << 1U) {}

  std::uint64_t low;
  std::uint64_t high;
};

/// What else becomes of the bytes: kDemote leaves them to caches that all cores share; kStream, a
/// copy, leaves them out of the caches and wants `out` at a multiple of 64.
enum class Pass {
  kRead,
  kDemote,
  kCopy,
  kStream
};

constexpr bool copies(Pass pass) {
  return pass == Pass::kCopy || pass == Pass::kStream;
}

constexpr std::size_t kLine = 64;
constexpr std::size_t kTurn = 256;
/// What comes from memory goes by in blocks of eight segments: a turn of each of several places in
/// turn is read a sixth faster than one place alone. Two sizes of segments.
constexpr std::size_t kSegments = 8;
constexpr std::size_t kLongSegment = 8192;
constexpr std::size_t kShortSegment = 4096;
/// How far ahead what is in no block is asked for.
constexpr std::size_t kTurnsAhead = 4096;

/// Of what comes from memory: the hardware's own prefetch stops at the end of each 4 KiB. Not into
/// the first cache, whose few open misses are for what is read now. Addresses behind the end are
/// harmless.
inline void ask_for(const unsigned char* line) {
  _mm_prefetch(reinterpret_cast<const char*>(line), _MM_HINT_T1);
}

/// CLDEMOTE, by its name for the assembler alone: processors without it take it for a NOP.
inline void demote_line(const unsigned char* line) {
  asm volatile("cldemote %0" : : "m"(*line));
}

// Attributes stand on every function: clang knows no pragma for them.

__attribute__((target("pclmul"))) inline __m128i factors_of(const Fold& fold) {
  return _mm_set_epi64x(static_cast<long long>(fold.high), static_cast<long long>(fold.low));
}

__attribute__((target("pclmul"))) inline __m128i fold_128(__m128i x, __m128i k, __m128i next) {
  return _mm_clmulepi64_si128(x, k, 0x00) ^ _mm_clmulepi64_si128(x, k, 0x11) ^ next;
}

namespace by_512 {
#define TANDEM_FOLD __attribute__((target("avx512f,avx512vl,vpclmulqdq,pclmul,sse4.2")))

using Vec = __m512i;

TANDEM_FOLD inline Vec load(const unsigned char* p) {
  return _mm512_loadu_si512(p);
}

TANDEM_FOLD inline void store(unsigned char* p, Vec x) {
  _mm512_storeu_si512(p, x);
}

TANDEM_FOLD inline void stream(unsigned char* p, Vec x) {
  _mm512_stream_si512(reinterpret_cast<Vec*>(p), x);
}

TANDEM_FOLD inline Vec zero() {
  return _mm512_setzero_si512();
}

TANDEM_FOLD inline Vec lowest(std::uint32_t x) {
  return _mm512_set_epi64(0, 0, 0, 0, 0, 0, 0, std::int64_t{x});
}

TANDEM_FOLD inline Vec broadcast(const Fold& fold) {
  const auto low = static_cast<long long>(fold.low);
  const auto high = static_cast<long long>(fold.high);
  return _mm512_set4_epi64(high, low, high, low);
}

template <int kHalves>
TANDEM_FOLD inline Vec times(Vec x, Vec k) {
  return _mm512_clmulepi64_epi128(x, k, kHalves);
}

#include "common/base/crc32c_fold.inc"

#undef TANDEM_FOLD
}  // namespace by_512

/// The same on machines without AVX-512 (laptops, mostly).
namespace by_256 {
#define TANDEM_FOLD __attribute__((target("avx2,vpclmulqdq,pclmul,sse4.2")))

using Vec = __m256i;

TANDEM_FOLD inline Vec load(const unsigned char* p) {
  return _mm256_loadu_si256(reinterpret_cast<const Vec*>(p));
}

TANDEM_FOLD inline void store(unsigned char* p, Vec x) {
  _mm256_storeu_si256(reinterpret_cast<Vec*>(p), x);
}

TANDEM_FOLD inline void stream(unsigned char* p, Vec x) {
  _mm256_stream_si256(reinterpret_cast<Vec*>(p), x);
}

TANDEM_FOLD inline Vec zero() {
  return _mm256_setzero_si256();
}

TANDEM_FOLD inline Vec lowest(std::uint32_t x) {
  return _mm256_set_epi64x(0, 0, 0, std::int64_t{x});
}

TANDEM_FOLD inline Vec broadcast(const Fold& fold) {
  return _mm256_broadcastsi128_si256(factors_of(fold));
}

template <int kHalves>
TANDEM_FOLD inline Vec times(Vec x, Vec k) {
  return _mm256_clmulepi64_epi128(x, k, kHalves);
}

#include "common/base/crc32c_fold.inc"

#undef TANDEM_FOLD
}  // namespace by_256

constexpr std::size_t kFoldMin = 256;

/// The widest vectors that this machine folds by; 0: it cannot.
int fold_bits() {
  static const int kBits = crc32c_can_fold(512) ? 512 : crc32c_can_fold(256) ? 256 : 0;
  return kBits;
}

template <Pass kPass>
std::uint32_t fold_by(
    int bits, const void* data, std::size_t size, std::uint32_t crc, void* out = nullptr) {
  const auto* from = static_cast<const unsigned char*>(data);
  auto* to = static_cast<unsigned char*>(out);
  return bits == 512 ? by_512::crc32c_fold<kPass>(from, size, crc, to)
                     : by_256::crc32c_fold<kPass>(from, size, crc, to);
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

std::uint32_t crc32c(const void* data,
                     std::size_t size,
                     std::uint32_t crc,
                     [[maybe_unused]] bool demote) {
#if defined(__x86_64__)
  if (const int bits = fold_bits(); bits != 0) return crc32c_folded(bits, data, size, crc, demote);
#endif
  return crc32c_unfolded(data, size, crc);
}

bool crc32c_can_fold([[maybe_unused]] int bits) {
#if defined(__x86_64__)
  if (__builtin_cpu_supports("vpclmulqdq") == 0) return false;
  if (bits == 512)
    return __builtin_cpu_supports("avx512f") != 0 && __builtin_cpu_supports("avx512vl") != 0;
  return bits == 256 && __builtin_cpu_supports("avx2") != 0;
#else
  return false;
#endif
}

std::uint32_t crc32c_folded([[maybe_unused]] int bits,
                            const void* data,
                            std::size_t size,
                            std::uint32_t crc,
                            [[maybe_unused]] bool demote) {
#if defined(__x86_64__)
  if (size >= kFoldMin) {
    return demote ? fold_by<Pass::kDemote>(bits, data, size, crc)
                  : fold_by<Pass::kRead>(bits, data, size, crc);
  }
#endif
  return crc32c_unfolded(data, size, crc);
}

std::uint32_t crc32c_copy_folded([[maybe_unused]] int bits,
                                 void* out,
                                 const void* data,
                                 std::size_t size,
                                 std::uint32_t crc,
                                 [[maybe_unused]] bool read_soon) {
#if defined(__x86_64__)
  if (size >= kFoldMin) {
    const bool stream = !read_soon && reinterpret_cast<std::uintptr_t>(out) % kLine == 0;
    return stream ? fold_by<Pass::kStream>(bits, data, size, crc, out)
                  : fold_by<Pass::kCopy>(bits, data, size, crc, out);
  }
#endif
  return crc32c_copy_in_pieces(out, data, size, crc);
}

std::uint32_t crc32c_unfolded(const void* data, std::size_t size, std::uint32_t crc) {
#if defined(__x86_64__)
  static const bool kHardware = __builtin_cpu_supports("sse4.2") != 0;
  if (kHardware) return crc32c_sse42(static_cast<const unsigned char*>(data), size, crc);
#endif
  return crc32c_portable(data, size, crc);
}

std::uint32_t crc32c_copy(
    void* out, const void* data, std::size_t size, std::uint32_t crc, bool read_soon) {
#if defined(__x86_64__)
  if (const int bits = fold_bits(); bits != 0)
    return crc32c_copy_folded(bits, out, data, size, crc, read_soon);
#endif
  return crc32c_copy_in_pieces(out, data, size, crc);
}

std::uint32_t crc32c_copy_in_pieces(void* out,
                                    const void* data,
                                    std::size_t size,
                                    std::uint32_t crc) {
  // In pieces that are still in the cache when their CRC is taken.
  constexpr std::size_t kPiece = 16384;
  for (std::size_t at = 0; at < size; at += kPiece) {
    const std::size_t bytes = std::min(kPiece, size - at);
    auto* to = static_cast<unsigned char*>(out) + at;
    std::memcpy(to, static_cast<const unsigned char*>(data) + at, bytes);
    crc = crc32c(to, bytes, crc);
  }
  return crc;
}

std::uint32_t crc32c_combine(std::uint32_t crc_a, std::uint32_t crc_b, std::size_t size_b) {
  return multiply(crc_a, power_of_bytes(size_b)) ^ crc_b;
}

}  // namespace tandem
