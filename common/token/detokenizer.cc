#include "common/token/detokenizer.h"

namespace tandem::token {

IncrementalDetokenizer::IncrementalDetokenizer(std::shared_ptr<const Tokenizer> tokenizer,
                                               const DetokenizerOptions& options)
    : tokenizer_(std::move(tokenizer)),
      skip_special_(options.skip_special),
      state_(tokenizer_->decoder(), options.after_text) {}

void IncrementalDetokenizer::push(std::int32_t id, std::string* out) {
  // Nearly every token: whole characters, and nothing before them is incomplete.
  if (state_.is_empty() && tokenizer_->stands_alone(id)) {
    if (!skip_special_ || !tokenizer_->is_special(id)) *out += tokenizer_->token_bytes(id);
    return;
  }
  if (tokenizer_->has_token(id) && !(skip_special_ && tokenizer_->is_special(id))) {
    state_.push(tokenizer_->token_text(id), tokenizer_->token_bytes(id));
    state_.settle();
  }
  if (!state_.ends_broken()) *out += state_.take();
}

std::string IncrementalDetokenizer::push(std::int32_t id) {
  std::string text;
  push(id, &text);
  return text;
}

std::string IncrementalDetokenizer::finish() {
  state_.finish();
  return state_.take();
}

}  // namespace tandem::token
