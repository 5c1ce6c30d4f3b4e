#include "common/token/pre_tokenizer.h"

#include "common/json/utf8.h"
#include "common/token/byte_level.h"
#include "common/token/normalizer.h"
#include "common/token/unicode.h"

#include <algorithm>

namespace tandem::token {
namespace {

constexpr int kDepthMax = 16;
/// Room for words of a short text, which may be all digits.
constexpr std::size_t kWordsFirst = 40;
/// The pattern of OpenAI's encoder.py.
constexpr std::string_view kGpt2Pattern =
    R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)";
/// Rust's \w holds Alphabetic and the joiners besides marks, digits and connectors.
constexpr std::string_view kWhitespacePattern =
    R"([\p{L}\p{Alphabetic}\p{M}\p{Nd}\p{Pc}\x{200C}\x{200D}]+)"
    R"(|[^\p{L}\p{Alphabetic}\p{M}\p{Nd}\p{Pc}\x{200C}\x{200D}\s]+)";

Result<SplitBehavior> read_behavior(const json::Field& field) {
  TANDEM_TRY(const std::string_view name, field.as_string());
  if (name == "Removed") return SplitBehavior::kRemoved;
  if (name == "Isolated") return SplitBehavior::kIsolated;
  if (name == "MergedWithPrevious") return SplitBehavior::kMergedWithPrevious;
  if (name == "MergedWithNext") return SplitBehavior::kMergedWithNext;
  if (name == "Contiguous") return SplitBehavior::kContiguous;
  return field.mismatch("one of Removed, Isolated, MergedWithPrevious, MergedWithNext, Contiguous");
}

struct Piece {
  Span span;
  bool is_match;
};

/// The text as matches and what lies between them.
std::vector<Piece> cover(const std::vector<Span>& matches, std::size_t size, bool invert) {
  std::vector<Piece> pieces;
  pieces.reserve(matches.size() * 2 + 1);
  std::size_t pos = 0;
  for (const Span& match : matches) {
    if (match.begin > pos) pieces.push_back({{pos, match.begin}, invert});
    pieces.push_back({match, !invert});
    pos = match.end;
  }
  if (pos < size) pieces.push_back({{pos, size}, invert});
  return pieces;
}

void merge_with_previous(std::vector<Piece>& pieces) {
  std::vector<Piece> out;
  bool previous_match = false;
  for (const Piece& piece : pieces) {
    if (piece.is_match && !previous_match && !out.empty()) {
      out.back().span.end = piece.span.end;
    } else {
      out.push_back(piece);
    }
    previous_match = piece.is_match;
  }
  pieces = std::move(out);
}

void merge_with_next(std::vector<Piece>& pieces) {
  std::vector<Piece> out;
  bool previous_match = false;
  for (auto piece = pieces.rbegin(); piece != pieces.rend(); ++piece) {
    if (piece->is_match && !previous_match && !out.empty()) {
      out.back().span.begin = piece->span.begin;
    } else {
      out.push_back(*piece);
    }
    previous_match = piece->is_match;
  }
  std::reverse(out.begin(), out.end());
  pieces = std::move(out);
}

void merge_equal(std::vector<Piece>& pieces) {
  std::vector<Piece> out;
  for (const Piece& piece : pieces) {
    if (!out.empty() && out.back().is_match == piece.is_match) {
      out.back().span.end = piece.span.end;
    } else {
      out.push_back(piece);
    }
  }
  pieces = std::move(out);
}

}  // namespace

Result<std::shared_ptr<const PreTokenizer::Matcher>> PreTokenizer::compile(
    std::string_view pattern, const json::Field& field) {
  auto regex = Regex::compile(pattern);
  if (!regex.ok()) return regex.status().with_context(field.path());
  return std::make_shared<const Matcher>(
      Matcher{std::move(*regex), WordScanner::for_pattern(pattern)});
}

std::vector<Span> PreTokenizer::Matcher::find_all(std::string_view text) const {
  std::vector<Span> words;
  if (scanner && scanner->find_all(text, words)) return words;
  return regex.find_all(text);
}

Result<PreTokenizer> PreTokenizer::load(const json::Field& field) {
  PreTokenizer pre;
  if (!field.is_null()) TANDEM_TRY(pre.add(field, 0));
  return pre;
}

Status PreTokenizer::add(const json::Field& field, int depth) {
  if (depth > kDepthMax) return field.error("sequences are nested too deeply");
  TANDEM_TRY(const json::Field type_field, field.at("type"));
  TANDEM_TRY(const std::string_view type, type_field.as_string());
  if (type == "Sequence") {
    TANDEM_TRY(const json::Field list, field.at("pretokenizers"));
    TANDEM_TRY(const auto items, list.items());
    for (const json::Field& item : items) {
      TANDEM_TRY(add(item, depth + 1));
    }
    return {};
  }
  if (type == "Split") return add_split(field);
  if (type == "ByteLevel") return add_byte_level(field);
  if (type == "Metaspace") return add_metaspace(field);
  return add_simple(type, field);
}

Status PreTokenizer::add_simple(std::string_view type, const json::Field& field) {
  if (type == "Digits") {
    TANDEM_TRY(const auto individual, field.optional_bool("individual_digits"));
    const bool each = individual.value_or(false);
    steps_.emplace_back(Split{{nullptr, "", CharClass::kNumeric},
                              each ? SplitBehavior::kIsolated : SplitBehavior::kContiguous,
                              false});
  } else if (type == "Punctuation") {
    SplitBehavior behavior = SplitBehavior::kIsolated;
    if (const auto named = field.find("behavior")) {
      TANDEM_TRY(behavior, read_behavior(*named));
    }
    steps_.emplace_back(Split{{nullptr, "", CharClass::kPunctuation}, behavior, false});
  } else if (type == "WhitespaceSplit") {
    steps_.emplace_back(Split{{nullptr, "", CharClass::kSpace}, SplitBehavior::kRemoved, false});
  } else if (type == "Whitespace") {
    TANDEM_TRY(auto regex, compile(kWhitespacePattern, field));
    steps_.emplace_back(Split{{std::move(regex), "", std::nullopt}, SplitBehavior::kRemoved, true});
  } else {
    return field.at("type")->mismatch(
        "one of ByteLevel, Split, Digits, Punctuation, Whitespace, WhitespaceSplit, Metaspace, "
        "Sequence");
  }
  return {};
}

Status PreTokenizer::add_split(const json::Field& field) {
  TANDEM_TRY(const json::Field pattern_field, field.at("pattern"));
  TANDEM_TRY(const json::Field behavior_field, field.at("behavior"));
  TANDEM_TRY(const SplitBehavior behavior, read_behavior(behavior_field));
  TANDEM_TRY(const auto invert, field.optional_bool("invert"));
  TANDEM_TRY(const auto text, pattern_field.optional_string("String"));
  TANDEM_TRY(const auto regex, pattern_field.optional_string("Regex"));
  Pattern pattern;
  if (text) {
    if (text->empty()) return pattern_field.error("an empty pattern is not supported");
    pattern.text = *text;
  } else if (regex) {
    TANDEM_TRY(pattern.regex, compile(*regex, pattern_field));
  } else {
    return pattern_field.mismatch("an object with \"String\" or \"Regex\"");
  }
  steps_.emplace_back(Split{std::move(pattern), behavior, invert.value_or(false)});
  return {};
}

Status PreTokenizer::add_byte_level(const json::Field& field) {
  TANDEM_TRY(const auto prefix, field.optional_bool("add_prefix_space"));
  TANDEM_TRY(const auto use_regex, field.optional_bool("use_regex"));
  std::shared_ptr<const Matcher> regex;
  if (use_regex.value_or(true)) {
    TANDEM_TRY(regex, compile(kGpt2Pattern, field));
  }
  steps_.emplace_back(ByteLevel{prefix.value_or(true), std::move(regex)});
  return {};
}

Status PreTokenizer::add_metaspace(const json::Field& field) {
  TANDEM_TRY(const auto replacement, field.optional_string("replacement"));
  TANDEM_TRY(const auto scheme, field.optional_string("prepend_scheme"));
  TANDEM_TRY(const auto prefix, field.optional_bool("add_prefix_space"));
  TANDEM_TRY(const auto split, field.optional_bool("split"));
  const std::string mark = replacement.value_or("\xE2\x96\x81");
  if (json::count_code_points(mark) != 1) {
    return field.at("replacement")->mismatch("one character");
  }
  // Files before tokenizers 0.15 have add_prefix_space instead of prepend_scheme.
  Prepend prepend = prefix.value_or(true) ? Prepend::kAlways : Prepend::kNever;
  if (scheme == "always") prepend = Prepend::kAlways;
  if (scheme == "first") prepend = Prepend::kFirst;
  if (scheme == "never") prepend = Prepend::kNever;
  if (scheme && scheme != "always" && scheme != "first" && scheme != "never") {
    return field.at("prepend_scheme")->mismatch("one of always, first, never");
  }
  steps_.emplace_back(Metaspace{mark, prepend, split.value_or(true)});
  return {};
}

bool PreTokenizer::is_in(CharClass want, char32_t c) {
  return want == CharClass::kNumeric       ? is_numeric(c)
         : want == CharClass::kPunctuation ? is_punctuation(c)
                                           : is_space(c);
}

/// Bytes that are characters of their own outside the class: most of most texts.
const ByteTable& PreTokenizer::ascii_outside(CharClass want) {
  static const auto kTables = [] {
    std::array<ByteTable, 3> tables{};
    for (const CharClass each : {CharClass::kNumeric, CharClass::kPunctuation, CharClass::kSpace}) {
      for (unsigned char c = 0; c < 0x80; ++c)
        tables[static_cast<std::size_t>(each)][c] = !is_in(each, c);
    }
    return tables;
  }();
  return kTables[static_cast<std::size_t>(want)];
}

/// fn(span) for each character of the class.
template <class Fn>
void PreTokenizer::for_each_in(CharClass want, std::string_view text, Fn fn) {
  const ByteTable& passes = ascii_outside(want);
  std::size_t pos = 0;
  while ((pos = skip_bytes(passes, text, pos)) < text.size()) {
    const auto is_ascii_in = [&](unsigned char byte) { return byte < 0x80 && !passes[byte]; };
    if (is_ascii_in(static_cast<unsigned char>(text[pos]))) {
      do {
        fn(Span{pos, pos + 1});
        ++pos;
      } while (pos < text.size() && is_ascii_in(static_cast<unsigned char>(text[pos])));
      continue;
    }
    const json::Utf8Step step = json::decode_utf8(text.substr(pos));
    if (is_in(want, step.code_point)) fn(Span{pos, pos + step.byte_count});
    pos += step.byte_count;
  }
}

std::vector<Span> PreTokenizer::find(const Pattern& pattern, std::string_view text) {
  if (pattern.regex) return pattern.regex->find_all(text);
  std::vector<Span> spans;
  if (!pattern.char_class) {
    for (std::size_t at = text.find(pattern.text); at != std::string_view::npos;
         at = text.find(pattern.text, at + pattern.text.size())) {
      spans.push_back({at, at + pattern.text.size()});
    }
    return spans;
  }
  for_each_in(*pattern.char_class, text, [&](Span span) { spans.push_back(span); });
  return spans;
}

void PreTokenizer::split_word(const Split& split,
                              Span word,
                              std::string_view text,
                              std::vector<Span>& out) {
  const std::string_view part = text.substr(word.begin, word.end - word.begin);
  if (split.behavior == SplitBehavior::kIsolated && split.pattern.char_class) {
    std::size_t begin = word.begin;
    for_each_in(*split.pattern.char_class, part, [&](Span span) {
      const Span alone = {span.begin + word.begin, span.end + word.begin};
      if (alone.begin > begin) out.push_back({begin, alone.begin});
      out.push_back(alone);
      begin = alone.end;
    });
    if (begin < word.end) out.push_back({begin, word.end});
    return;
  }
  const bool plain = split.behavior == SplitBehavior::kIsolated && split.pattern.regex &&
                     split.pattern.regex->scanner;
  // A scanner leaves nothing between its words.
  const std::size_t before = out.size();
  if (plain && split.pattern.regex->scanner->find_all(part, out)) {
    for (std::size_t i = before; i < out.size(); ++i)
      out[i] = {out[i].begin + word.begin, out[i].end + word.begin};
    return;
  }
  std::vector<Piece> pieces = cover(find(split.pattern, part), part.size(), split.invert);
  switch (split.behavior) {
    case SplitBehavior::kMergedWithPrevious:
      merge_with_previous(pieces);
      break;
    case SplitBehavior::kMergedWithNext:
      merge_with_next(pieces);
      break;
    case SplitBehavior::kContiguous:
      merge_equal(pieces);
      break;
    case SplitBehavior::kRemoved:
    case SplitBehavior::kIsolated:
      break;
  }
  for (const Piece& piece : pieces) {
    if (split.behavior == SplitBehavior::kRemoved && piece.is_match) continue;
    out.push_back({word.begin + piece.span.begin, word.begin + piece.span.end});
  }
}

void PreTokenizer::run(const Split& split, Words& words, bool /*at_start*/) {
  std::vector<Span> out;
  out.reserve(words.spans.size());
  for (const Span& word : words.spans) {
    split_word(split, word, words.text, out);
  }
  words.spans = std::move(out);
}

void PreTokenizer::run(const ByteLevel& step, Words& words, bool /*at_start*/) {
  Words out;
  out.text.reserve(words.text.size() + words.text.size() / 4);
  const auto add = [&](std::string_view word) {
    const std::size_t begin = out.text.size();
    append_byte_level(out.text, word);
    out.spans.push_back({begin, out.text.size()});
  };
  std::string with_space;
  for (const Span& span : words.spans) {
    std::string_view word = std::string_view(words.text).substr(span.begin, span.end - span.begin);
    if (step.add_prefix_space && !word.starts_with(' ')) {
      with_space = " " + std::string(word);
      word = with_space;
    }
    if (!step.regex) {
      add(word);
      continue;
    }
    for (const Piece& piece : cover(step.regex->find_all(word), word.size(), false)) {
      add(word.substr(piece.span.begin, piece.span.end - piece.span.begin));
    }
  }
  words = std::move(out);
}

void PreTokenizer::run(const Metaspace& step, Words& words, bool at_start) {
  Words out;
  for (const Span& span : words.spans) {
    const std::string_view word =
        std::string_view(words.text).substr(span.begin, span.end - span.begin);
    std::string replaced = replace_all(word, " ", step.replacement);
    const bool prepend = step.prepend == Prepend::kAlways ||
                         (step.prepend == Prepend::kFirst && at_start && span.begin == 0);
    if (prepend && !replaced.starts_with(step.replacement)) replaced.insert(0, step.replacement);
    const std::size_t begin = out.text.size();
    out.text += replaced;
    if (!step.split) {
      out.spans.push_back({begin, out.text.size()});
      continue;
    }
    split_word({{nullptr, step.replacement, std::nullopt}, SplitBehavior::kMergedWithNext, false},
               {begin, out.text.size()},
               out.text,
               out.spans);
  }
  words = std::move(out);
}

Words PreTokenizer::apply(std::string text, bool at_start) const {
  Words words{std::move(text), {}};
  if (!words.text.empty()) words.spans.push_back({0, words.text.size()});
  for (const Step& step : steps_) {
    std::visit([&](const auto& s) { run(s, words, at_start); }, step);
  }
  return words;
}

bool PreTokenizer::ends_in_bytes() const {
  if (steps_.empty()) return false;
  const auto* last = std::get_if<ByteLevel>(&steps_.back());
  if (last == nullptr || last->add_prefix_space) return false;
  return std::all_of(steps_.begin(), steps_.end() - 1, [](const Step& step) {
    return std::holds_alternative<Split>(step);
  });
}

// Scanners look back at nothing, and no further ahead than to a blank and the sign behind it; so do
// steps that look at one character.
bool PreTokenizer::may_be_cut() const {
  const auto scans = [](const std::shared_ptr<const Matcher>& regex) {
    return regex == nullptr || regex->scanner.has_value();
  };
  return ends_in_bytes() && std::all_of(steps_.begin(), steps_.end(), [&](const Step& step) {
           const auto* split = std::get_if<Split>(&step);
           if (split == nullptr) return scans(std::get<ByteLevel>(step).regex);
           if (split->invert || !scans(split->pattern.regex) || !split->pattern.text.empty())
             return false;
           return split->behavior == SplitBehavior::kIsolated ||
                  (split->behavior == SplitBehavior::kContiguous && split->pattern.char_class);
         });
}

void PreTokenizer::raw_words(std::string_view text, std::vector<Span>& words) const {
  words.clear();
  if (!text.empty()) words.push_back({0, text.size()});
  thread_local std::vector<Span> before;
  const auto split_all = [&](const Split& split) {
    // A byte stays as it is, match or not: each digit, where they are words of their own.
    const auto& regex = split.pattern.regex;
    const bool keeps_bytes =
        split.behavior == SplitBehavior::kIsolated && (regex == nullptr || regex->scanner);
    for (const Span& span : before) {
      if (keeps_bytes && span.end - span.begin == 1) {
        words.push_back(span);
      } else {
        split_word(split, span, text, words);
      }
    }
  };
  for (const Step& step : steps_) {
    before.swap(words);
    words.clear();
    words.reserve(text.size() / 4 + std::min(text.size(), kWordsFirst));
    if (const auto* split = std::get_if<Split>(&step)) {
      split_all(*split);
    } else if (const auto& regex = std::get<ByteLevel>(step).regex) {
      split_all({{regex, "", std::nullopt}, SplitBehavior::kIsolated, false});
    } else {
      words.swap(before);
    }
  }
  forget_large(before);
}

}  // namespace tandem::token
