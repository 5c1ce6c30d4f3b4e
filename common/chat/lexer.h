// Cuts a template into text and tokens; white space control happens here.
#pragma once

#include "common/base/status.h"

#include <string>
#include <string_view>
#include <vector>

namespace tandem::chat {

enum class TokenKind {
  kText,
  kBlockBegin,
  kBlockEnd,
  kVariableBegin,
  kVariableEnd,
  kName,
  kString,
  kInteger,
  kFloat,
  kOperator,
  kEnd,
};

struct Token {
  TokenKind kind;
  /// Text as it is output, name, string with escapes resolved, digits, or operator.
  std::string text;
  int line;
};

/// "Expected X, got 'end of template'": how a token is called in messages.
std::string describe(const Token& token);

/// Jinja's lexer with trim_blocks and lstrip_blocks on and one trailing newline removed, as
/// transformers sets it up. Errors: invalid_argument "line N: ...".
Result<std::vector<Token>> tokenize(std::string_view source);

}  // namespace tandem::chat
