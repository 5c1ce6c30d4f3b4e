#include "common/token/detokenizer.h"

namespace tandem::token {

IncrementalDetokenizer::IncrementalDetokenizer(std::shared_ptr<const Tokenizer> tokenizer,
                                               const DetokenizerOptions& options)
    : tokenizer_(std::move(tokenizer)),
      skip_special_(options.skip_special),
      state_(tokenizer_->decoder(), options.after_text) {}

std::string IncrementalDetokenizer::push(std::int32_t id) {
  if (tokenizer_->has_token(id) && !(skip_special_ && tokenizer_->is_special(id))) {
    state_.push(tokenizer_->token_text(id), tokenizer_->token_bytes(id));
    state_.settle();
  }
  return state_.ends_broken() ? std::string() : state_.take();
}

std::string IncrementalDetokenizer::finish() {
  state_.finish();
  return state_.take();
}

}  // namespace tandem::token
