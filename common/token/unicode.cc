#include "common/token/unicode.h"

#include "common/base/check.h"
#include "common/json/utf8.h"

#include <utf8proc.h>

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <vector>

namespace tandem::token {
namespace {

utf8proc_category_t category(char32_t c) {
  return utf8proc_category(static_cast<utf8proc_int32_t>(c));
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
  return cat >= UTF8PROC_CATEGORY_ND && cat <= UTF8PROC_CATEGORY_NO;
}

bool is_punctuation(char32_t c) {
  if (c < 0x80) {
    return c > ' ' && c < 0x7F && !(c >= '0' && c <= '9') && !(c >= 'A' && c <= 'Z') &&
           !(c >= 'a' && c <= 'z');
  }
  const auto cat = category(c);
  return cat >= UTF8PROC_CATEGORY_PC && cat <= UTF8PROC_CATEGORY_PO;
}

bool is_mark(char32_t c) {
  const auto cat = category(c);
  return cat >= UTF8PROC_CATEGORY_MN && cat <= UTF8PROC_CATEGORY_ME;
}

bool is_word(char32_t c) {
  const auto cat = category(c);
  return (cat >= UTF8PROC_CATEGORY_LU && cat <= UTF8PROC_CATEGORY_LO) || is_mark(c) ||
         cat == UTF8PROC_CATEGORY_ND || cat == UTF8PROC_CATEGORY_PC;
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
  json::append_utf8(out, static_cast<char32_t>(utf8proc_tolower(static_cast<utf8proc_int32_t>(c))));
}

std::string normalize(std::string_view text, NormalForm form) {
  if (is_ascii(text)) return std::string(text);
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
  return std::string(reinterpret_cast<const char*>(raw), static_cast<std::size_t>(length));
}

}  // namespace tandem::token
