// The scanners against PCRE2, which they stand in for: every character, and random texts.
#include "common/token/word_scanner.h"

#include "common/base/random.h"
#include "common/json/utf8.h"
#include "common/token/regex.h"
#include "common/token/testing/patterns.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace tandem::token {
namespace {

std::string cuts(const std::vector<Span>& spans) {
  std::string out;
  for (const Span& span : spans)
    out += std::to_string(span.begin) + "-" + std::to_string(span.end) + " ";
  return out;
}

class WordScannerTest : public testing::TestWithParam<int> {
 protected:
  WordScannerTest()
      : regex_(Regex::compile(kPatterns[GetParam()]).value()),
        scanner_(*WordScanner::for_pattern(kPatterns[GetParam()])) {}

  /// True when the scanner decided (and was right).
  bool agrees(const std::string& text) const {
    std::vector<Span> found;
    if (!scanner_.find_all(text, found)) {
      EXPECT_TRUE(found.empty());
      return false;
    }
    EXPECT_EQ(cuts(found), cuts(regex_.find_all(text))) << "in \"" << text << '"';
    return true;
  }

  Regex regex_;
  WordScanner scanner_;
};

TEST_P(WordScannerTest, EveryCharacter) {
  std::size_t decided = 0;
  for (char32_t c = 0; c < 0x110000; ++c) {
    if (c >= 0xD800 && c < 0xE000) continue;
    // Far beyond the pictures nothing is decided here: a sample is enough.
    if (c > 0x20000 && c % 251 != 0) continue;
    std::string text = "a";
    json::append_utf8(text, c);
    text += "B ";
    json::append_utf8(text, c);
    decided += agrees(text) ? 1 : 0;
    if (HasFailure()) FAIL() << "character " << std::hex << static_cast<unsigned>(c);
  }
  // Nearly the whole basic plane and the pictures.
  EXPECT_GT(decided, 0xF000U);
}

TEST_P(WordScannerTest, RandomTexts) {
  constexpr const char* kParts[] = {
      "a",      "b",      "Z",       "Q",      "1",      "2",      " ",      "  ",     "\t",
      "\n",     "\r\n",   "'",       "'s",     "'S",     "'ll",    "'Ve",    "'r",     ".",
      "/",      "//",     ",",       "-",      "\u00e9", "\u00c9", "\u01c5", "\u0301", "\u4e2d",
      "\u6587", "\u02b0", "\u0660",  "\u00bd", "\u3000", "\u00a0", "\u2028", "\u0085", "\U0001f600",
      "\u200d", "\u180e", "'\u017f", "\u0939", "\u093f"};
  const std::uint64_t seed = 20;
  Random random(seed);
  std::size_t decided = 0;
  for (int i = 0; i < 4000; ++i) {
    std::string text;
    for (std::uint64_t length = random.below(14); length > 0; --length)
      text += kParts[random.below(std::size(kParts))];
    decided += agrees(text) ? 1 : 0;
    ASSERT_FALSE(HasFailure()) << "seed " << seed << ", text " << i;
  }
  EXPECT_GT(decided, 3000U);
}

INSTANTIATE_TEST_SUITE_P(Patterns, WordScannerTest, testing::Range(0, 5));

TEST(WordScanner, UnknownPatternsAreLeftToPcre) {
  EXPECT_FALSE(WordScanner::for_pattern(R"(\p{L}+)"));
  EXPECT_FALSE(WordScanner::for_pattern(std::string(kPatterns[0]) + " "));
}

}  // namespace
}  // namespace tandem::token
