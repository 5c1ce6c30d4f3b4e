// Normalizers of tokenizer.json: text to text, before it is cut into words.
#pragma once

#include "common/base/status.h"
#include "common/json/field.h"
#include "common/token/regex.h"
#include "common/token/unicode.h"

#include <memory>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

namespace tandem::token {

/// A chain of steps; empty does nothing. Const access is thread-safe.
class Normalizer {
 public:
  /// Reads the "normalizer" entry (null: nothing). Errors name the path of what is not supported.
  static Result<Normalizer> load(const json::Field& field);

  /// `text` must be valid UTF-8; so is the result.
  [[nodiscard]] std::string apply(std::string_view text) const;

  [[nodiscard]] bool empty() const { return steps_.empty(); }

 private:
  struct Lowercase {};

  struct StripAccents {};

  struct ByteLevel {};

  struct Prepend {
    std::string text;
  };

  struct Strip {
    bool left;
    bool right;
  };

  struct ReplaceText {
    std::string pattern;
    std::string content;
  };

  struct ReplaceRegex {
    std::shared_ptr<const Regex> pattern;
    std::string content;
  };

  using Step = std::variant<NormalForm,
                            Lowercase,
                            StripAccents,
                            ByteLevel,
                            Prepend,
                            Strip,
                            ReplaceText,
                            ReplaceRegex>;

  Status add(const json::Field& field, int depth);
  Status add_replace(const json::Field& field);
  static std::string run(const Step& step, std::string text);

  std::vector<Step> steps_;
};

/// `text` with every `pattern` (not empty) replaced.
std::string replace_all(std::string_view text, std::string_view pattern, std::string_view content);

}  // namespace tandem::token
