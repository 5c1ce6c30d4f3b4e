// A JSON object given as text.
#include "common/args/field.h"
#include "common/args/text.h"

#include <nlohmann/json.hpp>

#include <functional>
#include <set>
#include <string>
#include <utility>
#include <vector>

namespace tandem::args {
namespace {

constexpr int kJsonDepthMax = 64;

/// Before a recursive reader sees it.
Status check_json_depth(std::string_view text) {
  int depth = 0;
  bool quoted = false;
  for (std::size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    if (quoted) {
      if (c == '\\') ++i;
      if (c == '"') quoted = false;
      continue;
    }
    if (c == '"') quoted = true;
    if (c == '}' || c == ']') --depth;
    if ((c == '{' || c == '[') && ++depth > kJsonDepthMax) {
      return invalid_argument("not valid JSON: nested deeper than " +
                              std::to_string(kJsonDepthMax) + " at offset " + std::to_string(i));
    }
  }
  return {};
}

/// Tells a key that stands twice in one object: the reader would keep the last one silently.
class TwinKeys {
 public:
  bool operator()(int /*depth*/, nlohmann::json::parse_event_t event, nlohmann::json& parsed) {
    using Event = nlohmann::json::parse_event_t;
    if (event == Event::object_start) open_.emplace_back();
    if (event == Event::object_end && !open_.empty()) open_.pop_back();
    if (event == Event::key && twin_.empty() && !open_.empty()) {
      const auto& key = parsed.get_ref<const std::string&>();
      if (!open_.back().insert(key).second) twin_ = key.empty() ? "''" : key;
    }
    return true;
  }

  [[nodiscard]] const std::string& twin() const { return twin_; }

 private:
  std::vector<std::set<std::string>> open_;
  std::string twin_;
};

}  // namespace

Result<std::string> read_json_object(const std::string& word) {
  TANDEM_TRY(check_json_depth(word));
  try {
    TwinKeys keys;
    const nlohmann::json value = nlohmann::json::parse(word, std::ref(keys));
    if (!keys.twin().empty())
      return invalid_argument("not valid JSON: the key " + shown(keys.twin()) + " is given twice");
    if (!value.is_object()) {
      return invalid_argument("not a JSON object: found " + std::string(value.type_name()) +
                              " at offset 0");
    }
    return value.dump();
  } catch (const nlohmann::json::parse_error& error) {
    return invalid_argument("not valid JSON: syntax error at offset " + std::to_string(error.byte));
  } catch (const std::exception&) {
    return invalid_argument("not valid JSON: a number or string is malformed at offset 0");
  }
}

}  // namespace tandem::args
