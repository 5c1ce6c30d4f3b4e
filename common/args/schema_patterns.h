// Regular expressions (ECMA 262) for texts in a JSON Schema: numbers within bounds, with and
// without a unit, addresses, and the other forms. Internal to the room.
#pragma once

#include "common/args/spec.h"

#include <cstdint>
#include <string>
#include <string_view>

namespace tandem::args {

/// The decimal numbers from `least` to `most`, without leading zeros or a sign: "([1-9]|1[0-2])".
/// Pre: least <= most.
std::string digits_between(std::uint64_t least, std::uint64_t most);
/// What parse_integer() and the range take, from `least` to `most`, and `also`. Numbers with a
/// fraction before a unit ("1.5GB") are bounded by nothing but their digits.
std::string integer_pattern(std::int64_t least, std::int64_t most, const Spec& spec);
/// What parse_float() and the range take; numbers with an exponent are bounded by their sign only.
std::string float_pattern(const Range& range);
/// What check_url() takes.
std::string url_pattern();
/// A port of 1 to 65535 as set by text.
std::string port_pattern();
/// What check_form() takes; "" for anything.
std::string form_pattern(Form form);
/// `word` in any case: "[Nn][Oo]".
std::string any_case(std::string_view word);

}  // namespace tandem::args
