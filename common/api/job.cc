#include "common/api/job.h"

#include "common/base/clock.h"
#include "common/obs/log.h"

#include <iterator>
#include <utility>

namespace tandem::api {

namespace {

constexpr std::size_t kOutKept = 4U << 10U;

}  // namespace

Job::Job(std::shared_ptr<Context> context,
         std::shared_ptr<http::ResponseWriter> writer,
         http::Headers headers,
         std::unique_ptr<Format> format,
         Time started)
    : context_(std::move(context)),
      writer_(std::move(writer)),
      headers_(std::move(headers)),
      format_(std::move(format)),
      started_(started) {}

void Job::start(Plan plan) {
  if (!writer_->is_on_strand()) {
    const auto shared = std::make_shared<Plan>(std::move(plan));
    writer_->post([self = shared_from_this(), shared] { self->start(std::move(*shared)); });
    return;
  }
  stream_ = plan.stream;
  keep_history_ = !stream_ || format_->cumulative();
  unfinished_ = plan.sequences.size();
  for (SequencePlan& sequence : plan.sequences) {
    const auto index = static_cast<std::int32_t>(running_.size());
    Running& running = running_.emplace_back(TextStream(
        context_->tokenizer, std::move(sequence.text), sequence.request.sampling.min_new_tokens));
    running.sequence.id = sequence.request.id;
    running.sequence.name = std::move(sequence.name);
    running.sequence.index = index;
    running.sequence.prompt_index = sequence.prompt_index;
    running.sequence.choice_index = sequence.choice_index;
    running.sequence.prompt_tokens = static_cast<std::int32_t>(sequence.request.input_ids.size());
    running.sequence.timings.tokenize = sequence.tokenize;
    running.sequence.max_new_tokens = sequence.request.sampling.max_new_tokens;
  }
  writer_->on_disconnect([self = shared_from_this()] { self->on_disconnect(); });
  auto sequence = plan.sequences.begin();
  for (Running& running : running_) {
    context_->serving->on_request(stream_, running.sequence.prompt_tokens);
    running.entry.join(context_->registry, running.sequence.name, running.sequence.id);
    running.submitted = true;
    const Status status = context_->generator->submit(
        std::move((sequence++)->request),
        [self = shared_from_this(), &running](core::TokenEvent&& event) mutable {
          // The finishing event takes the reference along: what the job keeps alive (the generator
          // too) must not be let go of on a thread of the generator.
          std::shared_ptr<Job> job = event.finish ? std::move(self) : self;
          if (!job) return;
          http::ResponseWriter& writer = *job->writer_;
          writer.post([job = std::move(job), &running, event = std::move(event)]() mutable {
            job->on_event(running, std::move(event));
          });
        });
    if (!status.ok()) {
      end_sequence(running);
      return fail(plan_error(status));
    }
  }
}

void Job::on_event(Running& running, core::TokenEvent&& event) {
  Sequence& sequence = running.sequence;
  if (over_ || sequence.finish) return;
  if (event.finish && event.finish->kind == core::FinishKind::kAbort &&
      event.finish->status.code() != Code::kCancelled) {
    end_sequence(running);
    return fail(plan_error(event.finish->status));
  }
  if (event.cached_tokens > 0) sequence.cached_tokens = event.cached_tokens;
  if (event.retraction_count > sequence.retraction_count)
    sequence.retraction_count = event.retraction_count;
  sequence.timings.merge(event.timings);
  if (!event.prompt_logprobs.empty()) sequence.prompt_logprobs = std::move(event.prompt_logprobs);
  Delta delta;
  if (!take_tokens(running, event, &delta)) {
    return fail(to_api_error(internal_error("tokens of the output were lost on their way")));
  }
  if (event.finish && !sequence.finish) take_finish(running, *event.finish, &delta);
  if (delta.token_count > 0) count_tokens(running, delta.token_count);
  if (keep_history_) {
    sequence.output_text += delta.text;
    sequence.logprobs.insert(sequence.logprobs.end(), delta.logprobs.begin(), delta.logprobs.end());
  }
  if (sequence.finish) end_sequence(running);
  emit(running, std::move(delta));
}

// Adds the event's tokens one by one: a stop string ends the output at the token that completes it,
// whatever else came along. False when tokens are missing before the first one.
bool Job::take_tokens(Running& running, core::TokenEvent& event, Delta* delta) {
  Sequence& sequence = running.sequence;
  // Short answers come in one piece; long ones grow as vectors do.
  if (keep_history_ && sequence.output_ids.empty())
    sequence.output_ids.reserve(event.tokens.size());
  for (std::size_t i = 0; i < event.tokens.size(); ++i) {
    const std::int64_t position = event.first_index + static_cast<std::int64_t>(i);
    if (position < sequence.completion_tokens) continue;  // Said before, by an earlier attempt.
    if (position > sequence.completion_tokens) return false;
    const core::TokenId token = event.tokens[i];
    ++sequence.completion_tokens;
    ++delta->token_count;
    if (keep_history_) sequence.output_ids.push_back(token);
    if (i < event.logprobs.size()) delta->logprobs.push_back(std::move(event.logprobs[i]));
    const bool ends = event.finish && i + 1 == event.tokens.size() &&
                      event.finish->kind == core::FinishKind::kStop &&
                      event.finish->matched_token == token;
    if (ends) {
      running.text.push_final(token, &delta->text);
    } else if (running.text.push(token, &delta->text)) {
      sequence.finish = Finish{.kind = core::FinishKind::kStop,
                               .token = std::nullopt,
                               .stop = running.text.matched(),
                               .message = {}};
      // The engine knows nothing of text: it would go on.
      if (!event.finish) context_->generator->abort(sequence.id);
      return true;
    }
  }
  return true;
}

void Job::take_finish(Running& running, const core::FinishReason& reason, Delta* delta) {
  Finish finish{.kind = reason.kind, .token = reason.matched_token, .stop = {}, .message = {}};
  if (reason.kind == core::FinishKind::kAbort) finish.message = reason.status.message();
  if (running.text.finish(&delta->text) && reason.kind != core::FinishKind::kAbort) {
    finish.kind = core::FinishKind::kStop;
    finish.token.reset();
    finish.stop = running.text.matched();
  }
  running.sequence.finish = std::move(finish);
}

void Job::count_tokens(Running& running, std::int32_t tokens) {
  const Time now = steady_clock().now();
  context_->serving->on_tokens(
      stream_, tokens, running.sequence.cached_tokens, started_, running.last_token, now);
  if (!running.last_token) {
    running.sequence.timings.first_token = now - started_;
    running.first_tokens_at = now;
    running.first_token_count = running.sequence.completion_tokens;
  } else {
    const double seconds = (now - running.first_tokens_at).seconds();
    const std::int32_t later = running.sequence.completion_tokens - running.first_token_count;
    if (seconds > 0) running.sequence.timings.decode_tokens_per_second = later / seconds;
  }
  running.last_token = now;
}

void Job::emit(Running& running, Delta&& delta) {
  const bool all_done = unfinished_ == 0;
  if (!stream_) {
    if (!all_done) return;
    over_ = true;
    std::vector<Sequence> sequences = take_sequences();
    writer_->send(200, std::move(headers_), format_->whole(sequences));
    return;
  }
  const bool nothing = delta.token_count == 0 && delta.text.empty() && !running.sequence.finish &&
                       running.sequence.prompt_logprobs.empty();
  if (nothing) return;
  if (holding_) {
    hold(running, std::move(delta));
    if (all_done) tell_held();
    return;
  }
  if (!stream_open_) {
    stream_open_ = true;
    writer_->start_stream(200, std::move(headers_));
    std::vector<Sequence> sequences;
    for (const Running& each : running_)
      sequences.push_back(each.sequence);
    format_->open(sequences, &out_);
  }
  format_->delta(running.sequence, delta, &out_);
  send();
}

void Job::send() {
  if (unfinished_ == 0) {
    over_ = true;
    const std::vector<Sequence> sequences = take_sequences();
    format_->close(sequences, &out_);
    writer_->end(out_);
  } else if (!out_.empty() && !writer_->write(out_)) {
    holding_ = true;
    writer_->on_drained([weak = weak_from_this()] {
      if (const auto self = weak.lock()) self->tell_held();
    });
  }
  out_.clear();
  // That of a token, not of all that a slow client had waiting.
  if (out_.capacity() > kOutKept) std::string().swap(out_);
}

// A slow client gets fewer and larger pieces: what waits for it is bounded by its own output.
void Job::hold(Running& running, Delta&& delta) {
  Delta& held = running.held ? *running.held : running.held.emplace();
  held.text += delta.text;
  held.token_count += delta.token_count;
  held.logprobs.insert(held.logprobs.end(),
                       std::make_move_iterator(delta.logprobs.begin()),
                       std::make_move_iterator(delta.logprobs.end()));
}

void Job::tell_held() {
  if (over_) return;
  holding_ = false;
  take_held();
  send();
}

void Job::take_held() {
  for (Running& running : running_) {
    if (!running.held) continue;
    format_->delta(running.sequence, *running.held, &out_);
    running.held.reset();
  }
}

std::vector<Sequence> Job::take_sequences() {
  std::vector<Sequence> sequences;
  sequences.reserve(running_.size());
  for (Running& running : running_)
    sequences.push_back(std::move(running.sequence));
  return sequences;
}

void Job::end_sequence(Running& running) {
  if (!running.submitted) return;
  running.submitted = false;
  --unfinished_;
  const Sequence& sequence = running.sequence;
  running.entry.leave();
  const bool aborted = !sequence.finish || sequence.finish->kind == core::FinishKind::kAbort;
  context_->serving->on_finish(
      stream_, steady_clock().now() - started_, aborted, sequence.retraction_count);
}

void Job::abort_rest() {
  for (Running& running : running_) {
    if (!running.submitted) continue;
    context_->generator->abort(running.sequence.id);
    end_sequence(running);
  }
}

void Job::fail(const ApiError& error) {
  if (over_) return;
  over_ = true;
  abort_rest();
  if (error.status >= 500) {
    obs::warn("request_failed",
              {{"request", running_.front().sequence.name},
               {"status", error.status},
               {"reason", error.message}});
  }
  if (stream_open_) {
    take_held();
    out_ += Format::stream_error(error);
    return writer_->end(out_);
  }
  http::Headers headers = error_headers(error);
  if (const auto name = headers_.find("x-request-id"))
    headers.add("x-request-id", std::string(*name));
  writer_->send(error.status, std::move(headers), error_body(error));
}

void Job::on_disconnect() {
  if (over_) return;
  over_ = true;
  obs::debug("client_gone", {{"request", running_.front().sequence.name}});
  abort_rest();
}

}  // namespace tandem::api
