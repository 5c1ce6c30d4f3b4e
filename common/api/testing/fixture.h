// For tests only: a scripted Generator, and an API server over it on a real port.
#pragma once

#include "common/api/api_server.h"
#include "common/async/io_pool.h"
#include "common/http/testing/client.h"
#include "common/json/parse.h"
#include "common/json/write.h"

#include <gtest/gtest.h>

#include <atomic>
#include <condition_variable>
#include <functional>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <thread>
#include <utility>
#include <vector>

namespace tandem::api {

/// What the fake answers to one request.
struct Script {
  std::vector<core::TokenId> tokens;
  std::size_t group = 1;  ///< tokens per event
  /// How it ends after the last token; endless: the tokens repeat until aborted.
  core::FinishReason finish{.kind = core::FinishKind::kStop, .matched_token = {}, .status = {}};
  bool endless = false;
  /// Waits for release() before each event.
  bool stepped = false;
  std::int32_t cached_tokens = 0;
  core::Timings timings = {};  ///< reported with every event
};

/// Plays scripts on a thread per request. Joins them all at the end.
class FakeGenerator final : public core::Generator {
 public:
  using Author = std::function<Script(const core::Request&)>;

  explicit FakeGenerator(Author author) : author_(std::move(author)) {}

  ~FakeGenerator() override {
    abort_all();
    for (std::thread& thread : threads_)
      thread.join();
  }

  Status submit(core::Request request, core::EventSink sink) override {
    const std::lock_guard lock(mutex_);
    if (!submit_status.ok()) return submit_status;
    requests.push_back(request);
    changed_.notify_all();
    const Script script = author_(request);
    threads_.emplace_back(
        [this, request = std::move(request), sink = std::move(sink), script]() mutable {
          play(request, sink, script);
          sink = nullptr;
        });
    return {};
  }

  void abort(core::RequestId id) override {
    {
      const std::lock_guard lock(mutex_);
      aborted.insert(id);
    }
    changed_.notify_all();
  }

  void abort_all() override {
    {
      const std::lock_guard lock(mutex_);
      all_aborted_ = true;
    }
    changed_.notify_all();
  }

  void flush_cache(std::function<void(Status)> done) override { done(flush_status); }

  [[nodiscard]] std::vector<core::Load> loads() const override {
    core::Load load;
    load.running_requests = 2;
    load.waiting_requests = 1;
    load.used_tokens = 50;
    load.total_tokens = 200;
    load.progress = progress.load();
    return {load};
  }

  [[nodiscard]] Status ready() const override { return is_ready ? Status() : unavailable("no"); }

  [[nodiscard]] std::vector<std::pair<std::string, std::string>> server_info() const override {
    return {{"grpc_port", "1234"}};
  }

  /// Lets `events` events of stepped scripts go.
  void release(int events) {
    {
      const std::lock_guard lock(mutex_);
      permits_ += events;
    }
    changed_.notify_all();
  }

  /// Waits until that many requests have been aborted.
  void wait_aborted(std::size_t count) {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return aborted.size() >= count; });
  }

  /// Waits until that many requests have come.
  void wait_requests(std::size_t count) {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return requests.size() >= count; });
  }

  [[nodiscard]] core::Request request(std::size_t index) {
    const std::lock_guard lock(mutex_);
    return requests.at(index);
  }

  std::vector<core::Request> requests;
  std::set<core::RequestId> aborted;
  Status submit_status;
  Status flush_status;
  std::atomic<bool> is_ready{true};
  std::atomic<std::uint64_t> progress{1};

 private:
  [[nodiscard]] bool is_aborted(core::RequestId id) const {
    return all_aborted_ || aborted.contains(id);
  }

  bool wait_turn(core::RequestId id, bool stepped) {
    std::unique_lock lock(mutex_);
    if (stepped) {
      changed_.wait(lock, [&] { return permits_ > 0 || is_aborted(id); });
      if (!is_aborted(id)) --permits_;
    }
    return !is_aborted(id);
  }

  static core::TokenLogprob logprob(core::TokenId token, std::int32_t top) {
    core::TokenLogprob entry{.token = token, .logprob = -0.5F, .top = {}};
    for (std::int32_t i = 0; i < top; ++i)
      entry.top.emplace_back(i == 0 ? token : 40 + i, -0.5F - static_cast<float>(i));
    return entry;
  }

  static std::vector<core::TokenLogprob> prompt_logprobs(const core::Request& request) {
    std::vector<core::TokenLogprob> out;
    if (!request.return_logprob || request.logprob_start_len < 0) return out;
    for (std::size_t i = static_cast<std::size_t>(request.logprob_start_len);
         i < request.input_ids.size();
         ++i) {
      out.push_back(logprob(request.input_ids[i], request.top_logprobs_num));
      if (i == 0) out.back().logprob.reset();
    }
    return out;
  }

  void play(const core::Request& request, const core::EventSink& sink, const Script& script) {
    std::size_t sent = 0;
    const std::size_t most = static_cast<std::size_t>(request.sampling.max_new_tokens);
    const std::size_t total = script.endless ? most : std::min(script.tokens.size(), most);
    bool cut = total < script.tokens.size() && !script.endless;
    do {
      core::TokenEvent event;
      event.request = request.id;
      event.first_index = static_cast<std::int32_t>(sent);
      event.prompt_tokens = static_cast<std::int32_t>(request.input_ids.size());
      event.cached_tokens = script.cached_tokens;
      event.timings = script.timings;
      if (!wait_turn(request.id, script.stepped)) {
        event.finish = core::FinishReason{.kind = core::FinishKind::kAbort,
                                          .matched_token = {},
                                          .status = cancelled("aborted by the client")};
        sink(std::move(event));
        return;
      }
      if (sent == 0) event.prompt_logprobs = prompt_logprobs(request);
      for (std::size_t i = 0; i < script.group && sent < total; ++i, ++sent) {
        const core::TokenId token = script.tokens[sent % script.tokens.size()];
        event.tokens.push_back(token);
        if (request.return_logprob)
          event.logprobs.push_back(
              logprob(token, request.sampling.max_new_tokens > 0 ? request.top_logprobs_num : 0));
      }
      if (sent >= total) {
        event.finish = script.finish;
        if (cut || script.endless) event.finish->kind = core::FinishKind::kLength;
        if (cut || script.endless) event.finish->matched_token.reset();
      }
      sink(std::move(event));
    } while (sent < total);
  }

  Author author_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<std::thread> threads_;
  bool all_aborted_ = false;
  int permits_ = 0;
};

inline std::shared_ptr<const token::Tokenizer> demo_tokenizer() {
  static const auto kTokenizer =
      token::Tokenizer::load(TANDEM_SOURCE_DIR "/assets/demo-model").value();
  return kTokenizer;
}

inline std::vector<core::TokenId> ids_of(std::string_view text) {
  return demo_tokenizer()->encode(text, false);
}

/// The demo model's names and a context of 256.
inline ApiOptions demo_options() {
  ApiOptions options;
  options.model.model_path = "/models/demo";
  options.model.served_model_name = "demo";
  options.model.tokenizer_path = "/models/demo";
  options.model.architectures = {"Qwen3ForCausalLM"};
  options.model.model_type = "qwen3";
  options.model.vocab_size = static_cast<std::int32_t>(demo_tokenizer()->vocab_size());
  options.model.context_length = 256;
  options.model.max_request_tokens = 256;
  options.enable_metrics = true;
  options.server_args_json = R"({"port":0,"tp_size":1,"api_key":"hunter2"})";
  return options;
}

inline Script say(std::string_view text) {
  Script script;
  script.tokens = ids_of(text);
  return script;
}

inline FakeGenerator::Author always(std::string text) {
  return [text](const core::Request&) { return say(text); };
}

inline constexpr const char* kHello = R"("messages":[{"role":"user","content":"hi"}])";

inline std::string chat(const std::string& more = {}) {
  return std::string("{") + kHello + (more.empty() ? "" : "," + more) + "}";
}

inline Result<std::string> join_messages(const ChatPrompt& prompt) {
  std::string out;
  for (const json::Value& message : *prompt.messages.if_array()) {
    if (*message.find("content") == json::Value("explode"))
      return invalid_argument("roles must alternate");
    out += *message.find("role")->if_string() + ": " + *message.find("content")->if_string() + "\n";
  }
  if (const json::Value* name = prompt.kwargs.find("name")) out += json::to_string(*name);
  return out + (prompt.add_generation_prompt ? "assistant: " : "");
}

struct ApiFixture {
  explicit ApiFixture(FakeGenerator::Author author, ApiOptions options = demo_options())
      : generator(std::make_shared<FakeGenerator>(std::move(author))),
        api(std::move(options), generator, demo_tokenizer(), join_messages) {
    auto made = std::make_shared<http::Router>();
    api.add_routes(*made);
    router = made;
    server.emplace(pool, api.server_options(router), [made](http::Request&& request, auto writer) {
      (*made)(std::move(request), std::move(writer));
    });
    port = server->listen("127.0.0.1", 0).value();
  }

  ~ApiFixture() {
    generator->abort_all();
    server.reset();
  }

  http::Response call(const std::string& method,
                      const std::string& path,
                      const std::string& body = {},
                      const std::string& headers = {}) {
    http::TestClient client(port);
    send(client, method, path, body, headers);
    auto response = client.read_response(method == "HEAD");
    EXPECT_TRUE(response.has_value()) << method << " " << path << " was cut off";
    return response.value_or(http::Response{.status = 0, .headers = {}, .body = {}});
  }

  static void send(const http::TestClient& client,
                   const std::string& method,
                   const std::string& path,
                   const std::string& body,
                   const std::string& headers = {}) {
    client.send(method + " " + path + " HTTP/1.1\r\nHost: x\r\n" +
                (body.empty() ? "" : "Content-Type: application/json\r\n") + headers +
                "Content-Length: " + std::to_string(body.size()) + "\r\n\r\n" + body);
  }

  /// POST; the body as JSON.
  json::Value post(const std::string& path, const std::string& body, int status = 200) {
    const http::Response response = call("POST", path, body);
    EXPECT_EQ(response.status, status) << response.body;
    auto parsed = json::parse(response.body);
    EXPECT_TRUE(parsed.ok()) << response.body;
    return parsed.ok() ? std::move(parsed).value() : json::Value();
  }

  /// POST of a streamed request; the data of each event, "[DONE]" as a string value.
  std::vector<json::Value> stream(const std::string& path, const std::string& body) {
    const http::Response response = call("POST", path, body);
    EXPECT_EQ(response.status, 200) << response.body;
    EXPECT_EQ(response.headers.find("content-type"), "text/event-stream");
    return events(response.body);
  }

  static std::vector<json::Value> events(const std::string& body) {
    std::vector<json::Value> out;
    std::size_t at = 0;
    while (at < body.size()) {
      const std::size_t end = body.find("\n\n", at);
      EXPECT_NE(end, std::string::npos);
      if (end == std::string::npos) break;
      std::string line = body.substr(at, end - at);
      EXPECT_EQ(line.substr(0, 6), "data: ");
      line.erase(0, 6);
      if (line == "[DONE]") {
        out.emplace_back("[DONE]");
      } else {
        auto parsed = json::parse(line);
        EXPECT_TRUE(parsed.ok()) << line;
        out.push_back(parsed.ok() ? std::move(parsed).value() : json::Value());
      }
      at = end + 2;
    }
    return out;
  }

  async::IoPool pool{2};
  std::shared_ptr<FakeGenerator> generator;
  ApiServer api;
  std::shared_ptr<const http::Router> router;
  std::optional<http::Server> server;
  std::uint16_t port = 0;
};

/// Value at a path such as "choices.0.message.content"; null when there is none.
inline json::Value at(const json::Value& root, std::string_view path) {
  const json::Value* value = &root;
  while (!path.empty()) {
    const std::string_view key = path.substr(0, path.find('.'));
    path.remove_prefix(std::min(path.size(), key.size() + 1));
    if (const json::Array* array = value->if_array()) {
      const std::size_t index = static_cast<std::size_t>(std::stoul(std::string(key)));
      if (index >= array->size()) return {};
      value = &(*array)[index];
    } else {
      value = value->find(key);
    }
    if (value == nullptr) return {};
  }
  return *value;
}

}  // namespace tandem::api
