// What a client is told when something fails: OpenAI's error shape.
#pragma once

#include "common/base/status.h"
#include "common/http/message.h"

#include <string>
#include <string_view>

namespace tandem::api {

struct ApiError {
  int status = 400;
  std::string message;
  std::string type = "invalid_request_error";
  std::string param;  ///< empty: null
  std::string code;   ///< empty: null
};

/// 400 naming a field; `param` may be empty.
[[gnu::cold]] ApiError bad_request(std::string message, std::string param = {});

/// The HTTP form of a Status. The field that an "PATH: ..." message begins with becomes `param`.
[[gnu::cold]] ApiError to_api_error(const Status& status);

/// {"message":...,"type":...,"param":...,"code":...}: the member `error`.
[[gnu::cold]] std::string error_object(const ApiError& error);

/// The whole body: {"error":{...}} with the members doubled at the top for clients of SGLang's flat
/// shape.
[[gnu::cold]] std::string error_body(const ApiError& error);

/// Content type, and Retry-After for 429 and 503.
[[gnu::cold]] http::Headers error_headers(const ApiError& error);

}  // namespace tandem::api
