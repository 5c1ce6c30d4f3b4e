// TextMemory: what a thread remembers of texts never changes their ids, and is bounded.
#include "common/token/text_memory.h"

#include "common/base/random.h"
#include "common/json/write.h"
#include "common/token/byte_level.h"
#include "common/token/testing/encode_anew.h"
#include "common/token/testing/patterns.h"
#include "common/token/tokenizer.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <iterator>
#include <string>
#include <vector>

namespace tandem::token {
namespace {

using Ids = std::vector<std::int32_t>;

/// Parts of texts: blanks and runs that the patterns look ahead along, and characters of theirs.
constexpr const char* kParts[] = {
    "a",  "b",  "Q",  "Z",    "aZ",     "1",      "23",     " ",      " ",      "  ",  "   ", "\t",
    "\n", "\n", "\r", "\n\n", "'",      "'s",     "'LL",    "'r",     ".",      "/",   "//",  ",",
    " a", " Q", " 1", " .",   "\u00e9", "\u00c9", "\u0301", "\u4e2d", "\u3000", "word"};

std::string spelt(std::string_view bytes) {
  std::string out;
  append_byte_level(out, bytes);
  return out;
}

/// All bytes, and merges of any two signs that words are cut between, line ends and blanks first:
/// other words are other ids.
std::string model_json(const std::string& pre_tokenizer) {
  constexpr std::string_view kSigns = "\n \t\rabQZ123'sr./,Lwod";
  json::Object vocab;
  for (int b = 0; b < 256; ++b)
    vocab.set(spelt(std::string(1, static_cast<char>(b))), b);
  json::Array merges;
  for (const char left : kSigns) {
    for (const char right : kSigns) {
      const std::string pair = {left, right};
      if (vocab.find(spelt(pair)) != nullptr) continue;
      vocab.set(spelt(pair), static_cast<int>(vocab.size()));
      merges.push_back(
          json::Array{json::Value(spelt(pair.substr(0, 1))), json::Value(spelt(pair.substr(1)))});
    }
  }
  return R"({"pre_tokenizer":)" + pre_tokenizer + R"(,"decoder":{"type":"ByteLevel"},)" +
         R"("model":{"type":"BPE","vocab":)" + json::to_string(vocab) + R"(,"merges":)" +
         json::to_string(merges) + "}}";
}

std::string split(std::string_view pattern, std::string_view behavior) {
  return R"({"type":"Split","pattern":{"Regex":)" + json::to_string(std::string(pattern)) +
         R"(},"behavior":")" + std::string(behavior) + R"(","invert":false})";
}

std::string sequence(const std::string& first, bool use_regex) {
  return R"({"type":"Sequence","pretokenizers":[)" + first +
         R"(,{"type":"ByteLevel","add_prefix_space":false,"use_regex":)" +
         (use_regex ? "true" : "false") + "}]}";
}

/// Those that are remembered, and some that must not be.
std::vector<std::string> pre_tokenizers() {
  std::vector<std::string> all;
  for (const char* pattern : kPatterns) {
    all.push_back(sequence(split(pattern, "Isolated"), false));
    all.push_back(sequence(split(pattern, "Isolated"), true));
  }
  all.push_back(sequence(split(kPatterns[0], "MergedWithNext"), true));
  all.push_back(sequence(split(R"(\p{L}+\s+(?=\d))", "Isolated"), false));
  all.push_back(sequence(split(R"((?<=b) a)", "Isolated"), true));
  for (const char* each : {"true", "false"})
    all.push_back(
        sequence(R"({"type":"Digits","individual_digits":)" + std::string(each) + "}", true));
  for (const char* behavior : {"Isolated", "Contiguous", "MergedWithPrevious", "MergedWithNext"}) {
    all.push_back(
        sequence(R"({"type":"Punctuation","behavior":")" + std::string(behavior) + "\"}", true));
  }
  all.push_back(sequence(R"({"type":"WhitespaceSplit"})", true));
  return all;
}

std::string random_text(Random& random, std::size_t parts) {
  std::string text;
  for (std::size_t i = 0; i < parts; ++i)
    text += kParts[random.below(std::size(kParts))];
  return text;
}

TEST(TextMemory, IdsAreThoseOfAThreadThatHasMetNothing) {
  const std::uint64_t seed = 5;
  Random random(seed);
  for (const std::string& pre_tokenizer : pre_tokenizers()) {
    SCOPED_TRACE(pre_tokenizer);
    const auto tokenizer = Tokenizer::from_json(model_json(pre_tokenizer));
    ASSERT_TRUE(tokenizer.ok()) << tokenizer.status().message();
    for (int text = 0; text < 4; ++text) {
      std::string base = random_text(random, 200 + 400 * static_cast<std::size_t>(text));
      for (int turn = 0; turn < 100; ++turn) {
        ASSERT_EQ((*tokenizer)->encode(base, false), encode_anew(**tokenizer, base))
            << "seed " << seed << ", text " << text << ", turn " << turn;
        // As it was up to anywhere behind what tells texts apart, within characters too; then often
        // a blank, which what stands before it may be waiting for.
        std::size_t keep = turn % 4 == 0 ? base.size() : 64 + random.below(base.size() - 64);
        // Just behind what belongs to a cut.
        if (turn % 2 == 0) keep = std::min(base.find("\n  ", keep), base.size() - 3) + 3;
        constexpr std::string_view kNext[] = {" ", "\n", " \n", "a", "1", "'", ""};
        base.resize(keep);
        base += kNext[random.below(std::size(kNext))];
        base += random_text(random, random.below(120));
        base += random_text(random, base.size() < 400 ? 200 : 0);
      }
    }
  }
}

std::string words(std::size_t bytes) {
  std::string text;
  while (text.size() < bytes)
    text += " word";
  return text;
}

/// Remembers `text` up to `end`, one id for each byte.
void remember(TextMemory& memory, const std::string& text, std::size_t end) {
  TextMemory::Entry& entry = memory.at(1, text);
  const TextMemory::Cut known = entry.keep_common(text);
  ASSERT_TRUE(TextMemory::may_cut(text, end));
  const auto at = static_cast<std::uint32_t>(end);
  entry.extend(text, std::vector<TextMemory::Cut>{{at, at}}, Ids(end - known.ids, 7));
}

TEST(TextMemory, KeepsWhatTextsHaveInCommon) {
  TextMemory memory;
  const std::string text = words(1000);
  remember(memory, text, 300);
  remember(memory, text, 600);
  EXPECT_EQ(memory.at(1, text).keep_common(text).bytes, 600U);
  EXPECT_EQ(memory.at(1, text).ids().size(), 600U);
  // Two bytes behind a cut belong to it.
  EXPECT_EQ(memory.at(1, text).keep_common(text.substr(0, 602)).bytes, 600U);
  EXPECT_EQ(memory.at(1, text).keep_common(text.substr(0, 601)).bytes, 300U);
  EXPECT_EQ(memory.at(1, text).keep_common(text).bytes, 300U);
  EXPECT_EQ(memory.at(1, text).keep_common(text.substr(0, 256) + words(100)).bytes, 0U);
}

TEST(TextMemory, OwnersAndTextsAreApart) {
  TextMemory memory;
  const std::string text = words(1000);
  remember(memory, text, 300);
  EXPECT_EQ(memory.at(2, text).keep_common(text).bytes, 0U);
  EXPECT_EQ(memory.at(1, "x" + text).keep_common("x" + text).bytes, 0U);
  EXPECT_EQ(memory.at(1, text).keep_common(text).bytes, 300U);
}

TEST(TextMemory, ManyConversationsInTurnAllStay) {
  TextMemory memory;
  constexpr std::size_t kTexts = 64;
  // Whatever is common to all of them: which slots they take is luck.
  for (std::size_t group = 0; group < 8; ++group) {
    const auto text = [&](std::size_t i) {
      return "conversation " + std::to_string(1000 * group + i) + words(1000);
    };
    for (std::size_t i = 0; i < kTexts; ++i)
      remember(memory, text(i), text(i).size() - 5);
    for (std::size_t i = 0; i < kTexts; ++i)
      EXPECT_FALSE(memory.at(1, text(i)).ids().empty()) << "group " << group << ", text " << i;
  }
}

TEST(TextMemory, WhatIsSeenAgainStays) {
  TextMemory memory;
  const std::string kept = "kept" + words(300);
  remember(memory, kept, kept.size() - 5);
  for (std::size_t i = 0; i < 1000; ++i) {
    const std::string text = "once " + std::to_string(i) + words(300);
    remember(memory, text, text.size() - 5);
    ASSERT_FALSE(memory.at(1, kept).ids().empty()) << "after " << i << " others";
  }
}

TEST(TextMemory, IsBounded) {
  TextMemory memory;
  constexpr std::size_t kTexts = 400;
  const auto text = [](std::size_t i) { return std::to_string(1000 + i) + words(20'000); };
  for (std::size_t i = 0; i < kTexts; ++i)
    remember(memory, text(i), 19'999 / 5 * 5 - 1);
  std::size_t bytes = 0;
  std::size_t here = 0;
  for (std::size_t i = 0; i < kTexts; ++i) {
    const std::size_t known = memory.at(1, text(i)).ids().size();
    bytes += known * (1 + sizeof(std::int32_t));
    here += known > 0 ? 1 : 0;
  }
  EXPECT_LE(bytes, TextMemory::kBytesMost + 200'000);
  EXPECT_GT(here, 10U);
  EXPECT_LT(here, 60U);
}

}  // namespace
}  // namespace tandem::token
