#include "common/token/added_tokens.h"

#include "common/json/utf8.h"
#include "common/token/unicode.h"

#include <algorithm>
#include <utility>

namespace tandem::token {
namespace {

/// Start of the last character of `text`, which must not be empty.
std::size_t last_char(std::string_view text) {
  std::size_t pos = text.size() - 1;
  while (pos > 0 && (static_cast<unsigned char>(text[pos]) & 0xC0) == 0x80) {
    --pos;
  }
  return pos;
}

bool touches_word(std::string_view text, const Span& span) {
  const std::string_view before = text.substr(0, span.begin);
  const std::string_view after = text.substr(span.end);
  if (!before.empty() && is_word(json::decode_utf8(before.substr(last_char(before))).code_point)) {
    return true;
  }
  return !after.empty() && is_word(json::decode_utf8(after).code_point);
}

std::size_t skip_space_back(std::string_view text, std::size_t pos, std::size_t stop) {
  while (pos > stop) {
    const std::size_t start = last_char(text.substr(0, pos));
    if (start < stop || !is_space(json::decode_utf8(text.substr(start)).code_point)) break;
    pos = start;
  }
  return pos;
}

std::size_t skip_space(std::string_view text, std::size_t pos) {
  while (pos < text.size()) {
    const json::Utf8Step step = json::decode_utf8(text.substr(pos));
    if (!is_space(step.code_point)) break;
    pos += step.byte_count;
  }
  return pos;
}

}  // namespace

ByteTable AddedTokenMatcher::no_start() {
  ByteTable all{};
  all.fill(true);
  return all;
}

std::uint32_t AddedTokenMatcher::child(std::uint32_t node, unsigned char byte) const {
  for (const auto& [label, target] : nodes_[node].children) {
    if (label == byte) return target;
  }
  return 0;
}

void AddedTokenMatcher::add(const AddedToken& token, std::string_view content) {
  if (content.empty()) return;
  std::uint32_t node = 0;
  for (const char c : content) {
    const auto byte = static_cast<unsigned char>(c);
    std::uint32_t next = child(node, byte);
    if (next == 0) {
      next = static_cast<std::uint32_t>(nodes_.size());
      nodes_.emplace_back();
      nodes_[node].children.emplace_back(byte, next);
    }
    node = next;
  }
  bool& passes = passes_[static_cast<unsigned char>(content[0])];
  if (std::exchange(passes, false)) starts_ += content[0];
  // Two tokens may normalize to the same text; the first keeps it.
  if (nodes_[node].token >= 0) return;
  nodes_[node].token = static_cast<std::int32_t>(tokens_.size());
  tokens_.push_back(token);
}

std::pair<std::int32_t, std::size_t> AddedTokenMatcher::longest(std::string_view text,
                                                                std::size_t pos) const {
  std::pair<std::int32_t, std::size_t> best{-1, pos};
  std::uint32_t node = 0;
  for (std::size_t i = pos; i < text.size(); ++i) {
    node = child(node, static_cast<unsigned char>(text[i]));
    if (node == 0) break;
    if (nodes_[node].token >= 0) best = {nodes_[node].token, i + 1};
  }
  return best;
}

std::size_t AddedTokenMatcher::next_start(std::string_view text, std::size_t pos) const {
  // Mostly they all begin with '<', and the library's search is the quickest.
  if (starts_.size() == 1) return std::min(text.find(starts_[0], pos), text.size());
  return skip_bytes(passes_, text, pos);
}

std::vector<Segment> AddedTokenMatcher::split(std::string_view text) const {
  std::vector<Segment> segments;
  segments.reserve(16);  // a chat of a few messages
  std::size_t done = 0;
  std::size_t pos = 0;
  while ((pos = next_start(text, pos)) < text.size()) {
    const auto [index, end] = longest(text, pos);
    if (index < 0) {
      ++pos;
      continue;
    }
    const AddedToken& token = tokens_[static_cast<std::size_t>(index)];
    Span span{pos, end};
    pos = end;
    if (token.single_word && touches_word(text, span)) continue;
    if (token.lstrip) span.begin = skip_space_back(text, span.begin, done);
    if (token.rstrip) span.end = skip_space(text, span.end);
    span.begin = std::max(span.begin, done);
    if (span.begin > done) segments.push_back({{done, span.begin}, -1});
    segments.push_back({span, token.id});
    done = span.end;
    pos = std::max(pos, done);
  }
  if (done < text.size()) segments.push_back({{done, text.size()}, -1});
  return segments;
}

}  // namespace tandem::token
