#include "common/args/schema_patterns.h"

#include "common/args/text.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <span>

namespace tandem::args {
namespace {

std::string times(std::string_view what, std::size_t count) {
  if (count == 0) return "";
  return std::string(what) + (count > 1 ? "{" + std::to_string(count) + "}" : "");
}

std::string one_of(char low, char high) {
  if (low == high) return {low};
  return {'[', low, '-', high, ']'};
}

/// Alternatives for texts of equal length, digit by digit.
void same_length(std::string_view low,
                 std::string_view high,
                 std::string before,
                 std::string& out) {
  const auto add = [&out](const std::string& text) { out += (out.empty() ? "" : "|") + text; };
  const std::size_t rest = low.size();
  const bool whole = std::all_of(low.begin(), low.end(), [](char c) { return c == '0'; }) &&
                     std::all_of(high.begin(), high.end(), [](char c) { return c == '9'; });
  if (rest == 0 || whole) {
    add(before + times("[0-9]", rest));
    return;
  }
  const std::string zeros(rest - 1, '0');
  const std::string nines(rest - 1, '9');
  if (low[0] == high[0]) {
    same_length(low.substr(1), high.substr(1), before + low[0], out);
    return;
  }
  char first = low[0];
  char last = high[0];
  if (low.substr(1) != zeros) {
    same_length(low.substr(1), nines, before + low[0], out);
    ++first;
  }
  const bool cut = high.substr(1) != nines;
  if (cut) --last;
  if (first <= last) add(before + one_of(first, last) + times("[0-9]", rest - 1));
  if (cut) same_length(zeros, high.substr(1), before + high[0], out);
}

/// A unit's suffix: one of it is num / den of what a plain number counts.
std::string with_suffix(std::uint64_t least, std::uint64_t most, const Suffix& suffix) {
  // Numbers that come out whole: multiples of den, which is a power of ten.
  const std::string zeros = std::to_string(suffix.den).substr(1);
  const auto num = static_cast<std::uint64_t>(suffix.num);
  const std::uint64_t low = least / num + (least % num != 0 ? 1 : 0);
  const std::uint64_t high = most / num;
  std::string text;
  if (low <= high) text = "0*" + digits_between(low, high) + zeros;
  if (least == 0 && !zeros.empty()) text = "(" + text + "|0+)";
  return text.empty() ? "" : text + std::string(suffix.text);
}

}  // namespace

std::string digits_between(std::uint64_t least, std::uint64_t most) {
  const std::string low = std::to_string(least);
  const std::string high = std::to_string(most);
  std::string out;
  for (std::size_t length = low.size(); length <= high.size(); ++length) {
    const std::string first = length == low.size() ? low : "1" + std::string(length - 1, '0');
    const std::string last = length == high.size() ? high : std::string(length, '9');
    same_length(first, last, "", out);
  }
  return "(" + out + ")";
}

std::string integer_pattern(std::int64_t least, std::int64_t most, const Spec& spec) {
  std::string text;
  const auto add = [&text](const std::string& each) {
    if (!each.empty()) text += (text.empty() ? "" : "|") + each;
  };
  const auto low = static_cast<std::uint64_t>(std::max<std::int64_t>(least, 0));
  const auto high = static_cast<std::uint64_t>(std::max<std::int64_t>(most, 0));
  if (low <= high) add("[+]?0*" + digits_between(low, high));
  if (least <= 0) add("-0+");
  if (least < 0)
    add("-0*" + digits_between(1, std::uint64_t{0} - static_cast<std::uint64_t>(least)));
  const double also = spec.range.also_allowed;
  if (!std::isnan(also)) {
    const auto value = static_cast<std::int64_t>(std::abs(also));
    add((also < 0 ? "-0*" : "[+]?0*") + std::to_string(value));
  }
  std::string suffixes;
  for (const Suffix& suffix : suffixes_of(spec.unit)) {
    const std::string each = with_suffix(low, high, suffix);
    if (!each.empty()) add("[+]?" + each);
    suffixes += (suffixes.empty() ? "" : "|") + std::string(suffix.text);
  }
  if (!suffixes.empty()) add("[+]?[0-9]+[.][0-9]{1,6}(" + suffixes + ")");
  return "^(" + text + ")$";
}

std::string float_pattern(const Range& range) {
  const std::string exponent = "[eE][+-]?[0-9]+";
  const std::string plain = "([0-9]+[.]?[0-9]*|[.][0-9]+)";
  if (range.exclusive_min && range.min == 0 && range.exclusive_max && range.max == 1)
    return "^[+]?(0*[.][0-9]*[1-9][0-9]*|" + plain + exponent + ")$";
  const std::string number = plain + "(" + exponent + ")?";
  if (range.min >= 0) return "^([+]?" + number + "|-(0+[.]?0*|[.]0+)(" + exponent + ")?)$";
  return "^[+-]?" + number + "$";
}

namespace {

std::string host_port() {
  return "([A-Za-z0-9._-]{1,253}|\\[[0-9a-fA-F:.%\\[\\]]+\\]):0*" + digits_between(1, 65535);
}

}  // namespace

std::string url_pattern() {
  return "(http|grpc)://" + host_port() + "/?";
}

std::string port_pattern() {
  return "[+]?0*" + digits_between(1, 65535);
}

std::string form_pattern(Form form) {
  switch (form) {
    case Form::kAny:
      return "^[^\\u0000]*$";
    case Form::kFilled:
      return "^[^\\u0000]+$";
    case Form::kModelName:
      return "^[^\\u0000:]+$";
    case Form::kKey:
      return "^[^\\u0000\\r\\n]+$";
    case Form::kHostPort:
      return "^" + host_port() + "$";
    case Form::kNames:
      return "^[^\\u0000,]+(,[^\\u0000,]+)*$";
    case Form::kFailurePoints:
      break;
  }
  const std::string number = "0*" + digits_between(0, UINT64_MAX);
  const std::string action = "(" + number + "[*+])?(error|abort|hang|sleep[(]" + number + "[)])";
  return "^(;|[^\\u0000;=]*=" + action + "(;|$))*$";
}

std::string any_case(std::string_view word) {
  std::string out;
  for (const char c : word) {
    const bool letter = c >= 'a' && c <= 'z';
    out += letter ? std::string{'[', static_cast<char>(c - 'a' + 'A'), c, ']'} : std::string{c};
  }
  return out;
}

}  // namespace tandem::args
