#include "common/rpc/internal/channel.h"

#include "common/rpc/internal/callback_queue.h"

#include <grpcpp/create_channel.h>
#include <grpcpp/security/credentials.h>
#include <grpcpp/support/channel_arguments.h>

namespace tandem::rpc::internal {

namespace {

constexpr std::string_view kScheme = "grpc://";
constexpr int kWindowBytes = 4 << 20;

bool is_port(std::string_view text) {
  if (text.empty() || text.size() > 5) return false;
  int port = 0;
  for (const char c : text) {
    if (c < '0' || c > '9') return false;
    port = port * 10 + (c - '0');
  }
  return port >= 1 && port <= 65535;
}

}  // namespace

Result<std::string> parse_address(std::string_view address) {
  std::string_view rest = address;
  if (rest.substr(0, kScheme.size()) == kScheme) rest.remove_prefix(kScheme.size());
  if (!rest.empty() && rest.back() == '/') rest.remove_suffix(1);
  const std::size_t colon = rest.rfind(':');
  const bool shaped = colon != std::string_view::npos && colon > 0 &&
                      rest.find('/') == std::string_view::npos && is_port(rest.substr(colon + 1));
  if (!shaped) {
    return invalid_argument("address: found '" + std::string(address) +
                            "', expected host:port or grpc://host:port");
  }
  return std::string(rest);
}

void use_steady_window(const std::function<void(const char*, int)>& set) {
  set(GRPC_ARG_HTTP2_BDP_PROBE, 0);
  set(GRPC_ARG_HTTP2_STREAM_LOOKAHEAD_BYTES, kWindowBytes);
}

Result<std::shared_ptr<grpc::Channel>> make_channel(const ClientOptions& options) {
  TANDEM_TRY(auto target, parse_address(options.address));
  keep_callback_threads();
  grpc::ChannelArguments args;
  const int keepalive_ms = static_cast<int>(options.keepalive.milliseconds());
  const int connect_ms = static_cast<int>(options.connect_timeout.milliseconds());
  // A ping every interval; unanswered for two more, the connection is dead: three in all.
  args.SetInt(GRPC_ARG_KEEPALIVE_TIME_MS, keepalive_ms);
  args.SetInt(GRPC_ARG_KEEPALIVE_TIMEOUT_MS, 2 * keepalive_ms);
  args.SetInt(GRPC_ARG_KEEPALIVE_PERMIT_WITHOUT_CALLS, 1);
  args.SetInt(GRPC_ARG_HTTP2_MAX_PINGS_WITHOUT_DATA, 0);
  // The least backoff also bounds one attempt to connect.
  args.SetInt(GRPC_ARG_MIN_RECONNECT_BACKOFF_MS, connect_ms);
  args.SetInt(GRPC_ARG_INITIAL_RECONNECT_BACKOFF_MS, 100);
  args.SetInt(GRPC_ARG_MAX_RECONNECT_BACKOFF_MS, connect_ms);
  args.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
  args.SetInt(GRPC_ARG_ENABLE_HTTP_PROXY, 0);
  use_steady_window([&args](const char* name, int value) { args.SetInt(name, value); });
  args.SetMaxReceiveMessageSize(static_cast<int>(options.message_bytes_max));
  args.SetMaxSendMessageSize(static_cast<int>(options.message_bytes_max));
  return grpc::CreateCustomChannel(target, grpc::InsecureChannelCredentials(), args);
}

}  // namespace tandem::rpc::internal
