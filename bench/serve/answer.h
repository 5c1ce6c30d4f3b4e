// One answer as it comes in: HTTP framing, server-sent events, and what they say of tokens. Pure:
// bytes and times in, figures out.
#pragma once

#include "bench/serve/options.h"
#include "common/http/parser.h"
#include "common/json/value.h"

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace tandem::bench {

/// What became of one request. Times in seconds.
struct Outcome {
  bool ok = false;
  std::string error;
  double start_s = 0;  ///< of the sending, by a clock that starts anywhere
  double ttft_s = 0;   ///< from sending to the first text
  double latency_s = 0;
  std::vector<double> itl_s;  ///< between one token and the next
  std::int64_t prompt_tokens = 0;
  std::int64_t output_tokens = 0;
  std::string text;
};

/// Figures out of the JSON of one answer, chunk by chunk or whole.
class TokenReader {
 public:
  /// `started_s`: when the request was sent.
  TokenReader(Api api, double started_s) : api_(api), started_s_(started_s), last_s_(started_s) {}

  /// One chunk of a stream, or (`whole`) the answer itself, that came at `now_s`.
  void read(const json::Value& chunk, double now_s, bool whole);
  /// The answer is complete. Counts chunks as tokens where the server told no usage.
  void finish(double now_s, Outcome* outcome);

 private:
  void read_native(const json::Value& chunk, double now_s, bool whole);
  void read_openai(const json::Value& chunk, double now_s, bool whole);
  void tokens_came(std::int64_t count, double now_s);

  Api api_;
  double started_s_;
  double last_s_;
  bool has_first_ = false;
  bool finished_ = false;
  std::int64_t told_tokens_ = -1;
  std::int64_t seen_tokens_ = 0;
  Outcome outcome_;
};

/// Takes the bytes of one HTTP/1.1 response.
class AnswerReader {
 public:
  AnswerReader(Api api, bool stream, double started_s)
      : stream_(stream), tokens_(api, started_s), chunks_(kBodyBytesMax) {}

  /// True once the response is complete; the rest of `bytes` belongs to nobody.
  bool feed(std::string_view bytes, double now_s);
  /// The connection has ended: completes a response without a length, else makes it an error.
  void end_of_input(double now_s);

  [[nodiscard]] bool done() const { return done_; }

  [[nodiscard]] bool keep_alive() const { return keep_alive_; }

  [[nodiscard]] const Outcome& outcome() const { return outcome_; }

 private:
  static constexpr std::size_t kBodyBytesMax = std::size_t{1} << 30U;

  bool read_head();
  void read_body(double now_s);
  void read_events(double now_s);
  void read_event(std::string_view data, double now_s);
  void complete(double now_s);
  void fail(std::string why);

  bool stream_;
  TokenReader tokens_;
  std::string in_;
  std::string body_;
  std::size_t event_begin_ = 0;
  bool in_body_ = false;
  bool done_ = false;
  bool keep_alive_ = true;
  bool saw_done_mark_ = false;
  int status_ = 0;
  std::optional<std::uint64_t> length_;
  std::uint64_t taken_ = 0;
  bool chunked_ = false;
  http::ChunkedDecoder chunks_;
  Outcome outcome_;
};

}  // namespace tandem::bench
