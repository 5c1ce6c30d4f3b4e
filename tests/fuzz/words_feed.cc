#include "common/json/utf8.h"
#include "common/token/detokenizer.h"
#include "common/token/regex.h"
#include "common/token/testing/encode_anew.h"
#include "common/token/testing/patterns.h"
#include "common/token/tokenizer.h"
#include "common/token/word_scanner.h"
#include "tests/fuzz/feeds.h"

#include <algorithm>
#include <cstddef>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace tandem::fuzz {
namespace {

using token::Tokenizer;

struct Pattern {
  token::Regex regex;
  token::WordScanner scanner;
};

const std::vector<Pattern>& patterns() {
  static const std::vector<Pattern> kAll = [] {
    std::vector<Pattern> all;
    for (const char* text : token::kPatterns)
      all.push_back({token::Regex::compile(text).value(), *token::WordScanner::for_pattern(text)});
    return all;
  }();
  return kAll;
}

std::shared_ptr<const Tokenizer> demo_tokenizer() {
  static const std::shared_ptr<const Tokenizer> kTokenizer =
      Tokenizer::load(TANDEM_SOURCE_DIR "/assets/demo-model").value();
  return kTokenizer;
}

std::string valid_utf8(std::string_view text) {
  std::string out;
  json::append_utf8_lossy(out, text);
  return out;
}

std::string streamed(const std::shared_ptr<const Tokenizer>& tokenizer,
                     const std::vector<std::int32_t>& ids) {
  token::IncrementalDetokenizer detokenizer(tokenizer, {.skip_special = false});
  std::string out;
  for (const std::int32_t id : ids) {
    detokenizer.push(id, &out);
    must(json::find_invalid_utf8(out) == out.size(), "a stream holds whole characters");
  }
  return out + detokenizer.finish();
}

}  // namespace

void feed_words(Bytes bytes) {
  if (bytes.empty()) return;
  const Pattern& pattern = patterns()[bytes[0] % patterns().size()];
  const std::string text = valid_utf8(text_of(bytes.subspan(1)));
  std::vector<token::Span> words;
  if (!pattern.scanner.find_all(text, words)) {
    must(words.empty(), "who does not decide finds nothing");
    return;
  }
  const std::vector<token::Span> wanted = pattern.regex.find_all(text);
  must(words.size() == wanted.size(), "as many words as PCRE2 finds");
  for (std::size_t i = 0; i < words.size(); ++i)
    must(words[i].begin == wanted[i].begin && words[i].end == wanted[i].end, "and the same ones");
}

void feed_text(Bytes bytes) {
  const std::shared_ptr<const Tokenizer> tokenizer = demo_tokenizer();
  const std::string text = text_of(bytes);
  const std::vector<std::int32_t> ids = tokenizer->encode(text, false);
  // What was remembered of texts before, and of this one, changes nothing.
  must(tokenizer->encode(text, false) == ids, "a text has its ids");
  must(token::encode_anew(*tokenizer, text) == ids, "whatever was encoded before");
  // A text that begins as this one and goes on otherwise is cut where they part.
  for (const std::size_t part : {text.size() / 2, text.size() * 7 / 8}) {
    const std::string other = text.substr(0, part) + " other \xC3\xA9nd";
    must(tokenizer->encode(other, false) == token::encode_anew(*tokenizer, other),
         "and parts of it");
  }
  for (const std::int32_t id : ids)
    must(tokenizer->has_token(id), "ids are those of tokens");
  const std::string decoded = tokenizer->decode(ids, false);
  must(decoded == valid_utf8(text), "what was encoded is decoded");
  must(streamed(tokenizer, ids) == decoded, "also in a stream");
  // The bytes as ids of their own: what a model may say.
  std::vector<std::int32_t> any;
  for (std::size_t i = 0; i + 1 < bytes.size(); i += 2)
    any.push_back((bytes[i] << 8U | bytes[i + 1]) - 256);
  must(streamed(tokenizer, any) == tokenizer->decode(any, false), "so is what a model says");
}

void feed_tokenizer(Bytes bytes) {
  const std::string files = text_of(bytes);
  const std::size_t end = std::min(files.find('\0'), files.size());
  const std::string_view config = std::string_view(files).substr(std::min(end + 1, files.size()));
  const auto made = Tokenizer::from_json(std::string_view(files).substr(0, end), config);
  if (!made.ok()) return;
  const Tokenizer& tokenizer = **made;
  for (const auto& id : {tokenizer.bos_id(), tokenizer.eos_id(), tokenizer.pad_id()})
    must(!id || tokenizer.has_token(*id), "roles are those of tokens");
  for (const std::string_view text : {"", "Hello, w\xC3\xB6rld 42\n\n  <s>", "\xFF\xE4\xB8"}) {
    const std::vector<std::int32_t> ids = tokenizer.encode(text, true);
    const std::string decoded = tokenizer.decode(ids, false);
    must(json::find_invalid_utf8(decoded) == decoded.size(), "texts are UTF-8");
  }
}

}  // namespace tandem::fuzz
