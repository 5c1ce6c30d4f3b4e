#include "common/token/regex.h"

#include "common/token/unicode_tables.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <fmt/format.h>
#include <pcre2.h>

namespace tandem::token {
namespace {

/// White_Space without U+180E, which PCRE2 counts as space and Oniguruma does not.
constexpr std::string_view kSpaceSet =
    "\\x09-\\x0D\\x20\\x{85}\\x{A0}\\x{1680}\\x{2000}-\\x{200A}\\x{2028}\\x{2029}\\x{202F}"
    "\\x{205F}\\x{3000}";
/// Besides letters, marks, decimal digits and connectors: letter numbers, letters in circles and
/// squares.
constexpr std::string_view kWordRest =
    "\\p{Nl}\\x{24B6}-\\x{24E9}\\x{1F130}-\\x{1F149}\\x{1F150}-\\x{1F169}\\x{1F170}-\\x{1F189}";
/// The raised digits and the fractions of Latin-1: word characters to \w, but not inside a class.
constexpr std::string_view kWordOutside = "\\x{B2}\\x{B3}\\x{B9}\\x{BC}-\\x{BE}";

constexpr std::size_t kPatternBytesMax = 64 << 10;

/// The newer characters of a category ("Lu") or of a kind of them ("L"), as inside a class.
std::string newer_in(std::string_view category) {
  std::string out;
  for (const CategoryRange& range : kNewerCharacters) {
    if (!std::string_view(range.category).starts_with(category)) continue;
    out += fmt::format("\\x{{{:X}}}", static_cast<std::uint32_t>(range.first));
    if (range.last == range.first) continue;
    out += fmt::format("-\\x{{{:X}}}", static_cast<std::uint32_t>(range.last));
  }
  return out;
}

/// A category as PCRE2 knows it, and what it does not know of it yet. PCRE2's own comes first: it
/// is asked first.
std::string category_set(std::string_view category) {
  return fmt::format("\\p{{{}}}{}", category, newer_in(category));
}

std::string word_set() {
  return category_set("L") + category_set("M") + category_set("Nd") + category_set("Pc") +
         std::string(kWordRest);
}

bool compiles(const std::string& pattern) {
  int error = 0;
  PCRE2_SIZE offset = 0;
  pcre2_code* code = pcre2_compile(reinterpret_cast<PCRE2_SPTR>(pattern.data()),
                                   pattern.size(),
                                   PCRE2_UTF | PCRE2_UCP,
                                   &error,
                                   &offset,
                                   nullptr);
  pcre2_code_free(code);
  return code != nullptr;
}

/// What of Alphabetic PCRE2 does not know yet.
std::string newer_alphabetic() {
  return newer_in("L") +
         R"(\x{363}-\x{36F}\x{897}\x{C04}\x{CF3}\x{F82}\x{F83}\x{1DD3}-\x{1DE6}\x{10D69}\x{10EFC})"
         R"(\x{11080}\x{11081}\x{11241}\x{113B8}-\x{113C0}\x{113C2}\x{113C5}\x{113C7}-\x{113CA})"
         R"(\x{113CC}\x{113CD}\x{11F00}\x{11F01}\x{11F03}\x{11F34}-\x{11F3A}\x{11F3E}-\x{11F40})"
         R"(\x{1611E}-\x{1612E}\x{1E08F})";
}

/// \p{NAME}, as inside a class. A script is the script alone, PCRE2 would add characters that are
/// used with it.
std::string property_set(std::string_view name) {
  constexpr std::string_view kGeneral = "LMNPSZ";
  const bool category = !name.empty() && name.size() <= 2 && name != "L&" &&
                        kGeneral.find(name[0]) != std::string_view::npos;
  if (category) return category_set(name);
  if (name == "Alphabetic") return "\\p{Alphabetic}" + newer_alphabetic();
  const std::string script = fmt::format("\\p{{sc:{}}}", name);
  if (!compiles(script)) return fmt::format("\\p{{{}}}", name);
  std::string_view newer;
  if (name == "Han") newer = "\\x{2B739}\\x{2EBF0}-\\x{2EE5D}\\x{31350}-\\x{323AF}";
  if (name == "Hiragana") newer = "\\x{1B132}";
  if (name == "Katakana") newer = "\\x{1B155}";
  if (name == "Latin") newer = "\\x{A7CB}-\\x{A7CD}\\x{A7DA}-\\x{A7DC}\\x{1DF25}-\\x{1DF2A}";
  if (name == "Cyrillic") newer = "\\x{1C89}\\x{1C8A}\\x{1E030}-\\x{1E06D}\\x{1E08F}";
  return script + std::string(newer);
}

/// A POSIX class that Oniguruma reads wider than PCRE2, as inside a class; empty for the others.
std::string posix_set(std::string_view name) {
  if (name == "alpha") return "\\p{Alphabetic}" + newer_alphabetic();
  if (name == "alnum") return "\\p{Alphabetic}" + newer_alphabetic() + category_set("Nd");
  if (name == "punct") return category_set("P") + category_set("S");
  if (name == "digit") return category_set("Nd");
  if (name == "upper") return "\\p{Uppercase}" + newer_in("Lu");
  if (name == "lower") return "\\p{Lowercase}" + newer_in("Ll");
  if (name == "space") return std::string(kSpaceSet);
  if (name == "word") return word_set();
  return {};
}

/// Rewrites an Oniguruma pattern so that PCRE2 reads it the same way.
class Translator {
 public:
  explicit Translator(std::string_view in) : in_(in) {}

  Result<std::string> run() {
    while (pos_ < in_.size()) {
      const char c = in_[pos_];
      if (c == '\\') {
        TANDEM_TRY(escape());
        class_is_empty_ = false;
      } else if (in_class_) {
        TANDEM_TRY(class_char(c));
      } else {
        TANDEM_TRY(plain_char(c));
      }
    }
    return std::move(out_);
  }

 private:
  void copy(std::size_t count) {
    out_ += in_.substr(pos_, count);
    pos_ += count;
  }

  void replace(std::string_view set, bool negated, std::size_t byte_count = 2) {
    if (in_class_) {
      out_ += set;
    } else {
      out_ += negated ? "[^" : "[";
      out_ += set;
      out_ += ']';
    }
    pos_ += byte_count;
  }

  /// \p{NAME}, \P{NAME}, \p{^NAME}. A negated one inside a class stays PCRE2's own: it cannot be
  /// spelt out there.
  void property() {
    const std::size_t open = pos_ + 2;
    const std::size_t end = in_.find('}', open);
    if (in_.substr(open, 1) != "{" || end == std::string_view::npos) return copy(2);
    std::string_view name = in_.substr(open + 1, end - open - 1);
    bool negated = in_[pos_ + 1] == 'P';
    if (name.starts_with('^')) {
      name.remove_prefix(1);
      negated = !negated;
    }
    const std::size_t byte_count = end + 1 - pos_;
    if (negated && in_class_) return copy(byte_count);
    replace(property_set(name), negated, byte_count);
  }

  [[nodiscard]] Status unsupported(std::string_view what) const {
    return unimplemented(
        fmt::format("pattern \"{}\", byte {}: {} is not supported", in_, pos_, what));
  }

  Status escape() {
    if (pos_ + 1 >= in_.size()) return unsupported("a backslash at the end");
    const char c = in_[pos_ + 1];
    switch (c) {
      case 's':
        replace(kSpaceSet, false);
        return {};
      case 'w':
        replace(in_class_ ? word_set() : word_set() + std::string(kWordOutside), false);
        return {};
      case 'd':
        replace(category_set("Nd"), false);
        return {};
      case 'p':
      case 'P':
        property();
        return {};
      case 'S':
      case 'W':
      case 'D':
        // Inside a class a negated set cannot be spelt out; PCRE2's own differs in rare characters.
        if (in_class_) {
          copy(2);
        } else {
          replace(c == 'S'   ? std::string(kSpaceSet)
                  : c == 'W' ? word_set() + std::string(kWordOutside)
                             : category_set("Nd"),
                  true);
        }
        return {};
      case 'h':
      case 'H':
        return unsupported("\\h");
      case 'u': {
        const std::string_view digits = in_.substr(pos_ + 2, 4);
        if (digits.size() != 4 ||
            digits.find_first_not_of("0123456789abcdefABCDEF") != std::string_view::npos) {
          return unsupported("\\u without four hexadecimal digits");
        }
        out_ += fmt::format("\\x{{{}}}", digits);
        pos_ += 6;
        return {};
      }
      default:
        copy(2);
        return {};
    }
  }

  Status class_char(char c) {
    if (c == '[') {
      if (in_.substr(pos_, 2) != "[:") return unsupported("a class inside a class");
      const std::size_t end = in_.find(":]", pos_);
      if (end == std::string_view::npos) return unsupported("an open POSIX class");
      const std::string set = posix_set(in_.substr(pos_ + 2, end - pos_ - 2));
      if (set.empty()) {
        copy(end + 2 - pos_);
      } else {
        out_ += set;
        pos_ = end + 2;
      }
      return {};
    }
    if (in_.substr(pos_, 2) == "&&") return unsupported("the intersection of classes");
    if (c == ']' && !class_is_empty_) in_class_ = false;
    class_is_empty_ = false;
    copy(1);
    return {};
  }

  Status plain_char(char c) {
    if (c == '[') {
      in_class_ = true;
      copy(1);
      if (pos_ < in_.size() && in_[pos_] == '^') copy(1);
      class_is_empty_ = true;
      return {};
    }
    // Oniguruma reads X{1,3}+ as (X{1,3})+, PCRE2 as possessive.
    if (c == '}' && in_.substr(pos_ + 1, 1) == "+" && brace_is_count()) {
      return unsupported("'+' after a count");
    }
    copy(1);
    return {};
  }

  [[nodiscard]] bool brace_is_count() const {
    const std::size_t open = in_.rfind('{', pos_);
    if (open == std::string_view::npos || open + 1 == pos_) return false;
    return in_.substr(open + 1, pos_ - open - 1).find_first_not_of("0123456789,") ==
           std::string_view::npos;
  }

  std::string_view in_;
  std::string out_;
  std::size_t pos_ = 0;
  bool in_class_ = false;
  bool class_is_empty_ = false;
};

/// Buffers for matching, one set per thread.
struct Scratch {
  Scratch()
      : data(pcre2_match_data_create(1, nullptr)),
        context(pcre2_match_context_create(nullptr)),
        stack(pcre2_jit_stack_create(32 << 10, 4 << 20, nullptr)) {
    pcre2_set_match_limit(context, 10'000'000);
    pcre2_set_heap_limit(context, 64 << 10);
    pcre2_jit_stack_assign(context, nullptr, stack);
  }

  Scratch(const Scratch&) = delete;
  Scratch& operator=(const Scratch&) = delete;

  ~Scratch() {
    pcre2_match_data_free(data);
    pcre2_match_context_free(context);
    pcre2_jit_stack_free(stack);
  }

  pcre2_match_data* data;
  pcre2_match_context* context;
  pcre2_jit_stack* stack;
};

}  // namespace

struct Regex::Code {
  explicit Code(pcre2_code* compiled) : code(compiled) {
    jit = pcre2_jit_compile(code, PCRE2_JIT_COMPLETE) == 0;
  }

  Code(const Code&) = delete;
  Code& operator=(const Code&) = delete;

  ~Code() { pcre2_code_free(code); }

  pcre2_code* code;
  bool jit;
};

Regex::Regex(std::unique_ptr<Code> code) : code_(std::move(code)) {}

Regex::Regex(Regex&&) noexcept = default;
Regex& Regex::operator=(Regex&&) noexcept = default;
Regex::~Regex() = default;

Result<Regex> Regex::compile(std::string_view pattern) {
  if (pattern.size() > kPatternBytesMax) {
    return invalid_argument(
        fmt::format("pattern of {} bytes, at most {}", pattern.size(), kPatternBytesMax));
  }
  TANDEM_TRY(const std::string translated, Translator(pattern).run());
  int error = 0;
  PCRE2_SIZE offset = 0;
  // Oniguruma's ^ and $ always work line by line.
  pcre2_code* code =
      pcre2_compile(reinterpret_cast<PCRE2_SPTR>(translated.data()),
                    translated.size(),
                    PCRE2_UTF | PCRE2_UCP | PCRE2_MULTILINE | PCRE2_NEVER_BACKSLASH_C,
                    &error,
                    &offset,
                    nullptr);
  if (code == nullptr) {
    PCRE2_UCHAR text[256];
    pcre2_get_error_message(error, text, sizeof(text));
    return invalid_argument(
        fmt::format("pattern \"{}\": {}", pattern, reinterpret_cast<const char*>(text)));
  }
  return Regex(std::make_unique<Code>(code));
}

std::vector<Span> Regex::find_all(std::string_view text) const {
  thread_local Scratch scratch;
  std::vector<Span> spans;
  const auto subject = reinterpret_cast<PCRE2_SPTR>(text.data());
  const PCRE2_SIZE* ovector = pcre2_get_ovector_pointer(scratch.data);
  std::size_t pos = 0;
  while (pos < text.size()) {
    const auto match = code_->jit ? pcre2_jit_match : pcre2_match;
    const int found = match(
        code_->code, subject, text.size(), pos, PCRE2_NO_UTF_CHECK, scratch.data, scratch.context);
    if (found < 0) break;
    // \K could put the start behind the end; such a match is treated as empty.
    if (ovector[1] > ovector[0] && ovector[0] >= pos) {
      spans.push_back({ovector[0], ovector[1]});
      pos = ovector[1];
      continue;
    }
    pos = std::max<std::size_t>(pos, ovector[1]) + 1;
    while (pos < text.size() && (static_cast<unsigned char>(text[pos]) & 0xC0) == 0x80) {
      ++pos;
    }
  }
  return spans;
}

}  // namespace tandem::token
