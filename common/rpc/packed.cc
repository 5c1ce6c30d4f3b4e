#include "common/rpc/internal/packed.h"

#include <array>
#include <bit>

#ifdef __x86_64__
#include <immintrin.h>
#endif

namespace tandem::rpc::internal {
namespace {

std::uint8_t* write_packed_portable(std::span<const std::int32_t> numbers, std::uint8_t* at) {
  for (const std::int32_t number : numbers) {
    const auto bits = static_cast<std::uint32_t>(number);
    if (bits < 1U << 7U) {
      *at++ = static_cast<std::uint8_t>(bits);
    } else if (bits < 1U << 14U) {
      *at++ = static_cast<std::uint8_t>(bits | 0x80U);
      *at++ = static_cast<std::uint8_t>(bits >> 7U);
    } else {
      at = write_varint(static_cast<std::uint64_t>(std::int64_t{number}), at);
    }
  }
  return at;
}

#ifdef __x86_64__

// Of what runs only on machines that can_pack_by() it. On every function: clang knows no pragma for
// it.
#define TANDEM_WIDE __attribute__((target("avx2,popcnt")))
#define TANDEM_COMPRESS __attribute__((target("avx2,popcnt,avx512f,avx512vl,avx512bw,avx512vbmi2")))

constexpr std::size_t kLanes = sizeof(__m256i) / sizeof(std::int32_t);
constexpr std::size_t kHalf = kLanes / 2;
constexpr std::size_t kHalfBytes = sizeof(__m128i);
// Numbers of one to three bytes are written eight at once: all token ids are.
constexpr int kOneByteMax = (1 << 7) - 1;
constexpr int kTwoBytesMax = (1 << 14) - 1;
constexpr int kThreeBytesMax = (1 << 21) - 1;

bool has_wide() {
  return __builtin_cpu_supports("avx2") != 0 && __builtin_cpu_supports("popcnt") != 0;
}

bool has_compress() {
  return has_wide() && __builtin_cpu_supports("avx512f") != 0 &&
         __builtin_cpu_supports("avx512vl") != 0 && __builtin_cpu_supports("avx512bw") != 0 &&
         __builtin_cpu_supports("avx512vbmi2") != 0;
}

/// For four numbers in four bytes each: which bytes are left, one number's behind the other's. The
/// index has a bit for each number with a second byte, and above those one for each with a third.
using Choices = std::array<std::array<std::uint8_t, kHalfBytes>, 1U << (2 * kHalf)>;

constexpr Choices choose_bytes() {
  Choices choices{};
  for (std::size_t index = 0; index < choices.size(); ++index) {
    std::size_t to = 0;
    for (std::size_t number = 0; number < kHalf; ++number) {
      const std::size_t more = (index >> number & 1U) + (index >> (number + kHalf) & 1U);
      for (std::size_t byte = 0; byte <= more; ++byte)
        choices[index][to++] = static_cast<std::uint8_t>(sizeof(std::int32_t) * number + byte);
    }
  }
  return choices;
}

alignas(kHalfBytes) constexpr Choices kChoices = choose_bytes();

TANDEM_WIDE inline __m256i load(const std::int32_t* numbers) {
  return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(numbers));
}

/// Top bits are set where a number takes more than three bytes: a large or a negative one.
TANDEM_WIDE inline __m256i too_long(__m256i numbers) {
  return _mm256_or_si256(numbers, _mm256_cmpgt_epi32(numbers, _mm256_set1_epi32(kThreeBytesMax)));
}

/// Four numbers to `at`, where all of kHalfBytes is written; returns where the next one goes.
TANDEM_WIDE inline std::uint8_t* write_half(__m128i spread, std::size_t index, std::uint8_t* at) {
  const __m128i choice = _mm_load_si128(reinterpret_cast<const __m128i*>(kChoices[index].data()));
  _mm_storeu_si128(reinterpret_cast<__m128i*>(at), _mm_shuffle_epi8(spread, choice));
  return at + kHalf + static_cast<std::size_t>(std::popcount(index));
}

/// Eight numbers of three bytes at most, in the bytes that they are written as, up to four apart.
struct Spread {
  __m256i bytes;
  __m256i second;  ///< -1 where a number has a second byte
  __m256i third;
};

TANDEM_WIDE inline Spread spread(__m256i numbers) {
  const __m256i second = _mm256_cmpgt_epi32(numbers, _mm256_set1_epi32(kOneByteMax));
  const __m256i third = _mm256_cmpgt_epi32(numbers, _mm256_set1_epi32(kTwoBytesMax));
  // Seven bits to a byte: what is above the first seven moves by one, what is above 14 by another.
  const __m256i above = _mm256_andnot_si256(_mm256_set1_epi32(kOneByteMax), numbers);
  const __m256i above_two = _mm256_andnot_si256(_mm256_set1_epi32(kTwoBytesMax), numbers);
  __m256i bytes =
      _mm256_add_epi32(_mm256_add_epi32(numbers, above), _mm256_add_epi32(above_two, above_two));
  bytes = _mm256_or_si256(bytes, _mm256_and_si256(second, _mm256_set1_epi32(0x80)));
  bytes = _mm256_or_si256(bytes, _mm256_and_si256(third, _mm256_set1_epi32(0x8000)));
  return {bytes, second, third};
}

/// Without a branch for each number: which of them are longer is anybody's guess.
TANDEM_WIDE inline std::uint8_t* write_eight(__m256i numbers, std::uint8_t* at) {
  const Spread all = spread(numbers);
  // Each half of a vector is packed by itself.
  const __m256i words = _mm256_packs_epi32(all.second, all.third);
  const auto bits = static_cast<unsigned>(_mm256_movemask_epi8(_mm256_packs_epi16(words, words)));
  at = write_half(_mm256_castsi256_si128(all.bytes), bits & 0xFFU, at);
  return write_half(_mm256_extracti128_si256(all.bytes, 1), bits >> 16U & 0xFFU, at);
}

/// The same by one instruction, on processors that have it; all of a vector is written.
TANDEM_COMPRESS inline std::uint8_t* compress_eight(__m256i numbers, std::uint8_t* at) {
  const Spread all = spread(numbers);
  // Top bits of the bytes that are left.
  __m256i left = _mm256_and_si256(all.second, _mm256_set1_epi32(0x8000));
  left = _mm256_or_si256(left, _mm256_and_si256(all.third, _mm256_set1_epi32(0x80'0000)));
  left = _mm256_or_si256(left, _mm256_set1_epi32(0x80));
  const __mmask32 mask = _mm256_movepi8_mask(left);
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(at), _mm256_maskz_compress_epi8(mask, all.bytes));
  return at + std::popcount(static_cast<std::uint32_t>(mask));
}

TANDEM_WIDE std::size_t packed_bytes_wide(std::span<const std::int32_t> numbers) {
  __m256i more = _mm256_setzero_si256();
  __m256i wrong = _mm256_setzero_si256();
  std::size_t done = 0;
  for (; numbers.size() - done >= kLanes; done += kLanes) {
    const __m256i some = load(numbers.data() + done);
    wrong = _mm256_or_si256(wrong, too_long(some));
    // What is true is -1.
    more = _mm256_sub_epi32(more, _mm256_cmpgt_epi32(some, _mm256_set1_epi32(kOneByteMax)));
    more = _mm256_sub_epi32(more, _mm256_cmpgt_epi32(some, _mm256_set1_epi32(kTwoBytesMax)));
  }
  if (_mm256_movemask_ps(_mm256_castsi256_ps(wrong)) != 0) return packed_bytes_portable(numbers);
  std::array<std::uint32_t, kLanes> sums{};
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(sums.data()), more);
  std::size_t bytes = done + packed_bytes_portable(numbers.subspan(done));
  for (const std::uint32_t sum : sums)
    bytes += sum;
  return bytes;
}

// Behind numbers that are written at once come so many others that what is written too much does
// not reach beyond them.

TANDEM_WIDE std::uint8_t* write_packed_wide(std::span<const std::int32_t> numbers,
                                            std::uint8_t* at) {
  constexpr std::size_t kBehind = kHalfBytes - kHalf;
  while (numbers.size() >= kLanes + kBehind) {
    const __m256i some = load(numbers.data());
    if (_mm256_movemask_ps(_mm256_castsi256_ps(too_long(some))) == 0)
      at = write_eight(some, at);
    else
      at = write_packed_portable(numbers.first(kLanes), at);
    numbers = numbers.subspan(kLanes);
  }
  return write_packed_portable(numbers, at);
}

TANDEM_COMPRESS std::uint8_t* write_packed_compressed(std::span<const std::int32_t> numbers,
                                                      std::uint8_t* at) {
  constexpr std::size_t kBehind = sizeof(__m256i) - kLanes;
  while (numbers.size() >= kLanes + kBehind) {
    const __m256i some = load(numbers.data());
    if (_mm256_movemask_ps(_mm256_castsi256_ps(too_long(some))) == 0)
      at = compress_eight(some, at);
    else
      at = write_packed_portable(numbers.first(kLanes), at);
    numbers = numbers.subspan(kLanes);
  }
  return write_packed_wide(numbers, at);
}

#undef TANDEM_COMPRESS
#undef TANDEM_WIDE

#endif

}  // namespace

std::uint8_t* write_varint(std::uint64_t value, std::uint8_t* at) {
  while (value >= 0x80) {
    *at++ = static_cast<std::uint8_t>(value | 0x80U);
    value >>= 7U;
  }
  *at++ = static_cast<std::uint8_t>(value);
  return at;
}

std::size_t varint_bytes(std::uint64_t value) {
  std::size_t bytes = 1;
  while (value >>= 7U)
    ++bytes;
  return bytes;
}

std::size_t packed_bytes(std::span<const std::int32_t> numbers) {
#ifdef __x86_64__
  if (can_pack_by(PackBy::kShuffles)) return packed_bytes_wide(numbers);
#endif
  return packed_bytes_portable(numbers);
}

bool can_pack_by(PackBy by) {
#ifdef __x86_64__
  static const bool kWide = has_wide();
  static const bool kCompress = has_compress();
  if (by == PackBy::kShuffles) return kWide;
  if (by == PackBy::kCompress) return kCompress;
#endif
  return by == PackBy::kPlainCode;
}

std::uint8_t* write_packed_by(PackBy by, std::span<const std::int32_t> numbers, std::uint8_t* at) {
#ifdef __x86_64__
  if (by == PackBy::kCompress) return write_packed_compressed(numbers, at);
  if (by == PackBy::kShuffles) return write_packed_wide(numbers, at);
#endif
  return write_packed_portable(numbers, at);
}

std::uint8_t* write_packed(std::span<const std::int32_t> numbers, std::uint8_t* at) {
  const PackBy by = can_pack_by(PackBy::kCompress)   ? PackBy::kCompress
                    : can_pack_by(PackBy::kShuffles) ? PackBy::kShuffles
                                                     : PackBy::kPlainCode;
  return write_packed_by(by, numbers, at);
}

/// One sum without branches, so that many are looked at at once.
std::size_t packed_bytes_portable(std::span<const std::int32_t> numbers) {
  std::uint32_t more = 0;
  for (const std::int32_t number : numbers) {
    const auto bits = static_cast<std::uint32_t>(number);
    // Negative ones are written with 64 bits.
    more += static_cast<std::uint32_t>(bits >= 1U << 7U) +
            static_cast<std::uint32_t>(bits >= 1U << 14U) +
            static_cast<std::uint32_t>(bits >= 1U << 21U) +
            static_cast<std::uint32_t>(bits >= 1U << 28U) + 5U * (bits >> 31U);
  }
  return numbers.size() + more;
}

}  // namespace tandem::rpc::internal
