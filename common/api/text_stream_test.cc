#include "common/api/text_stream.h"

#include "common/api/testing/fixture.h"
#include "common/base/random.h"

#include <gtest/gtest.h>

#include <algorithm>

namespace tandem::api {
namespace {

struct StopRow {
  const char* name;
  const char* text;
  std::vector<std::string> stop;
  bool no_trim;
  std::int32_t min_tokens;
  const char* want;
  const char* matched;
};

TEST(TextStream, StopStrings) {
  const StopRow rows[] = {
      {"none", "hello world", {}, false, 0, "hello world", ""},
      {"no match", "hello world", {"xyz"}, false, 0, "hello world", ""},
      {"cut", "hello world", {"wor"}, false, 0, "hello ", "wor"},
      {"kept with no_stop_trim", "hello world", {"wor"}, true, 0, "hello wor", "wor"},
      {"at the start", "hello", {"he"}, false, 0, "", "he"},
      {"at the end", "hello", {"lo"}, false, 0, "hel", "lo"},
      {"whole text", "hello", {"hello"}, false, 0, "", "hello"},
      {"held back and given out", "ab abX", {"abY"}, false, 0, "ab abX", ""},
      {"beginning at the very end", "say hel", {"hello"}, false, 0, "say hel", ""},
      {"first to be complete wins", "abcdef", {"bcdef", "cd"}, false, 0, "ab", "cd"},
      {"longest of those that end together", "abcdef", {"cd", "bcd"}, false, 0, "a", "bcd"},
      {"self overlapping", "aaab", {"aab"}, false, 0, "a", "aab"},
      {"accents", "caf\xc3\xa9 noir", {"\xc3\xa9 n"}, false, 0, "caf", "\xc3\xa9 n"},
      {"emoji", "a\xf0\x9f\x99\x82z", {"\xf0\x9f\x99\x82"}, false, 0, "a", "\xf0\x9f\x99\x82"},
      {"newlines", "one\n\ntwo", {"\n\n"}, false, 0, "one", "\n\n"},
      {"not before min_new_tokens", "a b c d e f g a b", {"a"}, false, 4, nullptr, "a"},
  };
  for (const StopRow& row : rows) {
    SCOPED_TRACE(row.name);
    TextStream stream(
        demo_tokenizer(), {.stop = row.stop, .no_stop_trim = row.no_trim}, row.min_tokens);
    std::string out;
    bool stopped = false;
    for (const core::TokenId id : ids_of(row.text)) {
      stopped = stream.push(id, &out);
      if (stopped) break;
    }
    if (!stopped) stopped = stream.finish(&out);
    if (row.want != nullptr) {
      EXPECT_EQ(out, row.want);
    } else {
      EXPECT_EQ(out, "a b c d e f g ");
    }
    EXPECT_EQ(stream.matched(), row.matched);
    EXPECT_EQ(stopped, row.matched[0] != '\0');
  }
}

TEST(TextStream, NothingGivenOutIsEverPartOfAStop) {
  TextStream stream(demo_tokenizer(), {.stop = {"END OF TEXT"}}, 0);
  std::string out;
  for (const core::TokenId id : ids_of("abc END OF TEX"))
    EXPECT_FALSE(stream.push(id, &out));
  EXPECT_EQ(out, "abc ");
  EXPECT_FALSE(stream.finish(&out));
  EXPECT_EQ(out, "abc END OF TEX");
}

TEST(TextStream, FinalTokenShowsOnlyWithNoStopTrim) {
  const core::TokenId id = ids_of("x").front();
  std::string trimmed;
  TextStream(demo_tokenizer(), {}, 0).push_final(id, &trimmed);
  EXPECT_EQ(trimmed, "");
  std::string kept;
  TextStream stream(demo_tokenizer(), {.stop = {}, .no_stop_trim = true}, 0);
  stream.push_final(id, &kept);
  stream.finish(&kept);
  EXPECT_EQ(kept, "x");
}

// The oracle: the text of all tokens, cut at the stop string that is complete first.
TEST(TextStream, RandomTextsAgreeWithAPlainSearch) {
  const std::uint64_t seed = system_random();
  RecordProperty("seed", std::to_string(seed));
  SCOPED_TRACE("seed " + std::to_string(seed));
  Random random(seed);
  const char* alphabet[] = {"a", "b", "ab", " ", "\xc3\xa9", "\xf0\x9f\x99\x82", "\n"};
  const auto word = [&](std::size_t most) {
    std::string out;
    for (std::uint64_t n = 1 + random.below(most); n > 0; --n)
      out += alphabet[random.below(7)];
    return out;
  };
  for (int round = 0; round < 300; ++round) {
    const std::string text = word(30);
    const std::vector<std::string> stop{word(3), word(4)};
    std::size_t best_end = std::string::npos;
    std::size_t best_start = 0;
    for (const std::string& each : stop) {
      const std::size_t found = text.find(each);
      if (found == std::string::npos) continue;
      const std::size_t end = found + each.size();
      if (end < best_end || (end == best_end && found < best_start)) {
        best_end = end;
        best_start = found;
      }
    }
    const std::string want = best_end == std::string::npos ? text : text.substr(0, best_start);
    TextStream stream(demo_tokenizer(), {.stop = stop}, 0);
    std::string out;
    bool stopped = false;
    for (const core::TokenId id : ids_of(text)) {
      stopped = stream.push(id, &out);
      EXPECT_EQ(want.substr(0, out.size()), out);
      if (stopped) break;
    }
    if (!stopped) stopped = stream.finish(&out);
    ASSERT_EQ(out, want) << "text " << text << " stops " << stop[0] << " | " << stop[1];
    ASSERT_EQ(stopped, best_end != std::string::npos);
  }
}

}  // namespace
}  // namespace tandem::api
