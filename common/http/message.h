// HTTP messages as values, and the small text helpers that go with them.
#pragma once

#include <cstddef>
#include <initializer_list>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace tandem::http {

/// Header fields in order. Names are kept in lower case and compared without case.
class Headers {
 public:
  using Item = std::pair<std::string, std::string>;

  Headers() = default;
  Headers(std::initializer_list<Item> items);

  /// Makes room for so many fields.
  void reserve(std::size_t count) { items_.reserve(count); }

  /// Adds a field; the name is lower-cased.
  void add(std::string_view name, std::string value);
  /// Adds, or replaces the first one of that name.
  void set(std::string_view name, std::string value);
  /// Value of the first field of that name.
  [[nodiscard]] std::optional<std::string_view> find(std::string_view name) const;
  [[nodiscard]] std::size_t count(std::string_view name) const;

  [[nodiscard]] const std::vector<Item>& items() const { return items_; }

 private:
  std::vector<Item> items_;
};

struct Request {
  std::string method;
  /// As sent, origin form.
  std::string target;
  /// Percent-decoded, without the query. Never contains NUL or control characters.
  std::string path;
  /// Raw text after '?', without it.
  std::string query;
  int version_minor = 1;
  Headers headers;
  std::string body;
  /// "127.0.0.1:4711", for logs.
  std::string remote_address;
};

struct Response {
  int status = 200;
  Headers headers;
  std::string body;
};

/// "Not Found"; "Unknown" for a status without a name here.
std::string_view reason_phrase(int status);

std::string to_lower(std::string_view text);
bool equals_ignoring_case(std::string_view a, std::string_view b);

/// Nothing when an escape is broken or the result would hold a control character.
std::optional<std::string> percent_decode(std::string_view text);

/// The decoded value of `key` in a query string; nothing when absent or broken.
std::optional<std::string> query_value(std::string_view query, std::string_view key);

/// OpenAI's error shape with the members doubled at the top level (see docs/protocols/http.md).
/// `message` and `type` may be any text.
std::string error_json(int status, std::string_view message);

/// JSON string literal with its quotes; bytes outside ASCII become '?'. For messages of this room.
std::string ascii_json_string(std::string_view text);

}  // namespace tandem::http
