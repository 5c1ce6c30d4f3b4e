#include "common/rpc/wire.h"

#include <algorithm>
#include <string>

namespace tandem::rpc {

namespace {

constexpr int kMaxCode = static_cast<int>(Code::kUnauthenticated);
// What the engine could still hold in its types; the real limits are the engine's.
constexpr std::int64_t kMaxDeadlineLeftMs = std::int64_t{30} * 24 * 3600 * 1000;

template <class Repeated, class Vector>
void copy_ids(const Vector& from, Repeated* to) {
  to->Add(from.begin(), from.end());
}

}  // namespace

void write_status(const Status& status, v1::Status* out) {
  out->set_code(static_cast<int>(status.code()));
  if (!status.ok()) out->set_message(status.message());
}

Status read_status(const v1::Status& message) {
  if (message.code() == 0) return {};
  const bool known = message.code() > 0 && message.code() <= kMaxCode;
  return {known ? static_cast<Code>(message.code()) : Code::kUnknown, message.message()};
}

void write_sampling(const core::SamplingParams& params, v1::SamplingParams* out) {
  out->set_max_new_tokens(params.max_new_tokens);
  out->set_min_new_tokens(params.min_new_tokens);
  out->set_temperature(params.temperature);
  out->set_top_p(params.top_p);
  out->set_top_k(params.top_k);
  out->set_min_p(params.min_p);
  out->set_frequency_penalty(params.frequency_penalty);
  out->set_presence_penalty(params.presence_penalty);
  out->set_repetition_penalty(params.repetition_penalty);
  for (const auto& [token, bias] : params.logit_bias) {
    v1::LogitBias* entry = out->add_logit_bias();
    entry->set_token(token);
    entry->set_bias(bias);
  }
  copy_ids(params.stop_token_ids, out->mutable_stop_token_ids());
  out->set_ignore_eos(params.ignore_eos);
  out->set_seed(params.seed);
}

core::SamplingParams read_sampling(const v1::SamplingParams& message) {
  core::SamplingParams params;
  params.max_new_tokens = message.max_new_tokens();
  params.min_new_tokens = message.min_new_tokens();
  params.temperature = message.temperature();
  params.top_p = message.top_p();
  params.top_k = message.top_k();
  params.min_p = message.min_p();
  params.frequency_penalty = message.frequency_penalty();
  params.presence_penalty = message.presence_penalty();
  params.repetition_penalty = message.repetition_penalty();
  params.logit_bias.reserve(static_cast<std::size_t>(message.logit_bias_size()));
  for (const v1::LogitBias& entry : message.logit_bias()) {
    params.logit_bias.emplace_back(entry.token(), entry.bias());
  }
  params.stop_token_ids.assign(message.stop_token_ids().begin(), message.stop_token_ids().end());
  params.ignore_eos = message.ignore_eos();
  params.seed = message.seed();
  return params;
}

void write_request(const core::Request& request, Time now, v1::Request* out) {
  out->set_id(request.id.value);
  out->set_client_id(request.client_id);
  copy_ids(request.resumed_output_ids, out->mutable_resumed_output_ids());
  write_sampling(request.sampling, out->mutable_sampling());
  out->set_return_logprob(request.return_logprob);
  out->set_logprob_start_len(request.logprob_start_len);
  out->set_top_logprobs_num(request.top_logprobs_num);
  if (request.deadline) {
    const std::int64_t left = (*request.deadline - now).milliseconds();
    out->set_deadline_left_ms(std::clamp<std::int64_t>(left, 0, kMaxDeadlineLeftMs));
  }
}

Result<core::Request> read_request(const v1::Request& message, Time now) {
  if (message.id() == 0 || (message.id() >> 63U) != 0) {
    return invalid_argument("request.id: found " + std::to_string(message.id()) +
                            ", expected 1..2^63-1");
  }
  if (message.input_ids().empty()) {
    return invalid_argument("request.input_ids: empty, expected at least one token");
  }
  if (!message.has_sampling()) {
    return invalid_argument("request.sampling: absent, expected resolved sampling parameters");
  }
  core::Request request;
  request.id = core::RequestId{message.id()};
  request.client_id = message.client_id();
  request.input_ids.assign(message.input_ids().begin(), message.input_ids().end());
  request.resumed_output_ids.assign(message.resumed_output_ids().begin(),
                                    message.resumed_output_ids().end());
  request.sampling = read_sampling(message.sampling());
  request.return_logprob = message.return_logprob();
  request.logprob_start_len = message.logprob_start_len();
  request.top_logprobs_num = message.top_logprobs_num();
  if (message.has_deadline_left_ms()) {
    const std::int64_t left =
        std::clamp<std::int64_t>(message.deadline_left_ms(), 0, kMaxDeadlineLeftMs);
    request.deadline = now + milliseconds(left);
  }
  return request;
}

void write_logprob(const core::TokenLogprob& logprob, v1::TokenLogprob* out) {
  out->set_token(logprob.token);
  if (logprob.logprob) out->set_logprob(*logprob.logprob);
  for (const auto& [id, value] : logprob.top) {
    out->add_top_ids(id);
    out->add_top_logprobs(value);
  }
}

Result<core::TokenLogprob> read_logprob(const v1::TokenLogprob& message) {
  if (message.top_ids_size() != message.top_logprobs_size()) {
    return invalid_argument("logprob.top_logprobs: found " +
                            std::to_string(message.top_logprobs_size()) + " values for " +
                            std::to_string(message.top_ids_size()) + " top_ids");
  }
  core::TokenLogprob logprob;
  logprob.token = message.token();
  if (message.has_logprob()) logprob.logprob = message.logprob();
  logprob.top.reserve(static_cast<std::size_t>(message.top_ids_size()));
  for (int i = 0; i < message.top_ids_size(); ++i) {
    logprob.top.emplace_back(message.top_ids(i), message.top_logprobs(i));
  }
  return logprob;
}

void write_finish(const core::FinishReason& finish, v1::FinishReason* out) {
  // The wire counts from 1, so that an absent kind is seen.
  out->set_kind(static_cast<v1::FinishKind>(static_cast<int>(finish.kind) + 1));
  if (finish.matched_token) out->set_matched_token(*finish.matched_token);
  if (!finish.status.ok()) write_status(finish.status, out->mutable_status());
}

Result<core::FinishReason> read_finish(const v1::FinishReason& message) {
  if (message.kind() < v1::FINISH_KIND_STOP || message.kind() > v1::FINISH_KIND_ABORT) {
    return invalid_argument("finish.kind: found " + std::to_string(message.kind()) +
                            ", expected 1 (stop), 2 (length) or 3 (abort)");
  }
  core::FinishReason finish;
  finish.kind = static_cast<core::FinishKind>(static_cast<int>(message.kind()) - 1);
  if (message.has_matched_token()) finish.matched_token = message.matched_token();
  finish.status = read_status(message.status());
  return finish;
}

void write_timings(const core::Timings& timings, v1::Timings* out) {
  if (timings.queue.ns >= 0) out->set_queue_ns(timings.queue.ns);
  if (timings.prefill.ns >= 0) out->set_prefill_ns(timings.prefill.ns);
  if (timings.kv_transfer.ns >= 0) out->set_kv_transfer_ns(timings.kv_transfer.ns);
  if (timings.kv_transfer_bytes >= 0) out->set_kv_transfer_bytes(timings.kv_transfer_bytes);
}

core::Timings read_timings(const v1::Timings& message) {
  core::Timings timings;
  if (message.has_queue_ns()) timings.queue = nanoseconds(message.queue_ns());
  if (message.has_prefill_ns()) timings.prefill = nanoseconds(message.prefill_ns());
  if (message.has_kv_transfer_ns()) timings.kv_transfer = nanoseconds(message.kv_transfer_ns());
  if (message.has_kv_transfer_bytes()) timings.kv_transfer_bytes = message.kv_transfer_bytes();
  return timings;
}

void write_event(const core::TokenEvent& event, v1::TokenEvent* out) {
  out->set_request(event.request.value);
  out->set_first_index(event.first_index);
  copy_ids(event.tokens, out->mutable_tokens());
  for (const core::TokenLogprob& logprob : event.logprobs)
    write_logprob(logprob, out->add_logprobs());
  for (const core::TokenLogprob& logprob : event.prompt_logprobs) {
    write_logprob(logprob, out->add_prompt_logprobs());
  }
  out->set_prompt_tokens(event.prompt_tokens);
  out->set_cached_tokens(event.cached_tokens);
  out->set_retraction_count(event.retraction_count);
  if (event.finish) write_finish(*event.finish, out->mutable_finish());
  const core::Timings& t = event.timings;
  if (t.queue.ns >= 0 || t.prefill.ns >= 0 || t.kv_transfer.ns >= 0 || t.kv_transfer_bytes >= 0) {
    write_timings(t, out->mutable_timings());
  }
}

Result<core::TokenEvent> read_event(const v1::TokenEvent& message) {
  if (!message.logprobs().empty() && message.logprobs_size() != message.tokens_size()) {
    return invalid_argument("event.logprobs: found " + std::to_string(message.logprobs_size()) +
                            " for " + std::to_string(message.tokens_size()) + " tokens");
  }
  if (message.first_index() < 0) {
    return invalid_argument("event.first_index: found " + std::to_string(message.first_index()) +
                            ", expected at least 0");
  }
  core::TokenEvent event;
  event.request = core::RequestId{message.request()};
  event.first_index = message.first_index();
  event.tokens.assign(message.tokens().begin(), message.tokens().end());
  for (const v1::TokenLogprob& logprob : message.logprobs()) {
    TANDEM_TRY(auto value, read_logprob(logprob));
    event.logprobs.push_back(std::move(value));
  }
  for (const v1::TokenLogprob& logprob : message.prompt_logprobs()) {
    TANDEM_TRY(auto value, read_logprob(logprob));
    event.prompt_logprobs.push_back(std::move(value));
  }
  event.prompt_tokens = message.prompt_tokens();
  event.cached_tokens = message.cached_tokens();
  event.retraction_count = message.retraction_count();
  if (message.has_finish()) {
    TANDEM_TRY(auto finish, read_finish(message.finish()));
    event.finish = std::move(finish);
  }
  event.timings = read_timings(message.timings());
  return event;
}

}  // namespace tandem::rpc
