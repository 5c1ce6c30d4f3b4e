// Router: from method and path to a function; the answers that every route shares (404, 405, HEAD,
// OPTIONS and CORS).
#pragma once

#include "common/http/server.h"

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <string_view>

namespace tandem::http {

/// Build it, then only call it: adding routes while it serves is not allowed.
class Router {
 public:
  /// Exact path ("/v1/models"), or a prefix that ends with '*' ("/v1/models/*": the rest, which is
  /// not empty, is in Request::path). GET serves HEAD too.
  void add(std::string_view method, std::string_view path, Handler handler);

  /// Dispatches. Unknown path: 404; known path, other method: 405 with Allow; OPTIONS: 204 with
  /// Allow and, for a browser's preflight, the CORS fields.
  void operator()(Request&& request, std::shared_ptr<ResponseWriter> writer) const;

  /// The refusal that operator() would answer, for ServerOptions::admit: nothing when some route
  /// takes it.
  [[nodiscard]] std::optional<Response> check(const Request& request) const;

  /// All origins, methods and headers, credentials too, as SGLang answers; empty without an Origin.
  static Headers cors_headers(const Request& request);

 private:
  using Methods = std::map<std::string, Handler, std::less<>>;

  [[nodiscard]] const Methods* find(std::string_view path) const;
  /// Null: nobody takes it.
  [[nodiscard]] const Handler* taker(const Request& request) const;
  [[nodiscard]] Response refuse(const Request& request) const;

  std::map<std::string, Methods, std::less<>> exact_;
  std::map<std::string, Methods, std::less<>> prefixes_;
};

}  // namespace tandem::http
