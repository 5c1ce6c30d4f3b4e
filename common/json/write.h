// JSON text out: append to a string, no temporary values.
#pragma once

#include "common/json/value.h"

#include <concepts>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace tandem::json {

/// Appends a JSON string literal with its quotes. Escapes what RFC 8259 demands and nothing else;
/// each maximal broken part of invalid UTF-8 becomes U+FFFD, so the output is always valid.
void append_string(std::string& out, std::string_view text);

/// Shortest text that reads back as the same number. Integral doubles keep ".0" so that they stay
/// doubles; NaN and infinities become null, as JSON has no word for them.
void append_number(std::string& out, double number);
/// The same, shortest for float: 0.1F gives 0.1.
void append_number(std::string& out, float number);
void append_integer(std::string& out, std::int64_t number);
void append_integer(std::string& out, std::uint64_t number);

template <std::integral T>
void append_number(std::string& out, T number) {
  if constexpr (std::unsigned_integral<T>) {
    append_integer(out, static_cast<std::uint64_t>(number));
  } else {
    append_integer(out, static_cast<std::int64_t>(number));
  }
}

/// Appends a whole value, compact ("{"a":1}").
void append_value(std::string& out, const Value& value);

std::string to_string(const Value& value);
/// With line breaks and `indent` spaces per level.
std::string to_pretty_string(const Value& value, int indent = 2);

/// Writes nested JSON piece by piece and places the commas:
///   Writer w(out); w.begin_object(); w.key("id"); w.string("x"); w.end_object();
/// The caller keeps begin and end balanced. `out` is borrowed.
class Writer {
 public:
  explicit Writer(std::string& out) : out_(out) {}

  void begin_object() { open('{'); }

  void end_object() { close('}'); }

  void begin_array() { open('['); }

  void end_array() { close(']'); }

  void key(std::string_view name);
  void string(std::string_view text);
  void boolean(bool flag);
  void null();
  void value(const Value& value);
  /// Text that is JSON already.
  void raw(std::string_view json);

  template <class T>
  requires std::integral<T> || std::floating_point<T>

  void number(T n) {
    if constexpr (std::floating_point<T>) {
      separate();
      append_number(out_, n);
    } else if constexpr (std::unsigned_integral<T>) {
      integer(static_cast<std::uint64_t>(n));
    } else {
      integer(static_cast<std::int64_t>(n));
    }
  }

 private:
  template <class Int>
  void integer(Int n);
  void open(char c);
  void close(char c);
  void separate();

  std::string& out_;
  bool after_value_ = false;
};

}  // namespace tandem::json
