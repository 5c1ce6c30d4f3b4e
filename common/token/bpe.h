// Byte pair encoding: the merges of one word.
#pragma once

#include "common/base/status.h"
#include "common/token/raw_words.h"
#include "common/token/regex.h"
#include "common/token/vocabulary.h"

#include <array>
#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

namespace tandem::token {

struct BpeOptions {
  std::optional<std::int32_t> unk_id;
  /// Neighbouring unknown characters become one unk.
  bool fuse_unk = false;
  /// Unknown characters become their bytes, written "<0x0A>".
  bool byte_fallback = false;
  /// A word that is a token stays whole whatever the merges say.
  bool ignore_merges = false;
};

/// Immutable after building; encode may run on many threads. Results equal those of the Hugging
/// Face tokenizers library (0.23): lowest rank first, leftmost among equals.
class BpeModel {
 public:
  BpeModel() = default;
  explicit BpeModel(Vocabulary vocabulary, const BpeOptions& options);

  void reserve_merges(std::size_t count);
  /// Merges get rank 0, 1, 2, ... in the order of calls; a repeated pair takes the later rank.
  /// Errors: a token or the merged token is not in the vocabulary.
  Status add_merge(std::string_view left, std::string_view right);

  /// A merge to be added, for many at a time: prefetch, prefetch_tokens, resolve and add_merge of
  /// it, each when what the step before asked for has come.
  struct NewMerge {
    Vocabulary::Key left;
    Vocabulary::Key right;
    Vocabulary::Key merged;
    std::uint64_t pair = 0;
    std::int32_t new_id = -1;
  };

  void prefetch(const NewMerge& merge) const;
  void prefetch_tokens(const NewMerge& merge) const;
  Status resolve(NewMerge& merge) const;
  void add_merge(const NewMerge& merge);

  /// Appends the ids of one word (valid UTF-8). Time is linear for words made of few pairs (two
  /// megabytes of one letter), n log n at worst.
  void encode(std::string_view word, std::vector<std::int32_t>& out) const;

  /// Makes encode_bytes ready. False: some byte has no token, so words must be spelt out.
  bool index_bytes();
  /// As encode for each of the words, parts of `text` in the byte-level alphabet, but of the bytes
  /// themselves. After index_bytes.
  void encode_bytes(std::string_view text,
                    std::span<const Span> words,
                    std::vector<std::int32_t>& out) const;

  [[nodiscard]] const Vocabulary& vocabulary() const { return vocabulary_; }

  /// After index_bytes: a number that no other model of the process has.
  [[nodiscard]] std::uint32_t serial() const { return serial_; }

 private:
  struct Merge {
    std::uint64_t pair = ~std::uint64_t{0};
    std::uint32_t rank = 0;
    std::int32_t new_id = -1;
  };

  friend class LongMerger;

  [[nodiscard]] const Merge* find_merge(std::int32_t left, std::int32_t right) const;
  void insert(const Merge& merge);
  void first_symbols(std::string_view word, std::vector<std::int32_t>& out) const;
  [[nodiscard]] std::int32_t char_id(char32_t code, std::string_view text) const;
  bool append_bytes(std::string_view text, std::vector<std::int32_t>& out) const;
  std::size_t merge_short(std::int32_t* symbols, std::size_t count) const;
  void merge_bytes(std::string_view bytes, std::vector<std::int32_t>& out) const;
  [[nodiscard]] bool merges_to(std::int32_t id, std::string_view bytes) const;

  /// Whether merging the bytes of a token gives the token: found out when it is first asked for.
  enum Reach : std::uint8_t {
    kUnknown,
    kReached,
    kNotReached,
  };

  Vocabulary vocabulary_;
  BpeOptions options_;
  std::vector<Merge> merges_;
  std::size_t merge_count_ = 0;
  std::uint32_t next_rank_ = 0;
  /// Tokens of one character in the basic plane: code point -> id, -1 where there is none.
  std::vector<std::int32_t> char_ids_;
  std::array<std::int32_t, 256> byte_ids_{};
  RawWords raw_;
  std::uint32_t serial_ = 0;  ///< names this model in the caches of threads
  /// By id. Any thread may find it out; all find the same.
  std::unique_ptr<std::atomic<std::uint8_t>[]> reach_;
};

}  // namespace tandem::token
