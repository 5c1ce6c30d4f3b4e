// Tokenizer: text <-> token ids, from the files of a Hugging Face model folder.
#pragma once

#include "common/base/status.h"
#include "common/token/added_tokens.h"
#include "common/token/bpe.h"
#include "common/token/config.h"
#include "common/token/decoder.h"
#include "common/token/normalizer.h"
#include "common/token/pre_tokenizer.h"

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace tandem::token {

/// Immutable: all methods may run on many threads at once. Results are those of the Hugging Face
/// tokenizers library (0.23).
class Tokenizer {
 public:
  /// Reads tokenizer.json, and tokenizer_config.json and special_tokens_map.json where they are.
  /// Errors name file, JSON path and value; whatever the file asks for and we do not do is refused.
  static Result<std::shared_ptr<const Tokenizer>> load(const std::filesystem::path& folder);
  /// The same from texts in memory; `config_json` may be empty.
  static Result<std::shared_ptr<const Tokenizer>> from_json(std::string_view tokenizer_json,
                                                            std::string_view config_json = {});

  /// Ids of `text`. Invalid UTF-8 counts as U+FFFD. With `add_special_tokens` the post-processor of
  /// the file adds its tokens (BOS and the like); added tokens within the text are always found.
  [[nodiscard]] std::vector<std::int32_t> encode(std::string_view text,
                                                 bool add_special_tokens) const;
  /// Text of ids; always valid UTF-8 (broken parts become U+FFFD). Ids without a token are left
  /// out, with `skip_special` special tokens too.
  [[nodiscard]] std::string decode(std::span<const std::int32_t> ids, bool skip_special) const;

  /// The bytes that a token stands for, often only a part of a character; empty for an id without a
  /// token. Borrowed, lives as long as the tokenizer.
  [[nodiscard]] std::string_view token_bytes(std::int32_t id) const;
  /// The token as written in the vocabulary ("Ġthe", "<0x0A>"); empty for an id without a token.
  [[nodiscard]] std::string_view token_text(std::int32_t id) const;
  [[nodiscard]] std::optional<std::int32_t> token_id(std::string_view token) const;
  /// Largest id + 1 (not the number of tokens, if ids have gaps).
  [[nodiscard]] std::size_t vocab_size() const;
  /// 32 hex digits over ids, their bytes and which are special: two tokenizers with the same digest
  /// read and write the same text for the same ids.
  [[nodiscard]] std::string vocabulary_digest() const;
  [[nodiscard]] bool has_token(std::int32_t id) const;
  /// True for tokens that `skip_special` leaves out.
  [[nodiscard]] bool is_special(std::int32_t id) const;

  /// True when the bytes of `id` are whole characters that need no decoder but to be put behind the
  /// others: a stream that holds nothing back may give them out as they are.
  [[nodiscard]] bool stands_alone(std::int32_t id) const { return (flags(id) & kStandsAlone) != 0; }

  [[nodiscard]] std::optional<std::int32_t> bos_id() const { return bos_id_; }

  [[nodiscard]] std::optional<std::int32_t> eos_id() const { return eos_id_; }

  [[nodiscard]] std::optional<std::int32_t> pad_id() const { return pad_id_; }

  /// Ids that `add_special_tokens` puts before and after the text.
  [[nodiscard]] const std::vector<std::int32_t>& prefix_ids() const { return prefix_ids_; }

  [[nodiscard]] const std::vector<std::int32_t>& suffix_ids() const { return suffix_ids_; }

  [[nodiscard]] const TokenizerConfig& config() const { return config_; }

  [[nodiscard]] const Decoder& decoder() const { return decoder_; }

 private:
  friend class Loader;
  Tokenizer() = default;

  void encode_text(std::string_view text, bool at_start, std::vector<std::int32_t>& out) const;
  [[nodiscard]] std::string decode_bytes(std::span<const std::int32_t> ids,
                                         bool skip_special) const;
  void encode_part(std::string_view text, bool at_start, std::vector<std::int32_t>& out) const;
  void encode_words(const Words& words, std::vector<std::int32_t>& out) const;
  void encode_remembered(std::string_view text, std::vector<std::int32_t>& out) const;
  void index_tokens();

  BpeModel model_;
  /// Added tokens that the model does not know, by id and by content.
  Vocabulary extra_;
  std::vector<AddedToken> added_;
  AddedTokenMatcher raw_matcher_;
  AddedTokenMatcher normalized_matcher_;
  Normalizer normalizer_;
  PreTokenizer pre_tokenizer_;
  /// Words are looked up by their bytes.
  bool raw_words_ = false;
  bool remembers_ = false;  ///< as TextMemory does
  Decoder decoder_;
  TokenizerConfig config_;
  std::vector<std::int32_t> prefix_ids_;
  std::vector<std::int32_t> suffix_ids_;
  std::optional<std::int32_t> bos_id_;
  std::optional<std::int32_t> eos_id_;
  std::optional<std::int32_t> pad_id_;

  /// By id: what a step of a stream asks of a token.
  enum Flag : std::uint8_t {
    kKnown = 1,
    kSpecial = 2,
    kStandsAlone = 4,
  };

  [[nodiscard]] std::uint8_t flags(std::int32_t id) const {
    const auto index = static_cast<std::size_t>(id);
    return id >= 0 && index < flags_.size() ? flags_[index] : std::uint8_t{0};
  }

  std::vector<std::uint8_t> flags_;
  /// token_bytes: all of them in one arena; id i has bytes_end_[i-1]..bytes_end_[i].
  std::string bytes_;
  std::vector<std::uint64_t> bytes_end_;
};

}  // namespace tandem::token
