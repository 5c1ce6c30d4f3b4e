#include "common/args/text.h"

#include "common/args/field.h"
#include "common/args/spec.h"
#include "common/base/failpoint.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>

namespace tandem::args {
namespace {

constexpr std::size_t kNameBytesMax = 64;

constexpr Suffix kNoSuffix = {"", 1};
constexpr std::int64_t kKi = 1024;
constexpr Suffix kByteSuffixes[] = {{"B", 1},
                                    {"K", 1000},
                                    {"KB", 1000},
                                    {"M", 1000000},
                                    {"MB", 1000000},
                                    {"G", 1000000000},
                                    {"GB", 1000000000},
                                    {"T", 1000000000000},
                                    {"TB", 1000000000000},
                                    {"Ki", kKi},
                                    {"KiB", kKi},
                                    {"Mi", kKi* kKi},
                                    {"MiB", kKi* kKi},
                                    {"Gi", kKi* kKi* kKi},
                                    {"GiB", kKi* kKi* kKi},
                                    {"Ti", kKi* kKi* kKi* kKi},
                                    {"TiB", kKi* kKi* kKi* kKi}};
constexpr Suffix kSecondSuffixes[] = {{"ms", 1, 1000}, {"s", 1}, {"m", 60}, {"h", 3600}};
constexpr Suffix kMillisecondSuffixes[] = {{"ms", 1}, {"s", 1000}, {"m", 60000}, {"h", 3600000}};

}  // namespace

std::span<const Suffix> suffixes_of(Unit unit) {
  switch (unit) {
    case Unit::kBytes:
      return kByteSuffixes;
    case Unit::kSeconds:
      return kSecondSuffixes;
    case Unit::kMilliseconds:
      return kMillisecondSuffixes;
    case Unit::kNone:
      break;
  }
  return {};
}

namespace {

/// The suffix that `word` ends with, or null when the unit has no such suffix.
const Suffix* find_suffix(std::string_view word, Unit unit) {
  if (word.empty()) return &kNoSuffix;
  for (const Suffix& each : suffixes_of(unit)) {
    if (each.text == word) return &each;
  }
  return nullptr;
}

std::size_t digits_end(std::string_view word, std::size_t at) {
  while (at < word.size() && word[at] >= '0' && word[at] <= '9')
    ++at;
  return at;
}

bool is_port(std::string_view text) {
  unsigned value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  return error == std::errc() && end == text.data() + text.size() && value >= 1 && value <= 65535;
}

bool is_host(std::string_view text) {
  if (text.size() > 2 && text.front() == '[' && text.back() == ']') {
    return text.find_first_not_of("0123456789abcdefABCDEF:.%[]") == std::string_view::npos;
  }
  return !text.empty() && text.size() <= 253 &&
         std::all_of(text.begin(), text.end(), [](unsigned char c) {
           return std::isalnum(c) != 0 || c == '.' || c == '-' || c == '_';
         });
}

bool is_host_port(std::string_view text) {
  const std::size_t colon = text.rfind(':');
  return colon != std::string_view::npos && is_host(text.substr(0, colon)) &&
         is_port(text.substr(colon + 1));
}

}  // namespace

std::vector<std::string_view> split_list(std::string_view text) {
  std::vector<std::string_view> parts;
  if (text.empty()) return parts;
  while (true) {
    const std::size_t comma = text.find(',');
    parts.push_back(text.substr(0, comma));
    if (comma == std::string_view::npos) return parts;
    text.remove_prefix(comma + 1);
  }
}

std::string normalized(std::string_view name) {
  std::string text(name);
  std::replace(text.begin(), text.end(), '_', '-');
  return text;
}

std::string lower(std::string_view text) {
  std::string out(text);
  for (char& c : out) {
    if (c >= 'A' && c <= 'Z') c = static_cast<char>(c - 'A' + 'a');
  }
  return out;
}

std::string joined(std::string_view list, std::string_view separator) {
  std::string text;
  bool first = true;
  for (std::string_view part : split_list(list)) {
    if (!first) text += separator;
    text += part.empty() ? std::string_view("''") : part;
    first = false;
  }
  return text;
}

std::string sentence_list(const std::vector<std::string>& parts) {
  std::string text;
  for (std::size_t i = 0; i < parts.size(); ++i) {
    if (i > 0) text += i + 1 == parts.size() ? " and " : ", ";
    text += parts[i];
  }
  return text;
}

std::size_t edit_distance(std::string_view a, std::string_view b, std::size_t limit) {
  const std::size_t gap = a.size() > b.size() ? a.size() - b.size() : b.size() - a.size();
  if (a.size() > kNameBytesMax || b.size() > kNameBytesMax || gap > limit) return limit + 1;
  std::array<std::array<std::size_t, kNameBytesMax + 1>, 3> rows{};
  for (std::size_t j = 0; j <= b.size(); ++j)
    rows[0][j] = j;
  for (std::size_t i = 1; i <= a.size(); ++i) {
    auto& row = rows[i % 3];
    const auto& above = rows[(i + 2) % 3];
    row[0] = i;
    for (std::size_t j = 1; j <= b.size(); ++j) {
      const std::size_t change = a[i - 1] == b[j - 1] ? 0 : 1;
      row[j] = std::min({above[j] + 1, row[j - 1] + 1, above[j - 1] + change});
      if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1]) {
        row[j] = std::min(row[j], rows[(i + 1) % 3][j - 2] + 1);
      }
    }
  }
  return std::min(rows[a.size() % 3][b.size()], limit + 1);
}

std::string wrapped(std::string_view text, std::size_t indent, std::size_t width) {
  std::string out;
  std::string line(indent, ' ');
  bool empty = true;
  std::size_t at = 0;
  while (at < text.size()) {
    const std::size_t end = std::min(text.find(' ', at), text.size());
    const std::string_view word = text.substr(at, end - at);
    at = end + 1;
    if (word.empty()) continue;
    if (!empty && line.size() + 1 + word.size() > width) {
      out += line + "\n";
      line.assign(indent, ' ');
      empty = true;
    }
    if (!empty) line += ' ';
    line += word;
    empty = false;
  }
  return empty ? out : out + line + "\n";
}

Result<Number> parse_integer(const std::string& word, Unit unit) {
  const auto invalid = [&word] {
    return invalid_argument("invalid int value: '" + shown(word) + "'");
  };
  constexpr std::size_t kDigitsMax = 400;
  constexpr std::size_t kFractionDigitsMax = 6;
  const bool negative = word.starts_with('-');
  const std::size_t digits = negative || word.starts_with('+') ? 1 : 0;
  const std::size_t point = digits_end(word, digits);
  if (point == digits || point - digits > kDigitsMax) return invalid();
  // "1.5GB": a fraction needs a unit to be a part of.
  std::size_t end = point;
  if (point < word.size() && word[point] == '.') end = digits_end(word, point + 1);
  const std::size_t fraction_digits = end > point ? end - point - 1 : 0;
  const Suffix* suffix = find_suffix(std::string_view(word).substr(end), unit);
  if (suffix == nullptr || (end > point && (fraction_digits == 0 || suffix == &kNoSuffix)) ||
      fraction_digits > kFractionDigitsMax)
    return invalid();
  std::string all = word.substr(digits, point - digits);
  std::int64_t den = suffix->den;
  if (fraction_digits > 0) all += word.substr(point + 1, fraction_digits);
  for (std::size_t i = 0; i < fraction_digits; ++i)
    den *= 10;
  Number number;
  if (std::from_chars(all.data(), all.data() + all.size(), number.real).ec != std::errc())
    number.real = 1e300;
  number.real *= static_cast<double>(suffix->num) / static_cast<double>(den) * (negative ? -1 : 1);
  std::int64_t value = 0;
  const std::string signed_digits = (negative ? "-" : "") + all;
  const auto parsed =
      std::from_chars(signed_digits.data(), signed_digits.data() + signed_digits.size(), value);
  std::int64_t scaled = 0;
  number.overflow = parsed.ec != std::errc() || __builtin_mul_overflow(value, suffix->num, &scaled);
  if (!number.overflow && scaled % den != 0) return invalid();
  number.integer = number.overflow ? 0 : scaled / den;
  return number;
}

Result<Number> parse_float(const std::string& word) {
  Number number;
  const char* begin = word.data() + (!word.empty() && word[0] == '+' ? 1 : 0);
  const char* end = word.data() + word.size();
  const auto [stop, error] = std::from_chars(begin, end, number.real);
  if (error != std::errc() || stop != end || begin == end || !std::isfinite(number.real)) {
    return invalid_argument("invalid float value: '" + shown(word) + "'");
  }
  return number;
}

Status check_range(const Number& number, const std::string& word, const Spec& spec) {
  const Range& range = spec.range;
  const double value = number.real;
  const bool low = range.exclusive_min ? value <= range.min : value < range.min;
  const bool high = range.exclusive_max ? value >= range.max : value > range.max;
  const bool also = !std::isnan(range.also_allowed) && value == range.also_allowed;
  if ((!low && !high) || also) return {};
  if (range.exclusive_min && range.exclusive_max) {
    return invalid_argument(shown(word) + " is not between " + number_text(range.min) + " and " +
                            number_text(range.max));
  }
  std::string text = shown(word) + " is out of range, expected ";
  if (std::isfinite(range.min))
    text += (range.exclusive_min ? "> " : ">= ") + number_text(range.min);
  if (std::isfinite(range.max)) {
    text += std::string(std::isfinite(range.min) ? " and " : "") +
            (range.exclusive_max ? "< " : "<= ") + number_text(range.max);
  }
  if (!std::isnan(range.also_allowed)) text += " or " + number_text(range.also_allowed);
  return invalid_argument(text);
}

Status check_url(const std::string& word) {
  for (const std::string_view scheme : {"http://", "grpc://"}) {
    std::string_view rest = word;
    if (!rest.starts_with(scheme)) continue;
    rest.remove_prefix(scheme.size());
    if (rest.ends_with('/')) rest.remove_suffix(1);
    if (is_host_port(rest)) return {};
  }
  return invalid_argument("'" + shown(word) +
                          "' is not a worker address; expected http://HOST:PORT or "
                          "grpc://HOST:PORT");
}

Status check_host_port(const std::string& word) {
  if (is_host_port(word)) return {};
  return invalid_argument("'" + shown(word) + "' is not HOST:PORT");
}

Status check_form(const std::string& word, Form form) {
  if (word.find('\0') != std::string::npos) return invalid_argument("the value holds a NUL byte");
  switch (form) {
    case Form::kAny:
      return {};
    case Form::kHostPort:
      return check_host_port(word);
    case Form::kNames:
      if (("," + word + ",").find(",,") == std::string::npos) return {};
      return invalid_argument("'" + shown(word) +
                              "' is not a list of names with commas between them");
    case Form::kFailurePoints:
      if (failpoint::check(word).ok()) return {};
      return invalid_argument("'" + shown(word) +
                              "' is not name=action[;name=action] with action error, sleep(MS), "
                              "abort, hang, N*action or N+action");
    case Form::kKey:
      if (word.empty()) return invalid_argument("empty key");
      if (word.find_first_of("\r\n") == std::string::npos) return {};
      return invalid_argument("the key holds a line break");
    case Form::kModelName:
      if (word.find(':') == std::string::npos) break;
      return invalid_argument("':' is reserved for model:adapter, got " + shown(word));
    case Form::kFilled:
      break;
  }
  return word.empty() ? invalid_argument("empty value") : Status();
}

std::string json_string(std::string_view text) {
  static constexpr std::string_view kHex = "0123456789abcdef";
  std::string out = "\"";
  const bool valid = is_utf8(text);
  for (const char c : text) {
    const auto byte = static_cast<unsigned char>(c);
    if (c == '"' || c == '\\') {
      out += {'\\', c};
    } else if (byte < 0x20 || byte == 0x7f) {
      out += "\\u00";
      out += {kHex[byte >> 4U], kHex[byte & 15U]};
    } else if (byte >= 0x80 && !valid) {
      out += "\\ufffd";
    } else {
      out += c;
    }
  }
  return out + "\"";
}

std::size_t utf8_prefix(std::string_view text) {
  for (std::size_t i = 0; i < text.size();) {
    const auto lead = static_cast<unsigned char>(text[i]);
    std::size_t more = 0;
    std::uint32_t point = lead;
    if (lead >= 0xf0 && lead <= 0xf4) {
      more = 3;
      point = lead & 7U;
    } else if (lead >= 0xe0) {
      more = 2;
      point = lead & 15U;
    } else if (lead >= 0xc2) {
      more = 1;
      point = lead & 31U;
    }
    if (lead > 0xf4 || (lead >= 0x80 && more == 0) || i + more >= text.size()) return i;
    for (std::size_t k = 1; k <= more; ++k) {
      const auto next = static_cast<unsigned char>(text[i + k]);
      if ((next & 0xc0U) != 0x80U) return i;
      point = (point << 6U) | (next & 0x3fU);
    }
    const bool overlong = (more == 2 && point < 0x800) || (more == 3 && point < 0x10000);
    if (overlong || (point >= 0xd800 && point < 0xe000) || point > 0x10ffff) return i;
    i += more + 1;
  }
  return text.size();
}

bool is_utf8(std::string_view text) {
  return utf8_prefix(text) == text.size();
}

std::string shown(std::string_view text) {
  constexpr std::size_t kBytesMax = 80;
  std::string out;
  const std::string_view head = text.substr(0, kBytesMax);
  const bool valid = is_utf8(text);
  for (const char c : head) {
    const auto byte = static_cast<unsigned char>(c);
    const bool plain = byte >= 0x20 && byte != 0x7f && (byte < 0x80 || valid);
    out += plain ? c : '?';
  }
  if (head.size() == text.size()) return out;
  while (!is_utf8(out) && !out.empty())
    out.pop_back();
  return out + "...";
}

std::string number_text(double value) {
  if (std::abs(value) < 1e15 && value == std::floor(value))
    return std::to_string(static_cast<std::int64_t>(value));
  std::array<char, 40> buffer{};
  const auto [end, error] = std::to_chars(buffer.data(), buffer.data() + buffer.size(), value);
  return error == std::errc() ? std::string(buffer.data(), end) : "?";
}

}  // namespace tandem::args
