// The few Unicode properties and normal forms that tokenizers need: tables of utf8proc, and where
// the tokenizers library has another edition of Unicode, its own (unicode_tables.h).
#pragma once

#include <string>
#include <string_view>

namespace tandem::token {

/// White_Space property, as Rust's char::is_whitespace and Oniguruma's \s.
bool is_space(char32_t c);
/// Categories Nd, Nl, No, as Rust's char::is_numeric.
bool is_numeric(char32_t c);
/// Categories P* of Unicode 8, or an ASCII symbol such as '$'.
bool is_punctuation(char32_t c);
/// Alphabetic, mark, decimal digit, connector punctuation or joiner: Rust's \w.
bool is_word(char32_t c);
/// Categories Mn, Mc, Me.
bool is_mark(char32_t c);
/// Marks of Unicode 9: what StripAccents takes away.
bool is_accent(char32_t c);

enum class LetterCase {
  kUpper,  ///< Lu, Lt
  kLower,  ///< Ll
  kNone,   ///< Lm, Lo
  kNoLetter,
};
LetterCase letter_case(char32_t c);

/// Appends the full lower-case mapping of one character.
void append_lower(std::string& out, char32_t c);

enum class NormalForm {
  kNfc,
  kNfd,
  kNfkc,
  kNfkd,
};

/// Unicode 9, as the tokenizers library has it. `text` must be valid UTF-8. Linear also for long
/// runs of combining marks.
std::string normalize(std::string_view text, NormalForm form);

}  // namespace tandem::token
