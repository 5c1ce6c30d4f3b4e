#include "common/api/errors.h"

#include "common/json/write.h"

#include <algorithm>
#include <utility>

namespace tandem::api {

namespace {

constexpr std::size_t kMessageBytesMax = 2000;
constexpr std::size_t kParamBytesMax = 120;

// "sampling_params.top_p" of "sampling_params.top_p: expected ...".
std::string field_of(std::string_view message) {
  const std::size_t colon = message.find(": ");
  if (colon == std::string_view::npos || colon == 0 || colon > kParamBytesMax) return {};
  const std::string_view head = message.substr(0, colon);
  const bool path = std::all_of(head.begin(), head.end(), [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_' ||
           c == '.' || c == '[' || c == ']' || c == '-';
  });
  return path ? std::string(head) : std::string();
}

void append_members(json::Writer& writer, const ApiError& error) {
  const auto text_or_null = [&writer](std::string_view name, const std::string& text) {
    writer.key(name);
    text.empty() ? writer.null() : writer.string(text);
  };
  writer.key("message");
  writer.string(error.message);
  writer.key("type");
  writer.string(error.type);
  text_or_null("param", error.param);
  text_or_null("code", error.code);
}

}  // namespace

ApiError bad_request(std::string message, std::string param) {
  if (message.size() > kMessageBytesMax) message.resize(kMessageBytesMax);
  return {.status = 400,
          .message = std::move(message),
          .type = "invalid_request_error",
          .param = std::move(param),
          .code = {}};
}

ApiError to_api_error(const Status& status) {
  ApiError error = bad_request(status.message());
  const auto set = [&error](int http, const char* type, const char* code) {
    error.status = http;
    error.type = type;
    error.code = code;
  };
  switch (status.code()) {
    case Code::kInvalidArgument:
    case Code::kOutOfRange:
    case Code::kFailedPrecondition:
      error.param = field_of(error.message);
      break;
    case Code::kUnimplemented:
      error.param = field_of(error.message);
      error.code = "unsupported";
      break;
    case Code::kUnauthenticated:
      set(401, "authentication_error", "invalid_api_key");
      break;
    case Code::kPermissionDenied:
      set(403, "permission_error", "forbidden");
      break;
    case Code::kNotFound:
      set(404, "not_found_error", "not_found");
      break;
    case Code::kResourceExhausted:
      set(429, "rate_limit_error", "rate_limit_exceeded");
      break;
    case Code::kUnavailable:
    case Code::kAborted:
      set(503, "service_unavailable_error", "service_unavailable");
      break;
    case Code::kDeadlineExceeded:
      set(504, "timeout_error", "deadline_exceeded");
      break;
    default:
      set(500, "internal_server_error", "internal_error");
      break;
  }
  return error;
}

std::string error_object(const ApiError& error) {
  std::string out;
  json::Writer writer(out);
  writer.begin_object();
  append_members(writer, error);
  writer.end_object();
  return out;
}

std::string error_body(const ApiError& error) {
  std::string out;
  json::Writer writer(out);
  writer.begin_object();
  writer.key("error");
  writer.raw(error_object(error));
  writer.key("object");
  writer.string("error");
  writer.key("message");
  writer.string(error.message);
  writer.key("type");
  writer.string(error.type);
  writer.key("param");
  error.param.empty() ? writer.null() : writer.string(error.param);
  writer.key("code");
  writer.number(error.status);
  writer.end_object();
  return out;
}

http::Headers error_headers(const ApiError& error) {
  http::Headers headers{{"content-type", "application/json"}};
  if (error.status == 429 || error.status == 503) headers.add("retry-after", "1");
  if (error.status == 401) headers.add("www-authenticate", "Bearer");
  return headers;
}

}  // namespace tandem::api
