#include "common/token/normalizer.h"

#include "common/json/utf8.h"
#include "common/token/byte_level.h"

#include <optional>
#include <type_traits>

namespace tandem::token {
namespace {

constexpr int kDepthMax = 16;

template <class Visit>
void for_each_char(std::string_view text, Visit visit) {
  while (!text.empty()) {
    const json::Utf8Step step = json::decode_utf8(text);
    visit(step.code_point, text.substr(0, step.byte_count));
    text.remove_prefix(step.byte_count);
  }
}

std::string lowercase(std::string_view text) {
  std::string out;
  out.reserve(text.size());
  for_each_char(text, [&](char32_t c, std::string_view) { append_lower(out, c); });
  return out;
}

std::string without_accents(std::string_view text) {
  std::string out;
  out.reserve(text.size());
  for_each_char(text, [&](char32_t c, std::string_view bytes) {
    if (!is_accent(c)) out += bytes;
  });
  return out;
}

std::string strip(std::string_view text, bool left, bool right) {
  std::size_t first = text.size();
  std::size_t last = 0;
  std::size_t pos = 0;
  for_each_char(text, [&](char32_t c, std::string_view bytes) {
    if (!is_space(c)) {
      first = std::min(first, pos);
      last = pos + bytes.size();
    }
    pos += bytes.size();
  });
  if (!left) first = 0;
  if (!right) last = text.size();
  return first < last ? std::string(text.substr(first, last - first)) : std::string();
}

std::string replace_spans(std::string_view text,
                          const std::vector<Span>& spans,
                          std::string_view content) {
  std::string out;
  std::size_t pos = 0;
  for (const Span& span : spans) {
    out += text.substr(pos, span.begin - pos);
    out += content;
    pos = span.end;
  }
  out += text.substr(pos);
  return out;
}

std::optional<NormalForm> normal_form(std::string_view type) {
  if (type == "NFC") return NormalForm::kNfc;
  if (type == "NFD") return NormalForm::kNfd;
  if (type == "NFKC") return NormalForm::kNfkc;
  if (type == "NFKD") return NormalForm::kNfkd;
  return std::nullopt;
}

}  // namespace

std::string replace_all(std::string_view text, std::string_view pattern, std::string_view content) {
  std::string out;
  out.reserve(text.size());
  std::size_t pos = 0;
  while (true) {
    const std::size_t at = text.find(pattern, pos);
    out += text.substr(pos, at == std::string_view::npos ? at : at - pos);
    if (at == std::string_view::npos) return out;
    out += content;
    pos = at + pattern.size();
  }
}

Result<Normalizer> Normalizer::load(const json::Field& field) {
  Normalizer normalizer;
  if (!field.is_null()) TANDEM_TRY(normalizer.add(field, 0));
  return normalizer;
}

Status Normalizer::add_replace(const json::Field& field) {
  TANDEM_TRY(const json::Field pattern, field.at("pattern"));
  TANDEM_TRY(const json::Field content_field, field.at("content"));
  TANDEM_TRY(const std::string_view content, content_field.as_string());
  TANDEM_TRY(const auto text, pattern.optional_string("String"));
  TANDEM_TRY(const auto regex, pattern.optional_string("Regex"));
  if (text) {
    if (text->empty()) return pattern.error("an empty pattern is not supported");
    steps_.emplace_back(ReplaceText{*text, std::string(content)});
    return {};
  }
  if (!regex) return pattern.mismatch("an object with \"String\" or \"Regex\"");
  auto compiled = Regex::compile(*regex);
  if (!compiled.ok()) return compiled.status().with_context(pattern.path());
  steps_.emplace_back(
      ReplaceRegex{std::make_shared<const Regex>(std::move(*compiled)), std::string(content)});
  return {};
}

Status Normalizer::add(const json::Field& field, int depth) {
  if (depth > kDepthMax) return field.error("sequences are nested too deeply");
  TANDEM_TRY(const json::Field type_field, field.at("type"));
  TANDEM_TRY(const std::string_view type, type_field.as_string());
  if (type == "Sequence") {
    TANDEM_TRY(const json::Field list, field.at("normalizers"));
    TANDEM_TRY(const auto items, list.items());
    for (const json::Field& item : items) {
      TANDEM_TRY(add(item, depth + 1));
    }
    return {};
  }
  if (const auto form = normal_form(type)) {
    steps_.emplace_back(*form);
  } else if (type == "Lowercase") {
    steps_.emplace_back(Lowercase{});
  } else if (type == "StripAccents") {
    steps_.emplace_back(StripAccents{});
  } else if (type == "ByteLevel") {
    steps_.emplace_back(ByteLevel{});
  } else if (type == "Prepend") {
    TANDEM_TRY(const json::Field text, field.at("prepend"));
    TANDEM_TRY(const std::string_view prepend, text.as_string());
    steps_.emplace_back(Prepend{std::string(prepend)});
  } else if (type == "Strip") {
    TANDEM_TRY(const auto left, field.optional_bool("strip_left"));
    TANDEM_TRY(const auto right, field.optional_bool("strip_right"));
    steps_.emplace_back(Strip{left.value_or(true), right.value_or(true)});
  } else if (type == "Replace") {
    return add_replace(field);
  } else {
    return type_field.mismatch(
        "one of NFC, NFD, NFKC, NFKD, Lowercase, StripAccents, ByteLevel, Prepend, Strip, Replace, "
        "Sequence");
  }
  return {};
}

std::string Normalizer::run(const Step& step, std::string text) {
  return std::visit(
      [&](const auto& s) -> std::string {
        using T = std::decay_t<decltype(s)>;
        if constexpr (std::is_same_v<T, NormalForm>) return normalize(text, s);
        if constexpr (std::is_same_v<T, Lowercase>) return lowercase(text);
        if constexpr (std::is_same_v<T, StripAccents>) return without_accents(text);
        if constexpr (std::is_same_v<T, Prepend>) return text.empty() ? text : s.text + text;
        if constexpr (std::is_same_v<T, Strip>) return strip(text, s.left, s.right);
        if constexpr (std::is_same_v<T, ReplaceText>)
          return replace_all(text, s.pattern, s.content);
        if constexpr (std::is_same_v<T, ReplaceRegex>) {
          return replace_spans(text, s.pattern->find_all(text), s.content);
        }
        if constexpr (std::is_same_v<T, ByteLevel>) {
          std::string out;
          append_byte_level(out, text);
          return out;
        }
      },
      step);
}

std::string Normalizer::apply(std::string_view text) const {
  std::string out(text);
  for (const Step& step : steps_) {
    out = run(step, std::move(out));
  }
  return out;
}

}  // namespace tandem::token
