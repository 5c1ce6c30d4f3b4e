// Pre-tokenizers of tokenizer.json: cut text into words, and rewrite it (byte-level, metaspace).
#pragma once

#include "common/base/status.h"
#include "common/json/field.h"
#include "common/token/regex.h"
#include "common/token/skip.h"
#include "common/token/word_scanner.h"

#include <array>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

namespace tandem::token {

/// What becomes of the delimiters of a split.
enum class SplitBehavior {
  kRemoved,
  kIsolated,
  kMergedWithPrevious,
  kMergedWithNext,
  kContiguous,
};

/// Words over one text: the spans leave nothing out that belongs to a word.
struct Words {
  std::string text;
  std::vector<Span> spans;
};

/// For a thread's own list, which keeps its memory from one text to the next: unless that is a lot.
inline void forget_large(std::vector<Span>& words) {
  constexpr std::size_t kKept = 4096;
  if (words.capacity() > kKept) std::vector<Span>().swap(words);
}

/// A chain of steps; empty gives the text as one word. Const access is thread-safe.
class PreTokenizer {
 public:
  /// Reads the "pre_tokenizer" entry (null: nothing). Errors name the path of what is not
  /// supported.
  static Result<PreTokenizer> load(const json::Field& field);

  /// `text` must be valid UTF-8; `at_start`: it is the beginning of the whole input.
  [[nodiscard]] Words apply(std::string text, bool at_start) const;

  /// Whether words are parts of the text as it is, spelt in the byte-level alphabet only at the
  /// very end: then raw_words gives them without the spelling.
  [[nodiscard]] bool ends_in_bytes() const;
  /// Whether raw_words finds the same on either side of a cut (TextMemory::may_cut) where a word
  /// begins, whatever is on the other side.
  [[nodiscard]] bool may_be_cut() const;
  /// Makes `words` those of `text`, as ranges of it. Only where ends_in_bytes.
  void raw_words(std::string_view text, std::vector<Span>& words) const;

 private:
  enum class CharClass {
    kNumeric,
    kPunctuation,
    kSpace,
  };

  enum class Prepend {
    kAlways,
    kFirst,
    kNever,
  };

  /// A pattern with the scanner that may stand in for it.
  struct Matcher {
    Regex regex;
    std::optional<WordScanner> scanner;

    [[nodiscard]] std::vector<Span> find_all(std::string_view text) const;
  };

  struct Pattern {
    /// Exactly one of the three is set.
    std::shared_ptr<const Matcher> regex;
    std::string text;
    std::optional<CharClass> char_class;
  };

  struct Split {
    Pattern pattern;
    SplitBehavior behavior;
    bool invert;
  };

  struct ByteLevel {
    bool add_prefix_space;
    /// Null: words stay as they are.
    std::shared_ptr<const Matcher> regex;
  };

  struct Metaspace {
    std::string replacement;
    Prepend prepend;
    bool split;
  };

  using Step = std::variant<Split, ByteLevel, Metaspace>;

  static Result<std::shared_ptr<const Matcher>> compile(std::string_view pattern,
                                                        const json::Field& field);
  Status add(const json::Field& field, int depth);
  Status add_simple(std::string_view type, const json::Field& field);
  Status add_split(const json::Field& field);
  Status add_byte_level(const json::Field& field);
  Status add_metaspace(const json::Field& field);

  static void run(const Split& split, Words& words, bool at_start);
  static void run(const ByteLevel& step, Words& words, bool at_start);
  static void run(const Metaspace& step, Words& words, bool at_start);
  static bool is_in(CharClass want, char32_t c);
  static const ByteTable& ascii_outside(CharClass want);
  template <class Fn>
  static void for_each_in(CharClass want, std::string_view text, Fn fn);
  static std::vector<Span> find(const Pattern& pattern, std::string_view text);
  static void split_word(const Split& split,
                         Span word,
                         std::string_view text,
                         std::vector<Span>& out);

  std::vector<Step> steps_;
};

}  // namespace tandem::token
