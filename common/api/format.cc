#include "common/api/format.h"

namespace tandem::api {

std::string Format::stream_error(const ApiError& error) {
  return "data: {\"error\":" + error_object(error) + "}\n\n";
}

std::string_view finish_name(const Finish& finish) {
  switch (finish.kind) {
    case core::FinishKind::kStop:
      return "stop";
    case core::FinishKind::kLength:
      return "length";
    case core::FinishKind::kAbort:
      break;
  }
  return "abort";
}

void write_matched(json::Writer& writer, const std::optional<Finish>& finish) {
  if (finish && finish->stop) {
    writer.string(*finish->stop);
  } else if (finish && finish->token) {
    writer.number(*finish->token);
  } else {
    writer.null();
  }
}

void write_usage(json::Writer& writer,
                 std::int64_t prompt_tokens,
                 std::int64_t completion_tokens,
                 std::optional<std::int64_t> cached_tokens) {
  writer.begin_object();
  writer.key("prompt_tokens");
  writer.number(prompt_tokens);
  writer.key("total_tokens");
  writer.number(prompt_tokens + completion_tokens);
  writer.key("completion_tokens");
  writer.number(completion_tokens);
  writer.key("prompt_tokens_details");
  if (cached_tokens) {
    writer.begin_object();
    writer.key("cached_tokens");
    writer.number(*cached_tokens);
    writer.end_object();
  } else {
    writer.null();
  }
  writer.end_object();
}

void write_total_usage(json::Writer& writer,
                       const std::vector<Sequence>& sequences,
                       bool with_cached) {
  std::int64_t prompt = 0;
  std::int64_t completion = 0;
  std::int64_t cached = 0;
  for (const Sequence& sequence : sequences) {
    completion += sequence.completion_tokens;
    if (sequence.choice_index != 0) continue;
    prompt += sequence.prompt_tokens;
    cached += sequence.cached_tokens;
  }
  write_usage(
      writer, prompt, completion, with_cached ? std::optional<std::int64_t>(cached) : std::nullopt);
}

void write_total_timings(json::Writer& writer, const std::vector<Sequence>& sequences) {
  SequenceTimings total;
  for (const Sequence& sequence : sequences)
    total.add(sequence.timings);
  write_timings(writer, total);
}

std::string_view token_text(const token::Tokenizer& tokenizer, core::TokenId id) {
  const std::string_view bytes = tokenizer.token_bytes(id);
  return bytes.empty() ? tokenizer.token_text(id) : bytes;
}

}  // namespace tandem::api
