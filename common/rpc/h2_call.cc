#include "common/rpc/internal/h2_call.h"

#include "common/base/host.h"
#include "common/rpc/internal/channel.h"

#include <boost/asio/connect.hpp>
#include <boost/asio/ip/address.hpp>
#include <boost/asio/post.hpp>

#include <algorithm>
#include <charconv>
#include <utility>

namespace tandem::rpc::internal {

namespace {

using boost::system::error_code;

Code code_of_reset(std::uint32_t error) {
  switch (error) {
    case NGHTTP2_REFUSED_STREAM:
      return Code::kUnavailable;
    case NGHTTP2_CANCEL:
      return Code::kCancelled;
    case NGHTTP2_ENHANCE_YOUR_CALM:
      return Code::kResourceExhausted;
    case NGHTTP2_INADEQUATE_SECURITY:
      return Code::kPermissionDenied;
    default:
      return Code::kInternal;
  }
}

/// gRPC's table for answers that are not gRPC's ("http-grpc-status-mapping").
Code code_of_http(int status) {
  switch (status) {
    case 400:
      return Code::kInternal;
    case 401:
      return Code::kUnauthenticated;
    case 403:
      return Code::kPermissionDenied;
    case 404:
      return Code::kUnimplemented;
    case 429:
    case 502:
    case 503:
    case 504:
      return Code::kUnavailable;
    default:
      return Code::kUnknown;
  }
}

int hex_digit(char c) {
  if (c >= '0' && c <= '9') return c - '0';
  if (c >= 'a' && c <= 'f') return c - 'a' + 10;
  if (c >= 'A' && c <= 'F') return c - 'A' + 10;
  return -1;
}

/// Undoes the percent encoding of grpc-message; what is no code stays as it is.
std::string decode_message(std::string_view text) {
  std::string out;
  for (std::size_t i = 0; i < text.size(); ++i) {
    const int high = text[i] == '%' && i + 2 < text.size() ? hex_digit(text[i + 1]) : -1;
    const int low = high >= 0 ? hex_digit(text[i + 2]) : -1;
    if (low >= 0) {
      out.push_back(static_cast<char>(high * 16 + low));
      i += 2;
    } else {
      out.push_back(text[i]);
    }
  }
  return out;
}

std::optional<int> parse_number(std::string_view text) {
  int value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size()) return std::nullopt;
  return value;
}

}  // namespace

Result<std::shared_ptr<H2Call>> H2Call::make(const ClientOptions& options,
                                             std::string path,
                                             async::IoPool& pool,
                                             std::shared_ptr<H2CallHandler> handler) {
  TANDEM_TRY(const std::string address, parse_address(options.address));
  auto call = std::make_shared<H2Call>(options, std::move(path), pool, std::move(handler));
  const std::size_t colon = address.rfind(':');
  call->where_ = address;
  call->host_ = without_brackets(std::string_view(address).substr(0, colon));
  call->port_ = address.substr(colon + 1);
  return call;
}

H2Call::H2Call(const ClientOptions& options,
               std::string path,
               async::IoPool& pool,
               std::shared_ptr<H2CallHandler> handler)
    : H2Stream({.message_bytes_max = options.message_bytes_max,
                .queued_bytes_max = options.queued_bytes_max,
                .keepalive = options.keepalive},
               "the worker",
               pool),
      options_(options),
      path_(std::move(path)),
      resolver_(strand_),
      greeting_(strand_),
      handler_(std::move(handler)) {}

void H2Call::start() {
  boost::asio::post(strand_, [self = share(this)] {
    self->wait_for_greeting();
    self->connect();
  });
}

void H2Call::connect() {
  error_code error;
  const auto address = boost::asio::ip::make_address(host_, error);
  if (!error) {
    // parse_address has looked at it.
    const auto port = static_cast<std::uint16_t>(std::stoi(port_));
    return connect_to(Resolver::results_type::create(
        boost::asio::ip::tcp::endpoint(address, port), host_, port_));
  }
  resolver_.async_resolve(
      host_,
      port_,
      [self = share(this)](const error_code& failed, const Resolver::results_type& endpoints) {
        if (failed)
          return self->end(unavailable("cannot find " + self->host_ + ": " + failed.message()));
        self->connect_to(endpoints);
      });
}

void H2Call::connect_to(const Resolver::results_type& endpoints) {
  if (stopped_) return;
  boost::asio::async_connect(
      socket_,
      endpoints,
      [self = share(this)](const error_code& failed,
                           const boost::asio::ip::tcp::endpoint& /*endpoint*/) {
        if (failed) {
          return self->end(
              unavailable("cannot connect to " + self->where_ + ": " + failed.message()));
        }
        self->run();
      });
}

void H2Call::wait_for_greeting() {
  greeting_.expires_after(std::chrono::nanoseconds(options_.connect_timeout.ns));
  greeting_.async_wait([self = share(this)](const error_code& error) {
    if (error || self->greeted_) return;
    self->cancel(deadline_exceeded("no first message from " + self->options_.address + " within " +
                                   std::to_string(self->options_.connect_timeout.milliseconds()) +
                                   " ms"));
  });
}

void H2Call::finish() {
  const std::lock_guard lock(mutex_);
  finish_sending();
}

void H2Call::on_last_data(std::uint32_t* flags) {
  *flags |= NGHTTP2_DATA_FLAG_EOF;
}

Status H2Call::on_message(std::string_view bytes) {
  return handler_->on_message(*this, bytes);
}

void H2Call::on_wrong_message(const Status& why) {
  cancel(why);
}

void H2Call::on_end(const Status& status) {
  resolver_.cancel();
  greeting_.cancel();
  const std::shared_ptr<H2CallHandler> handler = std::move(handler_);
  handler->on_ended(status);
}

/// The session, with what opens the connection and the call waiting to be written.
Status H2Call::begin() {
  std::vector<nghttp2_settings_entry> settings = {kSessionMark, {NGHTTP2_SETTINGS_ENABLE_PUSH, 0}};
  TANDEM_TRY(make_session(/*answers=*/false, std::move(settings)));
  const nghttp2_nv fields[] = {field(":method", "POST"),
                               field(":scheme", "http"),
                               field(":path", path_),
                               field(":authority", where_),
                               field("te", "trailers"),
                               field("content-type", "application/grpc"),
                               field("user-agent", "tandem"),
                               field("authorization", options_.authorization)};
  const std::size_t count = std::size(fields) - (options_.authorization.empty() ? 1 : 0);
  const nghttp2_data_provider provider = body();
  stream_ = nghttp2_submit_request(session_.get(), nullptr, fields, count, &provider, nullptr);
  if (stream_ > 0) return {};
  return internal_error("HTTP/2: " + std::string(nghttp2_strerror(stream_)));
}

void H2Call::on_header(std::int32_t /*stream*/, std::string_view name, std::string_view value) {
  if (name == ":status") http_status_ = parse_number(value);
  if (name == "grpc-status") grpc_status_ = parse_number(value).value_or(-1);
  if (name == "grpc-message") grpc_message_ = decode_message(value);
}

void H2Call::on_frame(const nghttp2_frame& frame) {
  const bool last = (frame.hd.flags & NGHTTP2_FLAG_END_STREAM) != 0;
  if (frame.hd.type == NGHTTP2_HEADERS) {
    const bool refused = http_status_ && *http_status_ != 200;
    if (last || refused) remote_ = status_of_headers();
  } else if (frame.hd.type == NGHTTP2_DATA && last) {
    remote_ = Status(Code::kUnknown, "the worker ended the stream without a status");
  } else if (frame.hd.type == NGHTTP2_GOAWAY) {
    // It may serve to the end what it has begun.
    const nghttp2_goaway& goaway = frame.goaway;
    if (goaway.last_stream_id < stream_ || goaway.error_code != NGHTTP2_NO_ERROR) {
      const std::string_view text(reinterpret_cast<const char*>(goaway.opaque_data),
                                  std::min<std::size_t>(goaway.opaque_data_len, 200));
      remote_ = unavailable("the worker ends the connection: " + std::string(text));
    }
  }
}

void H2Call::on_stream_closed(std::int32_t /*stream*/, std::uint32_t error) {
  if (remote_ || !wrong_.empty()) return;
  remote_ =
      Status(code_of_reset(error),
             "the worker reset the stream (" + std::string(nghttp2_http2_strerror(error)) + ")");
}

Status H2Call::status_of_headers() const {
  if (!grpc_status_ && http_status_ && *http_status_ != 200) {
    return Status(code_of_http(*http_status_),
                  "the worker answered with HTTP " + std::to_string(*http_status_));
  }
  if (!grpc_status_) return Status(Code::kUnknown, "the worker ended the stream without a status");
  if (*grpc_status_ == 0) return {};
  const bool known = *grpc_status_ > 0 && *grpc_status_ <= static_cast<int>(Code::kUnauthenticated);
  return Status(known ? static_cast<Code>(*grpc_status_) : Code::kUnknown, grpc_message_);
}

}  // namespace tandem::rpc::internal
