#include "common/json/utf8.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <string>
#include <string_view>

namespace tandem::json {
namespace {

TEST(Utf8, FindsWhatIsBrokenAtEveryPlace) {
  // Looked at 8 and 32 at a time.
  constexpr std::size_t kLength = 110;
  for (std::size_t at = 4; at < kLength; ++at) {
    for (const std::size_t other : {std::size_t{0}, at / 2, at - 2}) {
      std::string text(kLength, 'a');
      text.replace(other, 2, "\u00e9");
      EXPECT_EQ(find_invalid_utf8(text), text.size());
      text[at] = '\xFF';
      EXPECT_EQ(find_invalid_utf8(text), at);
    }
  }
}

TEST(Utf8, MaximalParts) {
  struct Row {
    std::string_view bytes;
    std::uint32_t byte_count;
    bool truncated;
  };

  const Row rows[] = {{"\xF0\x9F\x99", 3, true},
                      {"\xF0\x9Fx", 2, false},
                      {"\xE2\x28", 1, false},
                      {"\xF5\x80", 1, false},
                      {"\x80\x80", 1, false},
                      {"\xE0\x80", 1, false},
                      {"\xC3", 1, true}};
  for (const Row& row : rows) {
    const Utf8Step step = decode_utf8(row.bytes);
    EXPECT_FALSE(step.valid);
    EXPECT_EQ(step.byte_count, row.byte_count);
    EXPECT_EQ(step.truncated, row.truncated);
  }
  std::string out;
  append_utf8_lossy(out, "abcdefgh\xC3\xA9\xFF");
  EXPECT_EQ(out, "abcdefgh\xC3\xA9\xEF\xBF\xBD");
}

}  // namespace
}  // namespace tandem::json
