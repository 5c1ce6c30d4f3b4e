// Decoders of tokenizer.json: tokens back to text.
#pragma once

#include "common/base/status.h"
#include "common/json/field.h"

#include <optional>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

namespace tandem::token {

/// The chain of a file in three parts: steps on single tokens, how tokens are joined, steps on the
/// joined text. Const access is thread-safe.
class Decoder {
 public:
  enum class Join {
    kSpace,         ///< no decoder in the file: tokens with blanks between them
    kConcat,        ///< one after the other
    kByteLevel,     ///< bytes of the byte-level alphabet
    kByteFallback,  ///< "<0x0A>" are bytes, everything else is text
  };

  /// Reads the "decoder" entry (null: tokens joined with blanks). Errors name the path of what is
  /// not supported.
  static Result<Decoder> load(const json::Field& field);

  /// Appends what one token contributes before joining. `first`: it is the first token of the text.
  void append_token_text(std::string& out, std::string_view token, bool first) const;

  [[nodiscard]] Join join() const { return join_; }

  /// Whether the text is nothing but the bytes of the tokens, one after the other.
  [[nodiscard]] bool joins_bytes() const {
    return join_ == Join::kByteLevel && token_steps_.empty() && strip_.content.empty();
  }

  /// Characters `strip_content` to take off the joined text, at most so many on each side.
  [[nodiscard]] const std::string& strip_content() const { return strip_.content; }

  [[nodiscard]] std::size_t strip_start() const { return strip_.start; }

  [[nodiscard]] std::size_t strip_stop() const { return strip_.stop; }

 private:
  struct Replace {
    std::string pattern;
    std::string content;
  };

  struct Strip {
    std::string content;
    std::size_t start = 0;
    std::size_t stop = 0;
  };

  struct Metaspace {
    std::string replacement;
    bool drops_first;
  };

  using Step = std::variant<Replace, Strip, Metaspace>;

  Status add(const json::Field& field, int depth);
  Status add_step(std::string_view type, const json::Field& field);
  static std::string run(const Replace& step, std::string text, bool first);
  static std::string run(const Strip& step, std::string text, bool first);
  static std::string run(const Metaspace& step, std::string text, bool first);

  std::vector<Step> token_steps_;
  Join join_ = Join::kSpace;
  bool fused_ = false;
  Strip strip_;
};

/// The byte of a token "<0x0A>"; nullopt for any other token.
std::optional<unsigned char> fallback_byte(std::string_view token);

/// Turns tokens into text one by one; text is final as soon as it is handed out. Works for streams
/// (settle after each token) and for whole texts (never settle), with the differences that Hugging
/// Face has between the two.
class DecodeState {
 public:
  /// `decoder` is borrowed. `after_text`: the tokens continue a text, so nothing is stripped from
  /// the front.
  DecodeState(const Decoder& decoder, bool after_text);

  /// `token` is the token as written in the vocabulary, `text` its bytes if the caller has them
  /// ready (append_token_text for a token that is not the first).
  void push(std::string_view token, std::string_view text);
  /// Makes what is complete so far final.
  void settle();
  /// Ends the text: broken parts become U+FFFD.
  void finish();

  /// Nothing is held back and nothing waits to be taken.
  [[nodiscard]] bool is_empty() const {
    return tail_.empty() && run_.empty() && out_.empty() && held_strip_ == 0;
  }

  /// True when the text so far ends in U+FFFD: an incomplete character, or a broken one.
  [[nodiscard]] bool ends_broken() const;
  /// Takes the text that is final.
  std::string take();

 private:
  void add_bytes(std::string_view bytes);
  void flush_run();
  void emit(std::string_view text);

  const Decoder* decoder_;
  bool first_ = true;
  /// Byte-level: bytes of a character that is not complete yet, at most three.
  std::string tail_;
  /// Byte fallback: bytes since the last text token or settlement.
  std::string run_;
  /// How much of run_ is checked, and whether it is broken for good.
  std::size_t run_checked_ = 0;
  bool run_broken_ = false;
  std::size_t strip_left_;
  /// Strip at the end: characters that go if the text ends here.
  std::size_t held_strip_ = 0;
  std::string out_;
};

}  // namespace tandem::token
