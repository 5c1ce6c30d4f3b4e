#include "common/json/write.h"

#include "common/json/scan.h"
#include "common/json/utf8.h"

#include <charconv>
#include <cmath>

namespace tandem::json {
namespace {

void append_escape(std::string& out, unsigned char c) {
  constexpr char kHex[] = "0123456789abcdef";
  switch (c) {
    case '"':
      out += "\\\"";
      return;
    case '\\':
      out += "\\\\";
      return;
    case '\n':
      out += "\\n";
      return;
    case '\r':
      out += "\\r";
      return;
    case '\t':
      out += "\\t";
      return;
    case '\b':
      out += "\\b";
      return;
    case '\f':
      out += "\\f";
      return;
    default:
      out += "\\u00";
      out += kHex[c >> 4];
      out += kHex[c & 15];
  }
}

template <class T>
void append_floating(std::string& out, T number) {
  if (!std::isfinite(number)) {
    out += "null";
    return;
  }
  char buffer[40];
  const auto end = std::to_chars(buffer, buffer + sizeof(buffer), number).ptr;
  const std::string_view text(buffer, static_cast<std::size_t>(end - buffer));
  out += text;
  if (text.find_first_of(".e") == std::string_view::npos) out += ".0";
}

template <class T>
void append_int(std::string& out, T number) {
  char buffer[24];
  const auto end = std::to_chars(buffer, buffer + sizeof(buffer), number).ptr;
  out.append(buffer, end);
}

// Most strings are short and plain. Those are put between their quotes first, since appending costs
// more than such a string.
constexpr std::size_t kShortBytes = 32;

bool is_short(std::string_view text) {
  return text.size() <= kShortBytes && scan::all_plain(text);
}

/// indent < 0: compact.
void append_any(std::string& out, const Value& value, int indent, int level);

void break_line(std::string& out, int indent, int level) {
  if (indent < 0) return;
  out += '\n';
  out.append(static_cast<std::size_t>(indent) * static_cast<std::size_t>(level), ' ');
}

void append_array(std::string& out, const Array& items, int indent, int level) {
  out += '[';
  bool first = true;
  for (const Value& item : items) {
    if (!first) out += ',';
    first = false;
    break_line(out, indent, level + 1);
    append_any(out, item, indent, level + 1);
  }
  if (!first) break_line(out, indent, level);
  out += ']';
}

void append_integers(std::string& out, const Integers& numbers, int indent, int level) {
  out += '[';
  bool first = true;
  for (const std::int32_t number : numbers) {
    if (!first) out += ',';
    first = false;
    break_line(out, indent, level + 1);
    append_int(out, number);
  }
  if (!first) break_line(out, indent, level);
  out += ']';
}

void append_object(std::string& out, const Object& members, int indent, int level) {
  out += '{';
  bool first = true;
  for (const Member& member : members) {
    if (!first) out += ',';
    first = false;
    break_line(out, indent, level + 1);
    append_string(out, member.key);
    out += indent < 0 ? ":" : ": ";
    append_any(out, member.value, indent, level + 1);
  }
  if (!first) break_line(out, indent, level);
  out += '}';
}

void append_any(std::string& out, const Value& value, int indent, int level) {
  switch (value.kind()) {
    case Kind::kNull:
      out += "null";
      return;
    case Kind::kBool:
      out += *value.if_bool() ? "true" : "false";
      return;
    case Kind::kInt:
      append_int(out, *value.if_int());
      return;
    case Kind::kUint:
      append_int(out, *value.if_uint());
      return;
    case Kind::kDouble:
      append_floating(out, *value.if_double());
      return;
    case Kind::kString:
      append_string(out, *value.if_string());
      return;
    case Kind::kArray:
      append_array(out, *value.if_array(), indent, level);
      return;
    case Kind::kObject:
      append_object(out, *value.if_object(), indent, level);
      return;
    case Kind::kIntegers:
      append_integers(out, *value.if_integers(), indent, level);
      return;
  }
}

}  // namespace

void append_string(std::string& out, std::string_view text) {
  if (is_short(text)) {
    char piece[kShortBytes + 2];
    char* at = piece;
    *at++ = '"';
    at += text.copy(at, text.size());
    *at++ = '"';
    out.append(piece, at);
    return;
  }
  out += '"';
  std::size_t start = 0;
  std::size_t pos = 0;
  while ((pos = scan::find_not_plain(text, pos)) < text.size()) {
    const auto c = static_cast<unsigned char>(text[pos]);
    if (c >= 0x80) {
      const Utf8Step step = decode_utf8(text.substr(pos));
      if (!step.valid) {
        out.append(text.substr(start, pos - start));
        append_utf8(out, step.code_point);
        start = pos + step.byte_count;
      }
      pos += step.byte_count;
      continue;
    }
    out.append(text.substr(start, pos - start));
    append_escape(out, c);
    start = ++pos;
  }
  out.append(text.substr(start));
  out += '"';
}

void append_number(std::string& out, double number) {
  append_floating(out, number);
}

void append_number(std::string& out, float number) {
  append_floating(out, number);
}

void append_integer(std::string& out, std::int64_t number) {
  append_int(out, number);
}

void append_integer(std::string& out, std::uint64_t number) {
  append_int(out, number);
}

void append_value(std::string& out, const Value& value) {
  append_any(out, value, -1, 0);
}

std::string to_string(const Value& value) {
  std::string out;
  append_any(out, value, -1, 0);
  return out;
}

std::string to_pretty_string(const Value& value, int indent) {
  std::string out;
  append_any(out, value, indent, 0);
  return out;
}

void Writer::separate() {
  if (after_value_) out_ += ',';
  after_value_ = true;
}

void Writer::open(char c) {
  separate();
  out_ += c;
  after_value_ = false;
}

void Writer::close(char c) {
  out_ += c;
  after_value_ = true;
}

void Writer::run_time_key(std::string_view name) {
  separate();
  append_string(out_, name);
  out_ += ':';
  after_value_ = false;
}

template <class Int>
void Writer::integer(Int n) {
  char piece[24];
  char* at = piece;
  if (after_value_) *at++ = ',';
  after_value_ = true;
  out_.append(piece, std::to_chars(at, piece + sizeof(piece), n).ptr);
}

template void Writer::integer(std::int64_t n);
template void Writer::integer(std::uint64_t n);

void Writer::string(std::string_view text) {
  separate();
  append_string(out_, text);
}

void Writer::boolean(bool flag) {
  separate();
  out_ += flag ? "true" : "false";
}

void Writer::null() {
  separate();
  out_ += "null";
}

void Writer::value(const Value& value) {
  separate();
  append_value(out_, value);
}

void Writer::raw(std::string_view json) {
  separate();
  out_ += json;
}

}  // namespace tandem::json
