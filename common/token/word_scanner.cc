#include "common/token/word_scanner.h"

#include "common/json/utf8.h"
#include "common/token/unicode.h"

#include <array>
#include <cstdint>
#include <string>

namespace tandem::token {
namespace {

using Letters = WordRules::Letters;
using Contractions = WordRules::Contractions;

// Classes of characters as bits. A mark is neither letter nor number.
constexpr std::uint8_t kUpper = 1;     // Lu, Lt
constexpr std::uint8_t kLower = 2;     // Ll
constexpr std::uint8_t kCaseless = 4;  // Lm, Lo
constexpr std::uint8_t kMark = 8;      // M
constexpr std::uint8_t kNumber = 16;   // N
constexpr std::uint8_t kSpace = 32;    // \s but for line ends
constexpr std::uint8_t kLineEnd = 64;  // \r, \n
constexpr std::uint8_t kUnsure = 128;  // PCRE2 must decide
constexpr std::uint8_t kLetter = kUpper | kLower | kCaseless;
constexpr std::uint8_t kBlank = kSpace | kLineEnd;
constexpr std::uint8_t kUpperRun = kUpper | kCaseless | kMark;
constexpr std::uint8_t kLowerRun = kLower | kCaseless | kMark;

// Beyond the basic plane only pictures are taken (word_scanner_test compares every character with
// PCRE2).
bool is_unsure(char32_t c) {
  if (c < 0x10000) return false;
  return c < 0x1F000 || c > 0x1FAFF || (c >= 0x1F100 && c <= 0x1F10C);
}

std::uint8_t classify(char32_t c) {
  if (is_unsure(c)) return kUnsure;
  if (c == '\r' || c == '\n') return kLineEnd;
  if (is_space(c)) return kSpace;
  switch (letter_case(c)) {
    case LetterCase::kUpper:
      return kUpper;
    case LetterCase::kLower:
      return kLower;
    case LetterCase::kNone:
      return kCaseless;
    case LetterCase::kNoLetter:
      break;
  }
  if (is_mark(c)) return kMark;
  return is_numeric(c) ? kNumber : 0;
}

// Of the basic plane, made at first use.
const std::array<std::uint8_t, 0x10000>& classes() {
  static const auto* const kTable = [] {
    auto* table = new std::array<std::uint8_t, 0x10000>;
    for (char32_t c = 0; c < table->size(); ++c)
      (*table)[c] = classify(c);
    return table;
  }();
  return *kTable;
}

class Scan {
 public:
  Scan(const WordRules& rules, std::string_view text)
      : rules_(rules), text_(text), table_(classes()) {}

  bool run(std::vector<Span>& words) {
    const std::size_t before = words.size();
    std::size_t pos = 0;
    while (pos < text_.size()) {
      const std::size_t end = word_end(pos);
      if (unsure_) {
        words.resize(before);
        return false;
      }
      words.push_back({pos, end});
      pos = end;
    }
    return true;
  }

 private:
  struct Char {
    std::uint8_t kind = 0;
    std::size_t end = 0;
  };

  // The character at `pos`, which may be the end: then it has no class and no length.
  Char at(std::size_t pos) {
    if (pos >= text_.size()) return {0, pos};
    const auto byte = static_cast<unsigned char>(text_[pos]);
    if (byte < 0x80) return {table_[byte], pos + 1};
    const json::Utf8Step step = json::decode_utf8(text_.substr(pos));
    const std::uint8_t kind =
        step.code_point < table_.size() ? table_[step.code_point] : classify(step.code_point);
    if (kind == kUnsure) unsure_ = true;
    return {kind, pos + step.byte_count};
  }

  std::size_t skip(std::size_t pos, std::uint8_t kinds) {
    while (pos < text_.size()) {
      const auto byte = static_cast<unsigned char>(text_[pos]);
      if (byte < 0x80) {
        if ((table_[byte] & kinds) == 0) return pos;
        ++pos;
        continue;
      }
      const Char c = at(pos);
      if ((c.kind & kinds) == 0) return pos;
      pos = c.end;
    }
    return pos;
  }

  std::size_t word_end(std::size_t pos) {
    const bool contracts = rules_.contractions == Contractions::kFirst ||
                           rules_.contractions == Contractions::kFirstAnyCase;
    if (contracts && text_[pos] == '\'') {
      const std::size_t end = contraction_end(pos);
      if (end != pos) return end;
    }
    const Char first = at(pos);
    std::size_t end = letters_end(pos, first);
    if (end == pos) end = number_end(pos, first);
    if (end == pos) end = signs_end(pos, first);
    return end != pos ? end : blanks_end(pos);
  }

  // End of "'s" and its like at `pos`; `pos` when there is none.
  std::size_t contraction_end(std::size_t pos) {
    if (pos >= text_.size() || text_[pos] != '\'') return pos;
    const bool any_case = rules_.contractions != Contractions::kFirst;
    const auto letter = [&](std::size_t i) -> char {
      if (i >= text_.size()) return '\0';
      const char c = text_[i];
      // The long s and the sign for kelvin fold to letters of ASCII.
      if (any_case && static_cast<unsigned char>(c) >= 0x80) unsure_ = true;
      return any_case && c >= 'A' && c <= 'Z' ? static_cast<char>(c | 0x20) : c;
    };
    const char a = letter(pos + 1);
    if (a == 's' || a == 't' || a == 'm' || a == 'd') return pos + 2;
    if (a != 'r' && a != 'v' && a != 'l') return pos;
    const char b = letter(pos + 2);
    return b == (a == 'l' ? 'l' : 'e') ? pos + 3 : pos;
  }

  std::size_t letters_end(std::size_t pos, const Char& first) {
    if (rules_.letters == Letters::kCased) return cased_end(pos, first);
    if ((first.kind & kLetter) != 0) return skip(first.end, kLetter);
    const bool prefix = rules_.letters == Letters::kSpacePrefix
                            ? text_[pos] == ' '
                            : (first.kind & (kNumber | kLineEnd)) == 0;
    if (!prefix) return pos;
    const std::size_t end = skip(first.end, kLetter);
    return end != first.end ? end : pos;
  }

  // "PREFIX?UPPER*LOWER+" or else "PREFIX?UPPER+LOWER*", the prefix taken where that succeeds. A
  // mark may be prefix, upper and lower.
  std::size_t cased_end(std::size_t pos, const Char& first) {
    const bool prefix = (first.kind & (kLetter | kNumber | kLineEnd)) == 0;
    std::size_t end = pos;
    if (prefix) end = lower_end(first.end);
    if (end == pos || end == first.end) end = lower_end(pos);
    if (end == pos && prefix) {
      end = skip(first.end, kUpperRun);
      if (end == first.end) end = pos;
    }
    if (end == pos) end = skip(pos, kUpperRun);
    if (end == pos || rules_.contractions != Contractions::kSuffixAnyCase) return end;
    return contraction_end(end);
  }

  // "UPPER*LOWER+" at `begin`: the run of upper case gives back what lower case needs. `begin` when
  // nothing is found.
  std::size_t lower_end(std::size_t begin) {
    std::size_t pos = begin;
    std::size_t last_both_end = begin;
    for (Char c = at(pos); (c.kind & kUpperRun) != 0; c = at(pos)) {
      pos = c.end;
      if ((c.kind & kLowerRun) != 0) last_both_end = pos;
    }
    const Char next = at(pos);
    if ((next.kind & kLowerRun) != 0) return skip(next.end, kLowerRun);
    return last_both_end;
  }

  std::size_t number_end(std::size_t pos, const Char& first) {
    if (rules_.digits_max == 0) {
      const std::size_t begin = text_[pos] == ' ' ? first.end : pos;
      const std::size_t end = skip(begin, kNumber);
      return end != begin ? end : pos;
    }
    std::size_t end = pos;
    Char c = first;
    for (std::size_t i = 0; i < rules_.digits_max && (c.kind & kNumber) != 0; ++i) {
      end = c.end;
      c = at(end);
    }
    return end;
  }

  std::size_t signs_end(std::size_t pos, const Char& first) {
    std::size_t end = text_[pos] == ' ' ? first.end : pos;
    const std::size_t begin = end;
    while (end < text_.size()) {
      const Char c = at(end);
      if ((c.kind & (kLetter | kNumber | kBlank)) != 0) break;
      end = c.end;
    }
    if (end == begin) return pos;
    if (!rules_.line_ends) return end;
    while (end < text_.size() && (text_[end] == '\r' || text_[end] == '\n' ||
                                  (rules_.slash_after_signs && text_[end] == '/')))
      ++end;
    return end;
  }

  // "\s*[\r\n]+|\s+(?!\S)|\s+": up to the last line end, or all but the last blank before a word.
  std::size_t blanks_end(std::size_t pos) {
    std::size_t end = pos;
    std::size_t last = pos;
    std::size_t after_line_end = pos;
    for (Char c = at(end); (c.kind & kBlank) != 0; c = at(end)) {
      last = end;
      end = c.end;
      if ((c.kind & kLineEnd) != 0) after_line_end = end;
    }
    if (rules_.line_ends && after_line_end != pos) return after_line_end;
    if (end == text_.size() || last == pos) return end;
    return last;
  }

  const WordRules& rules_;
  std::string_view text_;
  const std::array<std::uint8_t, 0x10000>& table_;
  bool unsure_ = false;
};

struct Known {
  std::string_view pattern;
  WordRules rules;
};

constexpr Known kKnown[] = {
    {R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)",
     {Letters::kSpacePrefix, Contractions::kFirst, 0, false, false}},
    {R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*)"
     R"(|\s*[\r\n]+|\s+(?!\S)|\s+)",
     {Letters::kAnyPrefix, Contractions::kFirstAnyCase, 3, false, true}},
    {R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*)"
     R"(|\s*[\r\n]+|\s+(?!\S)|\s+)",
     {Letters::kAnyPrefix, Contractions::kFirstAnyCase, 1, false, true}},
    {R"([^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+)"
     R"(|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*)"
     R"(|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+)",
     {Letters::kCased, Contractions::kNone, 1, true, true}},
    {R"([^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+)"
     R"((?i:'s|'t|'re|'ve|'m|'ll|'d)?)"
     R"(|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*)"
     R"((?i:'s|'t|'re|'ve|'m|'ll|'d)?)"
     R"(|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+)",
     {Letters::kCased, Contractions::kSuffixAnyCase, 3, true, true}},
};

}  // namespace

std::optional<WordScanner> WordScanner::for_pattern(std::string_view pattern) {
  for (const Known& known : kKnown) {
    if (known.pattern == pattern) return WordScanner(known.rules);
  }
  return std::nullopt;
}

bool WordScanner::find_all(std::string_view text, std::vector<Span>& words) const {
  return Scan(rules_, text).run(words);
}

}  // namespace tandem::token
