#include "common/json/parse.h"
#include "common/json/value.h"
#include "common/json/write.h"
#include "tests/fuzz/feeds.h"

#include <nlohmann/json.hpp>

#include <cstddef>
#include <string>
#include <string_view>

namespace tandem::fuzz {
namespace {

using json::Value;

bool equal(const Value& value, const nlohmann::json& other);

bool equal_items(const json::Array& items, const nlohmann::json& other) {
  if (!other.is_array() || other.size() != items.size()) return false;
  for (std::size_t i = 0; i < items.size(); ++i) {
    if (!equal(items[i], other[i])) return false;
  }
  return true;
}

bool equal_members(const json::Object& object, const nlohmann::json& other) {
  if (!other.is_object() || other.size() != object.size()) return false;
  for (const auto& [key, member] : other.items()) {
    const Value* value = object.find(key);
    if (value == nullptr || !equal(*value, member)) return false;
  }
  return true;
}

bool equal(const Value& value, const nlohmann::json& other) {
  switch (value.kind()) {
    case json::Kind::kNull:
      return other.is_null();
    case json::Kind::kBool:
      return other.is_boolean() && other.get<bool>() == *value.if_bool();
    case json::Kind::kInt:
      return other.is_number_integer() && other.get<std::int64_t>() == *value.if_int() &&
             (*value.if_int() < 0 || other.get<std::uint64_t>() <= INT64_MAX);
    case json::Kind::kUint:
      return other.is_number_unsigned() && other.get<std::uint64_t>() == *value.if_uint();
    case json::Kind::kDouble:
      return other.is_number() && other.get<double>() == *value.if_double();
    case json::Kind::kString:
      return other.is_string() && other.get_ref<const std::string&>() == *value.if_string();
    case json::Kind::kArray:
      return equal_items(*value.if_array(), other);
    case json::Kind::kObject:
      return equal_members(*value.if_object(), other);
    case json::Kind::kIntegers:
      return false;  // nobody asked for it
  }
  return false;
}

}  // namespace

void feed_json(Bytes bytes) {
  const std::string text = text_of(bytes);
  json::ParseOptions options{.max_depth = json::kDepthCeiling};
  const auto found = json::parse(text, options);
  if (!found.ok() && found.status().code() == Code::kResourceExhausted) return;
  const nlohmann::json other = nlohmann::json::parse(text, nullptr, false);
  // That one skips a byte order mark, which RFC 8259 lets a parser refuse, and ends at a NUL.
  const bool refused = text.starts_with("\xEF\xBB\xBF") || text.find('\0') != std::string::npos;
  must(found.ok() == (!other.is_discarded() && !refused), "what is JSON is read, and nothing else");

  options.reject_duplicate_keys = true;
  const bool once = json::parse(text, options).ok();
  must(found.ok() || !once, "options make nothing JSON that is not");
  options.reject_duplicate_keys = false;
  constexpr std::string_view kLists[] = {"a", "input_ids"};
  options.integer_lists = kLists;
  const auto with_lists = json::parse(text, options);
  must(with_lists.ok() == found.ok(), "lists of integers are JSON as others are");
  if (!found.ok()) {
    must(with_lists.status().message() == found.status().message(), "and are refused alike");
    return;
  }
  must(equal(*found, other), "values are those that others read");
  must(*with_lists == *found, "lists of integers are the same lists");
  for (const std::string& written :
       {json::to_string(*found), json::to_string(*with_lists), json::to_pretty_string(*found)}) {
    const auto again = json::parse(written, options);
    must(again.ok() && *again == *found, "what is written reads as what it was");
  }
}

}  // namespace tandem::fuzz
