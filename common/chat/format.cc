// '%' and str.format, as far as templates use them.
#include "common/chat/interp.h"
#include "common/json/utf8.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cmath>

namespace tandem::chat {
namespace {

constexpr std::int64_t kWidthMax = 10000;

struct Spec {
  char fill = ' ';
  char align = '\0';
  char sign = '-';
  bool alternate = false;
  bool grouped = false;
  std::int64_t width = 0;
  std::int64_t precision = -1;
  char type = '\0';
};

std::string pad(std::string text, const Spec& spec, char default_align) {
  const auto have = static_cast<std::int64_t>(json::count_code_points(text));
  if (have >= spec.width) return text;
  const auto missing = static_cast<std::size_t>(spec.width - have);
  const char align = spec.align != '\0' ? spec.align : default_align;
  if (align == '<') return text + std::string(missing, spec.fill);
  if (align == '^') {
    return std::string(missing / 2, spec.fill) + text +
           std::string(missing - missing / 2, spec.fill);
  }
  const bool has_sign = text.starts_with('-') || text.starts_with('+') || text.starts_with(' ');
  if (align == '=' && has_sign) {
    return text.substr(0, 1) + std::string(missing, spec.fill) + text.substr(1);
  }
  return std::string(missing, spec.fill) + text;
}

void group(std::string& digits) {
  std::size_t end = std::min(digits.find('.'), digits.size());
  while (end > 3 && digits[end - 4] != '-') {
    end -= 3;
    digits.insert(end, ",");
  }
}

std::string signed_text(std::string text, const Spec& spec) {
  if (!text.starts_with('-') && spec.sign != '-') text.insert(0, 1, spec.sign);
  return text;
}

std::string format_float(double value, const Spec& spec) {
  char buffer[512];
  const int precision =
      static_cast<int>(std::clamp<std::int64_t>(spec.precision < 0 ? 6 : spec.precision, 0, 100));
  const char type = spec.type == '\0' || spec.type == '%' ? 'f' : spec.type;
  const double shown = spec.type == '%' ? value * 100 : value;
  const char pattern[] = {'%', '.', '*', type, '\0'};
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wformat-nonliteral"
  std::snprintf(buffer, sizeof(buffer), pattern, precision, shown);
#pragma GCC diagnostic pop
  std::string text = buffer;
  if (spec.grouped) group(text);
  if (spec.type == '%') text += '%';
  return signed_text(std::move(text), spec);
}

std::string in_base(Int value, unsigned base, bool upper_case) {
  const bool negative = value < 0;
  std::string digits;
  do {
    const auto digit = static_cast<unsigned>(negative ? -(value % static_cast<int>(base))
                                                      : value % static_cast<int>(base));
    digits += (upper_case ? "0123456789ABCDEF" : "0123456789abcdef")[digit];
    value /= static_cast<int>(base);
  } while (value != 0);
  if (negative) digits += '-';
  std::reverse(digits.begin(), digits.end());
  return digits;
}

std::string format_int(Int value, const Spec& spec) {
  const bool is_hex = spec.type == 'x' || spec.type == 'X';
  const unsigned base = is_hex ? 16 : spec.type == 'o' ? 8 : spec.type == 'b' ? 2 : 10;
  std::string text = in_base(value, base, spec.type == 'X');
  if (spec.grouped) group(text);
  if (spec.alternate && base != 10) {
    const std::string prefix = {'0', spec.type};
    text.insert(text.starts_with('-') ? 1 : 0, prefix);
  }
  return signed_text(std::move(text), spec);
}

bool is_float_type(char c) {
  return std::string_view("fFeEgG%").find(c) != std::string_view::npos;
}

bool is_int_type(char c) {
  return std::string_view("diuxXob").find(c) != std::string_view::npos;
}

std::int64_t read_number(std::string_view text, std::size_t& pos) {
  std::int64_t number = 0;
  while (pos < text.size() && text[pos] >= '0' && text[pos] <= '9') {
    number = number * 10 + (text[pos++] - '0');
    if (number > kWidthMax) fail("a width or precision is too large");
  }
  return number;
}

std::string cut(std::string text, std::int64_t count) {
  if (count < 0) return text;
  const auto chars = code_points(text);
  std::string out;
  for (std::size_t i = 0; i < chars.size() && i < static_cast<std::size_t>(count); ++i) {
    out += chars[i];
  }
  return out;
}

std::string percent_one(const Spec& spec, const Value& v) {
  if (spec.type == 's') return pad(cut(to_str(v), spec.precision), spec, '>');
  if (spec.type == 'r' || spec.type == 'a') {
    std::string text;
    append_repr(text, v);
    return pad(cut(std::move(text), spec.precision), spec, '>');
  }
  if (spec.type == 'c' && v.is(Type::kString)) return pad(std::string(v.str()), spec, '>');
  if (!v.is_number()) {
    fail(fmt::format("%{} format: a real number is required, not {}", spec.type, type_name(v)));
  }
  if (is_float_type(spec.type) && spec.type != '%') {
    return pad(format_float(as_double(v), spec), spec, spec.fill == '0' ? '=' : '>');
  }
  if (!is_int_type(spec.type)) fail(fmt::format("unsupported format character '{}'", spec.type));
  if (v.is(Type::kFloat) && !(std::fabs(v.d) < 1e37)) fail("a number is too large to format");
  const Int whole = v.is(Type::kFloat) ? static_cast<Int>(v.d) : as_int(v);
  return pad(format_int(whole, spec), spec, spec.fill == '0' ? '=' : '>');
}

/// [[fill]align][sign][#][0][width][,][.precision][type]
Spec parse_spec(std::string_view text) {
  Spec spec;
  std::size_t pos = 0;
  const auto is_align = [&](std::size_t at) {
    return at < text.size() && std::string_view("<>=^").find(text[at]) != std::string_view::npos;
  };
  if (is_align(1)) {
    spec.fill = text[0];
    spec.align = text[1];
    pos = 2;
  } else if (is_align(0)) {
    spec.align = text[pos++];
  }
  if (pos < text.size() && (text[pos] == '+' || text[pos] == '-' || text[pos] == ' '))
    spec.sign = text[pos++];
  if (pos < text.size() && text[pos] == '#') {
    spec.alternate = true;
    ++pos;
  }
  if (pos < text.size() && text[pos] == '0') {
    spec.fill = '0';
    if (spec.align == '\0') spec.align = '=';
    ++pos;
  }
  spec.width = read_number(text, pos);
  if (pos < text.size() && text[pos] == ',') {
    spec.grouped = true;
    ++pos;
  }
  if (pos < text.size() && text[pos] == '.') {
    ++pos;
    spec.precision = read_number(text, pos);
  }
  if (pos < text.size()) spec.type = text[pos++];
  if (pos != text.size()) fail(fmt::format("invalid format specifier '{}'", text));
  return spec;
}

std::string brace_one(const Value& v, std::string_view spec_text) {
  if (spec_text.empty()) return to_str(v);
  const Spec spec = parse_spec(spec_text);
  if (v.is(Type::kFloat) || (v.is_number() && is_float_type(spec.type))) {
    if (spec.type == '\0' && spec.precision < 0)
      return pad(signed_text(float_repr(v.d), spec), spec, '>');
    Spec with_type = spec;
    if (spec.type == '\0') with_type.type = 'g';
    if (!is_float_type(with_type.type))
      fail(fmt::format("unknown format code '{}' for a float", spec.type));
    return pad(format_float(as_double(v), with_type), spec, '>');
  }
  if (v.is(Type::kInt) || (v.is(Type::kBool) && is_int_type(spec.type))) {
    if (spec.type != '\0' && !is_int_type(spec.type))
      fail(fmt::format("unknown format code '{}' for an integer", spec.type));
    return pad(format_int(as_int(v), spec), spec, '>');
  }
  if (spec.type != '\0' && spec.type != 's')
    fail(fmt::format("unknown format code '{}'", spec.type));
  return pad(cut(to_str(v), spec.precision), spec, '<');
}

/// "name", "0", "", each with ".attr" and "[key]" behind.
Value brace_field(Interp& in, std::string_view field, const Args& args, std::size_t& automatic) {
  const std::size_t name_end = std::min(field.find_first_of(".["), field.size());
  const std::string_view name = field.substr(0, name_end);
  Value value;
  std::size_t index = 0;
  const bool is_number =
      !name.empty() && name.find_first_not_of("0123456789") == std::string_view::npos;
  if (name.empty() || is_number) {
    if (is_number) {
      std::from_chars(name.data(), name.data() + name.size(), index);
    } else {
      index = automatic++;
    }
    if (index >= args.positional.size()) fail("Replacement index out of range for positional args");
    value = args.positional[index];
  } else {
    const auto found = std::find_if(args.named.begin(), args.named.end(), [&](const auto& named) {
      return named.first == name;
    });
    if (found == args.named.end()) fail(fmt::format("format() misses the argument '{}'", name));
    value = found->second;
  }
  field.remove_prefix(name_end);
  while (!field.empty()) {
    const bool bracket = field[0] == '[';
    const std::size_t end =
        bracket ? field.find(']') : std::min(field.find_first_of(".[", 1), field.size());
    if (end == std::string_view::npos) fail("Missing ']' in format string");
    const std::string_view key = field.substr(1, end - 1);
    const bool digits =
        !key.empty() && key.find_first_not_of("0123456789") == std::string_view::npos;
    if (bracket && digits && key.size() < 10) {
      int at = 0;
      std::from_chars(key.data(), key.data() + key.size(), at);
      value = in.get_item(value, Value::integer(at));
    } else {
      value = bracket ? in.get_item(value, Value::string(key)) : in.get_attr(value, key);
    }
    field.remove_prefix(bracket ? end + 1 : end);
  }
  return value;
}

}  // namespace

std::string percent_format(Interp& in, std::string_view pattern, const Value& args) {
  const bool is_tuple = args.is(Type::kSeq) && args.seq().style == Seq::kTuple;
  const std::vector<Value> values = is_tuple ? args.seq().items : std::vector<Value>{args};
  std::size_t used = 0;
  std::string out;
  in.charge(pattern.size() / 64);
  for (std::size_t pos = 0; pos < pattern.size();) {
    if (pattern[pos] != '%') {
      out += pattern[pos++];
      continue;
    }
    if (++pos >= pattern.size()) fail("incomplete format");
    if (pattern[pos] == '%') {
      out += pattern[pos++];
      continue;
    }
    std::optional<Value> named;
    if (pattern[pos] == '(') {
      const std::size_t end = pattern.find(')', pos);
      if (end == std::string_view::npos || !args.is(Type::kDict)) fail("format requires a mapping");
      named = in.get_item(args, Value::string(pattern.substr(pos + 1, end - pos - 1)));
      pos = end + 1;
    }
    Spec spec;
    for (; pos < pattern.size(); ++pos) {
      const char c = pattern[pos];
      if (c == '-') {
        spec.align = '<';
      } else if (c == '0') {
        spec.fill = '0';
      } else if (c == '+' || c == ' ') {
        spec.sign = c;
      } else if (c == '#') {
        spec.alternate = true;
      } else {
        break;
      }
    }
    if (spec.align == '<') spec.fill = ' ';
    spec.width = read_number(pattern, pos);
    if (pos < pattern.size() && pattern[pos] == '.') {
      ++pos;
      spec.precision = read_number(pattern, pos);
    }
    if (pos >= pattern.size()) fail("incomplete format");
    spec.type = pattern[pos++];
    if (!named && used >= values.size()) fail("not enough arguments for format string");
    out += percent_one(spec, named ? *named : values[used++]);
  }
  if (used < values.size() && !args.is(Type::kDict)) {
    fail("not all arguments converted during string formatting");
  }
  return out;
}

std::string brace_format(Interp& in, std::string_view pattern, const Args& args) {
  std::string out;
  std::size_t automatic = 0;
  in.charge(pattern.size() / 64);
  for (std::size_t pos = 0; pos < pattern.size(); ++pos) {
    const char c = pattern[pos];
    const bool doubled = pos + 1 < pattern.size() && pattern[pos + 1] == c;
    if ((c == '{' || c == '}') && doubled) {
      out += c;
      ++pos;
      continue;
    }
    if (c == '}') fail("Single '}' encountered in format string");
    if (c != '{') {
      out += c;
      continue;
    }
    const std::size_t end = pattern.find('}', pos);
    if (end == std::string_view::npos) fail("expected '}' before end of string");
    std::string_view field = pattern.substr(pos + 1, end - pos - 1);
    std::string_view spec;
    if (const std::size_t colon = field.find(':'); colon != std::string_view::npos) {
      spec = field.substr(colon + 1);
      field = field.substr(0, colon);
    }
    bool repr = false;
    if (field.ends_with("!r") || field.ends_with("!s")) {
      repr = field.ends_with("!r");
      field.remove_suffix(2);
    }
    Value value = brace_field(in, field, args, automatic);
    if (repr) {
      std::string text;
      append_repr(text, value);
      value = in.make_string(std::move(text));
    }
    out += brace_one(value, spec);
    pos = end;
  }
  return out;
}

}  // namespace tandem::chat
