// Methods of str.
#include "common/chat/builtins.h"
#include "common/chat/interp.h"
#include "common/chat/methods.h"
#include "common/json/utf8.h"

#include <fmt/format.h>
#include <utf8proc.h>

#include <algorithm>

namespace tandem::chat {
namespace {

const std::string_view& text_of(const Value& v, std::string_view what, std::string_view& out) {
  if (!v.is(Type::kString))
    fail(fmt::format("{}: expected a string, found {}", what, type_name(v)));
  out = v.str();
  return out;
}

std::string_view text_arg(const Value& v, std::string_view what) {
  std::string_view out;
  return text_of(v, what, out);
}

template <bool kLeft, bool kRight>
Value str_strip(Interp& in, const Value& self, Args& args) {
  const Bound b("strip", args, {"chars"});
  in.charge(self.size / 256);
  if (b[0] == nullptr || b[0]->is(Type::kNone)) {
    return Value::string(strip(self.str(), nullptr, kLeft, kRight));
  }
  const std::string chars(text_arg(*b[0], "strip"));
  return Value::string(strip(self.str(), &chars, kLeft, kRight));
}

Value split_on_space(Interp& in, std::string_view text, std::int64_t max, bool from_right) {
  std::vector<Value> parts;
  while (true) {
    text = strip(text, nullptr, !from_right, from_right);
    if (text.empty()) break;
    if (max == 0) {
      // What is left keeps the white space inside it.
      parts.push_back(Value::string(text));
      break;
    }
    const auto chars = code_points(text);
    std::size_t taken = 0;
    for (std::size_t i = 0; i < chars.size(); ++i) {
      const std::string_view c = from_right ? chars[chars.size() - 1 - i] : chars[i];
      if (is_space(json::decode_utf8(c).code_point)) break;
      taken += c.size();
    }
    in.charge(text.size() / 16);
    parts.push_back(
        Value::string(from_right ? text.substr(text.size() - taken) : text.substr(0, taken)));
    text = from_right ? text.substr(0, text.size() - taken) : text.substr(taken);
    if (max > 0) --max;
  }
  if (from_right) std::reverse(parts.begin(), parts.end());
  return in.arena().seq(std::move(parts));
}

/// The common case, all of it: one pass.
Value split_all_space(Interp& in, std::string_view text) {
  std::vector<Value> parts;
  std::size_t start = std::string_view::npos;
  for (std::size_t pos = 0; pos < text.size();) {
    const json::Utf8Step step = json::decode_utf8(text.substr(pos));
    const bool space = is_space(step.code_point);
    if (!space && start == std::string_view::npos) start = pos;
    if (space && start != std::string_view::npos) {
      parts.push_back(Value::string(text.substr(start, pos - start)));
      start = std::string_view::npos;
    }
    pos += step.byte_count;
  }
  if (start != std::string_view::npos) parts.push_back(Value::string(text.substr(start)));
  in.charge(text.size() / 64);
  return in.arena().seq(std::move(parts));
}

template <bool kFromRight>
Value str_split(Interp& in, const Value& self, Args& args) {
  const Bound b("split", args, {"sep", "maxsplit"});
  std::int64_t max = b[1] == nullptr ? -1 : to_index(*b[1], "split");
  std::string_view text = self.str();
  if (b[0] == nullptr || b[0]->is(Type::kNone)) {
    return max < 0 ? split_all_space(in, text) : split_on_space(in, text, max, kFromRight);
  }
  const std::string_view separator = text_arg(*b[0], "split");
  if (separator.empty()) fail("empty separator");
  std::vector<Value> parts;
  in.charge(text.size() / 64);
  while (max != 0) {
    const std::size_t at = kFromRight ? text.rfind(separator) : text.find(separator);
    if (at == std::string_view::npos) break;
    const std::string_view right = text.substr(at + separator.size());
    parts.push_back(Value::string(kFromRight ? right : text.substr(0, at)));
    text = kFromRight ? text.substr(0, at) : right;
    if (max > 0) --max;
  }
  parts.push_back(Value::string(text));
  if (kFromRight) std::reverse(parts.begin(), parts.end());
  return in.arena().seq(std::move(parts));
}

Value str_splitlines(Interp& in, const Value& self, Args& args) {
  const Bound b("splitlines", args, {"keepends"});
  const bool keep = b[0] != nullptr && truth(*b[0]);
  const std::string_view text = self.str();
  std::vector<Value> lines;
  std::size_t start = 0;
  for (std::size_t pos = 0; pos < text.size();) {
    const json::Utf8Step step = json::decode_utf8(text.substr(pos));
    const char32_t c = step.code_point;
    std::size_t end = pos + step.byte_count;
    if (c == '\r' && end < text.size() && text[end] == '\n') ++end;
    const bool breaks = (c >= '\n' && c <= '\r') || (c >= 0x1C && c <= 0x1E) || c == 0x85 ||
                        c == 0x2028 || c == 0x2029;
    if (breaks) {
      lines.push_back(Value::string(text.substr(start, (keep ? end : pos) - start)));
      start = end;
    }
    pos = end;
  }
  if (start < text.size()) lines.push_back(Value::string(text.substr(start)));
  in.charge(text.size() / 64);
  return in.arena().seq(std::move(lines));
}

template <bool kEnd>
Value str_affix(Interp& in, const Value& self, Args& args) {
  const Bound b(kEnd ? "endswith" : "startswith", args, {"prefix", "start", "end"});
  std::string_view text = self.str();
  if (b[1] != nullptr) text = slice(in, self, *b[1], b.get(2, Value::none()), Value::none()).str();
  const auto fits = [&](const Value& affix) {
    const std::string_view part = text_arg(affix, kEnd ? "endswith" : "startswith");
    return kEnd ? text.ends_with(part) : text.starts_with(part);
  };
  const Value& affix = b.need(0);
  if (!affix.is(Type::kSeq)) return Value::boolean(fits(affix));
  const auto& items = affix.seq().items;
  return Value::boolean(std::any_of(items.begin(), items.end(), fits));
}

/// Position in characters; -1 when it is not there.
Int find_in(Interp& in, const Value& self, Args& args, bool last) {
  const Bound b("find", args, {"sub", "start", "end"});
  const std::string_view part = text_arg(b.need(0), "find");
  const Value start = b.get(1, Value::integer(0));
  const Value range = slice(in, self, start, b.get(2, Value::none()), Value::none());
  const std::size_t at = last ? range.str().rfind(part) : range.str().find(part);
  if (at == std::string_view::npos) return -1;
  Int offset = start.is(Type::kNone) ? 0 : as_int(start);
  const auto size = static_cast<Int>(json::count_code_points(self.str()));
  if (offset < 0) offset = std::max<Int>(0, offset + size);
  return offset + static_cast<Int>(json::count_code_points(range.str().substr(0, at)));
}

template <bool kLast, bool kMust>
Value str_find(Interp& in, const Value& self, Args& args) {
  const Int at = find_in(in, self, args, kLast);
  if (kMust && at < 0) fail("substring not found");
  return Value::integer(at);
}

Value str_count(Interp& in, const Value& self, Args& args) {
  const Bound b("count", args, {"sub", "start", "end"});
  const std::string_view part = text_arg(b.need(0), "count");
  in.charge(self.size / 64);
  std::string_view text = self.str();
  if (b[1] != nullptr) text = slice(in, self, *b[1], b.get(2, Value::none()), Value::none()).str();
  if (part.empty()) return Value::integer(static_cast<Int>(json::count_code_points(text)) + 1);
  Int count = 0;
  for (std::size_t at = text.find(part); at != std::string_view::npos;
       at = text.find(part, at + part.size())) {
    ++count;
  }
  return Value::integer(count);
}

Value str_replace(Interp& in, const Value& self, Args& args) {
  const Bound b("replace", args, {"old", "new", "count"});
  const std::int64_t count = b[2] == nullptr ? -1 : to_index(*b[2], "replace");
  return in.make_string(replace(
      in, self.str(), text_arg(b.need(0), "replace"), text_arg(b.need(1), "replace"), count));
}

Value str_join(Interp& in, const Value& self, Args& args) {
  const Bound b("join", args, {"iterable"});
  std::string out;
  bool first = true;
  for (const Value& item : in.iterate(b.need(0))) {
    if (!first) out += self.str();
    first = false;
    out += text_arg(item, "join");
    if (out.size() > in.options().max_memory_bytes) in.arena().charge(out.size());
  }
  in.charge(out.size() / 256);
  return in.make_string(std::move(out));
}

template <std::string (*kFunction)(std::string_view)>
Value str_map(Interp& in, const Value& self, Args& args) {
  const Bound b("this method", args, {});
  in.charge(self.size / 64);
  return in.make_string(kFunction(self.str()));
}

template <bool (*kTest)(utf8proc_category_t)>
Value str_all(Interp& in, const Value& self, Args& args) {
  const Bound b("this method", args, {});
  in.charge(self.size / 64);
  std::string_view text = self.str();
  if (text.empty()) return Value::boolean(false);
  while (!text.empty()) {
    const json::Utf8Step step = json::decode_utf8(text);
    if (!kTest(utf8proc_category(static_cast<utf8proc_int32_t>(step.code_point)))) {
      return Value::boolean(false);
    }
    text.remove_prefix(step.byte_count);
  }
  return Value::boolean(true);
}

bool is_letter(utf8proc_category_t c) {
  return c >= UTF8PROC_CATEGORY_LU && c <= UTF8PROC_CATEGORY_LO;
}

bool is_decimal(utf8proc_category_t c) {
  return c == UTF8PROC_CATEGORY_ND;
}

bool is_number_kind(utf8proc_category_t c) {
  return c >= UTF8PROC_CATEGORY_ND && c <= UTF8PROC_CATEGORY_NO;
}

bool is_alnum(utf8proc_category_t c) {
  return is_letter(c) || is_number_kind(c);
}

Value str_isspace(Interp&, const Value& self, Args& args) {
  const Bound b("isspace", args, {});
  return Value::boolean(self.size > 0 && strip(self.str(), nullptr, true, false).empty());
}

template <std::string (*kFunction)(std::string_view), std::string (*kOther)(std::string_view)>
Value str_is_case(Interp&, const Value& self, Args& args) {
  const Bound b("this method", args, {});
  return Value::boolean(kFunction(self.str()) == self.str() && kOther(self.str()) != self.str());
}

template <bool kLast>
Value str_partition(Interp& in, const Value& self, Args& args) {
  const Bound b("partition", args, {"sep"});
  const std::string_view separator = text_arg(b.need(0), "partition");
  if (separator.empty()) fail("empty separator");
  const std::string_view text = self.str();
  const std::size_t at = kLast ? text.rfind(separator) : text.find(separator);
  const Value empty = Value::string("");
  if (at == std::string_view::npos) {
    return in.arena().seq(
        kLast ? std::vector<Value>{empty, empty, self} : std::vector<Value>{self, empty, empty},
        Seq::kTuple);
  }
  return in.arena().seq({Value::string(text.substr(0, at)),
                         Value::string(separator),
                         Value::string(text.substr(at + separator.size()))},
                        Seq::kTuple);
}

template <bool kEnd>
Value str_remove_affix(Interp&, const Value& self, Args& args) {
  const Bound b(kEnd ? "removesuffix" : "removeprefix", args, {"affix"});
  const std::string_view part = text_arg(b.need(0), "affix");
  std::string_view text = self.str();
  if (kEnd ? text.ends_with(part) : text.starts_with(part)) {
    text = kEnd ? text.substr(0, text.size() - part.size()) : text.substr(part.size());
  }
  return Value::string(text);
}

enum class Side {
  kLeft,
  kRight,
  kZero
};

template <Side kSide>
Value str_pad(Interp& in, const Value& self, Args& args) {
  const Bound b("this method", args, {"width", "fillchar"});
  const std::int64_t width = to_index(b.need(0), "width");
  const auto have = static_cast<std::int64_t>(json::count_code_points(self.str()));
  const auto missing = static_cast<std::size_t>(std::max<std::int64_t>(0, width - have));
  const std::string fill(kSide == Side::kZero ? "0"
                         : b[1] == nullptr    ? " "
                                              : text_arg(*b[1], "fillchar"));
  std::string padding;
  in.arena().charge(missing * fill.size());
  for (std::size_t i = 0; i < missing; ++i) {
    padding += fill;
  }
  std::string text(self.str());
  if (kSide == Side::kLeft) return in.make_string(text + padding);
  const bool signed_text = kSide == Side::kZero && (text.starts_with('-') || text.starts_with('+'));
  return in.make_string(signed_text ? text.substr(0, 1) + padding + text.substr(1)
                                    : padding + text);
}

Value str_format(Interp& in, const Value& self, Args& args) {
  return in.make_string(brace_format(in, self.str(), args));
}

constexpr MethodEntry kStringMethods[] = {
    {"capitalize", str_map<capitalize>},
    {"casefold", str_map<lower>},
    {"count", str_count},
    {"endswith", str_affix<true>},
    {"find", str_find<false, false>},
    {"format", str_format},
    {"index", str_find<false, true>},
    {"isalnum", str_all<is_alnum>},
    {"isalpha", str_all<is_letter>},
    {"isdecimal", str_all<is_decimal>},
    {"isdigit", str_all<is_decimal>},
    {"islower", str_is_case<lower, upper>},
    {"isnumeric", str_all<is_number_kind>},
    {"isspace", str_isspace},
    {"isupper", str_is_case<upper, lower>},
    {"join", str_join},
    {"ljust", str_pad<Side::kLeft>},
    {"lower", str_map<lower>},
    {"lstrip", str_strip<true, false>},
    {"partition", str_partition<false>},
    {"removeprefix", str_remove_affix<false>},
    {"removesuffix", str_remove_affix<true>},
    {"replace", str_replace},
    {"rfind", str_find<true, false>},
    {"rindex", str_find<true, true>},
    {"rjust", str_pad<Side::kRight>},
    {"rpartition", str_partition<true>},
    {"rsplit", str_split<true>},
    {"rstrip", str_strip<false, true>},
    {"split", str_split<false>},
    {"splitlines", str_splitlines},
    {"startswith", str_affix<false>},
    {"strip", str_strip<true, true>},
    {"title", str_map<title>},
    {"upper", str_map<upper>},
    {"zfill", str_pad<Side::kZero>},
};

}  // namespace

MethodFn find_string_method(std::string_view name) {
  return find_method_in(kStringMethods, name);
}

}  // namespace tandem::chat
