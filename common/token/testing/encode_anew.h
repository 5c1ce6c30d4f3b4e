// Ids of a text, whatever was encoded before.
#pragma once

#include "common/token/tokenizer.h"

#include <cstdint>
#include <string_view>
#include <thread>
#include <vector>

namespace tandem::token {

/// By a thread of its own, which has met no text (see TextMemory). Without special tokens.
inline std::vector<std::int32_t> encode_anew(const Tokenizer& tokenizer, std::string_view text) {
  std::vector<std::int32_t> ids;
  std::thread([&] { ids = tokenizer.encode(text, false); }).join();
  return ids;
}

}  // namespace tandem::token
