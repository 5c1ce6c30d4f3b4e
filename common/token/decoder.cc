#include "common/token/decoder.h"

#include "common/json/utf8.h"
#include "common/token/byte_level.h"
#include "common/token/normalizer.h"

#include <algorithm>

namespace tandem::token {
namespace {

constexpr int kDepthMax = 16;
constexpr std::string_view kReplacement = "\xEF\xBF\xBD";

int hex_digit(char c) {
  if (c >= '0' && c <= '9') return c - '0';
  if (c >= 'a' && c <= 'f') return c - 'a' + 10;
  if (c >= 'A' && c <= 'F') return c - 'A' + 10;
  return -1;
}

}  // namespace

std::optional<unsigned char> fallback_byte(std::string_view token) {
  if (token.size() != 6 || !token.starts_with("<0x") || token[5] != '>') return std::nullopt;
  const int high = hex_digit(token[3]);
  const int low = hex_digit(token[4]);
  if (high < 0 || low < 0) return std::nullopt;
  return static_cast<unsigned char>(high * 16 + low);
}

Result<Decoder> Decoder::load(const json::Field& field) {
  Decoder decoder;
  if (field.is_null()) return decoder;
  decoder.join_ = Join::kConcat;
  TANDEM_TRY(decoder.add(field, 0));
  return decoder;
}

Status Decoder::add(const json::Field& field, int depth) {
  if (depth > kDepthMax) return field.error("sequences are nested too deeply");
  TANDEM_TRY(const json::Field type_field, field.at("type"));
  TANDEM_TRY(const std::string_view type, type_field.as_string());
  if (type == "Sequence") {
    TANDEM_TRY(const json::Field list, field.at("decoders"));
    TANDEM_TRY(const auto items, list.items());
    for (const json::Field& item : items) {
      TANDEM_TRY(add(item, depth + 1));
    }
    return {};
  }
  if (type == "ByteLevel" || type == "ByteFallback") {
    if (join_ != Join::kConcat || fused_)
      return field.error(std::string(type) + " after another joining decoder is not supported");
    join_ = type == "ByteLevel" ? Join::kByteLevel : Join::kByteFallback;
    fused_ = type == "ByteLevel";
    return {};
  }
  if (type == "Fuse") {
    fused_ = true;
    return {};
  }
  return add_step(type, field);
}

Status Decoder::add_step(std::string_view type, const json::Field& field) {
  const bool on_tokens = join_ == Join::kConcat && !fused_;
  if (type == "Strip") {
    TANDEM_TRY(const json::Field content_field, field.at("content"));
    TANDEM_TRY(const std::string_view content, content_field.as_string());
    if (json::count_code_points(content) != 1) return content_field.mismatch("one character");
    TANDEM_TRY(const auto start, field.optional_int("start", 0, 1 << 20));
    TANDEM_TRY(const auto stop, field.optional_int("stop", 0, 1 << 20));
    Strip strip{std::string(content),
                static_cast<std::size_t>(start.value_or(0)),
                static_cast<std::size_t>(stop.value_or(0))};
    if (on_tokens) {
      token_steps_.emplace_back(std::move(strip));
    } else if (fused_ && strip_.content.empty()) {
      strip_ = std::move(strip);
    } else {
      return field.error("Strip is supported before the joining decoder or once after Fuse");
    }
    return {};
  }
  if (type != "Replace" && type != "Metaspace") {
    return field.at("type")->mismatch(
        "one of ByteLevel, ByteFallback, Fuse, Strip, Replace, Metaspace, Sequence");
  }
  if (!on_tokens) {
    return field.error(std::string(type) + " is supported before the joining decoder only");
  }
  if (type == "Metaspace") {
    TANDEM_TRY(const auto replacement, field.optional_string("replacement"));
    TANDEM_TRY(const auto scheme, field.optional_string("prepend_scheme"));
    TANDEM_TRY(const auto prefix, field.optional_bool("add_prefix_space"));
    const bool drops_first = scheme ? *scheme != "never" : prefix.value_or(true);
    token_steps_.emplace_back(Metaspace{replacement.value_or("\xE2\x96\x81"), drops_first});
    return {};
  }
  TANDEM_TRY(const json::Field pattern, field.at("pattern"));
  TANDEM_TRY(const auto text, pattern.optional_string("String"));
  if (!text || text->empty()) return pattern.mismatch("an object with a non-empty \"String\"");
  TANDEM_TRY(const json::Field content_field, field.at("content"));
  TANDEM_TRY(const std::string_view content, content_field.as_string());
  token_steps_.emplace_back(Replace{*text, std::string(content)});
  return {};
}

std::string Decoder::run(const Replace& step, std::string text, bool /*first*/) {
  return replace_all(text, step.pattern, step.content);
}

std::string Decoder::run(const Strip& step, std::string text, bool /*first*/) {
  std::string_view view = text;
  for (std::size_t i = 0; i < step.start && view.starts_with(step.content); ++i) {
    view.remove_prefix(step.content.size());
  }
  for (std::size_t i = 0; i < step.stop && view.ends_with(step.content); ++i) {
    view.remove_suffix(step.content.size());
  }
  return std::string(view);
}

std::string Decoder::run(const Metaspace& step, std::string text, bool first) {
  return replace_all(text, step.replacement, first && step.drops_first ? "" : " ");
}

void Decoder::append_token_text(std::string& out, std::string_view token, bool first) const {
  std::string text;
  if (!token_steps_.empty()) {
    text = token;
    for (const Step& step : token_steps_) {
      text = std::visit([&](const auto& s) { return run(s, std::move(text), first); }, step);
    }
    token = text;
  }
  if (join_ != Join::kByteLevel || !append_byte_level_bytes(out, token)) out += token;
}

DecodeState::DecodeState(const Decoder& decoder, bool after_text)
    : decoder_(&decoder),
      first_(!after_text),
      strip_left_(after_text ? 0 : decoder.strip_start()) {}

void DecodeState::push(std::string_view token, std::string_view text) {
  std::string own;
  if (first_) {
    decoder_->append_token_text(own, token, true);
    text = own;
  }
  switch (decoder_->join()) {
    case Decoder::Join::kSpace:
      if (!first_) emit(" ");
      emit(text);
      break;
    case Decoder::Join::kConcat:
      emit(text);
      break;
    case Decoder::Join::kByteLevel:
      add_bytes(text);
      break;
    case Decoder::Join::kByteFallback:
      if (const auto byte = fallback_byte(text)) {
        run_.push_back(static_cast<char>(*byte));
      } else {
        flush_run();
        emit(text);
      }
      break;
  }
  first_ = false;
}

void DecodeState::add_bytes(std::string_view bytes) {
  tail_ += bytes;
  std::string_view rest = tail_;
  std::string text;
  while (!rest.empty()) {
    const std::size_t good = json::find_invalid_utf8(rest);
    text += rest.substr(0, good);
    rest.remove_prefix(good);
    if (rest.empty()) break;
    const json::Utf8Step step = json::decode_utf8(rest);
    if (step.truncated) break;
    text += kReplacement;
    rest.remove_prefix(step.byte_count);
  }
  tail_ = std::string(rest);
  emit(text);
}

void DecodeState::settle() {
  while (!run_broken_ && run_checked_ < run_.size()) {
    const json::Utf8Step step = json::decode_utf8(std::string_view(run_).substr(run_checked_));
    if (step.truncated) return;
    run_broken_ = !step.valid;
    run_checked_ += step.byte_count;
  }
  if (!run_broken_) flush_run();
}

void DecodeState::flush_run() {
  if (run_.empty()) return;
  if (json::find_invalid_utf8(run_) == run_.size()) {
    emit(run_);
  } else {
    // As in the tokenizers library: one U+FFFD per byte of a broken run, not per broken part.
    for (std::size_t i = 0; i < run_.size(); ++i) {
      emit(kReplacement);
    }
  }
  run_.clear();
  run_checked_ = 0;
  run_broken_ = false;
}

void DecodeState::emit(std::string_view text) {
  const std::string& content = decoder_->strip_content();
  while (strip_left_ > 0 && !text.empty()) {
    if (!text.starts_with(content)) {
      strip_left_ = 0;
      break;
    }
    text.remove_prefix(content.size());
    --strip_left_;
  }
  if (decoder_->strip_stop() == 0) {
    out_ += text;
    return;
  }
  while (!text.empty()) {
    if (text.starts_with(content)) {
      // Only the last strip_stop characters can still go.
      if (held_strip_ == decoder_->strip_stop()) {
        out_ += content;
      } else {
        ++held_strip_;
      }
      text.remove_prefix(content.size());
      continue;
    }
    for (; held_strip_ > 0; --held_strip_) {
      out_ += content;
    }
    const std::size_t next = std::min(text.find(content), text.size());
    out_ += text.substr(0, next);
    text.remove_prefix(next);
  }
}

void DecodeState::finish() {
  flush_run();
  if (!tail_.empty()) emit(kReplacement);
  tail_.clear();
  held_strip_ = 0;
}

bool DecodeState::ends_broken() const {
  if (!tail_.empty() || !run_.empty()) return true;
  return std::string_view(out_).ends_with(kReplacement);
}

std::string DecodeState::take() {
  return std::exchange(out_, std::string());
}

}  // namespace tandem::token
