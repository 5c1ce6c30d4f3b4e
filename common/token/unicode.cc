#include "common/token/unicode.h"

#include "common/base/check.h"
#include "common/json/utf8.h"
#include "common/token/unicode_tables.h"

#include <utf8proc.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstdlib>
#include <iterator>
#include <memory>
#include <utility>
#include <vector>

namespace tandem::token {
namespace {

/// The range of an ascending table that holds `c`, or null.
template <class Range, std::size_t kCount>
const Range* find_range(const Range (&table)[kCount], char32_t c) {
  const Range* at = std::lower_bound(
      std::begin(table), std::end(table), c, [](const Range& r, char32_t x) { return r.last < x; });
  return at != std::end(table) && at->first <= c ? at : nullptr;
}

utf8proc_category_t category_named(std::string_view name) {
  // In the order of utf8proc_category_t.
  constexpr std::string_view kNames[] = {
      "Cn", "Lu", "Ll", "Lt", "Lm", "Lo", "Mn", "Mc", "Me", "Nd", "Nl", "No", "Pc", "Pd", "Ps",
      "Pe", "Pi", "Pf", "Po", "Sm", "Sc", "Sk", "So", "Zs", "Zl", "Zp", "Cc", "Cf", "Cs", "Co"};
  const auto* found = std::find(std::begin(kNames), std::end(kNames), name);
  TANDEM_CHECK(found != std::end(kNames), "a category");
  return static_cast<utf8proc_category_t>(found - std::begin(kNames));
}

utf8proc_category_t category(char32_t c) {
  const utf8proc_category_t known = utf8proc_category(static_cast<utf8proc_int32_t>(c));
  if (known != UTF8PROC_CATEGORY_CN) return known;
  const CategoryRange* newer = find_range(kNewerCharacters, c);
  return newer == nullptr ? known : category_named(newer->category);
}

bool is_among(char32_t c, char32_t first, char32_t last) {
  return c >= first && c <= last;
}

bool is_unknown_to_normal_forms(char32_t c) {
  return c >= kUnknownToNormalForms[0].first && find_range(kUnknownToNormalForms, c) != nullptr;
}

bool is_ascii(std::string_view text) {
  return std::all_of(
      text.begin(), text.end(), [](char c) { return static_cast<unsigned char>(c) < 0x80; });
}

int combining_class(char32_t c) {
  return c < 0x300 ? 0 : utf8proc_get_property(static_cast<utf8proc_int32_t>(c))->combining_class;
}

/// utf8proc orders combining marks by swapping neighbours, which is quadratic in the length of a
/// run. A long run is sorted here first; stable order by class is canonically equivalent.
constexpr std::size_t kLongRun = 32;

void flush_run(std::vector<char32_t>& run, std::string& out) {
  if (run.size() > kLongRun) {
    std::stable_sort(run.begin(), run.end(), [](char32_t a, char32_t b) {
      return combining_class(a) < combining_class(b);
    });
  }
  for (const char32_t c : run) {
    json::append_utf8(out, c);
  }
  run.clear();
}

std::string with_sorted_marks(std::string_view text) {
  std::string out;
  out.reserve(text.size());
  std::vector<char32_t> run;
  while (!text.empty()) {
    const json::Utf8Step step = json::decode_utf8(text);
    if (combining_class(step.code_point) != 0) {
      run.push_back(step.code_point);
    } else {
      flush_run(run, out);
      out.append(text.substr(0, step.byte_count));
    }
    text.remove_prefix(step.byte_count);
  }
  flush_run(run, out);
  return out;
}

}  // namespace

bool is_space(char32_t c) {
  if (c < 0x80) return c == ' ' || (c >= '\t' && c <= '\r');
  return c == 0x85 || c == 0xA0 || c == 0x1680 || (c >= 0x2000 && c <= 0x200A) || c == 0x2028 ||
         c == 0x2029 || c == 0x202F || c == 0x205F || c == 0x3000;
}

bool is_numeric(char32_t c) {
  if (c < 0x80) return c >= '0' && c <= '9';
  const auto cat = category(c);
  if (cat >= UTF8PROC_CATEGORY_ND && cat <= UTF8PROC_CATEGORY_NO) return true;
  // Rust already knows the digits of Unicode 17.
  return is_among(c, 0x11DE0, 0x11DE9) || is_among(c, 0x16FF4, 0x16FF6);
}

bool is_punctuation(char32_t c) {
  if (c < 0x80) {
    return c > ' ' && c < 0x7F && !(c >= '0' && c <= '9') && !(c >= 'A' && c <= 'Z') &&
           !(c >= 'a' && c <= 'z');
  }
  // These two have become a symbol and a mark since.
  if (c == 0x166D || c == 0x111C9) return true;
  const auto cat = category(c);
  return cat >= UTF8PROC_CATEGORY_PC && cat <= UTF8PROC_CATEGORY_PO &&
         find_range(kUnknownPunctuation, c) == nullptr &&
         find_range(kNewerCharacters, c) == nullptr;
}

bool is_mark(char32_t c) {
  const auto cat = category(c);
  return cat >= UTF8PROC_CATEGORY_MN && cat <= UTF8PROC_CATEGORY_ME;
}

bool is_accent(char32_t c) {
  // These have changed sides since.
  if (c == 0x1CF2 || c == 0x1CF3) return true;
  return is_mark(c) && c != 0x111C9 && !is_unknown_to_normal_forms(c);
}

bool is_word(char32_t c) {
  const auto cat = category(c);
  if ((cat >= UTF8PROC_CATEGORY_LU && cat <= UTF8PROC_CATEGORY_LO) || is_mark(c)) return true;
  if (cat == UTF8PROC_CATEGORY_ND || cat == UTF8PROC_CATEGORY_NL || cat == UTF8PROC_CATEGORY_PC) {
    return true;
  }
  // The joiners, and letters in circles and squares, which count as alphabetic.
  return c == 0x200C || c == 0x200D || is_among(c, 0x24B6, 0x24E9) ||
         is_among(c, 0x1F130, 0x1F149) || is_among(c, 0x1F150, 0x1F169) ||
         is_among(c, 0x1F170, 0x1F189);
}

LetterCase letter_case(char32_t c) {
  switch (category(c)) {
    case UTF8PROC_CATEGORY_LU:
    case UTF8PROC_CATEGORY_LT:
      return LetterCase::kUpper;
    case UTF8PROC_CATEGORY_LL:
      return LetterCase::kLower;
    case UTF8PROC_CATEGORY_LM:
    case UTF8PROC_CATEGORY_LO:
      return LetterCase::kNone;
    default:
      return LetterCase::kNoLetter;
  }
}

void append_lower(std::string& out, char32_t c) {
  // The only character whose full lower-case mapping is longer than one character.
  if (c == 0x130) {
    out += "i\xCC\x87";
    return;
  }
  // Unicode 16 and 17, as Rust has them.
  if (is_among(c, 0x10D50, 0x10D65)) c += 0x20;
  if (is_among(c, 0x16EA0, 0x16EB8)) c += 0x1B;
  constexpr std::array<std::pair<char32_t, char32_t>, 8> kNewPairs = {{{0x1C89, 0x1C8A},
                                                                       {0xA7CB, 0x264},
                                                                       {0xA7CC, 0xA7CD},
                                                                       {0xA7CE, 0xA7CF},
                                                                       {0xA7D2, 0xA7D3},
                                                                       {0xA7D4, 0xA7D5},
                                                                       {0xA7DA, 0xA7DB},
                                                                       {0xA7DC, 0x19B}}};
  for (const auto& [large, small] : kNewPairs) {
    if (c == large) c = small;
  }
  json::append_utf8(out, static_cast<char32_t>(utf8proc_tolower(static_cast<utf8proc_int32_t>(c))));
}

namespace {

/// `text` holds no character that the library's normal forms do not know.
void append_normal(std::string& out, std::string_view text, NormalForm form) {
  if (is_ascii(text)) {
    out += text;
    return;
  }
  const std::string sorted = with_sorted_marks(text);
  int options = UTF8PROC_STABLE;
  options |=
      form == NormalForm::kNfc || form == NormalForm::kNfkc ? UTF8PROC_COMPOSE : UTF8PROC_DECOMPOSE;
  if (form == NormalForm::kNfkc || form == NormalForm::kNfkd) options |= UTF8PROC_COMPAT;
  utf8proc_uint8_t* raw = nullptr;
  const utf8proc_ssize_t length =
      utf8proc_map(reinterpret_cast<const utf8proc_uint8_t*>(sorted.data()),
                   static_cast<utf8proc_ssize_t>(sorted.size()),
                   &raw,
                   static_cast<utf8proc_option_t>(options));
  const std::unique_ptr<utf8proc_uint8_t, decltype(&std::free)> owner(raw, &std::free);
  TANDEM_CHECK(length >= 0, "normalization of valid UTF-8");
  out.append(reinterpret_cast<const char*>(raw), static_cast<std::size_t>(length));
}

}  // namespace

std::string normalize(std::string_view text, NormalForm form) {
  if (is_ascii(text)) return std::string(text);
  std::string out;
  out.reserve(text.size());
  // An unknown character is taken for a letter that composes with nothing: it parts the text. So
  // does U+11A7, the place before the final consonants: utf8proc 2.8 composes it away.
  std::size_t begin = 0;
  for (std::size_t pos = 0; pos < text.size();) {
    if (static_cast<unsigned char>(text[pos]) < 0x80) {
      ++pos;
      continue;
    }
    const json::Utf8Step step = json::decode_utf8(text.substr(pos));
    if (step.code_point == 0x11A7 || is_unknown_to_normal_forms(step.code_point)) {
      append_normal(out, text.substr(begin, pos - begin), form);
      out += text.substr(pos, step.byte_count);
      begin = pos + step.byte_count;
    }
    pos += step.byte_count;
  }
  append_normal(out, text.substr(begin), form);
  return out;
}

}  // namespace tandem::token
