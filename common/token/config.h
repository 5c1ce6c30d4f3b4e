// tokenizer_config.json: which tokens have a role, and the chat templates.
#pragma once

#include "common/base/status.h"
#include "common/json/value.h"
#include "common/token/added_tokens.h"

#include <filesystem>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace tandem::token {

struct ChatTemplateSource {
  /// "default" for the only one.
  std::string name;
  std::string text;
};

/// Everything is optional in the file; what is there must have the right type.
struct TokenizerConfig {
  std::string tokenizer_class;
  std::optional<bool> add_bos_token;
  std::optional<bool> add_eos_token;
  /// Role -> content, in the order of the file: bos_token, eos_token, pad_token, unk_token, ...
  std::vector<std::pair<std::string, std::string>> role_tokens;
  std::vector<std::string> additional_special_tokens;
  /// added_tokens_decoder.
  std::vector<AddedToken> added_tokens;
  std::vector<ChatTemplateSource> chat_templates;

  /// Content of a role such as "bos_token"; null when it has none. Borrowed.
  [[nodiscard]] const std::string* role(std::string_view name) const;

  /// Reads tokenizer_config.json, then special_tokens_map.json for roles that it lacks. Files that
  /// are not there give an empty config. Errors name file and path.
  static Result<TokenizerConfig> load(const std::filesystem::path& folder);
  /// From the parsed contents of tokenizer_config.json.
  static Result<TokenizerConfig> from_json(const json::Value& root);
};

}  // namespace tandem::token
