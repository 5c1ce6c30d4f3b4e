// json::Field: a borrowed value that knows its path, so that every complaint names the place.
#pragma once

#include "common/base/status.h"
#include "common/json/value.h"

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace tandem::json {

/// What was found, for messages: `string "x"`, `integer 7`, `array of 3`, `null`. Cut to a line.
std::string describe(const Value& value);

/// Borrows a Value (which must outlive it) together with its path ("sampling_params.temperature",
/// "messages[2].role"; empty at the root).
/// Errors: invalid_argument "PATH: expected WHAT, found WHAT".
class Field {
 public:
  /// `path` is what comes before: often empty, or the name of a file.
  explicit Field(const Value& value, std::string path = {})
      : value_(&value), path_(std::move(path)) {}

  [[nodiscard]] const Value& value() const { return *value_; }

  [[nodiscard]] std::string path() const;

  [[nodiscard]] bool is_null() const { return value_->is_null(); }

  /// Member that must be there ("PATH.key: missing"). Also an error when this is no object.
  [[nodiscard]] Result<Field> at(std::string_view key) const;
  /// Member that may be missing or null (both give nullopt). Nullopt when this is no object.
  [[nodiscard]] std::optional<Field> find(std::string_view key) const;
  /// Elements of an array, members of an object, each with its path.
  [[nodiscard]] Result<std::vector<Field>> items() const;
  [[nodiscard]] Result<std::vector<std::pair<std::string_view, Field>>> members() const;

  [[nodiscard]] Result<bool> as_bool() const;
  /// Integers only; 1.0 counts as one, 1.5 does not. Both ends are included.
  [[nodiscard]] Result<std::int64_t> as_int(std::int64_t min = INT64_MIN,
                                            std::int64_t max = INT64_MAX) const;
  [[nodiscard]] Result<std::uint64_t> as_uint() const;
  [[nodiscard]] Result<double> as_double() const;
  [[nodiscard]] Result<std::string_view> as_string() const;
  /// Not of lists that the parser was asked to hold as Integers (ParseOptions::integer_lists).
  [[nodiscard]] Result<const Array*> as_array() const;
  [[nodiscard]] Result<const Object*> as_object() const;
  /// An array of integers within the range, as one vector (no path is built unless one is wrong).
  [[nodiscard]] Result<std::vector<std::int64_t>> as_ints(std::int64_t min = INT64_MIN,
                                                          std::int64_t max = INT64_MAX) const;
  /// The same for ranges of 32 bits; also of an array that is held as Integers.
  [[nodiscard]] Result<std::vector<std::int32_t>> as_small_ints(std::int32_t min,
                                                                std::int32_t max) const;
  [[nodiscard]] Result<std::vector<std::string>> as_strings() const;

  /// Members that may be missing or null.
  [[nodiscard]] Result<std::optional<bool>> optional_bool(std::string_view key) const;
  [[nodiscard]] Result<std::optional<std::int64_t>> optional_int(
      std::string_view key, std::int64_t min = INT64_MIN, std::int64_t max = INT64_MAX) const;
  [[nodiscard]] Result<std::optional<double>> optional_double(std::string_view key) const;
  [[nodiscard]] Result<std::optional<std::string>> optional_string(std::string_view key) const;

  /// "PATH: expected WHAT, found ..." for checks that the caller makes.
  [[nodiscard, gnu::cold]] Status mismatch(std::string_view expected) const;
  /// "PATH: WHAT".
  [[nodiscard, gnu::cold]] Status error(std::string_view what) const;

 private:
  template <class Int>
  [[nodiscard]] Result<std::vector<Int>> read_ints(std::int64_t min, std::int64_t max) const;
  [[nodiscard]] Field child(const Member& member) const;
  [[nodiscard]] Field child(const Value& value, std::size_t index) const;

  const Value* value_;
  /// The path is this and, of a member, its key. The last step is taken only for who asks: hardly
  /// anybody does.
  std::string path_;
  const std::string* key_ = nullptr;
};

}  // namespace tandem::json
