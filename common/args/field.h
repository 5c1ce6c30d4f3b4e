// What the parser needs to know about a C++ field, without its type: how to set it from words and
// write it as JSON.
#pragma once

#include "common/base/status.h"

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace tandem::args {

struct Spec;

/// Words of one occurrence of a flag ("--prefill URL PORT" has two).
using Words = std::vector<std::string>;

/// What an integer field can hold.
struct Bounds {
  std::int64_t least = 0;
  std::int64_t most = 0;
};

struct FieldOps {
  std::string_view
      type;  ///< as in the schema: int, float, bool-flag, string, enum, list<string>, ...
  /// Parses, checks choices and range, and stores. The message lacks the flag's name; the field is
  /// unchanged on error. `occurrences` is never empty, and each has a legal number of words.
  Status (*set)(void* field, std::span<const Words> occurrences, const Spec& spec);
  std::string (*usable)(
      const Spec& spec);   ///< the choices that work in this build, ", " between them
  std::string (*names)();  ///< every spelling of an enum's values, "," between them; else ""
  std::string (*json)(const void* field);  ///< the value as JSON text; null when unset
  Bounds bounds;                           ///< of integers; else both are 0
};

/// Defined in field.cc for every field type that options.h uses.
template <class T>
const FieldOps& field_ops();

/// `text` as a JSON string, quotes included. Invalid UTF-8 becomes U+FFFD.
std::string json_string(std::string_view text);
/// Strict: no overlong forms, no surrogates, at most U+10FFFF.
bool is_utf8(std::string_view text);
/// How many bytes of `text` are UTF-8 before the first that is not.
std::size_t utf8_prefix(std::string_view text);
/// For messages: control characters escaped, cut after 80 bytes.
std::string shown(std::string_view text);
/// A number without needless digits: 1, 0.9, 1e+30.
std::string number_text(double value);

}  // namespace tandem::args
