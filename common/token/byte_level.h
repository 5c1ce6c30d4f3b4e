// The byte-level alphabet of GPT-2: each byte is written as one printable character.
#pragma once

#include <array>
#include <optional>
#include <string>
#include <string_view>

namespace tandem::token {

/// Appends each byte of `bytes` as its character (bytes_to_unicode in OpenAI's encoder.py).
void append_byte_level(std::string& out, std::string_view bytes);

/// The bytes behind a token; nullopt when some character is not of the alphabet.
std::optional<std::string> byte_level_bytes(std::string_view token);

}  // namespace tandem::token
