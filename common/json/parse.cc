#include "common/json/parse.h"

#include "common/json/integers.h"
#include "common/json/scan.h"
#include "common/json/utf8.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <fstream>
#include <optional>
#include <system_error>

namespace tandem::json {
namespace {

bool is_digit(char c) {
  return c >= '0' && c <= '9';
}

bool is_space(char c) {
  return c == ' ' || c == '\n' || c == '\r' || c == '\t';
}

const char* skip_space_from(const char* at, const char* end) {
  while (at != end && is_space(*at)) {
    ++at;
  }
  return at;
}

/// Digits, perhaps after a minus. False when 64 bits do not hold it.
bool read_integer(std::string_view token, Value& to) {
  const char* const end = token.data() + token.size();
  std::int64_t number = 0;
  if (std::from_chars(token.data(), end, number).ec == std::errc()) {
    to = number;
    return true;
  }
  std::uint64_t large = 0;
  if (token.front() == '-' || std::from_chars(token.data(), end, large).ec != std::errc())
    return false;
  to = large;
  return true;
}

// Room for containers inside one another that most texts need, and for what is in one.
constexpr std::size_t kFramesFirst = 4;
constexpr std::size_t kItemsFirst = 2;
constexpr std::size_t kMembersFirst = 4;

/// A container that is still being filled.
struct Frame {
  bool is_object = false;
  Array items;
  std::vector<Member> members;
};

/// Room for one more. Growing moves all values, so large ones grow fast; what is not used is not
/// touched either.
template <typename T>
void make_room(std::vector<T>& items, std::size_t first) {
  constexpr std::size_t kLarge = 1024;
  const std::size_t size = items.size();
  if (size < items.capacity()) return;
  items.reserve(size < kLarge ? std::max(first, 2 * size) : 4 * size);
}

/// Values are read to where they stay; functions that fail leave why in failure_.
class Parser {
 public:
  Parser(std::string_view text, const ParseOptions& options)
      : text_(text), options_(options), max_depth_(std::min(options.max_depth, kDepthCeiling)) {
    stack_.reserve(kFramesFirst);
  }

  Result<Value> run();

 private:
  enum class Read {
    kFailed,
    kWhole,   ///< a value, to its end
    kOpened,  ///< a container, to its first item
  };
  enum class Next {
    kFailed,
    kItem,
    kEnd,
  };

  [[nodiscard]] bool at_end() const { return pos_ >= text_.size(); }

  [[nodiscard]] char peek() const { return text_[pos_]; }

  void skip_space();
  // All false.
  [[gnu::cold]] bool fail(Status why);
  bool fail_at(std::size_t at, std::string_view what);
  bool expected(std::string_view what);
  [[nodiscard]] std::string found() const;

  Value& next_place();
  Value& last_place();
  Read read_value();
  Read enter();
  /// After a value inside a container.
  Next next_or_end();
  bool close();
  bool open(bool is_object);
  bool read_key(Frame& frame);
  bool read_string(std::string& out);
  bool read_escape(std::string& out);
  bool read_hex4(char32_t& code);
  bool read_number(Value& to);
  bool read_double(std::string_view token, std::size_t start, Value& to);
  bool read_word(Value& to);
  [[nodiscard]] std::size_t items_ahead() const;
  void read_small_integers(Frame& frame);
  [[nodiscard]] bool wants_integers() const;
  std::optional<Integers> read_integers(Frame& frame);

  std::string_view text_;
  const ParseOptions& options_;
  std::size_t max_depth_;
  std::size_t pos_ = 0;
  std::size_t value_count_ = 0;
  Value root_;
  std::vector<Frame> stack_;
  Status failure_;
};

void Parser::skip_space() {
  const char* const at = skip_space_from(text_.data() + pos_, text_.data() + text_.size());
  pos_ = static_cast<std::size_t>(at - text_.data());
}

bool Parser::fail(Status why) {
  failure_ = std::move(why);
  return false;
}

bool Parser::fail_at(std::size_t at, std::string_view what) {
  const std::string_view before = text_.substr(0, at);
  const auto line = std::count(before.begin(), before.end(), '\n') + 1;
  const std::size_t newline = before.rfind('\n');
  const std::size_t column = newline == std::string_view::npos ? at + 1 : at - newline;
  return fail(
      invalid_argument(fmt::format("line {}, column {} (byte {}): {}", line, column, at, what)));
}

std::string Parser::found() const {
  if (at_end()) return "the end of the text";
  const auto byte = static_cast<unsigned char>(peek());
  if (byte > 0x20 && byte < 0x7F) return fmt::format("'{}'", peek());
  return fmt::format("byte 0x{:02x}", byte);
}

bool Parser::expected(std::string_view what) {
  return fail_at(pos_, fmt::format("expected {}, found {}", what, found()));
}

/// Of the value that comes; in an object its key is there already.
Value& Parser::next_place() {
  if (stack_.empty()) return root_;
  Frame& frame = stack_.back();
  if (frame.is_object) return frame.members.back().value;
  make_room(frame.items, kItemsFirst);
  return frame.items.emplace_back();
}

/// Of the value that came last.
Value& Parser::last_place() {
  if (stack_.empty()) return root_;
  Frame& frame = stack_.back();
  return frame.is_object ? frame.members.back().value : frame.items.back();
}

bool Parser::open(bool is_object) {
  if (stack_.size() >= max_depth_) {
    return fail(
        resource_exhausted(fmt::format("byte {}: nested deeper than {} levels", pos_, max_depth_)));
  }
  ++pos_;
  stack_.emplace_back();
  stack_.back().is_object = is_object;
  return true;
}

Parser::Read Parser::read_value() {
  skip_space();
  const auto whole = [](bool read) { return read ? Read::kWhole : Read::kFailed; };
  if (++value_count_ > options_.max_values) {
    return whole(fail(resource_exhausted(
        fmt::format("byte {}: more than {} values", pos_, options_.max_values))));
  }
  if (at_end()) return whole(expected("a value"));
  Value& to = next_place();
  const char c = peek();
  if (c == '{' || c == '[') return open(c == '{') ? enter() : Read::kFailed;
  if (c == '"') return whole(read_string(to.make_string()));
  return whole(c == '-' || is_digit(c) ? read_number(to) : read_word(to));
}

bool Parser::read_word(Value& to) {
  const auto take = [this](std::string_view word) {
    if (text_.substr(pos_, word.size()) != word) return false;
    pos_ += word.size();
    return true;
  };
  if (take("true")) {
    to = true;
  } else if (take("false")) {
    to = false;
  } else if (!take("null")) {
    return expected("a value");
  }
  return true;
}

bool Parser::read_number(Value& to) {
  const std::size_t start = pos_;
  const auto skip_digits = [&] {
    const std::size_t first = pos_;
    while (!at_end() && is_digit(peek())) {
      ++pos_;
    }
    return pos_ > first;
  };
  const bool negative = peek() == '-';
  if (negative) ++pos_;
  const bool zero = !at_end() && peek() == '0';
  if (!skip_digits()) return expected("a digit");
  if (zero && pos_ - start > (negative ? 2U : 1U)) {
    return fail_at(start, "a number must not start with 0 followed by digits");
  }
  bool integer = true;
  if (!at_end() && peek() == '.') {
    integer = false;
    ++pos_;
    if (!skip_digits()) return expected("a digit after the decimal point");
  }
  if (!at_end() && (peek() == 'e' || peek() == 'E')) {
    integer = false;
    ++pos_;
    if (!at_end() && (peek() == '+' || peek() == '-')) ++pos_;
    if (!skip_digits()) return expected("a digit in the exponent");
  }
  const std::string_view token = text_.substr(start, pos_ - start);
  return (integer && read_integer(token, to)) || read_double(token, start, to);
}

/// How many items an array of numbers has, looking ahead for its end: room for all at once. Where
/// that is further away, growing costs little beside the rest.
std::size_t Parser::items_ahead() const {
  constexpr std::size_t kAheadMax = 64 << 10;
  const std::string_view ahead = text_.substr(pos_, kAheadMax);
  const std::size_t commas = count_commas(ahead.substr(0, ahead.find(']')));
  return std::min(commas + 1, options_.max_values - value_count_);
}

/// Takes "1,2,3," from the front. Whatever is not a plain short integer with a comma behind it is
/// left for read_value.
void Parser::read_small_integers(Frame& frame) {
  const char* const end = text_.data() + text_.size();
  if (!at_end() && is_digit(peek())) frame.items.reserve(items_ahead());
  while (value_count_ < options_.max_values) {
    const char* const at = text_.data() + pos_;
    const ShortNumber number = read_short_number(at, end);
    const char* const behind = at + number.digits;
    if (number.digits == 0 || behind == end || *behind != ',') return;
    ++value_count_;
    frame.items.emplace_back(number.value);
    pos_ += number.digits + 1;
    if (!at_end() && !is_digit(peek())) skip_space();
  }
}

/// Whether the array that begins here is to be held as Integers, if it is one of those.
bool Parser::wants_integers() const {
  const Frame& root = stack_.front();
  return root.is_object &&
         std::ranges::find(options_.integer_lists, std::string_view(root.members.back().key)) !=
             options_.integer_lists.end();
}

/// The whole array "1,2,3]". Nothing: there is something else in it; what is before that is in
/// frame.items, and read_value goes on there.
std::optional<Integers> Parser::read_integers(Frame& frame) {
  if (at_end() || !is_digit(peek())) return std::nullopt;
  const char* const end = text_.data() + text_.size();
  const char* at = text_.data() + pos_;
  const std::size_t most = options_.max_values - value_count_;
  Integers numbers(items_ahead());
  std::size_t count = 0;
  bool closed = false;
  while (!closed && count < most) {
    const IntegerRun run = read_run(text_.data(), at, end, std::span(numbers).subspan(count));
    at = run.at;
    count += run.count;
    // What the run does not take: the last number, one with other white space, too many.
    const ShortNumber number = count < most ? read_short_number(at, end) : ShortNumber{};
    const char* const behind = skip_space_from(at + number.digits, end);
    if (number.digits == 0 || behind == end || (*behind != ',' && *behind != ']')) break;
    if (count == numbers.size()) numbers.resize(std::min(2 * count, most));
    numbers[count++] = number.value;
    closed = *behind == ']';
    at = closed ? behind + 1 : skip_space_from(behind + 1, end);
  }
  pos_ = static_cast<std::size_t>(at - text_.data());
  value_count_ += count;
  numbers.resize(count);
  if (closed) return numbers;
  frame.items.assign(numbers.begin(), numbers.end());
  return std::nullopt;
}

bool Parser::read_double(std::string_view token, std::size_t start, Value& to) {
  double number = 0;
  const auto [end, code] = std::from_chars(token.data(), token.data() + token.size(), number);
  // from_chars does not say whether the value was too large or too small; strtod does.
  if (code != std::errc()) number = std::strtod(std::string(token).c_str(), nullptr);
  if (!std::isfinite(number)) {
    return fail_at(start,
                   fmt::format("number {} is beyond the range of a double", token.substr(0, 40)));
  }
  to = number;
  return true;
}

bool Parser::read_hex4(char32_t& code) {
  code = 0;
  for (int i = 0; i < 4; ++i) {
    if (at_end()) return expected("four hexadecimal digits after \\u");
    const char c = peek();
    const char lower = static_cast<char>(c | 0x20);
    if (is_digit(c)) {
      code = code * 16 + static_cast<char32_t>(c - '0');
    } else if (lower >= 'a' && lower <= 'f') {
      code = code * 16 + static_cast<char32_t>(lower - 'a' + 10);
    } else {
      return expected("four hexadecimal digits after \\u");
    }
    ++pos_;
  }
  return true;
}

bool Parser::read_escape(std::string& out) {
  const std::size_t start = pos_++;
  if (at_end()) return expected("an escape");
  const char c = peek();
  if (c != 'u') {
    constexpr std::string_view kNames = "\"\\/bfnrt";
    constexpr std::string_view kChars = "\"\\/\b\f\n\r\t";
    const std::size_t which = kNames.find(c);
    if (which == std::string_view::npos) return expected("one of \"\\/bfnrtu after a backslash");
    out.push_back(kChars[which]);
    ++pos_;
    return true;
  }
  ++pos_;
  char32_t code = 0;
  if (!read_hex4(code)) return false;
  if (code >= 0xDC00 && code <= 0xDFFF) return fail_at(start, "lone low surrogate");
  if (code >= 0xD800 && code <= 0xDBFF) {
    if (text_.substr(pos_, 2) != "\\u") return fail_at(start, "lone high surrogate");
    pos_ += 2;
    char32_t low = 0;
    if (!read_hex4(low)) return false;
    if (low < 0xDC00 || low > 0xDFFF) return fail_at(start, "lone high surrogate");
    code = 0x10000 + ((code - 0xD800) << 10) + (low - 0xDC00);
  }
  append_utf8(out, code);
  return true;
}

bool Parser::read_string(std::string& out) {
  ++pos_;
  while (true) {
    const std::size_t start = pos_;
    pos_ = scan::find_not_plain(text_, pos_);
    out.append(text_.data() + start, pos_ - start);
    if (at_end()) return expected("the end of the string");
    const auto c = static_cast<unsigned char>(peek());
    if (c == '"') {
      ++pos_;
      return true;
    }
    if (c == '\\') {
      if (!read_escape(out)) return false;
    } else if (c < 0x20) {
      return fail_at(pos_, fmt::format("control character 0x{:02x} in a string", c));
    } else {
      const Utf8Step step = decode_utf8(text_.substr(pos_));
      if (!step.valid) return fail_at(pos_, fmt::format("invalid UTF-8 at byte offset {}", pos_));
      out.append(text_.data() + pos_, step.byte_count);
      pos_ += step.byte_count;
    }
  }
}

/// And makes the member that the value behind it goes to.
bool Parser::read_key(Frame& frame) {
  skip_space();
  if (at_end() || peek() != '"') return expected("a key in double quotes");
  make_room(frame.members, kMembersFirst);
  if (!read_string(frame.members.emplace_back().key)) return false;
  skip_space();
  if (at_end() || peek() != ':') return expected("':'");
  ++pos_;
  return true;
}

Parser::Next Parser::next_or_end() {
  Frame& frame = stack_.back();
  skip_space();
  const char end = frame.is_object ? '}' : ']';
  if (!at_end() && peek() == end) {
    ++pos_;
    return close() ? Next::kEnd : Next::kFailed;
  }
  if (at_end() || peek() != ',') {
    expected(frame.is_object ? "',' or '}'" : "',' or ']'");
    return Next::kFailed;
  }
  ++pos_;
  return !frame.is_object || read_key(frame) ? Next::kItem : Next::kFailed;
}

Result<Value> Parser::run() {
  if (text_.size() > options_.max_bytes) {
    return resource_exhausted(
        fmt::format("{} bytes of JSON, at most {} are allowed", text_.size(), options_.max_bytes));
  }
  while (true) {
    const Read read = read_value();
    if (read == Read::kFailed) return failure_;
    if (read == Read::kOpened) continue;
    Next next = Next::kEnd;
    while (next == Next::kEnd) {
      if (stack_.empty()) {
        skip_space();
        if (at_end()) return std::move(root_);
        expected("the end of the text");
        return failure_;
      }
      next = next_or_end();
    }
    if (next == Next::kFailed) return failure_;
  }
}

/// In a new container: to its first item, or behind it where it ends at once or was read at once.
Parser::Read Parser::enter() {
  Frame& frame = stack_.back();
  skip_space();
  if (!at_end() && peek() == (frame.is_object ? '}' : ']')) {
    ++pos_;
    return close() ? Read::kWhole : Read::kFailed;
  }
  if (frame.is_object) return read_key(frame) ? Read::kOpened : Read::kFailed;
  if (!wants_integers()) {
    read_small_integers(frame);
  } else if (auto numbers = read_integers(frame)) {
    stack_.pop_back();
    last_place() = std::move(*numbers);
    return Read::kWhole;
  }
  return Read::kOpened;
}

/// The container has ended.
bool Parser::close() {
  Frame& frame = stack_.back();
  std::optional<std::string> repeated;
  Value value = frame.is_object ? Value(Object(std::move(frame.members), &repeated))
                                : Value(std::move(frame.items));
  if (options_.reject_duplicate_keys && repeated) {
    return fail_at(pos_ - 1,
                   fmt::format("duplicate key \"{}\" in the object that ends here",
                               std::string_view(*repeated).substr(0, 80)));
  }
  stack_.pop_back();
  last_place() = std::move(value);
  return true;
}

}  // namespace

Result<Value> parse(std::string_view text, const ParseOptions& options) {
  return Parser(text, options).run();
}

Result<std::string> read_text_file(const std::filesystem::path& path, std::size_t max_bytes) {
  std::error_code code;
  const auto status = std::filesystem::status(path, code);
  if (!std::filesystem::exists(status)) return not_found(path.string() + ": no such file");
  if (!std::filesystem::is_regular_file(status)) {
    return invalid_argument(path.string() + ": expected a regular file");
  }
  const std::uintmax_t size = std::filesystem::file_size(path, code);
  if (code) return invalid_argument(path.string() + ": " + code.message());
  if (size > max_bytes) {
    return resource_exhausted(
        fmt::format("{}: {} bytes, at most {} are allowed", path.string(), size, max_bytes));
  }
  std::ifstream file(path, std::ios::binary);
  std::string text(size, '\0');
  file.read(text.data(), static_cast<std::streamsize>(size));
  if (!file) return invalid_argument(path.string() + ": cannot be read");
  return text;
}

Result<Value> parse_file(const std::filesystem::path& path, const ParseOptions& options) {
  TANDEM_TRY(const std::string text, read_text_file(path, options.max_bytes));
  auto value = parse(text, options);
  if (!value.ok()) return value.status().with_context(path.string());
  return value;
}

}  // namespace tandem::json
