// Tokenizer files from a worker on another machine.
#pragma once

#include "common/base/ids.h"
#include "common/base/status.h"
#include "common/serve/model_text.h"

#include <optional>
#include <string>

namespace tandem::fleet {

/// Fetches the tokenizer and template files from "host:port" (GET /tokenizer_files/...) into a
/// private temporary folder, loads them and removes the folder. Blocks until `deadline` at most.
Result<serve::ModelText> fetch_model_text(const std::string& http_address,
                                          const std::string& api_key,
                                          const std::optional<std::string>& chat_template,
                                          Time deadline);

}  // namespace tandem::fleet
