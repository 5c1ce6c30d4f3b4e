// Looking at many bytes of a text at once. Private to room json.
#pragma once

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string_view>

#ifdef __SSE2__
#include <emmintrin.h>
#endif

namespace tandem::json::scan {

inline constexpr std::uint64_t kOnes = 0x0101010101010101;
inline constexpr std::uint64_t kTops = 0x80 * kOnes;

/// Eight bytes, the first one lowest.
inline std::uint64_t load_eight(const char* from) {
  std::uint64_t bytes = 0;
  std::memcpy(&bytes, from, sizeof(bytes));
  if constexpr (std::endian::native == std::endian::big) bytes = __builtin_bswap64(bytes);
  return bytes;
}

inline constexpr std::ptrdiff_t kPiece = 64;

/// A bit for each of kPiece bytes, the first one lowest: whether it is `c`.
inline std::uint64_t find_in_piece(const char* piece, char c) {
  std::uint64_t found = 0;
#ifdef __SSE2__
  const __m128i wanted = _mm_set1_epi8(c);
  constexpr int kStep = sizeof(__m128i);
  for (int i = 0; i < kPiece; i += kStep) {
    const __m128i bytes = _mm_loadu_si128(reinterpret_cast<const __m128i*>(piece + i));
    const int equal = _mm_movemask_epi8(_mm_cmpeq_epi8(bytes, wanted));
    found |= std::uint64_t{static_cast<std::uint32_t>(equal)} << i;
  }
#else
  for (std::ptrdiff_t i = 0; i < kPiece; ++i)
    found |= std::uint64_t{piece[i] == c} << i;
#endif
  return found;
}

/// Whether a byte stands for itself in a JSON string: no quote, backslash or control character, and
/// ASCII.
inline bool is_plain(char c) {
  const auto byte = static_cast<unsigned char>(c);
  return byte >= 0x20 && byte < 0x80 && byte != '"' && byte != '\\';
}

/// Top bits are set of bytes that are not plain, the lowest one exactly. (Borrows can set false
/// ones above it only.)
inline std::uint64_t not_plain(std::uint64_t bytes) {
  const auto equal = [](std::uint64_t all, std::uint64_t byte) {
    const std::uint64_t off = all ^ (byte * kOnes);
    return (off - kOnes) & ~off;
  };
  const std::uint64_t control = (bytes - 0x20 * kOnes) & ~bytes;
  return (bytes | control | equal(bytes, '"') | equal(bytes, '\\')) & kTops;
}

/// Whether all bytes are plain. Quick for short texts, which are looked at as words that overlap.
inline bool all_plain(std::string_view text) {
  const char* const from = text.data();
  const std::size_t size = text.size();
  constexpr std::size_t kWord = sizeof(std::uint64_t);
  if (size >= kWord) {
    std::uint64_t found = not_plain(load_eight(from + size - kWord));
    for (std::size_t i = 0; i + kWord < size; i += kWord)
      found |= not_plain(load_eight(from + i));
    return found == 0;
  }
  std::uint64_t bytes = 0x20 * kOnes;
  if (size >= kWord / 2) {
    std::memcpy(&bytes, from, kWord / 2);
    const std::uint64_t first = bytes;
    std::memcpy(&bytes, from + size - kWord / 2, kWord / 2);
    return (not_plain(first) | not_plain(bytes)) == 0;
  }
  for (const char c : text)
    bytes = bytes << 8U | static_cast<unsigned char>(c);
  return not_plain(bytes) == 0;
}

/// From `pos` on the first byte that is not plain; text.size() when all are.
inline std::size_t find_not_plain(std::string_view text, std::size_t pos) {
#ifdef __SSE2__
  // Signed, so that 0x80 to 0xFF are below 0x20 too.
  const __m128i space = _mm_set1_epi8(0x20);
  const __m128i quote = _mm_set1_epi8('"');
  const __m128i backslash = _mm_set1_epi8('\\');
  const auto others_at = [&](std::size_t at) {
    const __m128i bytes = _mm_loadu_si128(reinterpret_cast<const __m128i*>(text.data() + at));
    return _mm_or_si128(
        _mm_cmplt_epi8(bytes, space),
        _mm_or_si128(_mm_cmpeq_epi8(bytes, quote), _mm_cmpeq_epi8(bytes, backslash)));
  };
  constexpr std::size_t kStep = sizeof(__m128i);
  while (text.size() - pos >= kStep) {
    const auto found = static_cast<unsigned>(_mm_movemask_epi8(others_at(pos)));
    if (found != 0) return pos + static_cast<std::size_t>(std::countr_zero(found));
    pos += kStep;
    // Only behind a plain step: texts of other languages never come here.
    while (text.size() - pos >= 4 * kStep) {
      const __m128i first = _mm_or_si128(others_at(pos), others_at(pos + kStep));
      const __m128i last = _mm_or_si128(others_at(pos + 2 * kStep), others_at(pos + 3 * kStep));
      if (_mm_movemask_epi8(_mm_or_si128(first, last)) != 0) break;
      pos += 4 * kStep;
    }
  }
#endif
  while (pos < text.size() && text.size() >= sizeof(std::uint64_t)) {
    // The last eight bytes may begin before `pos`: what is there is made plain.
    const std::size_t from = std::min(pos, text.size() - sizeof(std::uint64_t));
    const std::uint64_t before = (std::uint64_t{1} << (8 * (pos - from))) - 1;
    const std::uint64_t bytes = (load_eight(text.data() + from) & ~before) | (' ' * kOnes & before);
    pos = from;
    const std::uint64_t found = not_plain(bytes);
    if (found != 0) return pos + static_cast<std::size_t>(std::countr_zero(found)) / 8;
    pos += sizeof(bytes);
  }
  while (pos < text.size() && is_plain(text[pos])) {
    ++pos;
  }
  return pos;
}

}  // namespace tandem::json::scan
