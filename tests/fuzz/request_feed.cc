// A request's body at each route that has one, from the route table to the last byte of the answer.
#include "common/api/api_server.h"
#include "common/json/parse.h"
#include "common/json/utf8.h"
#include "common/serve/model_text.h"
#include "tests/fuzz/feeds.h"

#include <algorithm>
#include <cmath>
#include <deque>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace tandem::fuzz {
namespace {

constexpr std::int32_t kContextTokens = 256;
constexpr std::size_t kSequencesMax = 16;

constexpr std::string_view kPaths[] = {"/v1/chat/completions",
                                       "/v1/completions",
                                       "/generate",
                                       "/tokenize",
                                       "/detokenize",
                                       "/abort_request"};

/// Tasks and the answer of one request, on the one thread that there is.
class Recorder final : public http::ResponseWriter {
 public:
  explicit Recorder(std::deque<std::function<void()>>* tasks) : tasks_(tasks) {}

  void send(int status, http::Headers headers, std::string body) override {
    must(!begun_, "a request has one answer");
    begun_ = true;
    response_ = {.status = status, .headers = std::move(headers), .body = std::move(body)};
    over_ = true;
  }

  void start_stream(int status, http::Headers headers) override {
    must(!begun_, "a request has one answer");
    begun_ = true;
    stream_ = true;
    response_ = {.status = status, .headers = std::move(headers), .body = {}};
  }

  bool write(std::string_view bytes) override {
    must(stream_ && !over_, "a stream is written to while it lasts");
    response_.body += bytes;
    return true;
  }

  void on_drained(std::function<void()> callback) override { post(std::move(callback)); }

  void end(std::string_view last) override {
    write(last);
    over_ = true;
  }

  void fail(std::string_view last) override {
    write(last);
    over_ = true;
    failed_ = true;
  }

  void on_disconnect(std::function<void()> callback) override {
    disconnected_ = std::move(callback);
  }

  void post(std::function<void()> task) override { tasks_->push_back(std::move(task)); }

  [[nodiscard]] bool is_on_strand() const override { return true; }

  [[nodiscard]] const http::Response& response() const { return response_; }

  /// The connection goes on to the next request.
  void let_go() { disconnected_ = nullptr; }

  [[nodiscard]] bool over() const { return over_; }

  [[nodiscard]] bool failed() const { return failed_; }

  [[nodiscard]] bool is_stream() const { return stream_; }

 private:
  std::deque<std::function<void()>>* tasks_;
  http::Response response_;
  std::function<void()> disconnected_;
  bool begun_ = false;
  bool stream_ = false;
  bool over_ = false;
  bool failed_ = false;
};

void must_be_sound(const core::Request& request, const core::ServedModel& model) {
  must(request.id.value != 0, "a sequence has an id");
  must(!request.input_ids.empty(), "and a prompt");
  must(std::ranges::all_of(request.input_ids,
                           [&](core::TokenId id) { return id >= 0 && id < model.vocab_size; }),
       "of tokens");
  const core::SamplingParams& sampling = request.sampling;
  must(sampling.validate(model.vocab_size).ok(), "what is submitted can be drawn");
  must(std::isfinite(sampling.temperature) && std::isfinite(sampling.top_p) &&
           std::isfinite(sampling.min_p) && std::isfinite(sampling.frequency_penalty) &&
           std::isfinite(sampling.presence_penalty) && std::isfinite(sampling.repetition_penalty),
       "from numbers");
  must(sampling.max_new_tokens >= 0 &&
           request.input_ids.size() + static_cast<std::size_t>(sampling.max_new_tokens) <=
               static_cast<std::size_t>(model.context_length),
       "within the context");
  must(request.logprob_start_len >= -1 && request.top_logprobs_num >= 0 &&
           request.top_logprobs_num <= 128,
       "with as many logprobs as may be");
}

/// Answers each request with the same few tokens, as an engine would, when it is asked to go on.
class Echo final : public core::Generator {
 public:
  Echo(core::ServedModel model, std::vector<core::TokenId> says)
      : model_(std::move(model)), says_(std::move(says)) {}

  Status submit(core::Request request, core::EventSink sink) override {
    must_be_sound(request, model_);
    if (running_.size() >= kSequencesMax) return resource_exhausted("the queue is full");
    running_.push_back({std::move(request), std::move(sink), {}, 0});
    return {};
  }

  void abort(core::RequestId id) override {
    for (Running& running : running_)
      if (running.request.id == id) running.reason = cancelled("aborted by the client");
  }

  void abort_all() override {
    for (Running& running : running_)
      running.reason = cancelled("aborted by the client");
  }

  void flush_cache(std::function<void(Status)> done) override { done({}); }

  [[nodiscard]] std::vector<core::Load> loads() const override { return {core::Load{}}; }

  [[nodiscard]] Status ready() const override { return {}; }

  [[nodiscard]] std::vector<std::pair<std::string, std::string>> server_info() const override {
    return {};
  }

  /// One token of each sequence.
  void step() {
    std::vector<Running> now = std::exchange(running_, {});
    for (Running& running : now) {
      core::TokenEvent event = next(running);
      const bool last = event.finish.has_value();
      running.sink(std::move(event));
      if (!last) running_.push_back(std::move(running));
    }
  }

  [[nodiscard]] bool idle() const { return running_.empty(); }

 private:
  struct Running {
    core::Request request;
    core::EventSink sink;
    Status reason;  ///< to end it early
    std::size_t sent;
  };

  static core::TokenLogprob logprob(core::TokenId token, std::int32_t top) {
    core::TokenLogprob entry{.token = token, .logprob = -0.5F, .top = {}};
    for (std::int32_t i = 0; i < top; ++i)
      entry.top.emplace_back(i, -0.5F - static_cast<float>(i));
    return entry;
  }

  core::TokenEvent next(Running& running) const {
    const core::Request& request = running.request;
    if (!running.reason.ok()) return core::aborted_event(request.id, running.reason);
    core::TokenEvent event;
    event.request = request.id;
    event.first_index = static_cast<std::int32_t>(running.sent);
    event.prompt_tokens = static_cast<std::int32_t>(request.input_ids.size());
    if (running.sent == 0 && request.return_logprob && request.logprob_start_len >= 0) {
      for (std::size_t i = static_cast<std::size_t>(request.logprob_start_len);
           i < request.input_ids.size();
           ++i)
        event.prompt_logprobs.push_back(logprob(request.input_ids[i], request.top_logprobs_num));
    }
    const auto most =
        std::min(says_.size(), static_cast<std::size_t>(request.sampling.max_new_tokens));
    if (running.sent < most) {
      const core::TokenId token = says_[running.sent++];
      event.tokens.push_back(token);
      if (request.return_logprob)
        event.logprobs.push_back(logprob(token, request.top_logprobs_num));
    }
    if (running.sent >= most) {
      event.finish = core::FinishReason{
          .kind = most < says_.size() ? core::FinishKind::kLength : core::FinishKind::kStop,
          .matched_token = {},
          .status = {}};
    }
    return event;
  }

  core::ServedModel model_;
  std::vector<core::TokenId> says_;
  std::vector<Running> running_;
};

/// Metrics would add up over all that was ever fed: each request has an API of its own.
struct Served {
  serve::ModelText text;
  api::ApiOptions options;
  std::vector<core::TokenId> says;

  Served() : text(serve::load_model_text(TANDEM_SOURCE_DIR "/assets/demo-model", {}).value()) {
    options.model.served_model_name = "demo";
    options.model.vocab_size = static_cast<std::int32_t>(text.tokenizer->vocab_size());
    options.model.context_length = kContextTokens;
    options.model.max_request_tokens = kContextTokens;
    // Half a character, too.
    says = text.tokenizer->encode("W\xC3\xB6rld \xF0\x9F\x99\x82 stop \xE4\xBD\xA0", false);
    says.push_back(text.tokenizer->encode("\xF0\x9F\x99\x83", false).front());
  }
};

void check_json(std::string_view text) {
  must(json::find_invalid_utf8(text) == text.size(), "an answer is text");
  must(json::parse(text, {.max_depth = json::kDepthCeiling}).ok(), "and JSON");
}

void check_stream(std::string_view body, bool failed) {
  bool done = false;
  while (!body.empty()) {
    const std::size_t end = body.find("\n\n");
    must(end != std::string_view::npos, "an event has an end");
    std::string_view event = body.substr(0, end);
    body.remove_prefix(end + 2);
    must(event.starts_with("data: "), "and data");
    event.remove_prefix(6);
    must(!done, "nothing comes behind the end");
    if (event == "[DONE]")
      done = true;
    else
      check_json(event);
  }
  must(done || failed, "a stream says when it is over");
}

}  // namespace

void feed_request(Bytes bytes) {
  if (bytes.empty()) return;
  static const Served kServed;
  std::deque<std::function<void()>> tasks;
  const auto generator = std::make_shared<Echo>(kServed.options.model, kServed.says);
  const api::ApiServer api(kServed.options, generator, kServed.text.tokenizer, kServed.text.chat);
  http::Router router;
  api.add_routes(router);

  http::Request request;
  request.method = "POST";
  request.path = std::string(kPaths[bytes[0] % std::size(kPaths)]);
  request.target = request.path;
  request.headers.add("content-type", "application/json");
  request.body = text_of(bytes.subspan(1));
  const auto writer = std::make_shared<Recorder>(&tasks);
  router(std::move(request), writer);
  while (!tasks.empty() || !generator->idle()) {
    if (tasks.empty()) generator->step();
    while (!tasks.empty()) {
      const std::function<void()> task = std::move(tasks.front());
      tasks.pop_front();
      task();
    }
  }

  must(writer->over(), "every request is answered");
  writer->let_go();
  const http::Response& response = writer->response();
  const bool expected = response.status == 200 || (response.status >= 400 && response.status < 500);
  must(expected, "what a client sends is never the server's fault");
  const auto type = response.headers.find("content-type");
  if (writer->is_stream())
    check_stream(response.body, writer->failed());
  else if (type && type->starts_with("application/json"))
    check_json(response.body);
  else
    must(response.status == 200, "a refusal is JSON");
}

}  // namespace tandem::fuzz
