// /generate on the wire, as SGLang answers: text and meta_info hold everything so far.
#include "common/api/format.h"
#include "common/base/clock.h"

#include <array>
#include <utility>

namespace tandem::api {

namespace {

class NativeFormat final : public Format {
 public:
  NativeFormat(FormatInfo info, NativeShape shape, Time started)
      : info_(std::move(info)), shape_(shape), started_(started) {}

  [[nodiscard]] bool cumulative() const override { return true; }

  void delta(Sequence& sequence, const Delta& /*delta*/, std::string* out) override {
    *out += "data: ";
    append(sequence, out);
    *out += "\n\n";
  }

  void close(const std::vector<Sequence>& /*sequences*/, std::string* out) override {
    *out += "data: [DONE]\n\n";
  }

  std::string whole(std::vector<Sequence>& sequences) override {
    std::string out;
    out.reserve(kAnswerBytes);
    if (!shape_.is_list) {
      append(sequences.front(), &out);
      return out;
    }
    out.push_back('[');
    for (const Sequence& sequence : sequences) {
      if (out.size() > 1) out.push_back(',');
      append(sequence, &out);
    }
    out.push_back(']');
    return out;
  }

 private:
  void append(const Sequence& sequence, std::string* out) const {
    json::Writer writer(*out);
    writer.begin_object();
    if (shape_.is_list) {
      writer.key("index");
      writer.number(sequence.index);
    }
    writer.key("text");
    writer.string(sequence.output_text);
    writer.key("output_ids");
    writer.begin_array();
    for (const core::TokenId id : sequence.output_ids)
      writer.number(id);
    writer.end_array();
    writer.key("meta_info");
    write_meta(writer, sequence);
    writer.end_object();
  }

  void write_meta(json::Writer& writer, const Sequence& sequence) const {
    writer.begin_object();
    writer.key("id");
    writer.string(sequence.name);
    writer.key("finish_reason");
    write_finish(writer, sequence);
    const auto count = [&writer](const char* name, std::int64_t value) {
      writer.key(name);
      writer.number(value);
    };
    count("prompt_tokens", sequence.prompt_tokens);
    writer.key("weight_version");
    writer.string(info_.context->options.model.weight_version);
    count("num_retractions", sequence.retraction_count);
    if (shape_.return_logprob) write_logprobs(writer, sequence);
    count("completion_tokens", sequence.completion_tokens);
    count("cached_tokens", sequence.cached_tokens);
    if (sequence.finish) {
      writer.key("e2e_latency");
      writer.number((steady_clock().now() - started_).seconds());
      if (info_.timings) {
        writer.key("timings");
        write_timings(writer, sequence.timings);
      }
    }
    writer.end_object();
  }

  static void write_finish(json::Writer& writer, const Sequence& sequence) {
    if (!sequence.finish) return writer.null();
    const Finish& finish = *sequence.finish;
    writer.begin_object();
    writer.key("type");
    writer.string(finish_name(finish));
    switch (finish.kind) {
      case core::FinishKind::kStop:
        writer.key("matched");
        write_matched(writer, sequence.finish);
        break;
      case core::FinishKind::kLength:
        writer.key("length");
        writer.number(sequence.max_new_tokens);
        break;
      case core::FinishKind::kAbort:
        writer.key("message");
        writer.string(finish.message);
        writer.key("status_code");
        writer.null();
        writer.key("err_type");
        writer.null();
        break;
    }
    writer.end_object();
  }

  void write_logprobs(json::Writer& writer, const Sequence& sequence) const {
    // As SGLang: there whenever logprobs are, empty when none of the prompt were asked for.
    writer.key("input_token_logprobs");
    write_entries(writer, sequence.prompt_logprobs);
    if (shape_.top_logprobs) {
      writer.key("input_top_logprobs");
      write_tops(writer, sequence.prompt_logprobs);
    }
    writer.key("output_token_logprobs");
    write_entries(writer, sequence.logprobs);
    writer.key("output_token_logprobs_length");
    writer.number(sequence.logprobs.size());
    if (shape_.top_logprobs) {
      writer.key("output_top_logprobs");
      write_tops(writer, sequence.logprobs);
    }
  }

  void write_entries(json::Writer& writer, const std::vector<core::TokenLogprob>& entries) const {
    writer.begin_array();
    for (const core::TokenLogprob& entry : entries)
      write_triple(writer, entry.logprob, entry.token);
    writer.end_array();
  }

  // Null where nothing predicts the position.
  void write_tops(json::Writer& writer, const std::vector<core::TokenLogprob>& entries) const {
    writer.begin_array();
    for (const core::TokenLogprob& entry : entries) {
      if (!entry.logprob) {
        writer.null();
        continue;
      }
      writer.begin_array();
      for (const auto& [token, logprob] : entry.top)
        write_triple(writer, logprob, token);
      writer.end_array();
    }
    writer.end_array();
  }

  void write_triple(json::Writer& writer, std::optional<float> logprob, core::TokenId token) const {
    writer.begin_array();
    logprob ? writer.number(*logprob) : writer.null();
    writer.number(token);
    if (shape_.text_in_logprobs) {
      const std::array<core::TokenId, 1> one{token};
      writer.string(info_.context->tokenizer->decode(one, false));
    } else {
      writer.null();
    }
    writer.end_array();
  }

  FormatInfo info_;
  NativeShape shape_;
  Time started_;
};

}  // namespace

std::unique_ptr<Format> make_native_format(FormatInfo info, NativeShape shape, Time started) {
  return std::make_unique<NativeFormat>(std::move(info), shape, started);
}

}  // namespace tandem::api
