// Filters on single values and on text.
#include "common/chat/builtins.h"
#include "common/json/utf8.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cmath>

namespace tandem::chat {
namespace {

/// Text of the input, which must be short-lived only.
std::string text_of(Interp& in, const Value& v) {
  std::string text = to_str(v);
  in.charge(text.size() / 64);
  return text;
}

template <std::string (*kFunction)(std::string_view)>
Value filter_map(Interp& in, const Value& v, Args& args) {
  const Bound b("this filter", args, {});
  return in.make_string(kFunction(text_of(in, v)));
}

/// jinja's title: capital after white space, '-', and opening brackets; the rest lower case.
std::string jinja_title(std::string_view text) {
  std::string out;
  bool start = true;
  for (const std::string_view c : code_points(text)) {
    out += start ? upper(c) : lower(c);
    start = is_space(json::decode_utf8(c).code_point) ||
            (c.size() == 1 && std::string_view("-([{<").find(c[0]) != std::string_view::npos);
  }
  return out;
}

std::string escape_html(std::string_view text) {
  std::string out;
  for (const char c : text) {
    switch (c) {
      case '&':
        out += "&amp;";
        break;
      case '<':
        out += "&lt;";
        break;
      case '>':
        out += "&gt;";
        break;
      case '"':
        out += "&#34;";
        break;
      case '\'':
        out += "&#39;";
        break;
      default:
        out += c;
    }
  }
  return out;
}

std::string strip_tags(std::string_view text) {
  std::string plain;
  for (std::size_t pos = 0; pos < text.size(); ++pos) {
    const std::size_t end = text[pos] == '<' ? text.find('>', pos) : std::string_view::npos;
    if (end != std::string_view::npos) {
      pos = end;
    } else {
      plain += text[pos];
    }
  }
  std::string out;
  for (const std::string_view c : code_points(plain)) {
    if (!is_space(json::decode_utf8(c).code_point)) {
      out += c;
    } else if (!out.empty() && out.back() != ' ') {
      out += ' ';
    }
  }
  if (out.ends_with(' ')) out.pop_back();
  return out;
}

std::string url_encode(std::string_view text) {
  std::string out;
  for (const char c : text) {
    const bool plain = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
                       std::string_view("_.-~/").find(c) != std::string_view::npos;
    if (plain) {
      out += c;
    } else {
      out += fmt::format("%{:02X}", static_cast<unsigned char>(c));
    }
  }
  return out;
}

Value filter_string(Interp& in, const Value& v, Args& args) {
  const Bound b("string", args, {});
  return v.is(Type::kString) ? v : in.make_string(text_of(in, v));
}

Value filter_trim(Interp& in, const Value& v, Args& args) {
  const Bound b("trim", args, {"chars"});
  const Value text = v.is(Type::kString) ? v : in.make_string(text_of(in, v));
  if (b[0] == nullptr || b[0]->is(Type::kNone)) {
    return Value::string(strip(text.str(), nullptr, true, true));
  }
  const std::string chars = to_str(*b[0]);
  return Value::string(strip(text.str(), &chars, true, true));
}

Value filter_replace(Interp& in, const Value& v, Args& args) {
  const Bound b("replace", args, {"old", "new", "count"});
  const std::int64_t count =
      b[2] == nullptr || b[2]->is(Type::kNone) ? -1 : to_index(*b[2], "replace");
  return in.make_string(replace(in, text_of(in, v), to_str(b.need(0)), to_str(b.need(1)), count));
}

Value filter_default(Interp&, const Value& v, Args& args) {
  const Bound b("default", args, {"default_value", "boolean"});
  const bool by_truth = b[1] != nullptr && truth(*b[1]);
  if (v.is(Type::kUndefined) || (by_truth && !truth(v))) return b.get(0, Value::string(""));
  return v;
}

Value filter_abs(Interp&, const Value& v, Args& args) {
  const Bound b("abs", args, {});
  if (!v.is_number()) fail(fmt::format("bad operand type for abs(): '{}'", type_name(v)));
  if (v.is(Type::kFloat)) return Value::number(std::fabs(v.d));
  return Value::integer(as_int(v) < 0 ? -as_int(v) : as_int(v));
}

/// A whole number in text, as Python's int() reads it; nullopt when it is none.
std::optional<Int> parse_int(std::string_view text, int base) {
  text = strip(text, nullptr, true, true);
  const bool negative = text.starts_with('-');
  if (negative || text.starts_with('+')) text.remove_prefix(1);
  if (base == 16 && (text.starts_with("0x") || text.starts_with("0X"))) text.remove_prefix(2);
  if (base == 8 && (text.starts_with("0o") || text.starts_with("0O"))) text.remove_prefix(2);
  if (base == 2 && (text.starts_with("0b") || text.starts_with("0B"))) text.remove_prefix(2);
  if (text.empty() || text.size() > 36) return std::nullopt;
  Int number = 0;
  for (const char c : text) {
    const char low = static_cast<char>(c | 0x20);
    const int digit = c >= '0' && c <= '9'       ? c - '0'
                      : low >= 'a' && low <= 'z' ? low - 'a' + 10
                                                 : 99;
    if (digit >= base) return std::nullopt;
    // 36 digits of base 10 fit; of larger bases they may not.
    if (number > (Int{1} << 120)) return std::nullopt;
    number = number * base + digit;
  }
  return negative ? -number : number;
}

std::optional<double> parse_float(std::string_view text) {
  text = strip(text, nullptr, true, true);
  if (text.starts_with('+')) text.remove_prefix(1);
  double number = 0;
  const auto [end, code] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (code != std::errc() || end != text.data() + text.size() || text.empty()) return std::nullopt;
  return number;
}

Value filter_int(Interp&, const Value& v, Args& args) {
  const Bound b("int", args, {"default", "base"});
  const Value fallback = b.get(0, Value::integer(0));
  if (v.is(Type::kUndefined)) fail(std::string(v.str()));
  if (v.is(Type::kString)) {
    const auto base = static_cast<int>(b[1] == nullptr ? 10 : to_index(*b[1], "int"));
    if (const auto whole = parse_int(v.str(), base)) return Value::integer(*whole);
    const auto number = parse_float(v.str());
    if (number && std::fabs(*number) < 1e37) return Value::integer(static_cast<Int>(*number));
    return fallback;
  }
  if (v.is(Type::kFloat)) {
    return std::fabs(v.d) < 1e37 ? Value::integer(static_cast<Int>(v.d)) : fallback;
  }
  return v.is_number() ? Value::integer(as_int(v)) : fallback;
}

Value filter_float(Interp&, const Value& v, Args& args) {
  const Bound b("float", args, {"default"});
  const Value fallback = b.get(0, Value::number(0));
  if (v.is(Type::kUndefined)) fail(std::string(v.str()));
  if (v.is(Type::kString)) {
    const auto number = parse_float(v.str());
    return number ? Value::number(*number) : fallback;
  }
  return v.is_number() ? Value::number(as_double(v)) : fallback;
}

Value filter_round(Interp&, const Value& v, Args& args) {
  const Bound b("round", args, {"precision", "method"});
  if (!v.is_number()) fail(fmt::format("round: expected a number, found {}", type_name(v)));
  const std::int64_t digits = b[0] == nullptr ? 0 : to_index(*b[0], "round");
  const std::string method = b[1] == nullptr ? "common" : to_str(*b[1]);
  const double number = as_double(v);
  if (method == "ceil" || method == "floor") {
    const double scale = std::pow(10.0, static_cast<double>(digits));
    const double scaled = number * scale;
    return Value::number((method == "ceil" ? std::ceil(scaled) : std::floor(scaled)) / scale);
  }
  if (method != "common") fail("method must be common, ceil or floor");
  if (!v.is(Type::kFloat)) return Value::integer(as_int(v));
  if (digits > 300 || digits < 0) return Value::number(number);
  // Correctly rounded decimal digits with ties to even, as Python's round().
  const std::string text = fmt::format("{:.{}f}", number, digits);
  double rounded = 0;
  std::from_chars(text.data(), text.data() + text.size(), rounded);
  return Value::number(rounded);
}

Value filter_indent(Interp& in, const Value& v, Args& args) {
  const Bound b("indent", args, {"width", "first", "blank"});
  std::string prefix = "    ";
  if (b[0] != nullptr) {
    prefix = b[0]->is(Type::kString)
                 ? std::string(b[0]->str())
                 : std::string(static_cast<std::size_t>(
                                   std::clamp<std::int64_t>(to_index(*b[0], "indent"), 0, 1000)),
                               ' ');
  }
  const bool first = b[1] != nullptr && truth(*b[1]);
  const bool blank = b[2] != nullptr && truth(*b[2]);
  const std::string text = text_of(in, v);
  std::string out;
  if (first) out += prefix;
  std::size_t start = 0;
  while (true) {
    const std::size_t end = std::min(text.find('\n', start), text.size());
    out += text.substr(start, end - start);
    in.arena().charge(prefix.size());
    if (end == text.size()) break;
    out += '\n';
    start = end + 1;
    const bool empty = start >= text.size() || text[start] == '\n';
    if (blank || !empty) out += prefix;
  }
  return in.make_string(std::move(out));
}

Value filter_center(Interp& in, const Value& v, Args& args) {
  const Bound b("center", args, {"width"});
  const std::string text = text_of(in, v);
  const std::int64_t width = b[0] == nullptr ? 80 : to_index(*b[0], "center");
  const auto have = static_cast<std::int64_t>(json::count_code_points(text));
  if (width <= have) return in.make_string(text);
  in.arena().charge(static_cast<std::size_t>(width));
  // Python puts the odd blank on the left when the width is odd.
  const std::int64_t missing = width - have;
  const std::int64_t left = missing / 2 + (missing & width & 1);
  return in.make_string(std::string(static_cast<std::size_t>(left), ' ') + text +
                        std::string(static_cast<std::size_t>(missing - left), ' '));
}

Value filter_truncate(Interp& in, const Value& v, Args& args) {
  const Bound b("truncate", args, {"length", "killwords", "end", "leeway"});
  const std::int64_t length = b[0] == nullptr ? 255 : to_index(*b[0], "truncate");
  const bool kill = b[1] != nullptr && truth(*b[1]);
  const std::string end = b[2] == nullptr ? "..." : to_str(*b[2]);
  const std::int64_t leeway =
      b[3] == nullptr || b[3]->is(Type::kNone) ? 5 : to_index(*b[3], "leeway");
  const std::string text = text_of(in, v);
  const auto chars = code_points(text);
  const auto end_length = static_cast<std::int64_t>(json::count_code_points(end));
  if (length < end_length) fail(fmt::format("expected length >= {}, got {}", end_length, length));
  if (static_cast<std::int64_t>(chars.size()) <= length + leeway) return in.make_string(text);
  std::string cut;
  for (std::int64_t i = 0; i < length - end_length; ++i) {
    cut += chars[static_cast<std::size_t>(i)];
  }
  if (!kill) cut = cut.substr(0, std::min(cut.rfind(' '), cut.size()));
  return in.make_string(cut + end);
}

Value filter_wordcount(Interp& in, const Value& v, Args& args) {
  const Bound b("wordcount", args, {});
  Int count = 0;
  bool in_word = false;
  const std::string text = text_of(in, v);
  for (const std::string_view c : code_points(text)) {
    const char32_t code = json::decode_utf8(c).code_point;
    const bool word = code == '_' || lower(c) != c || upper(c) != c ||
                      (code >= '0' && code <= '9') || code >= 0x300;
    if (word && !in_word) ++count;
    in_word = word;
  }
  return Value::integer(count);
}

Value filter_format(Interp& in, const Value& v, Args& args) {
  if (!args.named.empty() && !args.positional.empty()) {
    fail("can't handle positional and keyword arguments at the same time");
  }
  Value values = in.arena().seq(args.positional, Seq::kTuple);
  if (!args.named.empty()) {
    values = in.arena().dict();
    for (const auto& [key, value] : args.named) {
      values.dict().set(Value::string(key), value);
    }
  }
  return in.make_string(percent_format(in, text_of(in, v), values));
}

Value filter_filesizeformat(Interp& in, const Value& v, Args& args) {
  const Bound b("filesizeformat", args, {"binary"});
  const bool binary = b[0] != nullptr && truth(*b[0]);
  if (!v.is_number()) fail("filesizeformat: expected a number");
  const double base = binary ? 1024 : 1000;
  const double bytes = as_double(v);
  if (bytes == 1) return Value::string("1 Byte");
  if (bytes < base) return in.make_string(fmt::format("{} Bytes", static_cast<long long>(bytes)));
  const std::string_view units = "kMGTPEZY";
  double unit = base;
  for (std::size_t i = 0; i < units.size(); ++i) {
    unit *= base;
    if (bytes < unit || i + 1 == units.size()) {
      const char letter = binary && i == 0 ? 'K' : units[i];
      return in.make_string(
          fmt::format("{:.1f} {}{}", base * bytes / unit, letter, binary ? "iB" : "B"));
    }
  }
  return Value::string("");
}

Value filter_pprint(Interp& in, const Value& v, Args& args) {
  const Bound b("pprint", args, {});
  std::string out;
  append_repr(out, v);
  return in.make_string(std::move(out));
}

Value filter_attr(Interp& in, const Value& v, Args& args) {
  const Bound b("attr", args, {"name"});
  const std::string name = to_str(b.need(0));
  if (v.is(Type::kUndefined)) fail(std::string(v.str()));
  // Attributes only, never items: a mapping has none but its methods.
  if (v.is(Type::kDict) && !has_method(v, name)) {
    return Value::undefined("a dict has no such attribute");
  }
  return in.get_attr(v, in.make_string(name).str());
}

Value filter_safe(Interp&, const Value& v, Args& args) {
  const Bound b("safe", args, {});
  return v;
}

constexpr FilterEntry kFilters[] = {
    {"abs", filter_abs},
    {"attr", filter_attr},
    {"capitalize", filter_map<capitalize>},
    {"center", filter_center},
    {"count", filter_length},
    {"d", filter_default},
    {"default", filter_default},
    {"e", filter_map<escape_html>},
    {"escape", filter_map<escape_html>},
    {"filesizeformat", filter_filesizeformat},
    {"float", filter_float},
    {"forceescape", filter_map<escape_html>},
    {"format", filter_format},
    {"indent", filter_indent},
    {"int", filter_int},
    {"length", filter_length},
    {"lower", filter_map<lower>},
    {"pprint", filter_pprint},
    {"replace", filter_replace},
    {"round", filter_round},
    {"safe", filter_safe},
    {"string", filter_string},
    {"striptags", filter_map<strip_tags>},
    {"title", filter_map<jinja_title>},
    {"tojson", filter_tojson},
    {"trim", filter_trim},
    {"truncate", filter_truncate},
    {"upper", filter_map<upper>},
    {"urlencode", filter_map<url_encode>},
    {"wordcount", filter_wordcount},
};

}  // namespace

FilterFn find_filter(std::string_view name) {
  for (const FilterEntry& entry : kFilters) {
    if (entry.name == name) return entry.function;
  }
  return find_seq_filter(name);
}

}  // namespace tandem::chat
