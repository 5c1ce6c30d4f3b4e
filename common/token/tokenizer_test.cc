#include "common/token/tokenizer.h"

#include "common/base/random.h"
#include "common/json/utf8.h"
#include "common/json/write.h"
#include "common/token/byte_level.h"
#include "common/token/detokenizer.h"

#include <gtest/gtest.h>

#include <atomic>
#include <thread>

namespace tandem::token {
namespace {

using Ids = std::vector<std::int32_t>;

/// A byte-level vocabulary: the 256 bytes, then `words`, with merges from `merges`.
std::string byte_level_json(const std::vector<std::string>& words,
                            const std::string& merges,
                            const std::string& added = "[]",
                            const std::string& extra = "") {
  json::Object vocab;
  for (int b = 0; b < 256; ++b) {
    std::string token;
    append_byte_level(token, std::string(1, static_cast<char>(b)));
    vocab.set(token, b);
  }
  for (const std::string& word : words) {
    vocab.set(word, static_cast<int>(vocab.size()));
  }
  return R"({"added_tokens":)" + added + extra +
         R"(,"pre_tokenizer":{"type":"ByteLevel","add_prefix_space":false,"use_regex":true},)" +
         R"("decoder":{"type":"ByteLevel"},"model":{"type":"BPE","vocab":)" +
         json::to_string(vocab) + R"(,"merges":)" + merges + "}}";
}

/// A small character vocabulary: `pieces` get ids in order.
std::string char_json(const std::vector<std::string>& pieces,
                      const std::string& merges,
                      const std::string& rest) {
  json::Object vocab;
  for (const std::string& piece : pieces) {
    vocab.set(piece, static_cast<int>(vocab.size()));
  }
  return R"({"model":{"type":"BPE","vocab":)" + json::to_string(vocab) + R"(,"merges":)" + merges +
         "}" + rest + "}";
}

std::shared_ptr<const Tokenizer> make(const std::string& text, const std::string& config = "") {
  auto tokenizer = Tokenizer::from_json(text, config);
  EXPECT_TRUE(tokenizer.ok()) << tokenizer.status().message();
  return tokenizer.ok() ? *tokenizer : nullptr;
}

// Tokens and merges are looked up some at a time; what is wrong is named wherever it is.
TEST(Tokenizer, EveryMergeAndTokenIsLookedAt) {
  constexpr std::size_t kCount = 100;
  for (const std::size_t count : {std::size_t{1}, std::size_t{16}, std::size_t{17}, kCount}) {
    std::vector<std::string> words;
    std::vector<std::string> merges;
    for (std::size_t i = 0; i < count; ++i) {
      const std::string left(1, static_cast<char>('a' + i / 10));
      const std::string right(1, static_cast<char>('a' + i % 10));
      merges.push_back(left + " " + right);
      words.push_back(left + right);
    }
    const auto list = [](const std::vector<std::string>& all) {
      json::Array array;
      for (const std::string& each : all)
        array.emplace_back(each);
      return json::to_string(json::Value(array));
    };
    const auto t = make(byte_level_json(words, list(merges)));
    ASSERT_NE(t, nullptr);
    for (std::size_t i = 0; i < count; ++i) {
      EXPECT_EQ(t->encode(words[i], false), (Ids{static_cast<std::int32_t>(256 + i)}));
      std::vector<std::string> wrong = merges;
      wrong[i] = "a zz";
      const auto refused = Tokenizer::from_json(byte_level_json(words, list(wrong)), "");
      EXPECT_EQ(refused.status().message(),
                "model.merges[" + std::to_string(i) +
                    "]: merge of \"a\" and \"zz\": \"zz\" is not in the vocabulary");
      std::string vocab = byte_level_json(words, list(merges));
      const std::string member = '"' + words[i] + "\":" + std::to_string(256 + i);
      vocab.replace(vocab.find(member), member.size(), '"' + words[i] + "\":97");
      EXPECT_EQ(Tokenizer::from_json(vocab, "").status().message(),
                "model.vocab: id 97 is given to \"a\" and to \"" + words[i] + '"');
    }
  }
}

TEST(Tokenizer, MergesInBothForms) {
  for (const char* merges : {R"([["a","b"],["ab","c"],["b","c"]])", R"(["a b","ab c","b c"])"}) {
    const auto t = make(byte_level_json({"ab", "abc", "bc"}, merges));
    EXPECT_EQ(t->encode("abc bc", false), (Ids{257, 32, 258}));
    EXPECT_EQ(t->decode(Ids{257, 32, 258, 999, -1}, false), "abc bc");
    EXPECT_EQ(t->vocab_size(), 259U);
    EXPECT_EQ(t->token_bytes(32), " ");
    EXPECT_EQ(t->token_text(32), "\xC4\xA0");
    EXPECT_EQ(t->token_bytes(259), "");
    EXPECT_EQ(t->token_id("abc"), 257);
    EXPECT_EQ(t->token_id("abd"), std::nullopt);
  }
}

// Words are remembered, and their ids gathered before they are handed on: whatever came before, a
// word has the ids that it has alone.
TEST(Tokenizer, WordsHaveTheirIdsWhateverCameBefore) {
  const auto t = make(byte_level_json({"ab", "abc", "bc"}, R"(["a b","ab c","b c"])"));
  const std::string words[] = {" abc",
                               " xyzxyz",
                               " bcbcbcbcbcbc",
                               " a",
                               " abcabcabcabcabcabcabcabc",
                               " zzzzzzzzzzzzzzz",
                               " q"};
  Random random(5);
  std::string text;
  Ids want;
  for (int i = 0; i < 3000; ++i) {
    const std::string& word = words[random.below(std::size(words))];
    text += word;
    const Ids alone = t->encode(word, false);
    want.insert(want.end(), alone.begin(), alone.end());
    if (i % 100 != 0 && i > 100) continue;
    ASSERT_EQ(t->encode(text, false), want) << i;
  }
  EXPECT_EQ(t->encode(text, false), want);
  EXPECT_EQ(t->decode(want, false), text);
}

TEST(Tokenizer, VocabularyDigestTellsWhatIdsMean) {
  const auto digest = [](const std::vector<std::string>& words, const std::string& added = "[]") {
    return make(byte_level_json(words, "[]", added))->vocabulary_digest();
  };
  EXPECT_EQ(digest({"ab", "cd"}), digest({"ab", "cd"}));
  EXPECT_EQ(digest({"ab"}).size(), 32U);
  EXPECT_NE(digest({"ab", "cd"}), digest({"cd", "ab"}));
  EXPECT_NE(digest({"ab", "cd"}), digest({"ab"}));
  EXPECT_NE(digest({"abc"}), digest({"ab", "c!"}));
  const std::string plain = R"([{"id":257,"content":"<e>","special":false}])";
  const std::string special = R"([{"id":257,"content":"<e>","special":true}])";
  EXPECT_NE(digest({"ab"}, plain), digest({"ab"}, special));
}

TEST(Tokenizer, InvalidUtf8CountsAsReplacement) {
  const auto t = make(byte_level_json({}, "[]"));
  EXPECT_EQ(t->encode("a\xFFz", false), (Ids{97, 0xEF, 0xBF, 0xBD, 122}));
}

TEST(Tokenizer, AddedTokenFlags) {
  const std::string added = R"([
    {"id":256,"content":"<s>","special":true},
    {"id":257,"content":"<s>x","special":false,"normalized":false},
    {"id":258,"content":"<l>","lstrip":true,"special":true},
    {"id":259,"content":"<r>","rstrip":true,"special":true},
    {"id":260,"content":"<w>","single_word":true,"special":true},
    {"id":261,"content":"Up","normalized":true}])";
  const auto t = make(byte_level_json({}, "[]", added, R"(,"normalizer":{"type":"Lowercase"})"));

  struct Row {
    const char* name;
    std::string_view text;
    Ids want;
  };

  const Row rows[] = {
      {"plain", "a<s>b", {97, 256, 98}},
      {"longest wins", "<s>x<s>", {257, 256}},
      {"left", "a \t<l> b", {97, 258, 32, 98}},
      {"left twice", "<l>  <l>", {258, 258}},
      {"right", "a <r> \xE3\x80\x80 b", {97, 32, 259, 98}},
      {"word inside", "a<w>", {97, 60, 119, 62}},
      {"word alone", " <w>.", {32, 260, 46}},
      {"normalized content", "xUPx", {120, 261, 120}},
      {"raw content is not normalized", "<S>", {60, 115, 62}},
  };
  for (const Row& row : rows) {
    SCOPED_TRACE(row.name);
    EXPECT_EQ(t->encode(row.text, false), row.want);
  }
  EXPECT_EQ(t->decode(Ids{256, 97, 257}, true), "a<s>x");
  EXPECT_EQ(t->decode(Ids{256, 97, 257}, false), "<s>a<s>x");
  EXPECT_TRUE(t->is_special(256));
  EXPECT_FALSE(t->is_special(257));
  EXPECT_FALSE(t->is_special(-5));
  EXPECT_FALSE(t->is_special(1 << 30));
}

TEST(Tokenizer, PostProcessorAndRoles) {
  const std::string post =
      R"(,"post_processor":{"type":"TemplateProcessing","single":[
        {"SpecialToken":{"id":"<s>","type_id":0}},{"Sequence":{"id":"A","type_id":0}},
        {"SpecialToken":{"id":"</s>","type_id":0}}],
        "special_tokens":{"<s>":{"id":"<s>","ids":[256]},"</s>":{"id":"</s>","ids":[257]}}})";
  const std::string added =
      R"([{"id":256,"content":"<s>","special":true},{"id":257,"content":"</s>","special":true}])";
  const std::string text = byte_level_json({}, "[]", added, post);
  const auto t = make(text, R"({"bos_token":"<s>","eos_token":{"content":"</s>"}})");
  EXPECT_EQ(t->encode("a", true), (Ids{256, 97, 257}));
  EXPECT_EQ(t->encode("a", false), (Ids{97}));
  EXPECT_EQ(t->encode("", true), (Ids{256, 257}));
  EXPECT_EQ(t->bos_id(), 256);
  EXPECT_EQ(t->eos_id(), 257);
  EXPECT_EQ(t->pad_id(), std::nullopt);
  const auto llama = make(text,
                          R"({"tokenizer_class":"LlamaTokenizerFast","bos_token":"<s>",
      "eos_token":"</s>","add_bos_token":true,"add_eos_token":false})");
  EXPECT_EQ(llama->encode("a", true), (Ids{256, 97}));
  const auto extra = make(byte_level_json({}, "[]"),
                          R"({"eos_token":"a","added_tokens_decoder":{"300":{"content":"<x>"}}})");
  EXPECT_EQ(extra->encode("b<x>", false), (Ids{98, 300}));
  EXPECT_TRUE(extra->is_special(97));
  EXPECT_EQ(extra->vocab_size(), 301U);
}

TEST(Tokenizer, ByteFallbackAndUnknown) {
  const std::string rest =
      R"(,"normalizer":{"type":"Sequence","normalizers":[{"type":"Prepend","prepend":"_"},
          {"type":"Replace","pattern":{"String":" "},"content":"_"}]},
        "decoder":{"type":"Sequence","decoders":[{"type":"Replace","pattern":{"String":"_"},
          "content":" "},{"type":"ByteFallback"},{"type":"Fuse"},
          {"type":"Strip","content":" ","start":1,"stop":0}]})";
  std::string text = char_json({"<unk>", "_", "a", "<0xC3>", "<0xA9>", "_a"}, R"(["_ a"])", rest);
  text.insert(text.find("\"vocab\""),
              R"("unk_token":"<unk>","fuse_unk":true,"byte_fallback":true,)");
  const auto t = make(text);
  EXPECT_EQ(t->encode("a\xC3\xA9", false), (Ids{5, 3, 4}));
  // "x" and "y" have no byte tokens: one unk for both.
  EXPECT_EQ(t->encode("xya", false), (Ids{1, 0, 2}));
  EXPECT_EQ(t->decode(Ids{5, 5, 3, 4}, false), "a a\xC3\xA9");
  EXPECT_EQ(t->decode(Ids{3, 2, 4, 3}, false),
            "\xEF\xBF\xBD"
            "a\xEF\xBF\xBD\xEF\xBF\xBD");
  EXPECT_EQ(t->token_bytes(1), " ");
  IncrementalDetokenizer continued(t, {.after_text = true});
  EXPECT_EQ(continued.push(5), " a");
  IncrementalDetokenizer fresh(t);
  EXPECT_EQ(fresh.push(5), "a");
  EXPECT_EQ(fresh.push(3), "");
  EXPECT_EQ(fresh.push(4), "\xC3\xA9");
  EXPECT_EQ(fresh.push(3), "");
  EXPECT_EQ(fresh.push(5), "\xEF\xBF\xBD a");
  EXPECT_EQ(fresh.push(4), "");
  EXPECT_EQ(fresh.finish(), "\xEF\xBF\xBD");
}

TEST(Tokenizer, IgnoreMergesKeepsWholeWords) {
  std::string text = char_json({"a", "b", "c", "ab", "abc"}, R"(["a b"])", "");
  EXPECT_EQ(make(text)->encode("abc", false), (Ids{3, 2}));
  text.insert(text.find("\"vocab\""), R"("ignore_merges":true,)");
  EXPECT_EQ(make(text)->encode("abc", false), (Ids{4}));
}

struct BadRow {
  const char* name;
  std::string text;
  std::string_view want;
};

TEST(Tokenizer, RefusesWhatItDoesNotKnow) {
  const std::string bpe = R"("model":{"type":"BPE","vocab":{"a":0,"b":1,"ab":2},"merges":[]})";
  const auto with = [&](const std::string& more) { return "{" + more + "," + bpe + "}"; };
  const auto model = [](const std::string& body) { return R"({"model":{)" + body + "}}"; };
  const BadRow rows[] = {
      {"no object", "[]", "expected an object, found array of 0"},
      {"no model", "{}", "model: missing"},
      {"unigram",
       model(R"("type":"Unigram")"),
       "model.type: expected \"BPE\", found string \"Unigram\""},
      {"no vocab", model(R"("type":"BPE","merges":[])"), "model.vocab: missing"},
      {"vocab type",
       model(R"("type":"BPE","vocab":[],"merges":[])"),
       "model.vocab: expected an object"},
      {"id type",
       model(R"("type":"BPE","vocab":{"a":"x"},"merges":[])"),
       "model.vocab: token \"a\": expected an integer id, found string \"x\""},
      {"negative id",
       model(R"("type":"BPE","vocab":{"a":-1},"merges":[])"),
       "id -1 is outside 0..4194303"},
      {"huge id",
       model(R"("type":"BPE","vocab":{"a":2000000000},"merges":[])"),
       "id 2000000000 is outside"},
      {"id twice",
       model(R"("type":"BPE","vocab":{"a":0,"b":0},"merges":[])"),
       "id 0 is given to \"a\" and to \"b\""},
      {"merge of unknown",
       model(R"("type":"BPE","vocab":{"a":0},"merges":[["a","z"]])"),
       "model.merges[0]: merge of \"a\" and \"z\": \"z\" is not in the vocabulary"},
      {"merged unknown",
       model(R"("type":"BPE","vocab":{"a":0,"b":1},"merges":["a b"])"),
       "\"ab\" is not in the vocabulary"},
      {"merge shape",
       model(R"("type":"BPE","vocab":{"a":0},"merges":["a b c"])"),
       "model.merges[0]: expected two tokens"},
      {"merge type",
       model(R"("type":"BPE","vocab":{"a":0},"merges":[7])"),
       "model.merges[0]: expected two"},
      {"dropout",
       model(R"("type":"BPE","vocab":{},"merges":[],"dropout":0.1)"),
       "model.dropout: expected null or 0"},
      {"suffix",
       model(R"("type":"BPE","vocab":{},"merges":[],"end_of_word_suffix":"</w>")"),
       "model.end_of_word_suffix: expected null"},
      {"unk",
       model(R"("type":"BPE","vocab":{},"merges":[],"unk_token":"?")"),
       "model.unk_token: expected a token"},
      {"normalizer",
       with(R"("normalizer":{"type":"Precompiled"})"),
       "normalizer.type: expected one of NFC"},
      {"nested normalizer",
       with(R"("normalizer":{"type":"Sequence","normalizers":[{"type":"NFC"},{"type":"Nmt"}]})"),
       "normalizer.normalizers[1].type: expected one of NFC"},
      {"pre_tokenizer",
       with(R"("pre_tokenizer":{"type":"UnicodeScripts"})"),
       "pre_tokenizer.type: expected one of"},
      {"pattern",
       with(R"("pre_tokenizer":{"type":"Split","pattern":{"Regex":"("},"behavior":"Isolated"})"),
       "pre_tokenizer.pattern: pattern \"(\""},
      {"behavior",
       with(R"("pre_tokenizer":{"type":"Split","pattern":{"Regex":"a"},"behavior":"Eaten"})"),
       "pre_tokenizer.behavior: expected one of Removed"},
      {"decoder", with(R"("decoder":{"type":"CTC"})"), "decoder.type: expected one of ByteLevel"},
      {"decoder order",
       with(R"("decoder":{"type":"Sequence","decoders":[{"type":"Fuse"},
        {"type":"Replace","pattern":{"String":"a"},"content":"b"}]})"),
       "decoder.decoders[1]: Replace is supported before"},
      {"post",
       with(R"("post_processor":{"type":"Other"})"),
       "post_processor.type: expected one of"},
      {"post id",
       with(R"("post_processor":{"type":"TemplateProcessing","single":[{"SpecialToken":{"id":"x"}},
        {"Sequence":{"id":"A"}}],"special_tokens":{"x":{"ids":[77]}}})"),
       "special_tokens.x.ids[0]: expected the id of a token, found integer 77"},
      {"added id",
       with(R"("added_tokens":[{"id":99999999,"content":"x"}])"),
       "added_tokens[0].id: expected an integer from 0 to 4194303"},
      {"added clash",
       with(R"("added_tokens":[{"id":1,"content":"x"}])"),
       "added_tokens[0]: token \"x\" has id 1, which model.vocab gives to \"b\""},
      {"added other id",
       with(R"("added_tokens":[{"id":7,"content":"a"}])"),
       "added_tokens[0]: token \"a\" has id 7, but 0 in model.vocab"},
      {"added twice",
       with(R"("added_tokens":[{"id":7,"content":"x"},{"id":7,"content":"y"}])"),
       "id 7 is given to \"x\" and to \"y\""},
      {"added type",
       with(R"("added_tokens":[{"id":7,"content":"x","special":"yes"}])"),
       "added_tokens[0].special: expected true or false, found string \"yes\""},
  };
  for (const BadRow& row : rows) {
    SCOPED_TRACE(row.name);
    const auto loaded = Tokenizer::from_json(row.text);
    ASSERT_FALSE(loaded.ok());
    EXPECT_NE(loaded.status().message().find(row.want), std::string::npos)
        << loaded.status().message();
  }
  const auto config = Tokenizer::from_json(with("\"x\":1"), R"({"bos_token":5})");
  EXPECT_EQ(config.status().message(),
            "bos_token: expected a string or an object with \"content\", found integer 5");
  EXPECT_EQ(Tokenizer::load("/nonexistent").status().code(), Code::kNotFound);
}

TEST(Tokenizer, HugeWordsAndManyThreads) {
  const auto t = make(byte_level_json({"aa", "aaaa"}, R"(["a a","aa aa"])"));
  const std::string letters(2'000'000, 'a');
  const Ids ids = t->encode(letters, false);
  EXPECT_EQ(ids.size(), letters.size() / 4);
  const std::string blanks(300'000, ' ');
  EXPECT_EQ(t->decode(t->encode(blanks + "x", false), false), blanks + "x");
  const std::string text = "It's a test \u00e9 " + std::string(100, 'a');
  const Ids want = t->encode(text, false);
  std::atomic<int> equal = 0;
  std::vector<std::thread> threads;
  for (int i = 0; i < 4; ++i) {
    threads.emplace_back([&] {
      for (int k = 0; k < 50; ++k) {
        equal += t->encode(text, false) == want && t->decode(want, false) == text ? 1 : 0;
      }
    });
  }
  for (std::thread& thread : threads) {
    thread.join();
  }
  EXPECT_EQ(equal, 200);
}

TEST(Detokenizer, PiecesJoinToTheText) {
  const auto t = make(byte_level_json({}, "[]", R"([{"id":256,"content":"<s>","special":true}])"));
  for (std::uint64_t seed = 1; seed <= 300; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    Random random(seed);
    Ids ids;
    for (std::uint64_t i = random.below(40); i > 0; --i) {
      // Lead and continuation bytes often, so that characters form and break.
      ids.push_back(static_cast<std::int32_t>(random.chance(0.5) ? 0x80 + random.below(0x80)
                                                                 : random.below(257)));
    }
    IncrementalDetokenizer stream(t);
    std::string joined;
    for (std::size_t i = 0; i < ids.size(); ++i) {
      joined += stream.push(ids[i]);
      EXPECT_EQ(json::find_invalid_utf8(joined), joined.size());
      const std::string so_far = t->decode(std::span(ids).first(i + 1), true);
      if (!so_far.ends_with("\xEF\xBF\xBD")) {
        EXPECT_EQ(joined, so_far);
      }
    }
    joined += stream.finish();
    EXPECT_EQ(joined, t->decode(ids, true));
  }
}

TEST(Tokenizer, DamagedFilesDoNotCrash) {
  const std::string good = byte_level_json(
      {"ab", "abc"}, R"(["a b","ab c"])", R"([{"id":258,"content":"<s>","special":true}])");
  int loaded = 0;
  for (std::uint64_t seed = 1; seed <= 400; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    Random random(seed);
    std::string text = good;
    for (std::uint64_t i = 1 + random.below(4); i > 0; --i) {
      text[random.below(text.size())] = static_cast<char>(' ' + random.below(95));
    }
    const auto t = Tokenizer::from_json(text);
    if (!t.ok()) continue;
    ++loaded;
    const Ids ids = (*t)->encode("abc \u00e9<s> 12", true);
    (void)(*t)->decode(ids, false);
  }
  EXPECT_GT(loaded, 0);
}

}  // namespace
}  // namespace tandem::token
