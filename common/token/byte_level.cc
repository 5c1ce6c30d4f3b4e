#include "common/token/byte_level.h"

#include "common/json/utf8.h"

#include <cstdint>

namespace tandem::token {
namespace {

constexpr std::size_t kCodeEnd = 0x100 + 68;

struct Tables {
  std::array<std::string, 256> text;
  /// Code point -> byte, -1 outside the alphabet.
  std::array<std::int16_t, kCodeEnd> byte{};
};

bool stands_for_itself(unsigned b) {
  return (b >= 0x21 && b <= 0x7E) || (b >= 0xA1 && b <= 0xAC) || (b >= 0xAE && b <= 0xFF);
}

Tables make_tables() {
  Tables tables;
  tables.byte.fill(-1);
  char32_t next = 0x100;
  for (unsigned b = 0; b < 256; ++b) {
    const char32_t code = stands_for_itself(b) ? static_cast<char32_t>(b) : next++;
    json::append_utf8(tables.text[b], code);
    tables.byte[code] = static_cast<std::int16_t>(b);
  }
  return tables;
}

const Tables& tables() {
  static const Tables kTables = make_tables();
  return kTables;
}

}  // namespace

void append_byte_level(std::string& out, std::string_view bytes) {
  const Tables& t = tables();
  for (const char c : bytes) {
    out += t.text[static_cast<unsigned char>(c)];
  }
}

bool append_byte_level_bytes(std::string& out, std::string_view token) {
  const Tables& t = tables();
  const std::size_t before = out.size();
  // No character stands for more bytes than it has.
  out.resize(before + token.size());
  char* to = out.data() + before;
  while (!token.empty()) {
    const json::Utf8Step step = json::decode_utf8(token);
    if (step.code_point >= kCodeEnd || t.byte[step.code_point] < 0) {
      out.resize(before);
      return false;
    }
    *to++ = static_cast<char>(t.byte[step.code_point]);
    token.remove_prefix(step.byte_count);
  }
  out.resize(static_cast<std::size_t>(to - out.data()));
  return true;
}

}  // namespace tandem::token
