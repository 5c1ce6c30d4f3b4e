// RequestBody: the JSON object of a request, and the account of which members were understood.
#pragma once

#include "common/api/api_server.h"
#include "common/base/status.h"
#include "common/json/field.h"
#include "common/json/value.h"

#include <boost/container/small_vector.hpp>

#include <algorithm>
#include <bitset>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace tandem::api {

/// Why a field that constrains the output is refused.
inline constexpr std::string_view kNoGrammar =
    "not supported by this server: --grammar-backend is none";

/// Borrows the object. Null counts as absent everywhere.
class RequestBody {
 public:
  explicit RequestBody(json::Field root);

  /// The member, unless absent or null. Its name counts as understood from now on.
  std::optional<json::Field> take(std::string_view name) {
    if (!names_.test(name_bit(name))) return std::nullopt;
    return find(name);
  }

  Result<std::optional<bool>> take_bool(std::string_view name);
  Result<std::optional<std::int64_t>> take_int(std::string_view name,
                                               std::int64_t low,
                                               std::int64_t high);
  Result<std::optional<double>> take_double(std::string_view name);
  Result<std::optional<std::string>> take_string(std::string_view name);

  class Names;

  /// Fields that would change the output and are not built: an error naming one that is set to
  /// something, and `why`. Null, false, 0, "", [] and {} do not count as set.
  Status refuse(const Names& names, std::string_view why = "not supported by this server");

  /// Members that nobody took.
  [[nodiscard]] std::vector<std::string> ignored() const;

  [[nodiscard]] const json::Field& root() const { return root_; }

 private:
  using NameBits = std::bitset<256>;

  static std::size_t name_bit(std::string_view name) {
    if (name.empty()) return 0;
    const auto first = static_cast<unsigned char>(name.front());
    const auto last = static_cast<unsigned char>(name.back());
    return (name.size() * 5 + std::size_t{first} * 3 + last) % NameBits().size();
  }

  std::optional<json::Field> find(std::string_view name);

  json::Field root_;
  /// Name bits of all members: most names that are asked for are not there.
  NameBits names_;
  /// Members that are set and were asked for: a request has few, the API knows many.
  boost::container::small_vector<const json::Value*, 16> taken_;
};

/// Names of members that are looked for together. Made once: a request has fewer than there are.
class RequestBody::Names {
 public:
  Names(std::initializer_list<std::string_view> names);

 private:
  friend class RequestBody;

  [[nodiscard]] bool contain(std::string_view name) const {
    return bits_.test(name_bit(name)) && std::ranges::find(names_, name) != names_.end();
  }

  std::vector<std::string_view> names_;
  NameBits bits_;
};

/// Parses a request's body into an object within the limits. Errors: 400-like statuses. `id_lists`:
/// members whose lists of plain integers may be held as json::Integers.
Result<json::Value> parse_body(const std::string& text,
                               const ApiLimits& limits,
                               std::span<const std::string_view> id_lists = {});

/// "a, b" with characters that may stand in a header; bounded.
std::string header_list(const std::vector<std::string>& names);

/// [A-Za-z0-9._:-]{1,128}
bool is_request_name(std::string_view text);

}  // namespace tandem::api
