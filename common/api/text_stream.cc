#include "common/api/text_stream.h"

#include <algorithm>
#include <utility>

namespace tandem::api {

TextStream::TextStream(std::shared_ptr<const token::Tokenizer> tokenizer,
                       core::TextParams params,
                       std::int32_t min_new_tokens)
    : detokenizer_(std::move(tokenizer),
                   {.skip_special = params.skip_special_tokens, .after_text = true}),
      params_(std::move(params)),
      min_new_tokens_(min_new_tokens) {}

bool TextStream::push(core::TokenId token, std::string* out) {
  if (stopped_) return true;
  ++token_count_;
  if (!params_.stop.empty()) return add(detokenizer_.push(token), out);
  detokenizer_.push(token, out);
  return false;
}

void TextStream::push_final(core::TokenId token, std::string* out) {
  if (params_.no_stop_trim && !stopped_) push(token, out);
}

bool TextStream::finish(std::string* out) {
  if (stopped_) return true;
  if (add(detokenizer_.finish(), out)) return true;
  out->append(held_);
  held_.clear();
  return false;
}

// Length of the longest end of held_ that is a proper beginning of a stop string.
std::size_t TextStream::held_suffix() const {
  std::size_t longest = 0;
  for (const std::string& stop : params_.stop) {
    const std::size_t most = std::min(held_.size(), stop.size() - 1);
    for (std::size_t size = most; size > longest; --size) {
      if (held_.compare(held_.size() - size, size, stop, 0, size) == 0) {
        longest = size;
        break;
      }
    }
  }
  return longest;
}

bool TextStream::add(std::string_view text, std::string* out) {
  if (text.empty()) return false;
  if (params_.stop.empty()) {
    out->append(text);
    return false;
  }
  held_.append(text);
  if (token_count_ >= min_new_tokens_) {
    std::size_t best_end = std::string::npos;
    const std::string* best = nullptr;
    for (const std::string& stop : params_.stop) {
      const std::size_t at = held_.find(stop);
      if (at == std::string::npos) continue;
      const std::size_t end = at + stop.size();
      if (best == nullptr || end < best_end || (end == best_end && stop.size() > best->size())) {
        best_end = end;
        best = &stop;
      }
    }
    if (best != nullptr) {
      stopped_ = true;
      matched_ = *best;
      held_.resize(params_.no_stop_trim ? best_end : best_end - best->size());
      out->append(held_);
      held_.clear();
      return true;
    }
  }
  const std::size_t keep = held_suffix();
  out->append(held_, 0, held_.size() - keep);
  held_.erase(0, held_.size() - keep);
  return false;
}

}  // namespace tandem::api
