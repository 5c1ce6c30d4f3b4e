#include "common/json/field.h"

#include "common/json/write.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

namespace tandem::json {
namespace {

constexpr std::size_t kShownBytes = 60;

std::string shorten(std::string_view text) {
  if (text.size() <= kShownBytes) return std::string(text);
  std::size_t cut = kShownBytes;
  while (cut > 0 && (static_cast<unsigned char>(text[cut]) & 0xC0) == 0x80) {
    --cut;
  }
  return std::string(text.substr(0, cut)) + "...";
}

/// The integer that a value stands for, if it fits int64.
std::optional<std::int64_t> to_int(const Value& value) {
  if (const auto* i = value.if_int()) return *i;
  const auto* d = value.if_double();
  if (d == nullptr || std::trunc(*d) != *d || !(*d >= -0x1p63 && *d < 0x1p63)) return std::nullopt;
  return static_cast<std::int64_t>(*d);
}

std::string integer_range(std::int64_t min, std::int64_t max) {
  if (min == INT64_MIN && max == INT64_MAX) return "an integer";
  if (max == INT64_MAX) return fmt::format("an integer of at least {}", min);
  if (min == INT64_MIN) return fmt::format("an integer of at most {}", max);
  return fmt::format("an integer from {} to {}", min, max);
}

}  // namespace

std::string describe(const Value& value) {
  switch (value.kind()) {
    case Kind::kNull:
      return "null";
    case Kind::kBool:
      return *value.if_bool() ? "true" : "false";
    case Kind::kString: {
      std::string quoted;
      append_string(quoted, shorten(*value.if_string()));
      return "string " + quoted;
    }
    case Kind::kArray:
      return fmt::format("array of {}", value.if_array()->size());
    case Kind::kIntegers:
      return fmt::format("array of {}", value.if_integers()->size());
    case Kind::kObject:
      return fmt::format("object with {} keys", value.if_object()->size());
    default:
      return fmt::format("{} {}", kind_name(value.kind()), to_string(value));
  }
}

std::string Field::path() const {
  if (key_ == nullptr) return path_;
  return path_.empty() ? shorten(*key_) : path_ + "." + shorten(*key_);
}

Field Field::child(const Member& member) const {
  Field field(member.value, path());
  field.key_ = &member.key;
  return field;
}

Field Field::child(const Value& value, std::size_t index) const {
  return Field(value, path() + '[' + std::to_string(index) + ']');
}

Status Field::error(std::string_view what) const {
  const std::string place = path();
  return invalid_argument(place.empty() ? std::string(what) : fmt::format("{}: {}", place, what));
}

Status Field::mismatch(std::string_view expected) const {
  return error(fmt::format("expected {}, found {}", expected, describe(*value_)));
}

Result<Field> Field::at(std::string_view key) const {
  TANDEM_TRY(const Object* object, as_object());
  const Member* member = object->find_member(key);
  if (member != nullptr) return child(*member);
  const Member missing{std::string(key), Value()};
  return child(missing).error("missing");
}

std::optional<Field> Field::find(std::string_view key) const {
  const Object* object = value_->if_object();
  const Member* member = object == nullptr ? nullptr : object->find_member(key);
  if (member == nullptr || member->value.is_null()) return std::nullopt;
  return child(*member);
}

Result<std::vector<Field>> Field::items() const {
  TANDEM_TRY(const Array* array, as_array());
  std::vector<Field> fields;
  fields.reserve(array->size());
  for (std::size_t i = 0; i < array->size(); ++i) {
    fields.push_back(child((*array)[i], i));
  }
  return fields;
}

Result<std::vector<std::pair<std::string_view, Field>>> Field::members() const {
  TANDEM_TRY(const Object* object, as_object());
  std::vector<std::pair<std::string_view, Field>> fields;
  fields.reserve(object->size());
  for (const Member& member : *object) {
    fields.emplace_back(member.key, child(member));
  }
  return fields;
}

Result<bool> Field::as_bool() const {
  if (const auto* flag = value_->if_bool()) return *flag;
  return mismatch("true or false");
}

Result<std::int64_t> Field::as_int(std::int64_t min, std::int64_t max) const {
  const auto number = to_int(*value_);
  if (!number || *number < min || *number > max) return mismatch(integer_range(min, max));
  return *number;
}

Result<std::uint64_t> Field::as_uint() const {
  if (const auto* large = value_->if_uint()) return *large;
  const auto number = to_int(*value_);
  if (!number || *number < 0) return mismatch("an integer from 0 to 18446744073709551615");
  return static_cast<std::uint64_t>(*number);
}

Result<double> Field::as_double() const {
  if (!value_->is_number()) return mismatch("a number");
  return value_->number_or_zero();
}

Result<std::string_view> Field::as_string() const {
  if (const auto* text = value_->if_string()) return std::string_view(*text);
  return mismatch("a string");
}

Result<const Array*> Field::as_array() const {
  if (const auto* array = value_->if_array()) return array;
  return mismatch("an array");
}

Result<const Object*> Field::as_object() const {
  if (const auto* object = value_->if_object()) return object;
  return mismatch("an object");
}

template <class Int>
Result<std::vector<Int>> Field::read_ints(std::int64_t min, std::int64_t max) const {
  TANDEM_TRY(const Array* array, as_array());
  std::vector<Int> numbers;
  numbers.reserve(array->size());
  for (std::size_t i = 0; i < array->size(); ++i) {
    const auto number = to_int((*array)[i]);
    if (!number || *number < min || *number > max) {
      return child((*array)[i], i).mismatch(integer_range(min, max));
    }
    numbers.push_back(static_cast<Int>(*number));
  }
  return numbers;
}

Result<std::vector<std::int64_t>> Field::as_ints(std::int64_t min, std::int64_t max) const {
  return read_ints<std::int64_t>(min, max);
}

Result<std::vector<std::int32_t>> Field::as_small_ints(std::int32_t min, std::int32_t max) const {
  const Integers* integers = value_->if_integers();
  if (integers == nullptr) return read_ints<std::int32_t>(min, max);
  // Without a branch for each, so that many are compared at once; below `min` is far above it.
  const auto room = static_cast<std::uint32_t>(max) - static_cast<std::uint32_t>(min);
  std::uint32_t wrong_count = 0;
  for (const std::int32_t number : *integers) {
    const auto above = static_cast<std::uint32_t>(number) - static_cast<std::uint32_t>(min);
    wrong_count += static_cast<std::uint32_t>(above > room);
  }
  if (wrong_count == 0) return *integers;
  const auto wrong = std::ranges::find_if(
      *integers, [&](std::int32_t number) { return number < min || number > max; });
  const Value number(*wrong);
  return child(number, static_cast<std::size_t>(wrong - integers->begin()))
      .mismatch(integer_range(min, max));
}

Result<std::vector<std::string>> Field::as_strings() const {
  TANDEM_TRY(const Array* array, as_array());
  std::vector<std::string> texts;
  texts.reserve(array->size());
  for (std::size_t i = 0; i < array->size(); ++i) {
    const auto* text = (*array)[i].if_string();
    if (text == nullptr) return child((*array)[i], i).mismatch("a string");
    texts.push_back(*text);
  }
  return texts;
}

Result<std::optional<bool>> Field::optional_bool(std::string_view key) const {
  const auto field = find(key);
  if (!field) return std::optional<bool>();
  TANDEM_TRY(const bool flag, field->as_bool());
  return std::optional<bool>(flag);
}

Result<std::optional<std::int64_t>> Field::optional_int(std::string_view key,
                                                        std::int64_t min,
                                                        std::int64_t max) const {
  const auto field = find(key);
  if (!field) return std::optional<std::int64_t>();
  TANDEM_TRY(const std::int64_t number, field->as_int(min, max));
  return std::optional<std::int64_t>(number);
}

Result<std::optional<double>> Field::optional_double(std::string_view key) const {
  const auto field = find(key);
  if (!field) return std::optional<double>();
  TANDEM_TRY(const double number, field->as_double());
  return std::optional<double>(number);
}

Result<std::optional<std::string>> Field::optional_string(std::string_view key) const {
  const auto field = find(key);
  if (!field) return std::optional<std::string>();
  TANDEM_TRY(const std::string_view text, field->as_string());
  return std::optional<std::string>(std::string(text));
}

}  // namespace tandem::json
