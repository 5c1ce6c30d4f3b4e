#include "common/http/router.h"

#include <utility>

namespace tandem::http {

namespace {

template <class Methods>
std::string allow_list(const Methods& methods) {
  std::string out;
  for (const auto& [method, handler] : methods) {
    out.append(out.empty() ? "" : ", ").append(method);
    if (method == "GET") out.append(", HEAD");
  }
  return out + ", OPTIONS";
}

template <class Methods>
const Handler* pick(const Methods& methods, std::string_view method) {
  auto found = methods.find(method);
  if (found == methods.end() && method == "HEAD") found = methods.find(std::string_view("GET"));
  return found == methods.end() ? nullptr : &found->second;
}

// Puts the CORS fields on whatever the route answers.
class CorsWriter final : public ResponseWriter {
 public:
  CorsWriter(std::shared_ptr<ResponseWriter> inner, Headers headers)
      : inner_(std::move(inner)), headers_(std::move(headers)) {}

  void send(int status, Headers headers, std::string body) override {
    inner_->send(status, with_cors(std::move(headers)), std::move(body));
  }

  void start_stream(int status, Headers headers) override {
    inner_->start_stream(status, with_cors(std::move(headers)));
  }

  bool write(std::string_view bytes) override { return inner_->write(bytes); }

  void on_drained(std::function<void()> callback) override {
    inner_->on_drained(std::move(callback));
  }

  void end(std::string_view last) override { inner_->end(last); }

  void fail(std::string_view last) override { inner_->fail(last); }

  void on_disconnect(std::function<void()> callback) override {
    inner_->on_disconnect(std::move(callback));
  }

  void post(std::function<void()> task) override { inner_->post(std::move(task)); }

  [[nodiscard]] bool is_on_strand() const override { return inner_->is_on_strand(); }

 private:
  Headers with_cors(Headers headers) const {
    for (const auto& [name, value] : headers_.items())
      headers.add(name, value);
    return headers;
  }

  std::shared_ptr<ResponseWriter> inner_;
  Headers headers_;
};

}  // namespace

void Router::add(std::string_view method, std::string_view path, Handler handler) {
  if (path.ends_with('*')) {
    prefixes_[std::string(path.substr(0, path.size() - 1))][std::string(method)] =
        std::move(handler);
  } else {
    exact_[std::string(path)][std::string(method)] = std::move(handler);
  }
}

const Router::Methods* Router::find(std::string_view path) const {
  if (const auto found = exact_.find(path); found != exact_.end()) return &found->second;
  for (const auto& [prefix, methods] : prefixes_) {
    if (path.starts_with(prefix) && path.size() > prefix.size()) return &methods;
  }
  return nullptr;
}

Headers Router::cors_headers(const Request& request) {
  Headers headers;
  const auto origin = request.headers.find("origin");
  if (!origin) return headers;
  // Credentials are allowed, so the answer must name the origin instead of saying '*'.
  headers.add("access-control-allow-origin", std::string(*origin));
  headers.add("access-control-allow-credentials", "true");
  headers.add("vary", "origin");
  return headers;
}

const Handler* Router::taker(const Request& request) const {
  if (request.method == "OPTIONS") return nullptr;
  const Methods* methods = find(request.path);
  return methods == nullptr ? nullptr : pick(*methods, request.method);
}

std::optional<Response> Router::check(const Request& request) const {
  if (taker(request) != nullptr) return std::nullopt;
  return refuse(request);
}

Response Router::refuse(const Request& request) const {
  const Methods* methods = find(request.path);
  const bool options = request.method == "OPTIONS";
  Response response{.status = 404, .headers = cors_headers(request), .body = {}};
  if (options) {
    response.status = 204;
    response.headers.add(
        "allow", methods != nullptr ? allow_list(*methods) : "GET, HEAD, POST, PUT, OPTIONS");
    if (request.headers.find("access-control-request-method")) {
      response.headers.add("access-control-allow-methods",
                           "DELETE, GET, HEAD, OPTIONS, PATCH, POST, PUT");
      const auto wanted = request.headers.find("access-control-request-headers");
      if (wanted) response.headers.add("access-control-allow-headers", std::string(*wanted));
      response.headers.add("access-control-max-age", "600");
    }
    return response;
  }
  response.headers.add("content-type", "application/json");
  if (methods == nullptr) {
    response.body = error_json(404, "there is nothing at " + request.path.substr(0, 200));
    return response;
  }
  const std::string allowed = allow_list(*methods);
  response.status = 405;
  response.headers.add("allow", allowed);
  response.body = error_json(405, request.path + " takes " + allowed);
  return response;
}

void Router::operator()(Request&& request, std::shared_ptr<ResponseWriter> writer) const {
  const Handler* handler = taker(request);
  if (handler == nullptr) {
    Response refusal = refuse(request);
    writer->send(refusal.status, std::move(refusal.headers), std::move(refusal.body));
    return;
  }
  if (request.headers.find("origin"))
    writer = std::make_shared<CorsWriter>(std::move(writer), cors_headers(request));
  (*handler)(std::move(request), std::move(writer));
}

}  // namespace tandem::http
