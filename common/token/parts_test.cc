// The parts of a tokenizer, one by one.
#include "common/base/random.h"
#include "common/json/parse.h"
#include "common/token/bpe.h"
#include "common/token/normalizer.h"
#include "common/token/pre_tokenizer.h"
#include "common/token/regex.h"
#include "common/token/skip.h"
#include "common/token/unicode.h"
#include "common/token/word_cache.h"

#include <gtest/gtest.h>

#include <map>

namespace tandem::token {
namespace {

using Ids = std::vector<std::int32_t>;

TEST(PreTokenizer, Pieces) {
  struct Row {
    const char* spec;
    std::string_view text;
    std::vector<std::string> want;
  };

  const Row rows[] = {
      {R"({"type":"Split","pattern":{"String":"-"},"behavior":"Isolated"})",
       "a--b-",
       {"a", "-", "-", "b", "-"}},
      {R"({"type":"Split","pattern":{"String":"-"},"behavior":"Removed"})", "a--b-", {"a", "b"}},
      {R"({"type":"Split","pattern":{"String":"-"},"behavior":"Contiguous"})",
       "a--b-",
       {"a", "--", "b", "-"}},
      {R"({"type":"Split","pattern":{"String":"-"},"behavior":"MergedWithPrevious"})",
       "-a--b-",
       {"-", "a-", "-", "b-"}},
      {R"({"type":"Split","pattern":{"String":"-"},"behavior":"MergedWithNext"})",
       "a--b-",
       {"a", "-", "-b", "-"}},
      {R"({"type":"Split","pattern":{"Regex":"\\d+"},"behavior":"Removed","invert":true})",
       "a12b3",
       {"12", "3"}},
      {R"({"type":"Digits","individual_digits":true})",
       "a12 \u0663",
       {"a", "1", "2", " ", "\u0663"}},
      {R"({"type":"Digits"})", "a12b", {"a", "12", "b"}},
      {R"({"type":"Punctuation"})", "a,.\u3002b$", {"a", ",", ".", "\u3002", "b", "$"}},
      {R"({"type":"Whitespace"})", " a_b\u0301 ,. c", {"a_b\u0301", ",.", "c"}},
      {R"({"type":"WhitespaceSplit"})", " a,b \u3000c ", {"a,b", "c"}},
      {R"({"type":"Metaspace","replacement":"_","prepend_scheme":"always"})", "a b", {"_a", "_b"}},
      {R"({"type":"Metaspace","replacement":"_","prepend_scheme":"never","split":false})",
       "a b",
       {"a_b"}},
      {R"({"type":"ByteLevel","use_regex":true})", "a b", {"\u0120a", "\u0120b"}},
      {R"({"type":"ByteLevel","use_regex":true,"add_prefix_space":false})",
       "it's 12  x",
       {"it", "'s", "\u012012", "\u0120", "\u0120x"}},
      {R"({"type":"Sequence","pretokenizers":[{"type":"Digits","individual_digits":true},
          {"type":"ByteLevel","use_regex":true,"add_prefix_space":false}]})",
       "a 12",
       {"a", "\u0120", "1", "2"}},
  };
  for (const Row& row : rows) {
    SCOPED_TRACE(row.spec);
    const json::Value spec = *json::parse(row.spec);
    const auto pre = PreTokenizer::load(json::Field(spec));
    ASSERT_TRUE(pre.ok()) << pre.status().message();
    const Words words = pre->apply(std::string(row.text), true);
    std::vector<std::string> got;
    for (const Span& span : words.spans) {
      got.push_back(words.text.substr(span.begin, span.end - span.begin));
    }
    EXPECT_EQ(got, row.want);
  }
}

TEST(Normalizer, Steps) {
  struct Row {
    const char* spec;
    std::string_view text;
    std::string_view want;
  };

  const Row rows[] = {
      {R"({"type":"NFC"})", "e\u0301", "\u00e9"},
      {R"({"type":"NFD"})", "\u00e9", "e\u0301"},
      {R"({"type":"NFKC"})", "\ufb01", "fi"},
      {R"({"type":"Lowercase"})", "\u0130A\u00c9", "i\u0307a\u00e9"},
      {R"({"type":"Strip"})", " \u3000a b\t", "a b"},
      {R"({"type":"Strip","strip_left":false,"strip_right":true})", " a ", " a"},
      {R"({"type":"Replace","pattern":{"Regex":"\\s+"},"content":" "})", "a \t\nb", "a b"},
      {R"({"type":"Prepend","prepend":"x"})", "", ""},
      {R"({"type":"Sequence","normalizers":[{"type":"NFD"},{"type":"StripAccents"}]})",
       "\u00e9",
       "e"},
      {"null", "A", "A"},
  };
  for (const Row& row : rows) {
    SCOPED_TRACE(row.spec);
    const json::Value spec = *json::parse(row.spec);
    const auto normalizer = Normalizer::load(json::Field(spec));
    ASSERT_TRUE(normalizer.ok()) << normalizer.status().message();
    EXPECT_EQ(normalizer->apply(row.text), row.want);
  }
}

TEST(Unicode, LongRunsOfMarksAreOrderedInTime) {
  std::string text = "a";
  for (int i = 0; i < 50000; ++i) {
    text += "\u0301\u0323";  // class 230, class 220: out of order
  }
  const std::string got = normalize(text, NormalForm::kNfd);
  ASSERT_EQ(got.size(), text.size());
  EXPECT_EQ(got.substr(0, 5), "a\u0323\u0323");
  EXPECT_TRUE(got.ends_with("\u0301\u0301"));
}

TEST(Regex, ReadsOnigurumaAndRefusesTheRest) {
  const char* refused[] = {"[a&&b]", "[a[b]]", "\\h+", "a{1,2}+", "(", "[a", "\\", "\\u12"};
  for (const char* pattern : refused) {
    EXPECT_FALSE(Regex::compile(pattern).ok()) << pattern;
  }
  EXPECT_EQ(Regex::compile("\\u00e9")->find_all("a\u00e9").size(), 1U);
  // U+180E is no white space in Oniguruma.
  EXPECT_TRUE(Regex::compile("\\s")->find_all("\u180e").empty());
  EXPECT_EQ(Regex::compile("[]a]+")->find_all("a]").size(), 1U);
  EXPECT_TRUE(Regex::compile("x*")->find_all("aaa").empty());
}

/// The rule, spelt out: merge the leftmost pair of the lowest rank until there is none.
Ids merge_plainly(Ids symbols, const std::map<std::pair<int, int>, std::pair<int, int>>& merges) {
  while (true) {
    std::size_t best = 0;
    int best_rank = INT32_MAX;
    for (std::size_t i = 0; i + 1 < symbols.size(); ++i) {
      const auto found = merges.find({symbols[i], symbols[i + 1]});
      if (found != merges.end() && found->second.first < best_rank) {
        best_rank = found->second.first;
        best = i;
      }
    }
    if (best_rank == INT32_MAX) return symbols;
    symbols[best] = merges.at({symbols[best], symbols[best + 1]}).second;
    symbols.erase(symbols.begin() + static_cast<std::ptrdiff_t>(best) + 1);
  }
}

TEST(SkipBytes, StopsAtEveryPlace) {
  ByteTable passes{};
  passes['a'] = true;
  for (std::size_t length = 0; length < 20; ++length) {
    for (std::size_t stop = 0; stop <= length; ++stop) {
      std::string text(length, 'a');
      if (stop < length) text[stop] = '\xFF';
      for (std::size_t pos = 0; pos <= stop; ++pos)
        EXPECT_EQ(skip_bytes(passes, text, pos), stop) << length << " from " << pos;
    }
  }
}

// Words of the same length that differ anywhere have different keys.
TEST(WordCache, KeysAreOneToOne) {
  for (std::size_t length = 1; length <= WordCache::kBytesMax; ++length) {
    const std::string word(length, 'a');
    const WordCache::Key key = WordCache::key_of(7, word);
    EXPECT_EQ(key, WordCache::key_of(7, std::string(length, 'a')));
    EXPECT_NE(key, WordCache::key_of(8, word));
    EXPECT_NE(key, WordCache::key_of(7, word + "a"));
    for (std::size_t i = 0; i < length; ++i) {
      std::string other = word;
      other[i] = 'b';
      EXPECT_NE(key, WordCache::key_of(7, other)) << other;
    }
  }
  WordCache cache;
  Ids out{1, 2, 3};
  cache.keep(WordCache::key_of(7, "word"), out, 1);
  Ids got(WordCache::kIdsMax);
  EXPECT_EQ(cache.copy(WordCache::key_of(7, "wort"), got.data()), 0U);
  ASSERT_EQ(cache.copy(WordCache::key_of(7, "word"), got.data()), 2U);
  got.resize(2);
  EXPECT_EQ(got, (Ids{2, 3}));
}

TEST(Bpe, EqualsThePlainRule) {
  for (std::uint64_t seed = 1; seed <= 200; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    Random random(seed);
    std::vector<std::string> tokens = {"a", "b", "c"};
    Vocabulary vocabulary;
    for (int i = 0; i < 3; ++i) {
      ASSERT_TRUE(vocabulary.add(tokens[static_cast<std::size_t>(i)], i).ok());
    }
    std::vector<std::pair<int, int>> pairs;
    for (int i = 0; i < 40; ++i) {
      const auto left = static_cast<int>(random.below(tokens.size()));
      const auto right = static_cast<int>(random.below(tokens.size()));
      const std::string merged =
          tokens[static_cast<std::size_t>(left)] + tokens[static_cast<std::size_t>(right)];
      if (merged.size() > 40) continue;
      if (!vocabulary.find(merged)) {
        ASSERT_TRUE(vocabulary.add(merged, static_cast<std::int64_t>(tokens.size())).ok());
        tokens.push_back(merged);
      }
      pairs.emplace_back(left, right);
    }
    // Ranks in any order: a merge may need a token that a later one makes.
    for (std::size_t i = pairs.size(); i > 1; --i) {
      std::swap(pairs[i - 1], pairs[random.below(i)]);
    }
    std::map<std::pair<int, int>, std::pair<int, int>> table;
    BpeModel model(vocabulary, {});
    for (std::size_t rank = 0; rank < pairs.size(); ++rank) {
      const std::string& left = tokens[static_cast<std::size_t>(pairs[rank].first)];
      const std::string& right = tokens[static_cast<std::size_t>(pairs[rank].second)];
      ASSERT_TRUE(model.add_merge(left, right).ok());
      table[pairs[rank]] = {static_cast<int>(rank), *vocabulary.find(left + right)};
    }
    for (const std::size_t length : {1, 5, 47, 48, 49, 50, 200, 600}) {
      std::string word;
      Ids symbols;
      for (std::size_t i = 0; i < length; ++i) {
        symbols.push_back(static_cast<std::int32_t>(random.below(3)));
        word += tokens[static_cast<std::size_t>(symbols.back())];
      }
      Ids got;
      model.encode(word, got);
      EXPECT_EQ(got, merge_plainly(symbols, table)) << word;
    }
  }
}

}  // namespace
}  // namespace tandem::token
