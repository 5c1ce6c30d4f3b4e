// Added tokens: found in the text before anything else is done with it.
#pragma once

#include "common/token/regex.h"
#include "common/token/skip.h"

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace tandem::token {

struct AddedToken {
  std::int32_t id = 0;
  std::string content;
  /// Left out of decoded text when special tokens are skipped.
  bool special = false;
  /// Swallow white space on that side.
  bool lstrip = false;
  bool rstrip = false;
  /// Only where no word character touches it.
  bool single_word = false;
  /// Looked for in the normalized text instead of the raw one.
  bool normalized = false;
};

/// A piece of the text: an added token, or text in between (id < 0).
struct Segment {
  Span span;
  std::int32_t id;
};

/// Finds tokens, the leftmost first and the longest among those. Const access is thread-safe.
class AddedTokenMatcher {
 public:
  /// `content` is what to look for (the normalized content for normalized tokens); empty is
  /// ignored.
  void add(const AddedToken& token, std::string_view content);

  /// Cuts `text` (valid UTF-8) into segments that cover it except swallowed white space.
  [[nodiscard]] std::vector<Segment> split(std::string_view text) const;

  [[nodiscard]] bool empty() const { return nodes_.size() == 1; }

 private:
  struct Node {
    std::vector<std::pair<unsigned char, std::uint32_t>> children;
    std::int32_t token = -1;  ///< index into tokens_
  };

  static ByteTable no_start();
  /// From `pos` on where a token may begin; text.size() when nowhere.
  [[nodiscard]] std::size_t next_start(std::string_view text, std::size_t pos) const;
  [[nodiscard]] std::uint32_t child(std::uint32_t node, unsigned char byte) const;
  /// The longest token that starts at `pos`: its index and end; -1 when there is none.
  [[nodiscard]] std::pair<std::int32_t, std::size_t> longest(std::string_view text,
                                                             std::size_t pos) const;

  std::vector<Node> nodes_ = std::vector<Node>(1);
  std::vector<AddedToken> tokens_;
  ByteTable passes_ = no_start();  ///< bytes with which no token begins
  std::string starts_;             ///< the others, each once
};

}  // namespace tandem::token
