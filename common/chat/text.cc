// Text functions shared by string methods and filters.
#include "common/chat/builtins.h"
#include "common/json/utf8.h"

#include <utf8proc.h>

namespace tandem::chat {
namespace {

char32_t to_upper(char32_t c) {
  return static_cast<char32_t>(utf8proc_toupper(static_cast<utf8proc_int32_t>(c)));
}

char32_t to_lower(char32_t c) {
  return static_cast<char32_t>(utf8proc_tolower(static_cast<utf8proc_int32_t>(c)));
}

void append_upper(std::string& out, char32_t c) {
  if (c == 0xDF) {
    out += "SS";
  } else {
    json::append_utf8(out, to_upper(c));
  }
}

void append_lower(std::string& out, char32_t c) {
  if (c == 0x130) {
    out += "i\xCC\x87";
  } else {
    json::append_utf8(out, to_lower(c));
  }
}

bool is_cased(char32_t c) {
  return to_upper(c) != c || to_lower(c) != c;
}

template <class Visit>
void for_each_char(std::string_view text, Visit visit) {
  while (!text.empty()) {
    const json::Utf8Step step = json::decode_utf8(text);
    visit(step.code_point);
    text.remove_prefix(step.byte_count);
  }
}

}  // namespace

std::string upper(std::string_view text) {
  std::string out;
  out.reserve(text.size());
  for_each_char(text, [&](char32_t c) { append_upper(out, c); });
  return out;
}

std::string lower(std::string_view text) {
  std::string out;
  out.reserve(text.size());
  for_each_char(text, [&](char32_t c) { append_lower(out, c); });
  return out;
}

std::string title(std::string_view text) {
  std::string out;
  bool in_word = false;
  for_each_char(text, [&](char32_t c) {
    if (in_word) {
      append_lower(out, c);
    } else {
      json::append_utf8(out,
                        static_cast<char32_t>(utf8proc_totitle(static_cast<utf8proc_int32_t>(c))));
    }
    in_word = is_cased(c);
  });
  return out;
}

std::string capitalize(std::string_view text) {
  if (text.empty()) return "";
  const json::Utf8Step first = json::decode_utf8(text);
  std::string out;
  json::append_utf8(
      out,
      static_cast<char32_t>(utf8proc_totitle(static_cast<utf8proc_int32_t>(first.code_point))));
  return out + lower(text.substr(first.byte_count));
}

std::string_view strip(std::string_view text, const std::string* chars, bool left, bool right) {
  const auto goes = [&](std::string_view c) {
    return chars != nullptr ? chars->find(c) != std::string::npos
                            : is_space(json::decode_utf8(c).code_point);
  };
  while (left && !text.empty()) {
    const std::string_view c = text.substr(0, json::decode_utf8(text).byte_count);
    if (!goes(c)) break;
    text.remove_prefix(c.size());
  }
  while (right && !text.empty()) {
    std::size_t start = text.size() - 1;
    while (start > 0 && (static_cast<unsigned char>(text[start]) & 0xC0) == 0x80) {
      --start;
    }
    if (!goes(text.substr(start))) break;
    text = text.substr(0, start);
  }
  return text;
}

std::string replace(Interp& in,
                    std::string_view text,
                    std::string_view from,
                    std::string_view to,
                    std::int64_t count) {
  std::string out;
  const auto add = [&](std::string_view part) {
    in.arena().charge(part.size());
    out += part;
  };
  in.charge(text.size() / 64);
  std::size_t pos = 0;
  while (count != 0) {
    if (from.empty()) {
      // Python puts the text before every character and at the end.
      add(to);
      if (pos >= text.size()) return out;
      const std::uint32_t length = json::decode_utf8(text.substr(pos)).byte_count;
      add(text.substr(pos, length));
      pos += length;
    } else {
      const std::size_t at = text.find(from, pos);
      if (at == std::string_view::npos) break;
      add(text.substr(pos, at - pos));
      add(to);
      pos = at + from.size();
    }
    if (count > 0) --count;
  }
  add(text.substr(pos));
  return out;
}

}  // namespace tandem::chat
