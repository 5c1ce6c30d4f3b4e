#include "common/chat/lexer.h"

#include "common/chat/value.h"
#include "common/json/utf8.h"

#include <fmt/format.h>

#include <algorithm>

namespace tandem::chat {
namespace {

bool is_digit(char c) {
  return c >= '0' && c <= '9';
}

bool is_name_start(char c) {
  return c == '_' || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') ||
         static_cast<unsigned char>(c) >= 0x80;
}

/// Line ends become "\n"; one at the very end goes.
std::string normalize_lines(std::string_view source) {
  std::string out;
  out.reserve(source.size());
  for (std::size_t i = 0; i < source.size(); ++i) {
    if (source[i] == '\r') {
      out += '\n';
      if (i + 1 < source.size() && source[i + 1] == '\n') ++i;
    } else {
      out += source[i];
    }
  }
  if (out.ends_with('\n')) out.pop_back();
  return out;
}

std::size_t skip_space_at(std::string_view text, std::size_t pos) {
  while (pos < text.size()) {
    const json::Utf8Step step = json::decode_utf8(text.substr(pos));
    if (!is_space(step.code_point)) break;
    pos += step.byte_count;
  }
  return pos;
}

std::string_view rstrip(std::string_view text) {
  std::size_t end = 0;
  for (std::size_t pos = 0; pos < text.size();) {
    const json::Utf8Step step = json::decode_utf8(text.substr(pos));
    pos += step.byte_count;
    if (!is_space(step.code_point)) end = pos;
  }
  return text.substr(0, end);
}

class Lexer {
 public:
  explicit Lexer(std::string source) : source_(std::move(source)), in_(source_) {}

  Result<std::vector<Token>> run() {
    while (pos_ < in_.size()) {
      TANDEM_TRY(root());
    }
    add(TokenKind::kEnd, "");
    return std::move(tokens_);
  }

 private:
  void add(TokenKind kind, std::string text) { tokens_.push_back({kind, std::move(text), line_}); }

  [[nodiscard]] Status error(std::string_view what) const {
    return invalid_argument(fmt::format("line {}: {}", line_, what));
  }

  /// Moves on and counts lines.
  void advance_to(std::size_t end) {
    line_ += static_cast<int>(std::count(in_.begin() + static_cast<std::ptrdiff_t>(pos_),
                                         in_.begin() + static_cast<std::ptrdiff_t>(end),
                                         '\n'));
    line_starting_ = end > pos_ && in_[end - 1] == '\n';
    pos_ = end;
  }

  void add_text(std::string_view text, char sign, bool lstrip) {
    if (sign == '-') {
      text = rstrip(text);
    } else if (sign != '+' && lstrip) {
      const std::size_t newline = text.rfind('\n');
      const std::size_t start = newline == std::string_view::npos ? 0 : newline + 1;
      if ((start > 0 || line_starting_) && skip_space_at(text, start) == text.size()) {
        text = text.substr(0, start);
      }
    }
    if (!text.empty()) add(TokenKind::kText, std::string(text));
  }

  Status root() {
    std::size_t at = pos_;
    while (true) {
      at = in_.find('{', at);
      if (at == std::string_view::npos || at + 1 >= in_.size()) {
        add_text(in_.substr(pos_), '+', false);
        advance_to(in_.size());
        return {};
      }
      const char c = in_[at + 1];
      if (c == '%' || c == '{' || c == '#') break;
      ++at;
    }
    const char kind = in_[at + 1];
    const char next = at + 2 < in_.size() ? in_[at + 2] : '\0';
    const char sign = next == '-' || next == '+' ? next : '\0';
    add_text(in_.substr(pos_, at - pos_), sign, kind != '{');
    advance_to(at + 2 + (sign != '\0' ? 1 : 0));
    if (kind == '#') return comment();
    if (kind == '%') {
      const std::size_t raw = raw_begin();
      if (raw != 0) return raw_block(raw);
    }
    add(kind == '{' ? TokenKind::kVariableBegin : TokenKind::kBlockBegin, "");
    return inside(kind == '{');
  }

  /// End of "raw %}" at the cursor; 0 when this is another block.
  [[nodiscard]] std::size_t raw_begin() const {
    std::size_t at = skip_space_at(in_, pos_);
    if (in_.substr(at, 3) != "raw") return 0;
    at = skip_space_at(in_, at + 3);
    if (in_.substr(at, 2) == "%}") return at + 2;
    if (in_.substr(at, 3) == "-%}") return skip_space_at(in_, at + 3);
    return 0;
  }

  /// Where a closing mark ends that stands at `at` ("%}", "-%}", "+%}"); 0 when there is none.
  [[nodiscard]] std::size_t close_at(std::size_t at, std::string_view mark, bool trim) const {
    if (in_.substr(at, 1) == "-" && in_.substr(at + 1, 2) == mark)
      return skip_space_at(in_, at + 3);
    if (trim && in_.substr(at, 1) == "+" && in_.substr(at + 1, 2) == mark) return at + 3;
    if (in_.substr(at, 2) != mark) return 0;
    return at + 2 + (trim && in_.substr(at + 2, 1) == "\n" ? 1 : 0);
  }

  Status comment() {
    for (std::size_t at = pos_; at < in_.size(); ++at) {
      if (const std::size_t end = close_at(at, "#}", true)) {
        advance_to(end);
        return {};
      }
    }
    return error("Missing end of comment tag");
  }

  Status raw_block(std::size_t begin) {
    advance_to(begin);
    for (std::size_t at = in_.find("{%", pos_); at != std::string_view::npos;
         at = in_.find("{%", at + 1)) {
      std::size_t word = at + 2;
      const char next = word < in_.size() ? in_[word] : '\0';
      const char sign = next == '-' || next == '+' ? next : '\0';
      word = skip_space_at(in_, word + (sign != '\0' ? 1 : 0));
      if (in_.substr(word, 6) != "endraw") continue;
      const std::size_t end = close_at(skip_space_at(in_, word + 6), "%}", true);
      if (end == 0) continue;
      add_text(in_.substr(pos_, at - pos_), sign, true);
      advance_to(end);
      return {};
    }
    return error("Missing end of raw directive");
  }

  Status inside(bool variable) {
    std::string open;
    while (pos_ < in_.size()) {
      const std::size_t start = skip_space_at(in_, pos_);
      advance_to(start);
      if (pos_ >= in_.size()) break;
      if (open.empty()) {
        const std::size_t end = close_at(pos_, variable ? "}}" : "%}", !variable);
        if (end != 0) {
          add(variable ? TokenKind::kVariableEnd : TokenKind::kBlockEnd, "");
          advance_to(end);
          return {};
        }
      }
      TANDEM_TRY(token(open));
    }
    return error(variable ? "unexpected end of template, expected '}}'"
                          : "unexpected end of template, expected '%}'");
  }

  Status token(std::string& open) {
    const char c = in_[pos_];
    if (is_digit(c)) return number();
    if (is_name_start(c)) {
      std::size_t end = pos_;
      while (end < in_.size() && (is_name_start(in_[end]) || is_digit(in_[end]))) {
        ++end;
      }
      add(TokenKind::kName, std::string(in_.substr(pos_, end - pos_)));
      advance_to(end);
      return {};
    }
    if (c == '\'' || c == '"') return string(c);
    return oper(open);
  }

  Status number() {
    std::size_t end = pos_;
    const auto digits = [&](auto is_ok) {
      while (end < in_.size() && (is_ok(in_[end]) || in_[end] == '_')) {
        ++end;
      }
    };
    const auto is_hex = [](char d) {
      return is_digit(d) || ((d | 0x20) >= 'a' && (d | 0x20) <= 'f');
    };
    bool is_float = false;
    const char base =
        pos_ + 1 < in_.size() && in_[pos_] == '0' ? static_cast<char>(in_[pos_ + 1] | 0x20) : '\0';
    if (base == 'x' || base == 'o' || base == 'b') {
      end += 2;
      digits(is_hex);
    } else {
      digits(is_digit);
      const bool after_dot = pos_ > 0 && in_[pos_ - 1] == '.';
      if (!after_dot && end + 1 < in_.size() && in_[end] == '.' && is_digit(in_[end + 1])) {
        is_float = true;
        ++end;
        digits(is_digit);
      }
      if (!after_dot && end < in_.size() && (in_[end] | 0x20) == 'e') {
        std::size_t exponent = end + 1;
        if (exponent < in_.size() && (in_[exponent] == '+' || in_[exponent] == '-')) ++exponent;
        if (exponent < in_.size() && is_digit(in_[exponent])) {
          is_float = true;
          end = exponent;
          digits(is_digit);
        }
      }
    }
    std::string text(in_.substr(pos_, end - pos_));
    text.erase(std::remove(text.begin(), text.end(), '_'), text.end());
    add(is_float ? TokenKind::kFloat : TokenKind::kInteger, std::move(text));
    advance_to(end);
    return {};
  }

  Status string(char quote) {
    std::string out;
    std::size_t at = pos_ + 1;
    while (at < in_.size() && in_[at] != quote) {
      if (in_[at] != '\\') {
        out += in_[at++];
        continue;
      }
      TANDEM_TRY(at, escape(at + 1, out));
    }
    if (at >= in_.size()) return error("a string is not closed");
    add(TokenKind::kString, std::move(out));
    advance_to(at + 1);
    return {};
  }

  /// Python's escapes; `at` is behind the backslash. Gives the position after the escape.
  Result<std::size_t> escape(std::size_t at, std::string& out) {
    if (at >= in_.size()) return error("a string is not closed");
    const char c = in_[at];
    constexpr std::string_view kNames = "\\'\"abfnrtv";
    constexpr std::string_view kChars = "\\'\"\a\b\f\n\r\t\v";
    if (const std::size_t which = kNames.find(c); which != std::string_view::npos) {
      out += kChars[which];
      return at + 1;
    }
    if (c == '\n') return at + 1;
    const std::size_t width = c == 'x' ? 2 : c == 'u' ? 4 : c == 'U' ? 8 : 0;
    if (width > 0) return hex_escape(at + 1, width, out);
    if (c >= '0' && c <= '7') {
      char32_t code = 0;
      std::size_t end = at;
      while (end < in_.size() && end < at + 3 && in_[end] >= '0' && in_[end] <= '7') {
        code = code * 8 + static_cast<char32_t>(in_[end++] - '0');
      }
      json::append_utf8(out, code);
      return end;
    }
    out += '\\';
    out += c;
    return at + 1;
  }

  Result<std::size_t> hex_escape(std::size_t at, std::size_t width, std::string& out) {
    char32_t code = 0;
    for (std::size_t i = 0; i < width; ++i) {
      const char c = at + i < in_.size() ? static_cast<char>(in_[at + i] | 0x20) : '\0';
      const bool letter = c >= 'a' && c <= 'f';
      if (!letter && !is_digit(at + i < in_.size() ? in_[at + i] : '\0')) {
        return error("a \\x, \\u or \\U escape needs hexadecimal digits");
      }
      code = code * 16 + static_cast<char32_t>(letter ? c - 'a' + 10 : in_[at + i] - '0');
    }
    if (code > 0x10FFFF || (code >= 0xD800 && code < 0xE000)) {
      return error("an escape is no Unicode character");
    }
    json::append_utf8(out, code);
    return at + width;
  }

  Status oper(std::string& open) {
    const std::string_view two = in_.substr(pos_, 2);
    std::size_t length = 1;
    for (const std::string_view known : {"//", "**", "==", "!=", ">=", "<="}) {
      if (two == known) length = 2;
    }
    const char c = in_[pos_];
    if (length == 1 && std::string_view("+-/*%~[](){}><=.:|,;").find(c) == std::string_view::npos) {
      return error(fmt::format("unexpected char '{}'",
                               in_.substr(pos_, json::decode_utf8(in_.substr(pos_)).byte_count)));
    }
    if (c == '(' || c == '[' || c == '{') open += c;
    if (c == ')' || c == ']' || c == '}') {
      const char want = c == ')' ? '(' : c == ']' ? '[' : '{';
      if (open.empty() || open.back() != want) return error(fmt::format("unexpected '{}'", c));
      open.pop_back();
    }
    add(TokenKind::kOperator, std::string(in_.substr(pos_, length)));
    advance_to(pos_ + length);
    return {};
  }

  std::string source_;
  std::string_view in_;
  std::size_t pos_ = 0;
  int line_ = 1;
  bool line_starting_ = true;
  std::vector<Token> tokens_;
};

}  // namespace

std::string describe(const Token& token) {
  switch (token.kind) {
    case TokenKind::kText:
      return "template text";
    case TokenKind::kBlockBegin:
      return "'begin of statement block'";
    case TokenKind::kBlockEnd:
      return "'end of statement block'";
    case TokenKind::kVariableBegin:
      return "'begin of print statement'";
    case TokenKind::kVariableEnd:
      return "'end of print statement'";
    case TokenKind::kEnd:
      return "'end of template'";
    default:
      return fmt::format("'{}'", token.text);
  }
}

Result<std::vector<Token>> tokenize(std::string_view source) {
  return Lexer(normalize_lines(source)).run();
}

}  // namespace tandem::chat
