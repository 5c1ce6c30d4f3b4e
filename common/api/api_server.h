// The HTTP API (OpenAI's and SGLang's native one) over a core::Generator. A stand-alone server and
// the router serve it alike.
#pragma once

#include "common/api/metrics.h"
#include "common/base/ids.h"
#include "common/base/random.h"
#include "common/base/status.h"
#include "common/core/generator.h"
#include "common/http/router.h"
#include "common/http/server.h"
#include "common/json/value.h"
#include "common/obs/log.h"
#include "common/obs/metrics.h"
#include "common/token/tokenizer.h"

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>

namespace tandem::api {

/// What a chat template is asked to render. Borrows the messages.
struct ChatPrompt {
  const json::Value& messages;  ///< array of objects; contents are strings (text parts joined)
  bool add_generation_prompt = true;
  json::Object kwargs;  ///< chat_template_kwargs: variables of the template
};

/// Renders a chat to the text of a prompt. Any thread. Errors name the message or the template.
using ChatRenderer = std::function<Result<std::string>(const ChatPrompt&)>;

/// Bounds of one HTTP request; what is beyond them is refused with 400.
struct ApiLimits {
  std::size_t json_depth = 64;
  std::size_t json_values = 4U << 20U;
  std::int64_t n = 128;
  std::size_t sequences = 1024;  ///< prompts times n
  std::size_t stop_count = 32;
  std::size_t stop_bytes = 1024;
  std::int64_t top_logprobs_native = 128;
  std::size_t logit_bias_count = 1024;
  /// Of all prompts together, before anything is tokenized; further bound by
  /// context_length * bytes_per_token_max.
  std::size_t prompt_bytes = 8U << 20U;
  std::size_t bytes_per_token_max = 64;
};

struct ApiOptions {
  core::ServedModel model;
  /// Empty: open to all.
  obs::Secret api_key;
  bool enable_cache_report = false;
  bool enable_metrics = false;
  /// Every resolved argument as one JSON object, for /get_server_info.
  std::string server_args_json = "{}";
  std::string version = "0.1.0";
  double startup_seconds = 0;
  /// engine_type label: unified, prefill, decode, router.
  std::string engine_type = "unified";
  ApiLimits limits;
  /// Seed of a request that brings none. Any thread.
  std::function<std::uint64_t()> draw_seed = &system_random_ahead;
};

struct Context;

class ApiServer {
 public:
  /// Shares all three. Without `chat` the chat routes answer 400. `metrics` may be null: then the
  /// API makes its own registry.
  ApiServer(ApiOptions options,
            std::shared_ptr<core::Generator> generator,
            std::shared_ptr<const token::Tokenizer> tokenizer,
            ChatRenderer chat = {},
            std::shared_ptr<obs::Metrics> metrics = {});
  ~ApiServer();
  ApiServer(const ApiServer&) = delete;
  ApiServer& operator=(const ApiServer&) = delete;

  /// Adds all routes; a program may add its own before or after. The routes share what they need
  /// and may outlive this object.
  void add_routes(http::Router& router) const;

  /// The check of a request before its body is read: API key first, then the routes of `router`.
  /// For ServerOptions::admit.
  static std::function<std::optional<http::Response>(const http::Request&)> admission(
      const ApiServer& server, std::shared_ptr<const http::Router> router);

  /// Server options with everything of this API set: admission, error bodies.
  [[nodiscard]] http::ServerOptions server_options(
      std::shared_ptr<const http::Router> router) const;

  [[nodiscard]] const std::shared_ptr<obs::Metrics>& metrics() const;

  /// Where requests that come another way than over HTTP are counted.
  [[nodiscard]] const ServingMetrics& serving() const;

  /// A request's `authorization` value against the key, in constant time; for gRPC. True when no
  /// key is set.
  [[nodiscard]] bool authorized(std::string_view authorization) const;

 private:
  std::shared_ptr<Context> context_;
};

}  // namespace tandem::api
