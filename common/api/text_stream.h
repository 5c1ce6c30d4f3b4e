// TextStream: the text of one output sequence, token by token, with its stop strings.
#pragma once

#include "common/core/request.h"
#include "common/core/sampling_params.h"
#include "common/token/detokenizer.h"
#include "common/token/tokenizer.h"

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace tandem::api {

/// Text is given out as soon as it can neither be part of an incomplete character nor the beginning
/// of a stop string. Whatever the grouping of the tokens, the text is the same: the stop string
/// that is complete first wins, the longest of those that end there. Not thread-safe.
class TextStream {
 public:
  /// `min_new_tokens`: a stop string that is complete before that many tokens does not count.
  TextStream(std::shared_ptr<const token::Tokenizer> tokenizer,
             core::TextParams params,
             std::int32_t min_new_tokens);

  /// Adds a token; appends the text that may be given out to `out`. True: a stop string is
  /// complete, the output is over, and matched() names it.
  bool push(core::TokenId token, std::string* out);

  /// Adds the token that ended the output (end of sequence or stop id). It shows in the text only
  /// with no_stop_trim.
  void push_final(core::TokenId token, std::string* out);

  /// Nothing more comes: appends what was held back. True as with push().
  bool finish(std::string* out);

  [[nodiscard]] const std::string& matched() const { return matched_; }

  [[nodiscard]] bool stopped() const { return stopped_; }

 private:
  bool add(std::string_view text, std::string* out);
  [[nodiscard]] std::size_t held_suffix() const;

  token::IncrementalDetokenizer detokenizer_;
  core::TextParams params_;
  std::int32_t min_new_tokens_;
  std::int32_t token_count_ = 0;
  std::string held_;  ///< not given out yet: may begin a stop string
  std::string matched_;
  bool stopped_ = false;
};

}  // namespace tandem::api
