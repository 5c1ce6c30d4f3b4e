#include "common/api/body.h"

#include "common/json/parse.h"

#include <algorithm>

namespace tandem::api {

namespace {

constexpr std::size_t kHeaderListBytesMax = 512;
constexpr std::size_t kNameBytesMax = 64;

bool is_set(const json::Value& value) {
  switch (value.kind()) {
    case json::Kind::kNull:
      return false;
    case json::Kind::kBool:
      return *value.if_bool();
    case json::Kind::kString:
      return !value.if_string()->empty();
    case json::Kind::kArray:
      return !value.if_array()->empty();
    case json::Kind::kIntegers:
      return !value.if_integers()->empty();
    case json::Kind::kObject:
      return !value.if_object()->empty();
    default:
      return value.number_or_zero() != 0;
  }
}

/// More than any request has names for.
constexpr std::size_t kMembersWalked = 128;

bool is_name_char(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '.' ||
         c == '_' || c == ':' || c == '-';
}

}  // namespace

RequestBody::RequestBody(json::Field root) : root_(std::move(root)) {
  const json::Object* object = root_.value().if_object();
  if (object == nullptr) return;
  // One object may be read for every prompt of a request: a giant one is not walked for each.
  if (object->size() > kMembersWalked) {
    names_.set();
    return;
  }
  for (const json::Member& member : *object)
    names_.set(name_bit(member.key));
}

std::optional<json::Field> RequestBody::find(std::string_view name) {
  std::optional<json::Field> field = root_.find(name);
  if (field) taken_.push_back(&field->value());
  return field;
}

Result<std::optional<bool>> RequestBody::take_bool(std::string_view name) {
  const auto field = take(name);
  if (!field) return std::optional<bool>();
  TANDEM_TRY(const bool value, field->as_bool());
  return std::optional<bool>(value);
}

Result<std::optional<std::int64_t>> RequestBody::take_int(std::string_view name,
                                                          std::int64_t low,
                                                          std::int64_t high) {
  const auto field = take(name);
  if (!field) return std::optional<std::int64_t>();
  TANDEM_TRY(const std::int64_t value, field->as_int(low, high));
  return std::optional<std::int64_t>(value);
}

Result<std::optional<double>> RequestBody::take_double(std::string_view name) {
  const auto field = take(name);
  if (!field) return std::optional<double>();
  TANDEM_TRY(const double value, field->as_double());
  return std::optional<double>(value);
}

Result<std::optional<std::string>> RequestBody::take_string(std::string_view name) {
  const auto field = take(name);
  if (!field) return std::optional<std::string>();
  TANDEM_TRY(const std::string_view value, field->as_string());
  return std::optional<std::string>(std::string(value));
}

RequestBody::Names::Names(std::initializer_list<std::string_view> names) : names_(names) {
  for (const std::string_view name : names)
    bits_.set(name_bit(name));
}

Status RequestBody::refuse(const Names& names, std::string_view why) {
  const auto refuse_one = [&](std::string_view name) -> Status {
    const auto field = take(name);
    return field && is_set(field->value()) ? field->error(why) : Status();
  };
  const json::Object* object = root_.value().if_object();
  if (object == nullptr) return {};
  if (object->size() > kMembersWalked) {
    for (const std::string_view name : names.names_)
      TANDEM_TRY(refuse_one(name));
    return {};
  }
  for (const json::Member& member : *object) {
    if (names.contain(member.key)) TANDEM_TRY(refuse_one(member.key));
  }
  return {};
}

std::vector<std::string> RequestBody::ignored() const {
  std::vector<std::string> names;
  const json::Object* object = root_.value().if_object();
  if (object == nullptr) return names;
  for (const json::Member& member : *object) {
    const bool taken = std::find(taken_.begin(), taken_.end(), &member.value) != taken_.end();
    if (!taken && !member.value.is_null()) names.push_back(member.key);
  }
  return names;
}

Result<json::Value> parse_body(const std::string& text,
                               const ApiLimits& limits,
                               std::span<const std::string_view> id_lists) {
  if (text.empty()) return invalid_argument("the request has no body, expected a JSON object");
  auto parsed = json::parse(text,
                            {.max_bytes = text.size(),
                             .max_depth = limits.json_depth,
                             .max_values = limits.json_values,
                             .reject_duplicate_keys = false,
                             .integer_lists = id_lists});
  if (!parsed.ok()) {
    // A limit of the parser is the client's doing, not a shortage that passes.
    return invalid_argument("the request body is not acceptable JSON, " +
                            parsed.status().message());
  }
  if (!parsed->is_object()) {
    return invalid_argument("the request body is " + json::describe(*parsed) +
                            ", expected a JSON object");
  }
  return std::move(parsed).value();
}

std::string header_list(const std::vector<std::string>& names) {
  std::string out;
  for (const std::string& name : names) {
    if (out.size() > kHeaderListBytesMax) return out + ", ...";
    if (!out.empty()) out.append(", ");
    for (const char c : std::string_view(name).substr(0, kNameBytesMax))
      out.push_back(is_name_char(c) ? c : '?');
  }
  return out;
}

bool is_request_name(std::string_view text) {
  return !text.empty() && text.size() <= 128 && std::all_of(text.begin(), text.end(), is_name_char);
}

}  // namespace tandem::api
