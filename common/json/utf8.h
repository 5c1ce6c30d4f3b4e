// UTF-8: strict decoding as in the Unicode standard, table 3-7 (no surrogates, no overlong forms,
// nothing above U+10FFFF).
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace tandem::json {

/// One step of a decoder: a whole character, or a maximal broken part.
struct Utf8Step {
  /// The code point; U+FFFD when `valid` is false.
  char32_t code_point;
  /// Bytes consumed, at least 1: the character, or the maximal part of one (Unicode 3.9, U+FFFD
  /// substitution of maximal subparts).
  std::uint32_t byte_count;
  bool valid;
  /// Not valid only because the text ends inside the character.
  bool truncated;
};

/// decode_utf8 for a first byte of 0x80 or more.
Utf8Step decode_utf8_beyond_ascii(std::string_view text);

/// Decodes at the front of `text`, which must not be empty.
inline Utf8Step decode_utf8(std::string_view text) {
  const auto lead = static_cast<unsigned char>(text.front());
  if (lead < 0x80) return {lead, 1, true, false};
  return decode_utf8_beyond_ascii(text);
}

/// Offset of the first byte that is not part of valid UTF-8; text.size() when all is valid.
std::size_t find_invalid_utf8(std::string_view text);

/// Appends a code point (below 0x110000, no surrogate) as UTF-8.
void append_utf8(std::string& out, char32_t code_point);

/// Copies `text` with each maximal broken part replaced by U+FFFD.
void append_utf8_lossy(std::string& out, std::string_view text);

/// Number of characters in valid UTF-8.
std::size_t count_code_points(std::string_view text);

}  // namespace tandem::json
