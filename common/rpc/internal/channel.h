// Channels to one server, each with its own connection: the state of one never slows another.
#pragma once

#include "common/base/status.h"
#include "common/rpc/session_client.h"

#include <grpcpp/channel.h>

#include <functional>
#include <memory>
#include <string>
#include <string_view>

namespace tandem::rpc::internal {

/// "grpc://h:p" and "h:p" to "h:p"; kInvalidArgument names what is wrong.
Result<std::string> parse_address(std::string_view address);

Result<std::shared_ptr<grpc::Channel>> make_channel(const ClientOptions& options);

/// A receive window of 4 MiB instead of one that gRPC finds by sending pings and updates between
/// messages: they were half of the writes of a router's session.
/// `set` takes a channel argument's name and value.
void use_steady_window(const std::function<void(const char*, int)>& set);

}  // namespace tandem::rpc::internal
