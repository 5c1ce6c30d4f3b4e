#include "common/token/config.h"

#include "common/json/field.h"
#include "common/json/parse.h"
#include "common/token/vocabulary.h"

#include <fmt/format.h>

#include <charconv>

namespace tandem::token {
namespace {

constexpr std::size_t kFileBytesMax = std::size_t{64} << 20;

/// A token is written as a string or as an object with "content".
Result<std::string> read_token(const json::Field& field) {
  if (field.value().is_object()) {
    TANDEM_TRY(const json::Field content, field.at("content"));
    TANDEM_TRY(const std::string_view text, content.as_string());
    return std::string(text);
  }
  if (!field.value().is_string()) return field.mismatch("a string or an object with \"content\"");
  return *field.value().if_string();
}

Status read_roles(const json::Field& root, TokenizerConfig& config) {
  TANDEM_TRY(const auto members, root.members());
  for (const auto& [key, field] : members) {
    if (!key.ends_with("_token") || field.is_null() || field.value().is_bool()) continue;
    if (config.role(key) != nullptr) continue;
    TANDEM_TRY(std::string content, read_token(field));
    config.role_tokens.emplace_back(key, std::move(content));
  }
  const auto additional = root.find("additional_special_tokens");
  if (!additional || !config.additional_special_tokens.empty()) return {};
  TANDEM_TRY(const auto items, additional->items());
  for (const json::Field& item : items) {
    TANDEM_TRY(std::string content, read_token(item));
    config.additional_special_tokens.push_back(std::move(content));
  }
  return {};
}

Status read_added_tokens(const json::Field& root, TokenizerConfig& config) {
  const auto decoder = root.find("added_tokens_decoder");
  if (!decoder) return {};
  TANDEM_TRY(const auto members, decoder->members());
  for (const auto& [key, field] : members) {
    AddedToken token;
    const auto [end, code] = std::from_chars(key.data(), key.data() + key.size(), token.id);
    if (code != std::errc() || end != key.data() + key.size() || token.id < 0 ||
        token.id >= kMaxTokenIds) {
      return field.error(fmt::format("expected a token id from 0 to {} as key", kMaxTokenIds - 1));
    }
    TANDEM_TRY(token.content, read_token(field));
    TANDEM_TRY(const auto special, field.optional_bool("special"));
    TANDEM_TRY(const auto lstrip, field.optional_bool("lstrip"));
    TANDEM_TRY(const auto rstrip, field.optional_bool("rstrip"));
    TANDEM_TRY(const auto single_word, field.optional_bool("single_word"));
    TANDEM_TRY(const auto normalized, field.optional_bool("normalized"));
    token.special = special.value_or(false);
    token.lstrip = lstrip.value_or(false);
    token.rstrip = rstrip.value_or(false);
    token.single_word = single_word.value_or(false);
    token.normalized = normalized.value_or(!token.special);
    config.added_tokens.push_back(std::move(token));
  }
  return {};
}

Status read_templates(const json::Field& root, TokenizerConfig& config) {
  const auto field = root.find("chat_template");
  if (!field) return {};
  if (const auto* text = field->value().if_string()) {
    config.chat_templates.push_back({"default", *text});
    return {};
  }
  if (!field->value().is_array()) {
    return field->mismatch("a string or a list of {name, template}");
  }
  TANDEM_TRY(const auto items, field->items());
  for (const json::Field& item : items) {
    TANDEM_TRY(const json::Field name, item.at("name"));
    TANDEM_TRY(const std::string_view name_text, name.as_string());
    TANDEM_TRY(const json::Field source, item.at("template"));
    TANDEM_TRY(const std::string_view source_text, source.as_string());
    config.chat_templates.push_back({std::string(name_text), std::string(source_text)});
  }
  return {};
}

}  // namespace

const std::string* TokenizerConfig::role(std::string_view name) const {
  for (const auto& [key, content] : role_tokens) {
    if (key == name) return &content;
  }
  return nullptr;
}

Result<TokenizerConfig> TokenizerConfig::from_json(const json::Value& root) {
  const json::Field field(root);
  TokenizerConfig config;
  TANDEM_TRY(field.as_object());
  TANDEM_TRY(const auto name, field.optional_string("tokenizer_class"));
  config.tokenizer_class = name.value_or("");
  TANDEM_TRY(config.add_bos_token, field.optional_bool("add_bos_token"));
  TANDEM_TRY(config.add_eos_token, field.optional_bool("add_eos_token"));
  TANDEM_TRY(read_roles(field, config));
  TANDEM_TRY(read_added_tokens(field, config));
  TANDEM_TRY(read_templates(field, config));
  return config;
}

Result<TokenizerConfig> TokenizerConfig::load(const std::filesystem::path& folder) {
  TokenizerConfig config;
  std::error_code ignored;
  const auto path = folder / "tokenizer_config.json";
  if (std::filesystem::exists(path, ignored)) {
    TANDEM_TRY(const json::Value root, json::parse_file(path, {.max_bytes = kFileBytesMax}));
    auto loaded = from_json(root);
    if (!loaded.ok()) return loaded.status().with_context(path.string());
    config = std::move(*loaded);
  }
  const auto map_path = folder / "special_tokens_map.json";
  if (std::filesystem::exists(map_path, ignored)) {
    TANDEM_TRY(const json::Value root, json::parse_file(map_path, {.max_bytes = kFileBytesMax}));
    const Status status = read_roles(json::Field(root), config);
    if (!status.ok()) return status.with_context(map_path.string());
  }
  return config;
}

}  // namespace tandem::token
