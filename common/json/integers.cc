#include "common/json/integers.h"

#include "common/json/scan.h"

#include <algorithm>
#include <bit>

#ifdef __x86_64__
#include <immintrin.h>
#endif

namespace tandem::json {
namespace {

using scan::kOnes;
using scan::kTops;
using scan::load_eight;

/// The lowest top bit that is set is that of the first byte that is no digit.
std::uint64_t no_digits(std::uint64_t bytes) {
  // Top bits of bytes below '0' (borrows go upwards, past the first such byte only), above '9', and
  // of those that are not ASCII.
  return ((bytes - '0' * kOnes) | (bytes + (0x7FU - '9') * kOnes) | bytes) & kTops;
}

/// The number that eight digits are, each the value 0 to 9 in a byte, the lowest first.
std::int32_t number_of_eight(std::uint64_t digits) {
  // Pairs, fours and eights at once.
  digits = digits * 10 + (digits >> 8U);
  digits = ((digits & 0x000000FF000000FFU) * (100 + (1000000ULL << 32U)) +
            ((digits >> 16U) & 0x000000FF000000FFU) * (1 + (10000ULL << 32U))) >>
           32U;
  return static_cast<std::int32_t>(digits);
}

/// The value of `count` digits, 1 to 7, of eight bytes.
std::int32_t number_of_digits(std::uint64_t bytes, std::size_t count) {
  // Left-padded with zeros to eight digits.
  return number_of_eight((bytes - '0' * kOnes) << (8 * (8 - count)));
}

/// Near the end of the text, or with more digits.
[[gnu::noinline]] ShortNumber read_short_number_by_digit(const char* at, const char* end) {
  constexpr std::size_t kDigitsMax = 9;
  const char* const first = at;
  std::int32_t value = 0;
  while (at != end && *at >= '0' && *at <= '9') {
    if (at == first + kDigitsMax) return {};
    value = value * 10 + (*at++ - '0');
  }
  const auto digits = static_cast<std::size_t>(at - first);
  if (digits > 1 && *first == '0') return {};
  return {digits, value};
}

#ifdef __x86_64__

// Of what runs only on machines that can_read_wide(). On every function: clang knows no pragma for
// it.
#define TANDEM_WIDE __attribute__((target("avx2,bmi,popcnt")))

constexpr std::ptrdiff_t kHalf = sizeof(__m256i);

TANDEM_WIDE inline __m256i load_half(const char* from) {
  return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from));
}

/// The top bits of the bytes of two halves, the first one lowest.
TANDEM_WIDE inline std::uint64_t top_bits(__m256i low, __m256i high) {
  const std::uint64_t above{static_cast<std::uint32_t>(_mm256_movemask_epi8(high))};
  return above << static_cast<unsigned>(kHalf) |
         static_cast<std::uint32_t>(_mm256_movemask_epi8(low));
}

TANDEM_WIDE inline __m256i is_digit(__m256i bytes) {
  const __m256i values = _mm256_xor_si256(bytes, _mm256_set1_epi8('0'));
  return _mm256_cmpeq_epi8(_mm256_min_epu8(values, _mm256_set1_epi8(9)), values);
}

/// Of scan::kPiece bytes, the first of which begins a number or is the space before one; a bit for
/// each byte.
struct Piece {
  std::uint64_t commas = 0;
  std::uint64_t wrong = 0;  ///< before the lowest one are nothing but numbers, each with a comma
};

TANDEM_WIDE inline Piece look_at_piece(const char* piece) {
  const __m256i low = load_half(piece);
  const __m256i high = load_half(piece + kHalf);
  const auto equal = [&](char c) TANDEM_WIDE {
    const __m256i wanted = _mm256_set1_epi8(c);
    return top_bits(_mm256_cmpeq_epi8(low, wanted), _mm256_cmpeq_epi8(high, wanted));
  };
  const std::uint64_t digits = top_bits(is_digit(low), is_digit(high));
  const std::uint64_t commas = equal(',');
  const std::uint64_t begins = commas << 1U | 1U;
  const std::uint64_t spaces = equal(' ') & begins;
  const std::uint64_t zeros = equal('0') & (begins | spaces << 1U);
  const std::uint64_t twos = digits & digits << 1U;
  const std::uint64_t fours = twos & twos << 2U;
  // A comma belongs behind a digit, a space behind a comma, nothing but a comma behind a 0 that
  // begins a number, and at most seven digits are in a row.
  const std::uint64_t right = digits | (commas & digits << 1U) | spaces;
  return {.commas = commas, .wrong = ~right | (digits & zeros << 1U) | (fours & fours << 4U)};
}

/// The lowest bit's place, 64 when there is none; takes it out.
TANDEM_WIDE inline std::size_t take_lowest(std::uint64_t* bits) {
  const auto place = static_cast<std::size_t>(_tzcnt_u64(*bits));
  *bits = _blsr_u64(*bits);
  return place;
}

/// The eight bytes before each of the two lowest commas, which are taken out.
TANDEM_WIDE inline __m128i bytes_of_two(const char* piece, std::uint64_t* commas) {
  const char* const before = piece - sizeof(std::uint64_t);
  const auto* const first = reinterpret_cast<const __m128i*>(before + take_lowest(commas));
  const auto* const second = reinterpret_cast<const double*>(before + take_lowest(commas));
  return _mm_castpd_si128(_mm_loadh_pd(_mm_castsi128_pd(_mm_loadl_epi64(first)), second));
}

/// Four numbers, as digits of eight: the bytes before each of the four commas, backwards, with the
/// values 0 to 9 and zeros for what was there before the number.
TANDEM_WIDE inline __m256i digits_of_four(const char* piece, std::uint64_t* commas) {
  const __m128i low = bytes_of_two(piece, commas);
  const __m256i bytes = _mm256_set_m128i(bytes_of_two(piece, commas), low);
  const __m256i backwards = _mm256_set_epi64x(
      0x08090A0B0C0D0E0F, 0x0001020304050607, 0x08090A0B0C0D0E0F, 0x0001020304050607);
  const __m256i values =
      _mm256_xor_si256(_mm256_shuffle_epi8(bytes, backwards), _mm256_set1_epi8('0'));
  // Signed: right before a number is a comma, a space or the like, which are above 9 here; what is
  // before that does not matter.
  const __m256i others = _mm256_cmpgt_epi8(values, _mm256_set1_epi8(9));
  // All bits below the lowest one of `others`.
  const __m256i behind =
      _mm256_andnot_si256(others, _mm256_add_epi64(others, _mm256_set1_epi64x(-1)));
  return _mm256_and_si256(values, behind);
}

/// Of digits, the lowest first: the numbers that each four of them are.
TANDEM_WIDE inline __m256i in_fours(__m256i digits) {
  const __m256i twos = _mm256_maddubs_epi16(digits, _mm256_set1_epi16(10 << 8 | 1));
  return _mm256_madd_epi16(twos, _mm256_set1_epi32(100 << 16 | 1));
}

/// Eight numbers before the lowest eight commas, which are taken out. (Where there are fewer, the
/// last are anything.)
TANDEM_WIDE inline __m256i numbers_of_eight(const char* piece, std::uint64_t* commas) {
  const __m256i first = in_fours(digits_of_four(piece, commas));
  const __m256i second = in_fours(digits_of_four(piece, commas));
  // Puts the two halves of each vector together: 0 1 4 5 2 3 6 7.
  const __m256i fours = _mm256_packus_epi32(first, second);
  const __m256i eights = _mm256_madd_epi16(fours, _mm256_set1_epi32(10000 << 16 | 1));
  return _mm256_permute4x64_epi64(eights, _MM_SHUFFLE(3, 1, 2, 0));
}

/// Eight numbers at a time, and what may stand where looked at for 64 bytes at once.
TANDEM_WIDE IntegerRun read_run_wide(const char* begin,
                                     const char* at,
                                     const char* end,
                                     std::span<std::int32_t> room) {
  constexpr std::size_t kLanes = sizeof(__m256i) / sizeof(std::int32_t);
  std::size_t count = 0;
  bool on = at - begin >= static_cast<std::ptrdiff_t>(sizeof(std::uint64_t));
  while (on && end - at >= scan::kPiece) {
    const char* const piece = at;
    auto [commas, wrong] = look_at_piece(piece);
    on = wrong == 0 && commas != 0 &&
         static_cast<std::size_t>(std::popcount(commas)) <= room.size() - count;
    if (!on) {
      commas &= (wrong & -wrong) - 1;
      while (static_cast<std::size_t>(std::popcount(commas)) > room.size() - count)
        commas &= ~std::bit_floor(commas);
    }
    // Each piece begins with a number, so that none needs to know of the one before. Where the next
    // one begins must not wait for what is wrong: hence the branch.
    at = piece + (scan::kPiece - std::countl_zero(commas));
    while (commas != 0) {
      const auto left = static_cast<std::size_t>(std::popcount(commas));
      const __m256i numbers = numbers_of_eight(piece, &commas);
      std::int32_t* const to = room.data() + count;
      if (room.size() - count >= kLanes) {
        _mm256_storeu_si256(reinterpret_cast<__m256i*>(to), numbers);
      } else {
        const __m256i lanes = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
        const __m256i wanted =
            _mm256_cmpgt_epi32(_mm256_set1_epi32(static_cast<std::int32_t>(left)), lanes);
        _mm256_maskstore_epi32(to, wanted, numbers);
      }
      count += std::min(left, kLanes);
    }
  }
  return {at, count};
}

TANDEM_WIDE std::size_t count_commas_wide(std::string_view text) {
  const __m256i comma = _mm256_set1_epi8(',');
  std::size_t count = 0;
  const char* at = text.data();
  const char* const end = at + text.size();
  for (; end - at >= kHalf; at += kHalf) {
    const int found = _mm256_movemask_epi8(_mm256_cmpeq_epi8(load_half(at), comma));
    count += static_cast<std::size_t>(std::popcount(static_cast<std::uint32_t>(found)));
  }
  return count + static_cast<std::size_t>(std::count(at, end, ','));
}

#undef TANDEM_WIDE

#endif

}  // namespace

bool can_read_wide() {
#ifdef __x86_64__
  static const bool kCan = __builtin_cpu_supports("avx2") != 0 &&
                           __builtin_cpu_supports("bmi") != 0 &&
                           __builtin_cpu_supports("popcnt") != 0;
  return kCan;
#else
  return false;
#endif
}

ShortNumber read_short_number(const char* at, const char* end) {
  if (end - at < static_cast<std::ptrdiff_t>(sizeof(std::uint64_t)))
    return read_short_number_by_digit(at, end);
  const std::uint64_t bytes = load_eight(at);
  const std::uint64_t others = no_digits(bytes);
  if (others == 0) return read_short_number_by_digit(at, end);
  const std::size_t digits = static_cast<std::size_t>(std::countr_zero(others)) / 8;
  if (digits == 0 || (*at == '0' && digits > 1)) return {};
  return {digits, number_of_digits(bytes, digits)};
}

IntegerRun read_run(const char* begin,
                    const char* at,
                    const char* end,
                    std::span<std::int32_t> room) {
#ifdef __x86_64__
  if (can_read_wide()) return read_run_wide(begin, at, end, room);
#endif
  return read_run_portable(begin, at, end, room);
}

std::size_t count_commas(std::string_view text) {
#ifdef __x86_64__
  if (can_read_wide()) return count_commas_wide(text);
#endif
  return count_commas_portable(text);
}

/// Commas are found first and 64 bytes at a time: looking for each where the one before ends would
/// wait for that one.
IntegerRun read_run_portable(const char* begin,
                             const char* at,
                             const char* end,
                             std::span<std::int32_t> room) {
  std::int32_t* to = room.data();
  std::int32_t* const full = to + room.size();
  const auto taken = [&] { return IntegerRun{at, static_cast<std::size_t>(to - room.data())}; };
  if (at - begin < static_cast<std::ptrdiff_t>(sizeof(std::uint64_t))) return taken();
  for (const char* piece = at; end - piece >= scan::kPiece; piece += scan::kPiece) {
    for (std::uint64_t commas = scan::find_in_piece(piece, ','); commas != 0;
         commas &= commas - 1) {
      const char* const comma = piece + std::countr_zero(commas);
      const char* const first = *at == ' ' ? at + 1 : at;
      const auto digits = static_cast<std::size_t>(comma - first);
      if (digits - 1 >= sizeof(std::uint64_t) - 1 || (*first == '0' && digits > 1) || to == full)
        return taken();
      // The eight bytes before the comma; what is before the number becomes leading zeros.
      const std::size_t others = 8 * (sizeof(std::uint64_t) - digits);
      const std::uint64_t number =
          (load_eight(comma - sizeof(std::uint64_t)) ^ ('0' * kOnes)) >> others << others;
      if (((number | (number + (0x80U - 10) * kOnes)) & kTops) != 0) return taken();
      *to++ = number_of_eight(number);
      at = comma + 1;
    }
  }
  return taken();
}

/// In pieces whose count fits a byte: sixteen bytes are then compared and added at once.
std::size_t count_commas_portable(std::string_view text) {
  std::size_t count = 0;
  for (std::size_t begin = 0; begin < text.size(); begin += 128) {
    std::uint8_t piece = 0;
    for (const char c : text.substr(begin, 128))
      piece = static_cast<std::uint8_t>(piece + (c == ',' ? 1 : 0));
    count += piece;
  }
  return count;
}

}  // namespace tandem::json
