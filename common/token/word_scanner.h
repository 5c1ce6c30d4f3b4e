// Hand-written scanners for the word patterns of well-known tokenizers: what PCRE2 finds with them,
// several times faster.
#pragma once

#include "common/token/regex.h"

#include <cstddef>
#include <optional>
#include <string_view>
#include <vector>

namespace tandem::token {

/// What the known patterns differ in. Each is a list of alternatives: contractions, letters,
/// numbers, other signs, blanks.
struct WordRules {
  enum class Letters {
    kSpacePrefix,  ///< " ?\p{L}+" (GPT-2)
    kAnyPrefix,    ///< "[^\r\n\p{L}\p{N}]?\p{L}+" (cl100k, Llama 3, Qwen)
    kCased,        ///< the same, cut where lower case is followed by upper case (tekken, o200k)
  } letters;
  enum class Contractions {
    kNone,
    kFirst,          ///< before all else, as written (GPT-2)
    kFirstAnyCase,   ///< the same in any case (cl100k)
    kSuffixAnyCase,  ///< behind letters (o200k)
  } contractions;
  /// Longest run of digits; 0: no bound, and a blank may stand before it.
  std::size_t digits_max;
  /// "[\r\n/]*" instead of "[\r\n]*" behind signs.
  bool slash_after_signs;
  /// GPT-2 knows no line ends of their own.
  bool line_ends;
};

/// Immutable; any thread.
class WordScanner {
 public:
  explicit WordScanner(const WordRules& rules) : rules_(rules) {}

  /// Absent for a pattern that is not known, letter by letter.
  static std::optional<WordScanner> for_pattern(std::string_view pattern);

  /// As Regex::find_all; every character of `text` (valid UTF-8) is part of a word. False, with
  /// `words` as it was: the text holds a character of which the tables of PCRE2 and utf8proc do not
  /// say the same, and PCRE2 must decide.
  bool find_all(std::string_view text, std::vector<Span>& words) const;

 private:
  WordRules rules_;
};

}  // namespace tandem::token
