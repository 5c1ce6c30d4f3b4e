#include "common/json/utf8.h"

#include <cstring>

namespace tandem::json {
namespace {

constexpr char32_t kReplacement = 0xFFFD;

std::size_t skip_ascii(std::string_view text, std::size_t pos) {
  const auto word_at = [&](std::size_t at) {
    std::uint64_t word;
    std::memcpy(&word, text.data() + at, sizeof(word));
    return word;
  };
  constexpr std::uint64_t kTops = 0x8080808080808080ULL;
  while (pos + 8 <= text.size() && (word_at(pos) & kTops) == 0) {
    pos += 8;
    while (pos + 32 <= text.size() &&
           ((word_at(pos) | word_at(pos + 8) | word_at(pos + 16) | word_at(pos + 24)) & kTops) == 0)
      pos += 32;
  }
  while (pos < text.size() && static_cast<unsigned char>(text[pos]) < 0x80) {
    ++pos;
  }
  return pos;
}

}  // namespace

Utf8Step decode_utf8_beyond_ascii(std::string_view text) {
  const auto byte = [&](std::size_t i) { return static_cast<unsigned char>(text[i]); };
  const std::uint32_t lead = byte(0);
  std::uint32_t length = 0;
  std::uint32_t low = 0x80;
  std::uint32_t high = 0xBF;
  char32_t code = 0;
  if (lead >= 0xC2 && lead <= 0xDF) {
    length = 2;
    code = lead & 0x1F;
  } else if (lead >= 0xE0 && lead <= 0xEF) {
    length = 3;
    code = lead & 0x0F;
    if (lead == 0xE0) low = 0xA0;
    if (lead == 0xED) high = 0x9F;
  } else if (lead >= 0xF0 && lead <= 0xF4) {
    length = 4;
    code = lead & 0x07;
    if (lead == 0xF0) low = 0x90;
    if (lead == 0xF4) high = 0x8F;
  } else {
    return {kReplacement, 1, false, false};
  }
  for (std::uint32_t i = 1; i < length; ++i) {
    if (i >= text.size()) return {kReplacement, i, false, true};
    if (byte(i) < low || byte(i) > high) return {kReplacement, i, false, false};
    code = (code << 6) | (byte(i) & 0x3F);
    low = 0x80;
    high = 0xBF;
  }
  return {code, length, true, false};
}

std::size_t find_invalid_utf8(std::string_view text) {
  std::size_t pos = skip_ascii(text, 0);
  while (pos < text.size()) {
    const Utf8Step step = decode_utf8(text.substr(pos));
    if (!step.valid) return pos;
    pos = skip_ascii(text, pos + step.byte_count);
  }
  return pos;
}

void append_utf8(std::string& out, char32_t code) {
  const auto put = [&](char32_t bits) { out.push_back(static_cast<char>(bits)); };
  if (code < 0x80) {
    put(code);
  } else if (code < 0x800) {
    put(0xC0 | (code >> 6));
    put(0x80 | (code & 0x3F));
  } else if (code < 0x10000) {
    put(0xE0 | (code >> 12));
    put(0x80 | ((code >> 6) & 0x3F));
    put(0x80 | (code & 0x3F));
  } else {
    put(0xF0 | (code >> 18));
    put(0x80 | ((code >> 12) & 0x3F));
    put(0x80 | ((code >> 6) & 0x3F));
    put(0x80 | (code & 0x3F));
  }
}

void append_utf8_lossy(std::string& out, std::string_view text) {
  while (!text.empty()) {
    const std::size_t good = find_invalid_utf8(text);
    out.append(text.substr(0, good));
    text.remove_prefix(good);
    if (text.empty()) return;
    append_utf8(out, kReplacement);
    text.remove_prefix(decode_utf8(text).byte_count);
  }
}

std::size_t count_code_points(std::string_view text) {
  std::size_t count = 0;
  for (const char c : text) {
    count += (static_cast<unsigned char>(c) & 0xC0) != 0x80 ? 1 : 0;
  }
  return count;
}

}  // namespace tandem::json
