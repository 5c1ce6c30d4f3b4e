// The byte-level alphabet of GPT-2: each byte is written as one printable character.
#pragma once

#include <array>
#include <string>
#include <string_view>

namespace tandem::token {

/// Appends each byte of `bytes` as its character (bytes_to_unicode in OpenAI's encoder.py).
void append_byte_level(std::string& out, std::string_view bytes);

/// Appends the bytes behind a token. False, and nothing is appended, when some character is not of
/// the alphabet.
bool append_byte_level_bytes(std::string& out, std::string_view token);

}  // namespace tandem::token
