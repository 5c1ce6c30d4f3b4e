// Tokenizer and chat template of a model folder, ready for the API.
#pragma once

#include "common/api/api_server.h"
#include "common/base/status.h"
#include "common/token/tokenizer.h"

#include <memory>
#include <optional>
#include <string>

namespace tandem::serve {

struct ModelText {
  std::shared_ptr<const token::Tokenizer> tokenizer;
  /// Empty when the model has no template: the chat routes then say so.
  api::ChatRenderer chat;
};

/// `chat_template`: --chat-template; unset: chat_template.jinja, or what tokenizer_config.json
/// holds. Errors name the flag, or the file and the place in it.
Result<ModelText> load_model_text(const std::string& folder,
                                  const std::optional<std::string>& chat_template);

}  // namespace tandem::serve
