// Small text helpers of this room: lists, numbers with units, ranges, addresses. Internal to the
// room.
#pragma once

#include "common/base/status.h"

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace tandem::args {

enum class Unit : std::uint8_t;
enum class Form : std::uint8_t;
struct Spec;

std::string lower(std::string_view text);
/// A comma-separated list with another separator.
std::string joined(std::string_view list, std::string_view separator);
/// "a", "a and b", "a, b and c".
std::string sentence_list(const std::vector<std::string>& parts);
/// Edits (insert, delete, replace, swap of neighbours) between two names, or `limit` + 1 when there
/// are more.
std::size_t edit_distance(std::string_view a, std::string_view b, std::size_t limit);
/// Breaks at spaces so that no line is longer than `width`; each line starts with `indent`.
std::string wrapped(std::string_view text, std::size_t indent, std::size_t width);

/// A parsed number. `overflow`: digits that do not fit int64; `real` is then still near the value.
struct Number {
  std::int64_t integer = 0;
  double real = 0;
  bool overflow = false;
};

/// One of the unit is num / den of what a plain number counts. den is a power of ten.
struct Suffix {
  std::string_view text;
  std::int64_t num;
  std::int64_t den = 1;
};

/// What may stand behind a number of this unit.
std::span<const Suffix> suffixes_of(Unit unit);
/// Decimal digits with an optional sign and a suffix of the unit; with a suffix also a fraction,
/// when it comes out whole (1.5GB). The message is "invalid int value: '<word>'".
Result<Number> parse_integer(const std::string& word, Unit unit);
/// A finite decimal number. The message is "invalid float value: '<word>'".
Result<Number> parse_float(const std::string& word);
Status check_range(const Number& number, const std::string& word, const Spec& spec);
/// http://host:port or grpc://host:port, port 1..65535, an optional trailing slash.
Status check_url(const std::string& word);
/// host:port or [v6]:port.
Status check_host_port(const std::string& word);
/// A text of this form, or what is wrong with it.
Status check_form(const std::string& word, Form form);
/// A JSON object, written anew without needless spaces. Refused: another value, a key that stands
/// twice, nesting deeper than 64.
Result<std::string> read_json_object(const std::string& word);

}  // namespace tandem::args
