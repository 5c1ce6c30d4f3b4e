#include "common/api/context.h"

#include "common/api/body.h"
#include "common/json/parse.h"

#include <utility>

namespace tandem::api {

void RequestRegistry::Entry::join(RequestRegistry& registry,
                                  std::string_view name,
                                  core::RequestId id) {
  registry_ = &registry;
  name_ = name;
  id_ = id;
  const std::lock_guard lock(registry.mutex_);
  registry.running_.push_back(*this);
}

void RequestRegistry::Entry::leave() {
  if (registry_ == nullptr) return;
  RequestRegistry& registry = *std::exchange(registry_, nullptr);
  const std::lock_guard lock(registry.mutex_);
  registry.running_.erase(registry.running_.iterator_to(*this));
}

std::vector<core::RequestId> RequestRegistry::find(std::string_view prefix) const {
  std::vector<core::RequestId> ids;
  const std::lock_guard lock(mutex_);
  for (const Entry& entry : running_) {
    if (entry.name_.starts_with(prefix)) ids.push_back(entry.id_);
  }
  return ids;
}

Status ProgressWatch::check(const std::vector<core::Load>& loads, Time now, Duration patience) {
  std::vector<std::uint64_t> counters;
  counters.reserve(loads.size());
  for (const core::Load& load : loads)
    counters.push_back(load.progress);
  const std::lock_guard lock(mutex_);
  if (counters != last_ || changed_.ns == 0) {
    last_ = std::move(counters);
    changed_ = now;
    return {};
  }
  if (now - changed_ < patience) return {};
  return unavailable("no worker has made a step for " +
                     std::to_string((now - changed_).milliseconds()) + " ms");
}

Context::Context(ApiOptions api_options) : options(std::move(api_options)), key(options.api_key) {
  auto parsed = json::parse(options.server_args_json);
  if (parsed.ok() && parsed->is_object()) server_args = *parsed->if_object();
  // Should an argument dump ever hold the keys, they end here.
  for (const char* name : {"api_key", "api-key", "admin_api_key", "admin-api-key"}) {
    json::Value* value = server_args.find(name);
    if (value != nullptr && !value->is_null()) *value = json::Value("set");
  }
}

bool Context::serves(std::string_view name) const {
  return name == options.model.served_model_name || name == options.model.model_path ||
         name == "default";
}

http::Headers answer_headers(const http::Request& request,
                             std::string_view content_type,
                             const std::vector<std::string>& ignored) {
  http::Headers headers;
  headers.reserve(3);
  headers.add("content-type", std::string(content_type));
  const auto name = request.headers.find("x-request-id");
  if (name && is_request_name(*name)) headers.add("x-request-id", std::string(*name));
  if (!ignored.empty()) headers.add("x-tandem-ignored-fields", header_list(ignored));
  return headers;
}

void send_error(http::ResponseWriter& writer, const http::Request& request, const ApiError& error) {
  http::Headers headers = error_headers(error);
  const auto name = request.headers.find("x-request-id");
  if (name && is_request_name(*name)) headers.add("x-request-id", std::string(*name));
  writer.send(error.status, std::move(headers), error_body(error));
}

void send_json(http::ResponseWriter& writer, const http::Request& request, std::string body) {
  writer.send(200, answer_headers(request, "application/json"), std::move(body));
}

ApiError unknown_model(std::string_view name) {
  ApiError error = bad_request("The model '" + std::string(name.substr(0, 200)) +
                                   "' does not exist here; /v1/models lists what is served",
                               "model");
  error.status = 404;
  error.type = "not_found_error";
  error.code = "model_not_found";
  return error;
}

}  // namespace tandem::api
