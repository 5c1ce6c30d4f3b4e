// JSON text out: append to a string, no temporary values.
#pragma once

#include "common/json/value.h"

#include <array>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <type_traits>
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

/// A member's name of short plain text that is known when the program is made: it is looked at, and
/// put together with what stands around it, then.
class Name {
 public:
  template <std::size_t kBytes>
  consteval Name(const char (&text)[kBytes]) {  // NOLINT: a literal stands for its name
    static_assert(kBytes <= kBytesMost, "longer names go through std::string_view");
    put(',');
    put('"');
    for (std::size_t i = 0; i + 1 < kBytes; ++i) {
      const auto byte = static_cast<unsigned char>(text[i]);
      // No constant then.
      if (byte < 0x20 || byte >= 0x7F || byte == '"' || byte == '\\') throw "not plain";
      put(text[i]);
    }
    put('"');
    put(':');
  }

  /// `,"name":`
  [[nodiscard]] std::string_view behind_value() const { return {piece_.data(), size_}; }

  /// `"name":`
  [[nodiscard]] std::string_view first() const { return {piece_.data() + 1, size_ - 1}; }

 private:
  static constexpr std::size_t kBytesMost = 44;

  consteval void put(char c) { piece_[size_++] = c; }

  std::array<char, kBytesMost + 3> piece_{};
  std::size_t size_ = 0;
};

/// A name that is known only when the program runs: no literal.
template <class T>
concept RunTimeText = std::convertible_to<T, std::string_view> && !std::is_array_v<T>;

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

  void key(const Name& name) {
    out_ += after_value_ ? name.behind_value() : name.first();
    after_value_ = false;
  }

  template <RunTimeText Text>
  void key(const Text& name) {
    run_time_key(name);
  }

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
  void run_time_key(std::string_view name);
  void open(char c);
  void close(char c);
  void separate();

  std::string& out_;
  bool after_value_ = false;
};

}  // namespace tandem::json
