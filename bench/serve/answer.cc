#include "bench/serve/answer.h"

#include "common/http/message.h"
#include "common/json/parse.h"

#include <algorithm>
#include <charconv>

namespace tandem::bench {

namespace {

constexpr std::size_t kErrorTextMax = 300;

std::int64_t int_or(const json::Value* value, std::int64_t other) {
  if (value == nullptr || value->if_int() == nullptr) return other;
  return *value->if_int();
}

std::string_view text_or_empty(const json::Value* value) {
  if (value == nullptr || !value->is_string()) return {};
  return *value->if_string();
}

// The text of an OpenAI choice, whatever the route and the shape.
std::string_view choice_text(const json::Value& choice) {
  if (choice.find("text") != nullptr) return text_or_empty(choice.find("text"));
  for (const char* member : {"delta", "message"}) {
    const json::Value* message = choice.find(member);
    if (message == nullptr) continue;
    const std::string_view content = text_or_empty(message->find("content"));
    return content.empty() ? text_or_empty(message->find("reasoning_content")) : content;
  }
  return {};
}

}  // namespace

void TokenReader::tokens_came(std::int64_t count, double now_s) {
  if (count <= 0) return;
  if (!has_first_) {
    has_first_ = true;
    outcome_.ttft_s = now_s - started_s_;
  } else {
    // Tokens that came together share the time between them.
    const double each = (now_s - last_s_) / static_cast<double>(count);
    outcome_.itl_s.insert(outcome_.itl_s.end(), static_cast<std::size_t>(count), each);
  }
  seen_tokens_ += count;
  last_s_ = now_s;
}

void TokenReader::read_native(const json::Value& chunk, double now_s, bool whole) {
  const json::Value* meta = chunk.find("meta_info");
  if (meta == nullptr) return;
  outcome_.prompt_tokens = int_or(meta->find("prompt_tokens"), outcome_.prompt_tokens);
  told_tokens_ = int_or(meta->find("completion_tokens"), told_tokens_);
  outcome_.text = text_or_empty(chunk.find("text"));  // Everything so far.
  if (!whole) tokens_came(told_tokens_ - seen_tokens_, now_s);
  const json::Value* reason = meta->find("finish_reason");
  if (reason == nullptr || reason->is_null()) return;
  finished_ = true;
  if (text_or_empty(reason->find("type")) == "abort") {
    const std::string_view why = text_or_empty(reason->find("message"));
    outcome_.error = "aborted: " + std::string(why);
  }
}

void TokenReader::read_openai(const json::Value& chunk, double now_s, bool whole) {
  if (const json::Value* usage = chunk.find("usage"); usage != nullptr && usage->is_object()) {
    outcome_.prompt_tokens = int_or(usage->find("prompt_tokens"), outcome_.prompt_tokens);
    told_tokens_ = int_or(usage->find("completion_tokens"), told_tokens_);
  }
  const json::Value* choices = chunk.find("choices");
  const json::Array* list = choices == nullptr ? nullptr : choices->if_array();
  if (list == nullptr || list->empty()) return;
  const json::Value& choice = list->front();
  const std::string_view text = choice_text(choice);
  const json::Value* reason = choice.find("finish_reason");
  const bool ends = reason != nullptr && !reason->is_null();
  finished_ = finished_ || ends;
  if (text_or_empty(reason) == "abort") outcome_.error = "aborted";
  outcome_.text += text;
  // A last chunk may hold nothing but the reason; the first one of a chat only the role.
  if (!whole && (!text.empty() || (ends && !has_first_))) tokens_came(1, now_s);
}

void TokenReader::read(const json::Value& chunk, double now_s, bool whole) {
  const json::Value* error = chunk.find("error");
  if (error != nullptr && !error->is_null()) {
    const std::string_view why =
        error->is_string() ? text_or_empty(error) : text_or_empty(error->find("message"));
    outcome_.error = "error in the answer: " + std::string(why.substr(0, kErrorTextMax));
    return;
  }
  api_ == Api::kNative ? read_native(chunk, now_s, whole) : read_openai(chunk, now_s, whole);
}

void TokenReader::finish(double now_s, Outcome* outcome) {
  outcome_.start_s = started_s_;
  outcome_.latency_s = now_s - started_s_;
  if (!has_first_) outcome_.ttft_s = outcome_.latency_s;
  outcome_.output_tokens = told_tokens_ >= 0 ? told_tokens_ : seen_tokens_;
  if (outcome_.error.empty() && !finished_) outcome_.error = "the answer has no end";
  outcome_.ok = outcome_.error.empty();
  *outcome = std::move(outcome_);
}

bool AnswerReader::feed(std::string_view bytes, double now_s) {
  if (done_) return true;
  in_.append(bytes);
  while (!in_body_) {
    if (!read_head()) return done_;
  }
  read_body(now_s);
  return done_;
}

// False: more bytes are needed, or the response is refused.
bool AnswerReader::read_head() {
  const std::size_t end = in_.find("\r\n\r\n");
  if (end == std::string::npos) {
    if (in_.size() > std::size_t{64} << 10U) fail("the response has no head");
    return false;
  }
  std::string_view head = std::string_view(in_).substr(0, end + 2);
  const std::size_t line_end = head.find("\r\n");
  const std::string_view line = head.substr(0, line_end);
  const char* digits = line.data() + std::min<std::size_t>(9, line.size());
  const auto parsed = std::from_chars(digits, line.data() + line.size(), status_);
  if (!line.starts_with("HTTP/1.") || parsed.ec != std::errc()) {
    fail("not an HTTP/1 response");
    return false;
  }
  head.remove_prefix(line_end + 2);
  while (!head.empty()) {
    const std::size_t stop = head.find("\r\n");
    const std::string_view field = head.substr(0, stop);
    head.remove_prefix(stop + 2);
    const std::size_t colon = std::min(field.find(':'), field.size());
    const std::string name = http::to_lower(field.substr(0, colon));
    std::string value = http::to_lower(field.substr(std::min(colon + 1, field.size())));
    value.erase(0, value.find_first_not_of(' '));
    if (name == "content-length") length_ = std::strtoull(value.c_str(), nullptr, 10);
    if (name == "transfer-encoding") chunked_ = value.find("chunked") != std::string::npos;
    if (name == "connection") keep_alive_ = value.find("close") == std::string::npos;
  }
  in_.erase(0, end + 4);
  // An interim response: the real one follows.
  if (status_ / 100 != 1) in_body_ = true;
  return true;
}

void AnswerReader::read_body(double now_s) {
  bool complete_now = false;
  if (chunked_) {
    const std::size_t taken = chunks_.feed(in_, &body_);
    in_.erase(0, taken);
    if (chunks_.error().failed()) return fail("broken chunks: " + chunks_.error().message);
    complete_now = chunks_.done();
  } else {
    std::size_t count = in_.size();
    if (length_)
      count = static_cast<std::size_t>(std::min<std::uint64_t>(count, *length_ - taken_));
    body_.append(in_, 0, count);
    in_.erase(0, count);
    taken_ += count;
    complete_now = length_ && taken_ == *length_;
  }
  if (stream_ && status_ == 200) read_events(now_s);
  if (complete_now) complete(now_s);
}

void AnswerReader::read_events(double now_s) {
  while (true) {
    const std::size_t end = body_.find('\n', event_begin_);
    if (end == std::string::npos) break;
    std::string_view line = std::string_view(body_).substr(event_begin_, end - event_begin_);
    event_begin_ = end + 1;
    if (line.ends_with('\r')) line.remove_suffix(1);
    if (!line.starts_with("data:")) continue;
    line.remove_prefix(5);
    if (line.starts_with(' ')) line.remove_prefix(1);
    read_event(line, now_s);
  }
  body_.erase(0, event_begin_);
  event_begin_ = 0;
}

void AnswerReader::read_event(std::string_view data, double now_s) {
  if (data == "[DONE]") {
    saw_done_mark_ = true;
    return;
  }
  const auto chunk = json::parse(data);
  if (chunk.ok()) tokens_.read(*chunk, now_s, false);
}

void AnswerReader::complete(double now_s) {
  done_ = true;
  if (status_ != 200) {
    return fail("HTTP " + std::to_string(status_) + ": " + body_.substr(0, kErrorTextMax));
  }
  if (!stream_) {
    const auto answer = json::parse(body_);
    if (!answer.ok()) return fail("the answer is not JSON: " + answer.status().message());
    tokens_.read(*answer, now_s, true);
  }
  tokens_.finish(now_s, &outcome_);
  if (stream_ && outcome_.ok && !saw_done_mark_) fail("the stream ended without [DONE]");
}

void AnswerReader::end_of_input(double now_s) {
  if (done_) return;
  if (in_body_ && !chunked_ && !length_) return complete(now_s);
  fail("the connection ended before the answer was complete");
}

void AnswerReader::fail(std::string why) {
  done_ = true;
  keep_alive_ = false;
  outcome_.ok = false;
  outcome_.error = std::move(why);
}

}  // namespace tandem::bench
