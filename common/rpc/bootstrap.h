// The bootstrap service, both sides. The registry itself is room cluster's; room bootstrap puts it
// behind this service.
#pragma once

#include "common/base/status.h"
#include "common/rpc/server.h"
#include "common/rpc/session_client.h"

#include "proto/tandem/v1/bootstrap.pb.h"

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

namespace tandem::rpc {

/// One watcher's stream. send: any thread, never blocks; a watcher that is too slow is closed.
class WatchStream {
 public:
  virtual ~WatchStream() = default;
  virtual Status send(v1::MembershipDelta&& delta) = 0;
  virtual void close(const Status& status) = 0;
};

/// The registry behind the service. Calls come on gRPC threads, at the same time; they must be
/// short.
class BootstrapBackend {
 public:
  virtual ~BootstrapBackend() = default;
  virtual v1::RegisterReply register_rows(const v1::RegisterRequest& request) = 0;
  virtual Result<v1::ResolveReply> resolve(const v1::ResolveRequest& request) = 0;
  virtual Result<v1::ListReply> list(const v1::ListRequest& request) = 0;
  /// Sends everything at once and changes from then on, until on_watch_closed.
  virtual void on_watch(const v1::WatchRequest& request,
                        const std::shared_ptr<WatchStream>& stream) = 0;
  virtual void on_watch_closed(const std::shared_ptr<WatchStream>& stream) = 0;
};

struct BootstrapServiceOptions {
  std::size_t queued_bytes_max = 16U << 20U;
  std::uint32_t streams_max = 4096;
};

std::shared_ptr<Service> make_bootstrap_service(std::shared_ptr<BootstrapBackend> backend,
                                                BootstrapServiceOptions options = {});

/// Keeps rows registered: connects, renews three times per lease, connects again with back-off
/// (100 ms doubling to 2 s) when the service is lost. The destructor leaves at once and in order.
class Registration {
 public:
  virtual ~Registration() = default;
  /// States other rows from now on.
  virtual void update(std::vector<v1::MemberRow> rows) = 0;
  /// Ok while the rows are in; else why not.
  [[nodiscard]] virtual Status state() const = 0;
};

std::unique_ptr<Registration> keep_registered(const ClientOptions& options,
                                              std::vector<v1::MemberRow> rows);

/// Follows the membership: `on_delta` gets a full one first and after every reconnect. Called on
/// one thread at a time. The destructor stops it and waits for a running callback.
class Watch {
 public:
  virtual ~Watch() = default;
};

std::unique_ptr<Watch> watch_members(const ClientOptions& options,
                                     v1::Role role,
                                     std::function<void(v1::MembershipDelta&&)> on_delta);

/// One question, answered on a gRPC thread, once. Deadline: options.connect_timeout.
void resolve_members(const ClientOptions& options,
                     const v1::ResolveRequest& request,
                     std::function<void(Result<v1::ResolveReply>)> done);
void list_members(const ClientOptions& options,
                  const v1::ListRequest& request,
                  std::function<void(Result<v1::ListReply>)> done);

}  // namespace tandem::rpc
