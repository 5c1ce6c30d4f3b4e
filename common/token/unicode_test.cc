// Editions of Unicode: what the tokenizers library (0.23) says of characters that its tables and
// ours have at different times. The expected values are its answers.
#include "common/token/unicode.h"

#include "common/json/utf8.h"
#include "common/token/regex.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace tandem::token {
namespace {

std::string utf8(std::u32string_view text) {
  std::string out;
  for (const char32_t c : text) {
    json::append_utf8(out, c);
  }
  return out;
}

bool matches(const char* pattern, char32_t c) {
  const auto regex = Regex::compile(pattern);
  EXPECT_TRUE(regex.ok()) << regex.status().message();
  return regex.ok() && !regex->find_all(utf8({&c, 1})).empty();
}

TEST(UnicodeEditions, PatternsKnowUnicode16) {
  struct Row {
    const char* pattern;
    char32_t in;
    char32_t out;
  };

  const Row rows[] = {
      {R"(\p{L})", 0x31DC2, 0x1F6DC},
      {R"([^\s\p{L}\p{N}])", 0x1F6DC, 0x2EBF0},
      {R"(\P{L})", 0x116D5, 0x13D79},
      {R"([\p{Lu}\p{Lt}])", 0xA7DC, 0xA7DB},
      {R"(\p{^Lu})", 0xA7DB, 0xA7DC},
      {R"(\p{N})", 0x116D5, 0x116E4},
      {R"(\d)", 0x1CCF0, 0x1D2C0},
      {R"(\D)", 0x1D2C0, 0x1CCF0},
      {R"(\p{M})", 0x897, 0x896},
      {R"([\p{P}\p{S}])", 0x1B4E, 0x897},
      {R"(\w)", 0x2160, 0x2460},
      {R"(\w)", 0xB2, 0xB6},
      {R"([^\s\w])", 0xBD, 0x24B6},
      {R"(\W)", 0x2460, 0x24B6},
      {R"([[:punct:]])", U'\u20ac', U'a'},
      {R"([[:alpha:]])", 0x5B0, U'1'},
      {R"([[:alnum:]])", 0x116D5, 0xB2},
      {R"([[:space:]])", 0x3000, 0x180E},
      {R"(\p{Alphabetic})", 0x363, 0x362},
      // A script is the script alone: the ideographic comma is used with Han.
      {R"(\p{Han})", 0x31350, 0x3001},
      {R"([\p{Hiragana}])", 0x3042, 0x30FC},
  };
  for (const Row& row : rows) {
    EXPECT_TRUE(matches(row.pattern, row.in)) << row.pattern;
    EXPECT_FALSE(matches(row.pattern, row.out)) << row.pattern;
  }
}

TEST(UnicodeEditions, NormalFormsKnowUnicode9) {
  // U+10F48 is a mark of class 230, but for the library a letter: the marks around it stay.
  EXPECT_EQ(normalize(utf8(U"a\U00010F48\u0650"), NormalForm::kNfc), utf8(U"a\U00010F48\u0650"));
  EXPECT_EQ(normalize(utf8(U"a\u0301\U00010F48\u0650"), NormalForm::kNfc),
            utf8(U"\u00e1\U00010F48\u0650"));
  // Known since long: ordered by class.
  EXPECT_EQ(normalize(utf8(U"a\u05AF\u0650"), NormalForm::kNfc), utf8(U"a\u0650\u05AF"));
  EXPECT_EQ(normalize(utf8(U"\u1ACA\u0315b\u0316"), NormalForm::kNfd),
            utf8(U"\u1ACA\u0315b\u0316"));
  EXPECT_EQ(normalize(utf8(U"\U00011938"), NormalForm::kNfd), utf8(U"\U00011938"));
  EXPECT_EQ(normalize(utf8(U"\U00011935\U00011930"), NormalForm::kNfc),
            utf8(U"\U00011935\U00011930"));
  EXPECT_EQ(normalize(utf8(U"\u32FF\u32FE"), NormalForm::kNfkc), utf8(U"\u32FF\u30F2"));
  EXPECT_TRUE(is_accent(0x301));
  EXPECT_TRUE(is_accent(0x1CF2));
  EXPECT_FALSE(is_accent(0x1ACA));
}

TEST(UnicodeEditions, NoCharacterIsComposedAway) {
  // U+11A7 is no final consonant, though it stands right before them.
  EXPECT_EQ(normalize(utf8(U"\uD30C\u11A7"), NormalForm::kNfc), utf8(U"\uD30C\u11A7"));
  EXPECT_EQ(normalize(utf8(U"\u1111\u1161\u11A7"), NormalForm::kNfkc), utf8(U"\uD30C\u11A7"));
  EXPECT_EQ(normalize(utf8(U"\u1111\u1161\u11A8"), NormalForm::kNfc), utf8(U"\uD30D"));
}

TEST(UnicodeEditions, ClassesOfCharacters) {
  EXPECT_TRUE(is_punctuation(0x166D));
  EXPECT_FALSE(is_punctuation(0x2E52));
  EXPECT_FALSE(is_punctuation(0x1B4E));
  EXPECT_TRUE(is_numeric(0x11DE0));
  EXPECT_TRUE(is_numeric(0x1CCF0));
  EXPECT_TRUE(is_word(0x200D));
  EXPECT_TRUE(is_word(0x2160));
  EXPECT_FALSE(is_word(0xB2));
  std::string lower;
  append_lower(lower, 0x10D50);
  append_lower(lower, 0xA7CB);
  append_lower(lower, 0x16EA0);
  EXPECT_EQ(lower, utf8(U"\U00010D70\u0264\U00016EBB"));
}

}  // namespace
}  // namespace tandem::token
