#include "common/token/tokenizer.h"

#include "common/json/utf8.h"
#include "common/token/text_memory.h"

#include <fmt/format.h>
#include <xxhash.h>

#include <algorithm>
#include <functional>

namespace tandem::token {
namespace {

/// Results for words seen before in the same text: texts repeat their words. Direct-mapped,
/// bounded, and local to one call, so it needs no lock.
class WordMemory {
 public:
  explicit WordMemory(std::size_t word_count) {
    std::size_t slots = 16;
    while (slots < word_count && slots < kSlotsMax) {
      slots *= 2;
    }
    slots_.resize(slots);
  }

  struct Entry {
    std::string_view word;
    std::size_t first = 0;
    std::size_t count = 0;
  };

  Entry& at(std::string_view word) {
    return slots_[std::hash<std::string_view>{}(word) & (slots_.size() - 1)];
  }

 private:
  static constexpr std::size_t kSlotsMax = 4096;
  std::vector<Entry> slots_;
};

constexpr std::size_t kRememberBytesMax = 64;

}  // namespace

void Tokenizer::encode_words(const Words& words, std::vector<std::int32_t>& out) const {
  WordMemory memory(words.spans.size());
  for (const Span& span : words.spans) {
    const std::string_view word =
        std::string_view(words.text).substr(span.begin, span.end - span.begin);
    if (word.empty()) continue;
    if (word.size() > kRememberBytesMax) {
      model_.encode(word, out);
      continue;
    }
    WordMemory::Entry& entry = memory.at(word);
    if (entry.word == word) {
      for (std::size_t i = 0; i < entry.count; ++i) {
        out.push_back(out[entry.first + i]);
      }
      continue;
    }
    const std::size_t first = out.size();
    model_.encode(word, out);
    entry = {word, first, out.size() - first};
  }
}

/// `text` is normalized and holds no added token.
void Tokenizer::encode_part(std::string_view text,
                            bool at_start,
                            std::vector<std::int32_t>& out) const {
  if (!raw_words_) return encode_words(pre_tokenizer_.apply(std::string(text), at_start), out);
  if (remembers_ && text.size() >= TextMemory::kLeastBytes) return encode_remembered(text, out);
  thread_local std::vector<Span> words;
  pre_tokenizer_.raw_words(text, words);
  model_.encode_bytes(text, words, out);
  forget_large(words);
}

/// Words of what this thread has not met lately only.
void Tokenizer::encode_remembered(std::string_view text, std::vector<std::int32_t>& out) const {
  thread_local TextMemory memory;
  TextMemory::Entry& entry = memory.at(model_.serial(), text);
  const TextMemory::Cut known = entry.keep_common(text);
  out.insert(out.end(), entry.ids().begin(), entry.ids().end());
  const std::size_t first_id = out.size();

  const std::string_view rest = text.substr(known.bytes);
  thread_local std::vector<Span> words;
  pre_tokenizer_.raw_words(rest, words);
  std::vector<TextMemory::Cut> cuts;
  std::size_t encoded = 0;  // words
  std::size_t next_cut = TextMemory::kCutBytes;
  const auto encode_until = [&](std::size_t end) {
    model_.encode_bytes(rest, std::span(words).subspan(encoded, end - encoded), out);
    encoded = end;
  };
  for (std::size_t i = 0; i < words.size(); ++i) {
    const std::size_t pos = words[i].begin;
    if (known.bytes + pos > TextMemory::kTextBytesMost) break;
    if (pos < next_cut || !TextMemory::may_cut(rest, pos)) continue;
    encode_until(i);
    cuts.push_back({static_cast<std::uint32_t>(known.bytes + pos),
                    static_cast<std::uint32_t>(known.ids + out.size() - first_id)});
    next_cut = pos + TextMemory::kCutBytes;
  }
  encode_until(words.size());
  forget_large(words);
  entry.extend(text, cuts, std::span(out).subspan(first_id));
}

void Tokenizer::encode_text(std::string_view text,
                            bool at_start,
                            std::vector<std::int32_t>& out) const {
  std::string normalized;
  if (!normalizer_.empty()) {
    normalized = normalizer_.apply(text);
    text = normalized;
  }
  if (normalized_matcher_.empty()) return encode_part(text, at_start, out);
  for (const Segment& segment : normalized_matcher_.split(text)) {
    if (segment.id >= 0) {
      out.push_back(segment.id);
      continue;
    }
    const std::size_t length = segment.span.end - segment.span.begin;
    encode_part(text.substr(segment.span.begin, length), at_start && segment.span.begin == 0, out);
  }
}

std::vector<std::int32_t> Tokenizer::encode(std::string_view text, bool add_special_tokens) const {
  std::string clean;
  if (json::find_invalid_utf8(text) != text.size()) {
    json::append_utf8_lossy(clean, text);
    text = clean;
  }
  std::vector<std::int32_t> ids;
  ids.reserve(text.size() / 3 + 8);
  if (add_special_tokens) ids = prefix_ids_;
  for (const Segment& segment : raw_matcher_.split(text)) {
    if (segment.id >= 0) {
      ids.push_back(segment.id);
    } else {
      const std::size_t length = segment.span.end - segment.span.begin;
      encode_text(text.substr(segment.span.begin, length), segment.span.begin == 0, ids);
    }
  }
  if (add_special_tokens) ids.insert(ids.end(), suffix_ids_.begin(), suffix_ids_.end());
  return ids;
}

std::string Tokenizer::decode_bytes(std::span<const std::int32_t> ids, bool skip_special) const {
  const std::uint8_t mask = skip_special ? kKnown | kSpecial : kKnown;
  std::string bytes;
  bytes.reserve(ids.size() * 4);
  for (const std::int32_t id : ids) {
    if ((flags(id) & mask) == kKnown) bytes += token_bytes(id);
  }
  if (json::find_invalid_utf8(bytes) == bytes.size()) return bytes;
  std::string text;
  json::append_utf8_lossy(text, bytes);
  return text;
}

std::string Tokenizer::decode(std::span<const std::int32_t> ids, bool skip_special) const {
  if (decoder_.joins_bytes()) return decode_bytes(ids, skip_special);
  DecodeState state(decoder_, false);
  for (const std::int32_t id : ids) {
    if (!has_token(id) || (skip_special && is_special(id))) continue;
    state.push(token_text(id), token_bytes(id));
  }
  state.finish();
  return state.take();
}

std::string_view Tokenizer::token_text(std::int32_t id) const {
  const Vocabulary& vocabulary = model_.vocabulary();
  return vocabulary.has(id) ? vocabulary.token(id) : extra_.token(id);
}

bool Tokenizer::has_token(std::int32_t id) const {
  return model_.vocabulary().has(id) || extra_.has(id);
}

std::optional<std::int32_t> Tokenizer::token_id(std::string_view token) const {
  const auto id = extra_.find(token);
  return id ? id : model_.vocabulary().find(token);
}

std::size_t Tokenizer::vocab_size() const {
  return std::max(model_.vocabulary().id_end(), extra_.id_end());
}

std::string Tokenizer::vocabulary_digest() const {
  std::string all;
  const auto end = static_cast<std::int32_t>(vocab_size());
  for (std::int32_t id = 0; id < end; ++id) {
    const std::string_view bytes = token_bytes(id);
    const char head[2] = {has_token(id) ? '1' : '0', is_special(id) ? '1' : '0'};
    const auto size = static_cast<std::uint32_t>(bytes.size());
    all.append(head, sizeof(head));
    all.append(reinterpret_cast<const char*>(&size), sizeof(size)).append(bytes);
  }
  const XXH128_hash_t hash = XXH3_128bits(all.data(), all.size());
  return fmt::format("{:016x}{:016x}", hash.high64, hash.low64);
}

bool Tokenizer::is_special(std::int32_t id) const {
  return (flags(id) & kSpecial) != 0;
}

std::string_view Tokenizer::token_bytes(std::int32_t id) const {
  if (id < 0 || static_cast<std::size_t>(id) >= bytes_end_.size()) return {};
  const auto index = static_cast<std::size_t>(id);
  const std::uint64_t begin = index == 0 ? 0 : bytes_end_[index - 1];
  return std::string_view(bytes_).substr(begin, bytes_end_[index] - begin);
}

void Tokenizer::index_tokens() {
  bytes_end_.reserve(vocab_size());
  for (std::size_t i = 0; i < vocab_size(); ++i) {
    const auto id = static_cast<std::int32_t>(i);
    if (has_token(id)) decoder_.append_token_text(bytes_, token_text(id), false);
    bytes_end_.push_back(bytes_.size());
  }
  raw_words_ = pre_tokenizer_.ends_in_bytes() && model_.index_bytes();
  remembers_ = raw_words_ && pre_tokenizer_.may_be_cut();
  flags_.assign(vocab_size(), 0);
  for (std::size_t i = 0; i < flags_.size(); ++i) {
    const auto id = static_cast<std::int32_t>(i);
    if (!has_token(id)) continue;
    flags_[i] = kKnown;
    const std::string_view bytes = token_bytes(id);
    const bool whole =
        json::find_invalid_utf8(bytes) == bytes.size() && !bytes.ends_with("\xEF\xBF\xBD");
    if (whole && decoder_.joins_bytes()) flags_[i] |= kStandsAlone;
  }
  for (const AddedToken& token : added_) {
    if (token.special) flags_[static_cast<std::size_t>(token.id)] |= kSpecial;
  }
}

}  // namespace tandem::token
