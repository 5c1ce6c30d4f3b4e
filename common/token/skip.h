// Passing over many bytes. Private to room token.
#pragma once

#include <array>
#include <cstddef>
#include <string_view>

namespace tandem::token {

/// By byte.
using ByteTable = std::array<bool, 256>;

/// From `pos` on the first byte that is not in `passes`; text.size() when all are.
inline std::size_t skip_bytes(const ByteTable& passes, std::string_view text, std::size_t pos) {
  const auto pass = [&](std::size_t i) -> unsigned {
    return passes[static_cast<unsigned char>(text[i])] ? 1 : 0;
  };
  while (text.size() - pos >= 4 &&
         (pass(pos) & pass(pos + 1) & pass(pos + 2) & pass(pos + 3)) != 0) {
    pos += 4;
  }
  while (pos < text.size() && pass(pos) != 0) {
    ++pos;
  }
  return pos;
}

}  // namespace tandem::token
