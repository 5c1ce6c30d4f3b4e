// Regular expressions of tokenizer files: Oniguruma's flavour, run by PCRE2 with JIT.
#pragma once

#include "common/base/status.h"

#include <cstddef>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace tandem::token {

/// A half-open range of bytes.
struct Span {
  std::size_t begin;
  std::size_t end;
};

/// Immutable after compile; find_all may run on many threads at once.
class Regex {
 public:
  /// Translates from Oniguruma (\s, \w, \d, \uHHHH mean what they mean there) and compiles. Set
  /// operations in classes, \h and possessive counts are refused: PCRE2 reads them differently.
  static Result<Regex> compile(std::string_view pattern);

  Regex(Regex&&) noexcept;
  Regex& operator=(Regex&&) noexcept;
  ~Regex();

  /// Non-empty matches from left to right, not overlapping. `text` must be valid UTF-8. A match
  /// that runs into PCRE2's limits counts as no match from there on.
  [[nodiscard]] std::vector<Span> find_all(std::string_view text) const;

 private:
  struct Code;
  explicit Regex(std::unique_ptr<Code> code);

  std::unique_ptr<Code> code_;
};

}  // namespace tandem::token
