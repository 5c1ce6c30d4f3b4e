#include "common/api/api_server.h"

#include "common/api/context.h"
#include "common/api/routes.h"

#include <utility>

namespace tandem::api {

namespace {

using Handle = void (*)(const ContextPtr&, const http::Request&, WriterPtr);

struct Route {
  const char* method;
  const char* path;
  Handle handle;
};

constexpr Route kRoutes[] = {
    {"POST", "/v1/chat/completions", handle_chat},
    {"POST", "/v1/completions", handle_completion},
    {"POST", "/generate", handle_generate},
    {"PUT", "/generate", handle_generate},
    {"POST", "/tokenize", handle_tokenize},
    {"POST", "/v1/tokenize", handle_tokenize},
    {"POST", "/detokenize", handle_detokenize},
    {"POST", "/v1/detokenize", handle_detokenize},
    {"GET", "/v1/models", handle_models},
    {"GET", "/v1/models/*", handle_model},
    {"GET", "/health", handle_health},
    {"GET", "/health_generate", handle_health_generate},
    {"GET", "/ready", handle_health},
    {"GET", "/readiness", handle_health},
    {"GET", "/liveness", handle_liveness},
    {"GET", "/ping", handle_health},
    {"GET", "/get_model_info", handle_model_info},
    {"GET", "/model_info", handle_model_info},
    {"GET", "/get_server_info", handle_server_info},
    {"GET", "/server_info", handle_server_info},
    {"GET", "/get_load", handle_get_load},
    {"GET", "/v1/loads", handle_loads},
    {"GET", "/flush_cache", handle_flush_cache},
    {"POST", "/flush_cache", handle_flush_cache},
    {"POST", "/abort_request", handle_abort},
    {"GET", "/", handle_root},
};

void add(http::Router& router, const ContextPtr& context, const Route& route) {
  const bool counted = context->options.enable_metrics;
  router.add(route.method,
             route.path,
             [context, handle = route.handle, endpoint = std::string(route.path), counted](
                 http::Request&& request, WriterPtr writer) {
               if (counted)
                 writer = context->serving->counted(std::move(writer), endpoint, request.method);
               handle(context, request, std::move(writer));
             });
}

ApiError bad_key() {
  ApiError error =
      bad_request("the API key is missing or wrong, expected Authorization: Bearer KEY");
  error.status = 401;
  error.type = "authentication_error";
  error.code = "invalid_api_key";
  return error;
}

}  // namespace

ApiServer::ApiServer(ApiOptions options,
                     std::shared_ptr<core::Generator> generator,
                     std::shared_ptr<const token::Tokenizer> tokenizer,
                     ChatRenderer chat,
                     std::shared_ptr<obs::Metrics> metrics)
    : context_(std::make_shared<Context>(std::move(options))) {
  context_->generator = std::move(generator);
  context_->tokenizer = std::move(tokenizer);
  context_->chat = std::move(chat);
  context_->metrics = metrics ? std::move(metrics) : std::make_shared<obs::Metrics>();
  context_->serving = std::make_unique<ServingMetrics>(context_->metrics,
                                                       context_->generator,
                                                       context_->options.model,
                                                       context_->options.engine_type);
}

ApiServer::~ApiServer() = default;

void ApiServer::add_routes(http::Router& router) const {
  for (const Route& route : kRoutes)
    add(router, context_, route);
  if (context_->options.enable_metrics)
    add(router, context_, {.method = "GET", .path = "/metrics", .handle = handle_metrics});
}

std::function<std::optional<http::Response>(const http::Request&)> ApiServer::admission(
    const ApiServer& server, std::shared_ptr<const http::Router> router) {
  return [context = server.context_, router = std::move(router)](
             const http::Request& request) -> std::optional<http::Response> {
    const bool open = request.method == "OPTIONS" || KeyCheck::is_open_path(request.path) ||
                      !context->key.required();
    if (!open && !context->key.allows(request.headers.find("authorization").value_or(""))) {
      const ApiError error = bad_key();
      http::Headers headers = error_headers(error);
      const http::Headers cors = http::Router::cors_headers(request);
      for (const auto& [name, value] : cors.items())
        headers.add(name, value);
      return http::Response{
          .status = error.status, .headers = std::move(headers), .body = error_body(error)};
    }
    return router ? router->check(request) : std::nullopt;
  };
}

http::ServerOptions ApiServer::server_options(std::shared_ptr<const http::Router> router) const {
  http::ServerOptions options;
  options.admit = admission(*this, std::move(router));
  options.error_body = [](int status, std::string_view message) {
    ApiError error = bad_request(std::string(message));
    error.status = status;
    if (status >= 500) error.type = "internal_server_error";
    if (status == 503) error.type = "service_unavailable_error";
    return error_body(error);
  };
  return options;
}

const std::shared_ptr<obs::Metrics>& ApiServer::metrics() const {
  return context_->metrics;
}

const ServingMetrics& ApiServer::serving() const {
  return *context_->serving;
}

bool ApiServer::authorized(std::string_view authorization) const {
  return context_->key.allows(authorization);
}

}  // namespace tandem::api
