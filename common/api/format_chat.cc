// /v1/chat/completions on the wire.
#include "common/api/format.h"

#include <utility>

namespace tandem::api {

namespace {

class ChatFormat final : public Format {
 public:
  explicit ChatFormat(FormatInfo info) : info_(std::move(info)) {
    json::Writer writer(chunk_head_);
    chunk_head_ = "data: {\"id\":";
    json::append_string(chunk_head_, info_.id);
    chunk_head_ += ",\"object\":\"chat.completion.chunk\",\"created\":";
    json::append_number(chunk_head_, info_.created);
    chunk_head_ += ",\"model\":";
    json::append_string(chunk_head_, info_.model);
    chunk_head_ += ",\"choices\":[";
  }

  void open(const std::vector<Sequence>& sequences, std::string* out) override {
    for (const Sequence& sequence : sequences) {
      begin_choice(sequence, out);
      *out += R"({"role":"assistant","content":"","reasoning_content":null},"logprobs":null,)"
              R"("finish_reason":null,"matched_stop":null}])";
      end_chunk(sequence, out);
    }
  }

  void delta(Sequence& sequence, const Delta& delta, std::string* out) override {
    if (!delta.text.empty() || !delta.logprobs.empty()) {
      begin_choice(sequence, out);
      *out += "{\"content\":";
      json::append_string(*out, delta.text);
      *out += ",\"reasoning_content\":null},\"logprobs\":";
      append_logprobs(delta.logprobs, out);
      *out += ",\"finish_reason\":null,\"matched_stop\":null}]";
      end_chunk(sequence, out);
    }
    if (!sequence.finish) return;
    begin_choice(sequence, out);
    *out += "{},\"logprobs\":null,\"finish_reason\":\"";
    out->append(finish_name(*sequence.finish));
    *out += "\",\"matched_stop\":";
    json::Writer writer(*out);
    write_matched(writer, sequence.finish);
    *out += "}]";
    end_chunk(sequence, out, true);
  }

  void close(const std::vector<Sequence>& sequences, std::string* out) override {
    if (info_.include_usage) {
      *out += chunk_head_ + "],\"usage\":";
      json::Writer writer(*out);
      write_total_usage(writer, sequences, info_.context->options.enable_cache_report);
      if (info_.timings) {
        *out += ",\"timings\":";
        json::Writer timings(*out);
        write_total_timings(timings, sequences);
      }
      *out += "}\n\n";
    }
    *out += "data: [DONE]\n\n";
  }

  std::string whole(std::vector<Sequence>& sequences) override {
    std::string out;
    out.reserve(kAnswerBytes);
    json::Writer writer(out);
    writer.begin_object();
    writer.key("id");
    writer.string(info_.id);
    writer.key("object");
    writer.string("chat.completion");
    writer.key("created");
    writer.number(info_.created);
    writer.key("model");
    writer.string(info_.model);
    writer.key("choices");
    writer.begin_array();
    for (const Sequence& sequence : sequences)
      write_choice(writer, sequence);
    writer.end_array();
    writer.key("usage");
    write_total_usage(writer, sequences, info_.context->options.enable_cache_report);
    if (info_.timings) {
      writer.key("timings");
      write_total_timings(writer, sequences);
    }
    writer.key("metadata");
    writer.begin_object();
    writer.key("weight_version");
    writer.string(info_.context->options.model.weight_version);
    writer.end_object();
    writer.end_object();
    return out;
  }

 private:
  void begin_choice(const Sequence& sequence, std::string* out) const {
    *out += chunk_head_;
    *out += "{\"index\":";
    json::append_number(*out, sequence.index);
    *out += ",\"delta\":";
  }

  void end_chunk(const Sequence& sequence, std::string* out, bool last = false) const {
    if (info_.continuous_usage) {
      *out += ",\"usage\":";
      json::Writer writer(*out);
      write_usage(writer,
                  sequence.prompt_tokens,
                  sequence.completion_tokens,
                  cached(sequence.cached_tokens));
    } else if (info_.include_usage) {
      *out += ",\"usage\":null";
    }
    if (last && info_.timings && !info_.include_usage) {
      *out += ",\"timings\":";
      json::Writer writer(*out);
      write_timings(writer, sequence.timings);
    }
    *out += "}\n\n";
  }

  [[nodiscard]] std::optional<std::int64_t> cached(std::int64_t tokens) const {
    if (!info_.context->options.enable_cache_report) return std::nullopt;
    return tokens;
  }

  void write_choice(json::Writer& writer, const Sequence& sequence) const {
    writer.begin_object();
    writer.key("index");
    writer.number(sequence.index);
    writer.key("message");
    writer.begin_object();
    writer.key("role");
    writer.string("assistant");
    writer.key("content");
    writer.string(sequence.output_text);
    writer.key("reasoning_content");
    writer.null();
    writer.key("tool_calls");
    writer.null();
    writer.end_object();
    writer.key("logprobs");
    std::string logprobs;
    append_logprobs(sequence.logprobs, &logprobs);
    writer.raw(logprobs);
    writer.key("finish_reason");
    writer.string(finish_name(*sequence.finish));
    writer.key("matched_stop");
    write_matched(writer, sequence.finish);
    writer.end_object();
  }

  void append_logprobs(const std::vector<core::TokenLogprob>& logprobs, std::string* out) const {
    if (!info_.logprobs) {
      *out += "null";
      return;
    }
    json::Writer writer(*out);
    writer.begin_object();
    writer.key("content");
    writer.begin_array();
    for (const core::TokenLogprob& entry : logprobs) {
      writer.begin_object();
      write_token(writer, entry.token, entry.logprob);
      writer.key("top_logprobs");
      writer.begin_array();
      for (const auto& [token, logprob] : entry.top) {
        writer.begin_object();
        write_token(writer, token, logprob);
        writer.end_object();
      }
      writer.end_array();
      writer.end_object();
    }
    writer.end_array();
    writer.end_object();
  }

  void write_token(json::Writer& writer, core::TokenId id, std::optional<float> logprob) const {
    const std::string_view text = token_text(*info_.context->tokenizer, id);
    writer.key("token");
    writer.string(text);
    writer.key("bytes");
    writer.begin_array();
    for (const char c : text)
      writer.number(static_cast<int>(static_cast<unsigned char>(c)));
    writer.end_array();
    writer.key("logprob");
    logprob ? writer.number(*logprob) : writer.null();
  }

  FormatInfo info_;
  std::string chunk_head_;
};

}  // namespace

std::unique_ptr<Format> make_chat_format(FormatInfo info) {
  return std::make_unique<ChatFormat>(std::move(info));
}

}  // namespace tandem::api
