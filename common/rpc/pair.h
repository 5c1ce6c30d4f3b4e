// The pair stream, both sides: decode (client) <-> prefill (server). Carries protobuf messages;
// what they mean is room handoff's affair, and the worker converts.
#pragma once

#include "common/base/status.h"
#include "common/rpc/server.h"
#include "common/rpc/session_client.h"

#include "proto/tandem/v1/pair.pb.h"

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string_view>

namespace tandem::rpc {

/// One open stream, seen from either side. Methods: any thread, none blocks. send on a closed
/// stream is kUnavailable.
class PairStream {
 public:
  virtual ~PairStream() = default;
  /// Grows by one with every pair stream of a process, client's and server's together.
  [[nodiscard]] virtual std::uint64_t number() const = 0;
  /// Ok: queued. Over the bound the stream closes with kResourceExhausted.
  virtual Status send(v1::PairMessage&& message) = 0;
  /// Ends the stream after what is queued. A client's status stays at home: gRPC carries none
  /// upwards.
  virtual void close(const Status& status) = 0;
  /// Ends it now.
  virtual void cancel(const Status& why) = 0;
};

using PairStreamPtr = std::shared_ptr<PairStream>;

/// Callbacks come on gRPC threads, one at a time per stream, and must not block. The next message
/// is read when on_message has returned.
/// A stream holds its handler: a handler that keeps streams drops each in on_closed, or neither is
/// ever freed.
class PairHandler {
 public:
  virtual ~PairHandler() = default;
  /// Server: a decode process opened a stream. Client: the stream may be written to (connecting
  /// goes on; a peer that cannot be reached shows in on_closed).
  virtual void on_open(const PairStreamPtr& stream) = 0;
  virtual void on_message(const PairStreamPtr& stream, v1::PairMessage&& message) = 0;
  /// Last, exactly once per on_open.
  virtual void on_closed(const PairStreamPtr& stream, const Status& status) = 0;
};

struct PairServiceOptions {
  std::size_t queued_bytes_max = 64U << 20U;
  std::uint32_t streams_max = 1024;
  /// Whether a peer with this `authorization` metadata ("Bearer KEY") may enter; empty: everybody.
  /// gRPC threads, must not block.
  std::function<bool(std::string_view)> authorize = {};
};

std::shared_ptr<Service> make_pair_service(std::shared_ptr<PairHandler> handler,
                                           PairServiceOptions options = {});

/// Opens a stream to a prefill process; returns at once. on_open is called before this returns.
/// The peer's first message must come within options.connect_timeout.
Result<PairStreamPtr> open_pair(const ClientOptions& options, std::shared_ptr<PairHandler> handler);

}  // namespace tandem::rpc
