// Format: what the sequences of a request look like on the wire, whole or as a stream.
#pragma once

#include "common/api/context.h"
#include "common/api/plan.h"
#include "common/api/text_stream.h"
#include "common/api/timings.h"
#include "common/core/request.h"
#include "common/json/write.h"

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace tandem::api {

/// What most whole answers take, so that their text grows once.
constexpr std::size_t kAnswerBytes = 512;

/// How a sequence ended.
struct Finish {
  core::FinishKind kind = core::FinishKind::kStop;
  std::optional<core::TokenId> token;  ///< the id that ended it
  std::optional<std::string> stop;     ///< the stop string that ended it
  std::string message;                 ///< why it was aborted
};

/// One sequence while it runs.
struct Sequence {
  core::RequestId id;
  std::string name;
  std::int32_t index = 0;  ///< in the response
  std::int32_t prompt_index = 0;
  std::int32_t choice_index = 0;
  std::int32_t prompt_tokens = 0;
  std::int32_t completion_tokens = 0;
  std::int32_t cached_tokens = 0;
  std::int32_t retraction_count = 0;
  std::int32_t max_new_tokens = 0;
  /// Everything so far, where the format needs it (Format::cumulative, or not streamed).
  std::string output_text;
  std::vector<core::TokenId> output_ids;
  std::vector<core::TokenLogprob> logprobs;
  std::vector<core::TokenLogprob> prompt_logprobs;
  std::optional<Finish> finish;
  SequenceTimings timings;
  /// Characters given out so far, for text_offset.
  std::int64_t text_offset = 0;
};

/// What one event added.
struct Delta {
  std::string text;
  std::vector<core::TokenLogprob> logprobs;
  std::int32_t token_count = 0;
};

/// Values that all chunks of a response share.
struct FormatInfo {
  std::shared_ptr<const Context> context;
  std::string id;  ///< "chatcmpl-..."
  std::int64_t created = 0;
  std::string model;
  bool include_usage = false;
  bool continuous_usage = false;
  bool logprobs = false;
  bool timings = false;  ///< the client asked for them
};

class Format {
 public:
  virtual ~Format() = default;

  /// Events before the first delta (role chunks).
  virtual void open(const std::vector<Sequence>& /*sequences*/, std::string* /*out*/) {}

  /// The events for one delta; `sequence.finish` is set when it is the last one.
  virtual void delta(Sequence& sequence, const Delta& delta, std::string* out) = 0;
  /// The end of a good stream, [DONE] included.
  virtual void close(const std::vector<Sequence>& sequences, std::string* out) = 0;
  /// The body of an answer that is not streamed.
  virtual std::string whole(std::vector<Sequence>& sequences) = 0;

  /// Whether chunks hold everything so far.
  [[nodiscard]] virtual bool cumulative() const { return false; }

  /// The event that ends a broken stream; no [DONE] follows it.
  [[nodiscard]] static std::string stream_error(const ApiError& error);
};

std::unique_ptr<Format> make_chat_format(FormatInfo info);

struct CompletionEcho {
  bool echo = false;
  std::vector<std::string> prompt_texts;  ///< by prompt_index
};

std::unique_ptr<Format> make_completion_format(FormatInfo info, CompletionEcho echo);

struct NativeShape {
  bool is_list = false;  ///< a list of objects, and `index` in chunks
  bool return_logprob = false;
  bool top_logprobs = false;
  bool text_in_logprobs = false;
};

std::unique_ptr<Format> make_native_format(FormatInfo info, NativeShape shape, Time started);

/// "stop", "length" or "abort".
std::string_view finish_name(const Finish& finish);
/// Writes the token id, the stop string, or null.
void write_matched(json::Writer& writer, const std::optional<Finish>& finish);
/// Writes the usage object.
void write_usage(json::Writer& writer,
                 std::int64_t prompt_tokens,
                 std::int64_t completion_tokens,
                 std::optional<std::int64_t> cached_tokens);
/// The same over all sequences: a prompt counts once, whatever n.
void write_total_usage(json::Writer& writer,
                       const std::vector<Sequence>& sequences,
                       bool with_cached);
/// The timings over all sequences.
void write_total_timings(json::Writer& writer, const std::vector<Sequence>& sequences);
/// Bytes of a token for logprobs; a special token's own spelling.
std::string_view token_text(const token::Tokenizer& tokenizer, core::TokenId id);

}  // namespace tandem::api
