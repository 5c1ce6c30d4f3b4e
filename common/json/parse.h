// Strict JSON (RFC 8259) with limits.
#pragma once

#include "common/base/status.h"
#include "common/json/value.h"

#include <cstddef>
#include <filesystem>
#include <span>
#include <string>
#include <string_view>

namespace tandem::json {

struct ParseOptions {
  std::size_t max_bytes = std::size_t{64} << 20;
  /// Arrays and objects inside one another; at most kDepthCeiling. `1` allows "[]" but not "[[]]".
  std::size_t max_depth = 128;
  /// Values of any kind; bounds memory to a small multiple of the text.
  std::size_t max_values = std::size_t{16} << 20;
  /// Otherwise the last one wins, at the place of the first.
  bool reject_duplicate_keys = false;
  /// Members of the root object in which an array of nothing but plain integers (0 to 999,999,999,
  /// at least one) becomes Kind::kIntegers: lists of token ids are long. Borrowed.
  std::span<const std::string_view> integer_lists = {};
};

/// Values are copied and destroyed recursively, so depth has a ceiling whatever the options say.
inline constexpr std::size_t kDepthCeiling = 1000;

/// Parses one JSON text; leading and trailing white space is allowed, anything else after it is
/// not.
///
/// Integers that fit 64 bits keep their exact value; larger ones become doubles. Numbers beyond the
/// range of double, lone surrogates, control characters in strings, invalid UTF-8 and a byte order
/// mark are refused.
/// Errors: invalid_argument "line 1, column 5 (byte 4): expected ..., found ...";
/// resource_exhausted beyond a limit. Depth costs no stack. Threads: pure.
Result<Value> parse(std::string_view text, const ParseOptions& options = {});

/// Reads and parses a file. Errors name the file; a file larger than max_bytes is not read.
Result<Value> parse_file(const std::filesystem::path& path, const ParseOptions& options = {});

/// Reads a whole regular file of at most max_bytes. Errors name the file.
Result<std::string> read_text_file(const std::filesystem::path& path, std::size_t max_bytes);

}  // namespace tandem::json
