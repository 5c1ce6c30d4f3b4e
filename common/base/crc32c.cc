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
/// x^(8 bytes - 32) for the high one, shifted by one because the bits are reflected (Gopal et al.,
/// "Fast CRC Computation for Generic Polynomials Using PCLMULQDQ", Intel 2009).
struct Fold {
  explicit Fold(std::size_t bytes)
      : low(std::uint64_t{power_of_bytes(bytes + 4)} << 1U),
        high(std::uint64_t{power_of_bytes(bytes - 4)} << 1U) {}

  std::uint64_t low;
  std::uint64_t high;
};

// Of what runs only on machines that can_fold(). On every function: clang knows no pragma for it.
#define TANDEM_FOLD __attribute__((target("avx512f,avx512vl,vpclmulqdq,pclmul,sse4.2")))

TANDEM_FOLD inline __m512i fold_512(__m512i x, __m512i k, __m512i next) {
  return _mm512_clmulepi64_epi128(x, k, 0x00) ^ _mm512_clmulepi64_epi128(x, k, 0x11) ^ next;
}

TANDEM_FOLD inline __m128i fold_128(__m128i x, __m128i k, __m128i next) {
  return _mm_clmulepi64_si128(x, k, 0x00) ^ _mm_clmulepi64_si128(x, k, 0x11) ^ next;
}

TANDEM_FOLD inline __m512i broadcast(const Fold& fold) {
  const auto low = static_cast<long long>(fold.low);
  const auto high = static_cast<long long>(fold.high);
  return _mm512_set_epi64(high, low, high, low, high, low, high, low);
}

/// What becomes of the bytes on the way: kStream leaves them out of the caches and wants `out` at a
/// multiple of 64.
enum class Copy {
  kNone,
  kPlain,
  kStream
};

template <Copy kCopy>
TANDEM_FOLD inline __m512i take(const unsigned char* p, unsigned char* out, std::size_t at) {
  const __m512i bytes = _mm512_loadu_si512(p + at);
  if constexpr (kCopy == Copy::kPlain) _mm512_storeu_si512(out + at, bytes);
  if constexpr (kCopy == Copy::kStream)
    _mm512_stream_si512(reinterpret_cast<__m512i*>(out + at), bytes);
  return bytes;
}

constexpr std::size_t kVector = 64;
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

/// To the next vector.
const Fold& one_vector() {
  static const Fold kFold(kVector);
  return kFold;
}

/// What the vectors of a turn fold to, all 64 bytes apart. `before` goes into the first one.
template <Copy kCopy>
TANDEM_FOLD inline __m512i fold_turns(const unsigned char* p,
                                      unsigned char* out,
                                      std::size_t turns,
                                      __m512i before) {
  static const Fold kFar(kTurn);
  const __m512i far = broadcast(kFar);
  __m512i x0 = take<kCopy>(p, out, 0) ^ before;
  __m512i x1 = take<kCopy>(p, out, kVector);
  __m512i x2 = take<kCopy>(p, out, 2 * kVector);
  __m512i x3 = take<kCopy>(p, out, 3 * kVector);
  for (std::size_t at = kTurn; at < turns * kTurn; at += kTurn) {
    if constexpr (kCopy != Copy::kPlain) {
      for (std::size_t vector = 0; vector < kTurn; vector += kVector)
        ask_for(p + at + kTurnsAhead + vector);
    }
    x0 = fold_512(x0, far, take<kCopy>(p, out, at));
    x1 = fold_512(x1, far, take<kCopy>(p, out, at + kVector));
    x2 = fold_512(x2, far, take<kCopy>(p, out, at + 2 * kVector));
    x3 = fold_512(x3, far, take<kCopy>(p, out, at + 3 * kVector));
  }
  const __m512i near = broadcast(one_vector());
  return fold_512(fold_512(fold_512(x0, near, x1), near, x2), near, x3);
}

/// The same of a block. An eighth of a segment ahead is asked for, at its end of the segment that
/// takes its place in the next block.
template <Copy kCopy, std::size_t kSegmentBytes>
TANDEM_FOLD __m512i fold_block(const unsigned char* p, unsigned char* out, __m512i before) {
  static const Fold kSegment(kSegmentBytes);
  constexpr std::size_t kAhead = kSegmentBytes / 8;
  const __m512i near = broadcast(one_vector());
  __m512i x[kSegments];
  for (__m512i& each : x)
    each = _mm512_setzero_si512();
  for (std::size_t at = 0; at < kSegmentBytes; at += kTurn) {
    const std::size_t ahead =
        at + kAhead + (at + kAhead < kSegmentBytes ? 0 : (kSegments - 1) * kSegmentBytes);
#pragma GCC unroll 8
    for (std::size_t i = 0; i < kSegments; ++i) {
      const std::size_t segment = i * kSegmentBytes;
#pragma GCC unroll 4
      for (std::size_t vector = 0; vector < kTurn; vector += kVector) {
        ask_for(p + segment + ahead + vector);
        __m512i next = take<kCopy>(p, out, segment + at + vector);
        if (segment + at + vector == 0) next ^= before;
        x[i] = fold_512(x[i], near, next);
      }
    }
  }
  const __m512i apart = broadcast(kSegment);
  __m512i sum = x[0];
  for (std::size_t i = 1; i < kSegments; ++i)
    sum = fold_512(sum, apart, x[i]);
  return sum;
}

/// By carry-less products; copies to `out` on the way. At least a turn.
template <Copy kCopy>
TANDEM_FOLD std::uint32_t crc32c_fold(const unsigned char* p,
                                      std::size_t size,
                                      std::uint32_t crc,
                                      unsigned char* out) {
  static const Fold kLane(16);
  const __m512i near = broadcast(one_vector());
  const __m512i zero = _mm512_setzero_si512();
  // What precedes, for the next vector to take in; and what all before `at` folds to.
  __m512i before = _mm512_set_epi64(0, 0, 0, 0, 0, 0, 0, std::int64_t{~crc});
  __m512i x = zero;
  std::size_t at = 0;
  if constexpr (kCopy != Copy::kPlain) {
    for (; at + kSegments * kLongSegment <= size; at += kSegments * kLongSegment) {
      x = fold_block<kCopy, kLongSegment>(p + at, out + at, before);
      before = fold_512(x, near, zero);
    }
    if (at + kSegments * kShortSegment <= size) {
      x = fold_block<kCopy, kShortSegment>(p + at, out + at, before);
      before = fold_512(x, near, zero);
      at += kSegments * kShortSegment;
    }
  }
  if (const std::size_t turns = (size - at) / kTurn; turns > 0) {
    x = fold_turns<kCopy>(p + at, out + at, turns, before);
    at += turns * kTurn;
  }
  alignas(64) __m128i lanes[4];
  std::memcpy(lanes, &x, sizeof lanes);
  const __m128i step =
      _mm_set_epi64x(static_cast<long long>(kLane.high), static_cast<long long>(kLane.low));
  const __m128i folded =
      fold_128(fold_128(fold_128(lanes[0], step, lanes[1]), step, lanes[2]), step, lanes[3]);
  // The CRC of these 16 bytes is the CRC of all that were folded into them.
  std::uint64_t halves[2];
  std::memcpy(halves, &folded, sizeof halves);
  const std::uint64_t c = _mm_crc32_u64(_mm_crc32_u64(0, halves[0]), halves[1]);
  const unsigned char* rest = p + at;
  if constexpr (kCopy != Copy::kNone) {
    // Of the copy: the source may be memory that another process writes to.
    std::memcpy(out + at, rest, size - at);
    rest = out + at;
  }
  // Streamed bytes are there for other threads only after this.
  if constexpr (kCopy == Copy::kStream) _mm_sfence();
  return ~crc32c_tail(rest, size - at, static_cast<std::uint32_t>(c));
}

#undef TANDEM_FOLD

constexpr std::size_t kFoldMin = 256;

bool can_fold() {
  static const bool kCan = __builtin_cpu_supports("vpclmulqdq") != 0 &&
                           __builtin_cpu_supports("avx512f") != 0 &&
                           __builtin_cpu_supports("avx512vl") != 0;
  return kCan;
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
  if (size >= kFoldMin && can_fold())
    return crc32c_fold<Copy::kNone>(static_cast<const unsigned char*>(data), size, crc, nullptr);
#endif
  return crc32c_unfolded(data, size, crc);
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
  if (size >= kFoldMin && can_fold()) {
    const auto* from = static_cast<const unsigned char*>(data);
    auto* to = static_cast<unsigned char*>(out);
    const bool stream = !read_soon && reinterpret_cast<std::uintptr_t>(out) % 64 == 0;
    return stream ? crc32c_fold<Copy::kStream>(from, size, crc, to)
                  : crc32c_fold<Copy::kPlain>(from, size, crc, to);
  }
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
