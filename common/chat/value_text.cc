// Python's str() and repr(), and the characters of strings.
#include "common/chat/value.h"
#include "common/json/utf8.h"
#include "common/token/unicode.h"

#include <fmt/format.h>
#include <utf8proc.h>

#include <algorithm>
#include <charconv>
#include <cmath>

namespace tandem::chat {

std::string int_to_string(Int v) {
  if (v == 0) return "0";
  const bool negative = v < 0;
  std::string digits;
  while (v != 0) {
    const int digit = static_cast<int>(v % 10);
    digits.push_back(static_cast<char>('0' + (digit < 0 ? -digit : digit)));
    v /= 10;
  }
  if (negative) digits.push_back('-');
  std::reverse(digits.begin(), digits.end());
  return digits;
}

std::string float_repr(double v) {
  if (std::isnan(v)) return "nan";
  if (std::isinf(v)) return v < 0 ? "-inf" : "inf";
  char buffer[64];
  const auto end = std::to_chars(buffer, buffer + sizeof(buffer), v, std::chars_format::scientific);
  std::string text(buffer, end.ptr);
  const std::size_t mark = text.find('e');
  const int exponent = std::atoi(text.c_str() + mark + 1);
  if (exponent < -4 || exponent >= 16) return text;
  const auto fixed = std::to_chars(buffer, buffer + sizeof(buffer), v, std::chars_format::fixed);
  text.assign(buffer, fixed.ptr);
  if (text.find('.') == std::string::npos) text += ".0";
  return text;
}

bool is_ascii(std::string_view text) {
  return std::all_of(
      text.begin(), text.end(), [](char c) { return static_cast<unsigned char>(c) < 0x80; });
}

bool is_space(char32_t c) {
  return token::is_space(c) || (c >= 0x1C && c <= 0x1F);
}

std::vector<std::string_view> code_points(std::string_view text) {
  std::vector<std::string_view> chars;
  chars.reserve(text.size());
  while (!text.empty()) {
    const std::uint32_t length = json::decode_utf8(text).byte_count;
    chars.push_back(text.substr(0, length));
    text.remove_prefix(length);
  }
  return chars;
}

namespace {

bool is_printable(char32_t c) {
  if (c < 0x7F) return c >= 0x20;
  switch (utf8proc_category(static_cast<utf8proc_int32_t>(c))) {
    case UTF8PROC_CATEGORY_CN:
    case UTF8PROC_CATEGORY_CC:
    case UTF8PROC_CATEGORY_CF:
    case UTF8PROC_CATEGORY_CS:
    case UTF8PROC_CATEGORY_CO:
    case UTF8PROC_CATEGORY_ZS:
    case UTF8PROC_CATEGORY_ZL:
    case UTF8PROC_CATEGORY_ZP:
      return false;
    default:
      return true;
  }
}

void append_string_repr(std::string& out, std::string_view text) {
  const bool doubled =
      text.find('\'') != std::string_view::npos && text.find('"') == std::string_view::npos;
  const char quote = doubled ? '"' : '\'';
  out += quote;
  for (const std::string_view bytes : code_points(text)) {
    const char32_t c = json::decode_utf8(bytes).code_point;
    if (c == static_cast<char32_t>(quote) || c == '\\') {
      out += '\\';
      out += bytes;
    } else if (c == '\n' || c == '\r' || c == '\t') {
      out += c == '\n' ? "\\n" : c == '\r' ? "\\r" : "\\t";
    } else if (is_printable(c)) {
      out += bytes;
    } else if (c < 0x100) {
      out += fmt::format("\\x{:02x}", static_cast<std::uint32_t>(c));
    } else if (c < 0x10000) {
      out += fmt::format("\\u{:04x}", static_cast<std::uint32_t>(c));
    } else {
      out += fmt::format("\\U{:08x}", static_cast<std::uint32_t>(c));
    }
  }
  out += quote;
}

void append_seq_repr(std::string& out, const Seq& seq, int depth) {
  struct Look {
    std::string_view open;
    std::string_view close;
  };

  constexpr Look kLooks[] = {{"[", "]"},
                             {"(", ")"},
                             {"<generator [", "]>"},
                             {"range([", "])"},
                             {"dict_keys([", "])"},
                             {"dict_values([", "])"},
                             {"dict_items([", "])"},
                             {"(", ")"}};
  if (seq.style == Seq::kGenerator) {
    out += "<generator object>";
    return;
  }
  const Look& look = kLooks[seq.style];
  out += look.open;
  for (std::size_t i = 0; i < seq.items.size(); ++i) {
    if (i > 0) out += ", ";
    append_repr(out, seq.items[i], depth + 1);
  }
  if (look.open == "(" && seq.items.size() == 1) out += ',';
  out += look.close;
}

}  // namespace

void append_repr(std::string& out, const Value& v, int depth) {
  if (depth > kValueDepthMax) fail("values are nested too deeply");
  if (v.is(Type::kString)) {
    append_string_repr(out, v.str());
  } else if (v.is(Type::kSeq)) {
    append_seq_repr(out, v.seq(), depth);
  } else if (v.is(Type::kDict)) {
    out += '{';
    bool first = true;
    for (const auto& [key, value] : v.dict().items) {
      if (!first) out += ", ";
      first = false;
      append_repr(out, key, depth + 1);
      out += ": ";
      append_repr(out, value, depth + 1);
    }
    out += '}';
  } else if (v.is(Type::kUndefined)) {
    out += "Undefined";
  } else {
    append_str(out, v);
  }
}

void append_str(std::string& out, const Value& v) {
  switch (v.type) {
    case Type::kUndefined:
      return;
    case Type::kNone:
      out += "None";
      return;
    case Type::kBool:
      out += v.b ? "True" : "False";
      return;
    case Type::kInt:
      out += int_to_string(v.i);
      return;
    case Type::kFloat:
      out += float_repr(v.d);
      return;
    case Type::kString:
      out += v.str();
      return;
    case Type::kSeq:
    case Type::kDict:
      append_repr(out, v);
      return;
    default:
      out += fmt::format("<{}>", type_name(v));
  }
}

std::string to_str(const Value& v) {
  std::string out;
  append_str(out, v);
  return out;
}

}  // namespace tandem::chat
