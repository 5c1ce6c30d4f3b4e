// /v1/completions on the wire.
#include "common/api/format.h"
#include "common/json/utf8.h"

#include <set>
#include <utility>

namespace tandem::api {

namespace {

class CompletionFormat final : public Format {
 public:
  CompletionFormat(FormatInfo info, CompletionEcho echo)
      : info_(std::move(info)), echo_(std::move(echo)) {
    chunk_head_ = "data: {\"id\":";
    json::append_string(chunk_head_, info_.id);
    chunk_head_ += ",\"object\":\"text_completion\",\"created\":";
    json::append_number(chunk_head_, info_.created);
    chunk_head_ += ",\"model\":";
    json::append_string(chunk_head_, info_.model);
    chunk_head_ += ",\"choices\":[";
  }

  void open(const std::vector<Sequence>& sequences, std::string* out) override {
    // The prompt's own logprobs are known only with the first event: delta() sends the echo then.
    if (!echo_.echo || info_.logprobs) return;
    for (const Sequence& sequence : sequences)
      append_chunk(sequence, prompt_text(sequence), "null", false, out);
  }

  void delta(Sequence& sequence, const Delta& delta, std::string* out) override {
    std::string text = delta.text;
    std::vector<core::TokenLogprob> logprobs = delta.logprobs;
    if (echo_.echo && info_.logprobs && echoed_.insert(sequence.index).second) {
      text.insert(0, prompt_text(sequence));
      logprobs.insert(
          logprobs.begin(), sequence.prompt_logprobs.begin(), sequence.prompt_logprobs.end());
      sequence.prompt_logprobs.clear();
    }
    if (text.empty() && logprobs.empty() && !sequence.finish) return;
    append_chunk(sequence, text, logprobs_json(logprobs, &sequence.text_offset), true, out);
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
    writer.string("text_completion");
    writer.key("created");
    writer.number(info_.created);
    writer.key("model");
    writer.string(info_.model);
    writer.key("choices");
    writer.begin_array();
    for (Sequence& sequence : sequences) {
      std::vector<core::TokenLogprob> logprobs = std::move(sequence.prompt_logprobs);
      if (!echo_.echo) logprobs.clear();
      logprobs.insert(logprobs.end(), sequence.logprobs.begin(), sequence.logprobs.end());
      writer.begin_object();
      writer.key("index");
      writer.number(sequence.index);
      writer.key("text");
      writer.string((echo_.echo ? prompt_text(sequence) : std::string()) + sequence.output_text);
      writer.key("logprobs");
      writer.raw(logprobs_json(logprobs, &sequence.text_offset));
      writer.key("finish_reason");
      writer.string(finish_name(*sequence.finish));
      writer.key("matched_stop");
      write_matched(writer, sequence.finish);
      writer.end_object();
    }
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
  [[nodiscard]] std::string prompt_text(const Sequence& sequence) const {
    const auto index = static_cast<std::size_t>(sequence.prompt_index);
    return index < echo_.prompt_texts.size() ? echo_.prompt_texts[index] : std::string();
  }

  void append_chunk(const Sequence& sequence,
                    const std::string& text,
                    const std::string& logprobs,
                    bool may_finish,
                    std::string* out) const {
    const std::optional<Finish> finish = may_finish ? sequence.finish : std::nullopt;
    *out += chunk_head_;
    *out += "{\"index\":";
    json::append_number(*out, sequence.index);
    *out += ",\"text\":";
    json::append_string(*out, text);
    *out += ",\"logprobs\":" + logprobs + ",\"finish_reason\":";
    if (finish) {
      json::append_string(*out, finish_name(*finish));
    } else {
      *out += "null";
    }
    *out += ",\"matched_stop\":";
    json::Writer matched(*out);
    write_matched(matched, finish);
    *out += "}]";
    if (info_.continuous_usage) {
      *out += ",\"usage\":";
      json::Writer writer(*out);
      const bool report = info_.context->options.enable_cache_report;
      write_usage(writer,
                  sequence.prompt_tokens,
                  sequence.completion_tokens,
                  report ? std::optional<std::int64_t>(sequence.cached_tokens) : std::nullopt);
    } else if (info_.include_usage) {
      *out += ",\"usage\":null";
    }
    if (finish && info_.timings && !info_.include_usage) {
      *out += ",\"timings\":";
      json::Writer writer(*out);
      write_timings(writer, sequence.timings);
    }
    *out += "}\n\n";
  }

  // Offsets count characters of the text that the tokens themselves spell.
  std::string logprobs_json(const std::vector<core::TokenLogprob>& logprobs,
                            std::int64_t* offset) const {
    if (!info_.logprobs) return "null";
    const token::Tokenizer& tokenizer = *info_.context->tokenizer;
    std::string out;
    json::Writer writer(out);
    writer.begin_object();
    writer.key("tokens");
    writer.begin_array();
    for (const core::TokenLogprob& entry : logprobs)
      writer.string(token_text(tokenizer, entry.token));
    writer.end_array();
    writer.key("token_logprobs");
    writer.begin_array();
    for (const core::TokenLogprob& entry : logprobs)
      entry.logprob ? writer.number(*entry.logprob) : writer.null();
    writer.end_array();
    writer.key("top_logprobs");
    writer.begin_array();
    for (const core::TokenLogprob& entry : logprobs)
      write_top(writer, entry);
    writer.end_array();
    writer.key("text_offset");
    writer.begin_array();
    for (const core::TokenLogprob& entry : logprobs) {
      writer.number(*offset);
      std::string text;
      json::append_utf8_lossy(text, token_text(tokenizer, entry.token));
      *offset += static_cast<std::int64_t>(json::count_code_points(text));
    }
    writer.end_array();
    writer.end_object();
    return out;
  }

  // The alternatives, and the token itself when it is not among them, as OpenAI does.
  void write_top(json::Writer& writer, const core::TokenLogprob& entry) const {
    if (!entry.logprob) return writer.null();
    const token::Tokenizer& tokenizer = *info_.context->tokenizer;
    json::Object top;
    for (const auto& [token, logprob] : entry.top) {
      std::string text;
      json::append_utf8_lossy(text, token_text(tokenizer, token));
      // Two tokens may spell the same text: the likelier one stays.
      if (!top.contains(text)) top.set(std::move(text), json::Value(logprob));
    }
    std::string own;
    json::append_utf8_lossy(own, token_text(tokenizer, entry.token));
    if (!top.contains(own)) top.set(std::move(own), json::Value(*entry.logprob));
    writer.value(json::Value(std::move(top)));
  }

  FormatInfo info_;
  CompletionEcho echo_;
  std::set<std::int32_t> echoed_;  ///< choices whose prompt has been sent with its logprobs
  std::string chunk_head_;
};

}  // namespace

std::unique_ptr<Format> make_completion_format(FormatInfo info, CompletionEcho echo) {
  return std::make_unique<CompletionFormat>(std::move(info), std::move(echo));
}

}  // namespace tandem::api
