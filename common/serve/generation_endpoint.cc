#include "common/serve/generation_endpoint.h"

#include "common/api/body.h"
#include "common/api/length.h"
#include "common/api/text_stream.h"
#include "common/base/clock.h"
#include "common/rpc/wire.h"

#include <algorithm>
#include <map>
#include <mutex>
#include <optional>
#include <utility>

namespace tandem::serve {
namespace {

constexpr std::int32_t kDefaultNewTokens = 128;
constexpr std::int32_t kTopLogprobsMax = 128;
constexpr int kStopStringsMax = 32;
constexpr std::size_t kStopBytesMax = 1024;

core::SamplingParams read_sampling(const v1::SamplingOptions& in, const api::ApiOptions& options) {
  core::SamplingParams out = options.model.default_sampling;
  out.max_new_tokens = in.has_max_new_tokens() ? in.max_new_tokens() : kDefaultNewTokens;
  if (in.has_min_new_tokens()) out.min_new_tokens = in.min_new_tokens();
  if (in.has_temperature()) out.temperature = in.temperature();
  if (in.has_top_p()) out.top_p = in.top_p();
  if (in.has_top_k()) out.top_k = in.top_k() == -1 ? core::kTopKAll : in.top_k();
  if (in.has_min_p()) out.min_p = in.min_p();
  if (in.has_frequency_penalty()) out.frequency_penalty = in.frequency_penalty();
  if (in.has_presence_penalty()) out.presence_penalty = in.presence_penalty();
  if (in.has_repetition_penalty()) out.repetition_penalty = in.repetition_penalty();
  for (const auto& [id, bias] : in.logit_bias())
    out.logit_bias.emplace_back(id, bias);
  out.stop_token_ids.assign(in.stop_token_ids().begin(), in.stop_token_ids().end());
  if (in.has_ignore_eos()) out.ignore_eos = in.ignore_eos();
  out.seed = in.has_seed() ? in.seed() : options.draw_seed();
  return out;
}

/// As over HTTP, whose 400 is INVALID_ARGUMENT here.
Status read_length(const core::ServedModel& model,
                   const v1::SamplingOptions& in,
                   std::size_t prompt_tokens,
                   core::SamplingParams* sampling) {
  std::optional<std::int32_t> wanted;
  if (in.has_max_new_tokens()) wanted = in.max_new_tokens();
  Status status = api::settle_length(
      model, static_cast<std::int64_t>(prompt_tokens), wanted, kDefaultNewTokens, sampling);
  if (status.code() == Code::kOutOfRange) return invalid_argument(status.message());
  return status;
}

Result<core::TextParams> read_text(const v1::SamplingOptions& in) {
  core::TextParams out;
  if (in.stop_size() > kStopStringsMax) {
    return invalid_argument("sampling.stop: " + std::to_string(in.stop_size()) +
                            " strings, expected at most " + std::to_string(kStopStringsMax));
  }
  for (const std::string& stop : in.stop()) {
    if (stop.empty() || stop.size() > kStopBytesMax) {
      return invalid_argument("sampling.stop: a string of " + std::to_string(stop.size()) +
                              " bytes, expected 1 to " + std::to_string(kStopBytesMax));
    }
    out.stop.push_back(stop);
  }
  if (in.has_skip_special_tokens()) out.skip_special_tokens = in.skip_special_tokens();
  if (in.has_no_stop_trim()) out.no_stop_trim = in.no_stop_trim();
  return out;
}

/// One call: text state and, without streaming, the answer that grows. Its events come one at a
/// time.
struct Running {
  Running(rpc::GenerationCallPtr the_call,
          std::shared_ptr<const token::Tokenizer> tokenizer,
          const core::TextParams& text,
          std::int32_t min_new_tokens)
      : call(std::move(the_call)), stream(std::move(tokenizer), text, min_new_tokens) {}

  rpc::GenerationCallPtr call;
  api::TextStream stream;
  v1::GenerateResponse whole;
  core::RequestId id;
  std::int32_t completion_tokens = 0;
  Time started = steady_clock().now();
  std::optional<Time> last_token;
  bool over = false;
};

class Endpoint final : public rpc::GenerationHandler,
                       public std::enable_shared_from_this<Endpoint> {
 public:
  explicit Endpoint(GenerationSetup setup) : setup_(std::move(setup)) {}

  void on_generate(const rpc::GenerationCallPtr& call) override {
    {
      const std::lock_guard lock(mutex_);
      flights_[call.get()] = {};
    }
    const Status status = start(call);
    if (status.ok()) return;
    forget(*call);
    call->finish(status);
  }

  void on_cancel(const rpc::GenerationCallPtr& call) override {
    core::RequestId id;
    {
      const std::lock_guard lock(mutex_);
      const auto found = flights_.find(call.get());
      if (found == flights_.end()) return;
      // Before it is submitted there is nothing to abort yet: start() does it then.
      found->second.cancelled = true;
      if (!found->second.submitted) return;
      id = found->second.id;
    }
    setup_.generator->abort(id);
  }

  Result<v1::ModelInfo> model_info(const std::string& authorization) override {
    TANDEM_TRY(check_key(authorization));
    v1::ModelInfo info;
    rpc::write_served_model(setup_.options.model, info.mutable_model());
    info.set_is_generation(true);
    return info;
  }

  Result<std::string> server_info_json(const std::string& authorization) override {
    TANDEM_TRY(check_key(authorization));
    return setup_.options.server_args_json;
  }

  Status abort(const std::string& authorization, const v1::AbortRequest& request) override {
    TANDEM_TRY(check_key(authorization));
    if (request.all()) {
      setup_.generator->abort_all();
      return {};
    }
    core::RequestId id;
    {
      const std::lock_guard lock(mutex_);
      const auto found = names_.find(request.request_id());
      if (found == names_.end()) return {};
      id = found->second;
    }
    setup_.generator->abort(id);
    return {};
  }

 private:
  [[nodiscard]] Status check_key(const std::string& authorization) const {
    if (setup_.api->authorized(authorization)) return {};
    return unauthenticated(
        "metadata authorization: expected 'Bearer KEY' with the server's --api-key");
  }

  Result<std::vector<core::TokenId>> read_prompt(const v1::GenerateRequest& request) const {
    std::vector<core::TokenId> ids;
    if (request.has_input_ids()) {
      ids.assign(request.input_ids().ids().begin(), request.input_ids().ids().end());
      for (const core::TokenId id : ids) {
        if (id < 0 || id >= setup_.options.model.vocab_size) {
          return invalid_argument("input_ids: token id " + std::to_string(id) +
                                  " is outside the vocabulary, expected 0 to " +
                                  std::to_string(setup_.options.model.vocab_size - 1));
        }
      }
    } else if (request.has_text()) {
      // As over HTTP: no more is looked at than the context can hold.
      const api::ApiLimits& limits = setup_.options.limits;
      const auto context =
          static_cast<std::size_t>(std::max(setup_.options.model.context_length, 1));
      const std::size_t limit = std::min(limits.prompt_bytes, context * limits.bytes_per_token_max);
      if (request.text().size() > limit) {
        return invalid_argument("text: " + std::to_string(request.text().size()) +
                                " bytes, expected at most " + std::to_string(limit));
      }
      ids = setup_.tokenizer->encode(request.text(), true);
    }
    if (ids.empty())
      return invalid_argument("prompt: empty, expected text or input_ids with at least one token");
    return ids;
  }

  Result<core::Request> read_request(const rpc::GenerationCallPtr& call) const {
    const v1::GenerateRequest& in = call->request();
    const core::ServedModel& model = setup_.options.model;
    if (!in.model().empty() && in.model() != model.served_model_name &&
        in.model() != model.model_path) {
      return not_found("model: '" + in.model() + "' is not served here, expected '" +
                       model.served_model_name + "'");
    }
    if (!in.request_id().empty() && !api::is_request_name(in.request_id())) {
      return invalid_argument("request_id: expected up to 128 characters of A-Z a-z 0-9 . _ : -");
    }
    core::Request request;
    request.id = core::draw_request_id();
    request.client_id = in.request_id();
    TANDEM_TRY(request.input_ids, read_prompt(in));
    request.sampling = read_sampling(in.sampling(), setup_.options);
    TANDEM_TRY(request.sampling.validate(model.vocab_size));
    request.return_logprob = in.return_logprob();
    request.logprob_start_len = in.has_logprob_start_len() ? in.logprob_start_len() : -1;
    request.top_logprobs_num = in.top_logprobs_num();
    if (request.top_logprobs_num < 0 || request.top_logprobs_num > kTopLogprobsMax) {
      return invalid_argument("top_logprobs_num: " + std::to_string(request.top_logprobs_num) +
                              ", expected 0 to " + std::to_string(kTopLogprobsMax));
    }
    const auto prompt = static_cast<std::int32_t>(request.input_ids.size());
    TANDEM_TRY(read_length(model, in.sampling(), request.input_ids.size(), &request.sampling));
    if (request.logprob_start_len < -1 || request.logprob_start_len > prompt) {
      return invalid_argument("logprob_start_len: " + std::to_string(request.logprob_start_len) +
                              ", expected -1 to the " + std::to_string(prompt) + " input tokens");
    }
    request.deadline = call->deadline();
    return request;
  }

  Status start(const rpc::GenerationCallPtr& call) {
    TANDEM_TRY(check_key(call->authorization()));
    TANDEM_TRY(core::Request request, read_request(call));
    TANDEM_TRY(const core::TextParams text, read_text(call->request().sampling()));
    auto running =
        std::make_shared<Running>(call, setup_.tokenizer, text, request.sampling.min_new_tokens);
    running->id = request.id;
    {
      const std::lock_guard lock(mutex_);
      if (!request.client_id.empty() && !names_.emplace(request.client_id, request.id).second) {
        return already_exists("request_id: '" + request.client_id + "' is running");
      }
      flights_[call.get()].id = request.id;
    }
    setup_.api->serving().on_request(call->request().stream(),
                                     static_cast<std::int64_t>(request.input_ids.size()));
    Status status = setup_.generator->submit(
        std::move(request), [self = shared_from_this(), running](core::TokenEvent&& event) {
          self->on_event(*running, std::move(event));
        });
    if (!status.ok()) {
      count_end(*running, true, 0);
      return status;
    }
    bool left = false;
    {
      const std::lock_guard lock(mutex_);
      const auto found = flights_.find(call.get());
      if (found != flights_.end()) {
        found->second.submitted = true;
        left = found->second.cancelled;
      }
    }
    if (left) setup_.generator->abort(running->id);
    return {};
  }

  void forget(const rpc::GenerationCall& call) {
    const std::lock_guard lock(mutex_);
    const auto flight = flights_.find(&call);
    if (flight == flights_.end()) return;
    // A refused call may bear the name of another one that runs.
    const auto name = names_.find(call.request().request_id());
    if (name != names_.end() && name->second == flight->second.id) names_.erase(name);
    flights_.erase(flight);
  }

  void on_event(Running& running, core::TokenEvent&& event) {
    if (running.over) return;
    v1::GenerateResponse delta;
    v1::GenerateResponse& out = running.call->request().stream() ? delta : running.whole;
    if (event.finish && event.finish->kind == core::FinishKind::kAbort) {
      count_end(running, true, event.retraction_count);
      end(running, event.finish->status.ok() ? cancelled("aborted") : event.finish->status);
      return;
    }
    for (const core::TokenLogprob& logprob : event.prompt_logprobs) {
      rpc::write_logprob(logprob, out.add_input_logprobs());
    }
    const std::int32_t before = running.completion_tokens;
    const bool matched = add_tokens(running, event, &out);
    count_tokens(running, running.completion_tokens - before, event.cached_tokens);
    out.set_request_id(running.call->request().request_id());
    out.set_prompt_tokens(event.prompt_tokens);
    out.set_completion_tokens(running.completion_tokens);
    out.set_cached_tokens(event.cached_tokens);
    out.set_weight_version(setup_.options.model.weight_version);
    if (!event.finish && !matched) {
      if (running.call->request().stream()) write(running, std::move(delta));
      return;
    }
    if (matched) {
      out.set_finish_reason("stop");
      out.set_matched_stop(running.stream.matched());
    } else {
      out.set_finish_reason(event.finish->kind == core::FinishKind::kStop ? "stop" : "length");
      if (event.finish->matched_token) out.set_matched_token(*event.finish->matched_token);
    }
    rpc::write_timings(event.timings, out.mutable_timings());
    v1::GenerateResponse last = std::move(out);
    write(running, std::move(last));
    count_end(running, false, event.retraction_count);
    if (matched && !event.finish) setup_.generator->abort(running.id);
    end(running, {});
  }

  void count_tokens(Running& running, std::int32_t tokens, std::int32_t cached) const {
    if (tokens == 0) return;
    const Time now = steady_clock().now();
    setup_.api->serving().on_tokens(
        running.call->request().stream(), tokens, cached, running.started, running.last_token, now);
    running.last_token = now;
  }

  void count_end(const Running& running, bool aborted, std::int32_t retractions) const {
    setup_.api->serving().on_finish(running.call->request().stream(),
                                    steady_clock().now() - running.started,
                                    aborted,
                                    retractions);
  }

  /// True when a stop string is complete.
  static bool add_tokens(Running& running,
                         const core::TokenEvent& event,
                         v1::GenerateResponse* out) {
    std::string text;
    bool matched = false;
    const bool stopped = event.finish && event.finish->kind == core::FinishKind::kStop;
    for (std::size_t i = 0; i < event.tokens.size() && !matched; ++i) {
      ++running.completion_tokens;
      out->add_output_ids(event.tokens[i]);
      if (i < event.logprobs.size())
        rpc::write_logprob(event.logprobs[i], out->add_output_logprobs());
      if (stopped && i + 1 == event.tokens.size()) {
        running.stream.push_final(event.tokens[i], &text);
      } else {
        matched = running.stream.push(event.tokens[i], &text);
      }
    }
    if (event.finish && !matched) matched = running.stream.finish(&text);
    out->mutable_text()->append(text);
    return matched;
  }

  void write(Running& running, v1::GenerateResponse&& response) {
    if (running.call->write(std::move(response)).ok()) return;
    setup_.generator->abort(running.id);
  }

  void end(Running& running, const Status& status) {
    running.over = true;
    forget(*running.call);
    running.call->finish(status);
  }

  GenerationSetup setup_;

  struct Flight {
    core::RequestId id;
    bool submitted = false;
    bool cancelled = false;
  };

  // Guards flights_ and names_: calls begin, end and are cancelled on different gRPC and generator
  // threads.
  std::mutex mutex_;
  std::map<const rpc::GenerationCall*, Flight> flights_;
  std::map<std::string, core::RequestId> names_;
};

}  // namespace

std::shared_ptr<rpc::GenerationHandler> make_generation_endpoint(GenerationSetup setup) {
  return std::make_shared<Endpoint>(std::move(setup));
}

}  // namespace tandem::serve
