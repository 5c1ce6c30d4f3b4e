// Incremental detokenizer: text for a stream of tokens.
#pragma once

#include "common/token/tokenizer.h"

#include <cstdint>
#include <memory>
#include <string>

namespace tandem::token {

struct DetokenizerOptions {
  bool skip_special = true;
  /// The tokens continue a text (a prompt), so a decoder that strips the blank at the front of a
  /// text leaves theirs alone.
  bool after_text = false;
};

/// Gives out text as soon as it no longer ends in an incomplete or broken character. The pieces
/// joined are the text of all tokens; nothing is ever taken back. (One case apart: with byte
/// fallback the tokenizers library turns a whole run of byte tokens to U+FFFD when its end is
/// broken; here the whole characters at its front are out by then, a line end at once.) Costs a
/// constant per byte. A value type: a copy continues on its own. Not thread-safe.
class IncrementalDetokenizer {
 public:
  /// Shares ownership of the tokenizer.
  explicit IncrementalDetokenizer(std::shared_ptr<const Tokenizer> tokenizer,
                                  const DetokenizerOptions& options = {});

  /// Appends the text that `id` completes, often none. Ids without a token add nothing.
  void push(std::int32_t id, std::string* out);
  /// The same, given back.
  std::string push(std::int32_t id);
  /// What is still held back; broken parts become U+FFFD. Then the text is over.
  std::string finish();

 private:
  std::shared_ptr<const Tokenizer> tokenizer_;
  bool skip_special_;
  DecodeState state_;
};

}  // namespace tandem::token
