// The session stream, router's side.
#pragma once

#include "common/async/io_pool.h"
#include "common/base/ids.h"
#include "common/base/status.h"
#include "common/core/request.h"
#include "common/rpc/types.h"

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

namespace tandem::rpc {

/// How a client reaches a server.
struct ClientOptions {
  /// "host:port", also "grpc://host:port".
  std::string address;
  /// From the call of open to the peer's first message.
  Duration connect_timeout = seconds(3);
  /// A connection on which pings go unanswered for three of these is closed.
  Duration keepalive = seconds(1);
  std::size_t message_bytes_max = 64U << 20U;
  /// Bytes that may wait for a slow peer; over it the stream is closed (kResourceExhausted).
  std::size_t queued_bytes_max = 32U << 20U;
  /// Sent as metadata `authorization` with session and pair streams ("Bearer KEY"); empty: none.
  std::string authorization = {};
};

/// The router. Callbacks come on the pool's threads, one at a time per session; the next message is
/// read when a callback has returned, so a slow one holds its worker's stream back.
class SessionClientHandler {
 public:
  virtual ~SessionClientHandler() = default;
  /// First, once.
  virtual void on_hello(WorkerInfo&& info) = 0;
  virtual void on_step(std::vector<core::TokenEvent>&& events, const core::Load& load) = 0;
  virtual void on_tick(const core::Load& load) = 0;
  virtual void on_rejected(core::RequestId id, std::uint32_t attempt, const Status& why) = 0;
  virtual void on_flushed(const Status& result) = 0;
  /// Last, exactly once after open succeeded, unless the pool stops before. Ok when both sides
  /// ended in order.
  virtual void on_closed(const Status& status) = 0;
};

/// One stream to one worker. Methods: any thread, none blocks. Connecting again after on_closed is
/// the caller's affair: open a new one.
class SessionClient {
 public:
  struct Options {
    ClientOptions client;
    /// Reads and calls back. Borrowed; outlives the client.
    async::IoPool* io = nullptr;
    std::uint64_t router_incarnation = 0;
    /// Steps that the worker may send ahead of the handler.
    std::uint32_t step_window = 64;
  };

  /// Starts to connect and returns at once; what comes of it is on_hello or on_closed.
  static Result<std::unique_ptr<SessionClient>> open(Options options,
                                                     std::shared_ptr<SessionClientHandler> handler);
  /// cancel().
  ~SessionClient();
  SessionClient(const SessionClient&) = delete;
  SessionClient& operator=(const SessionClient&) = delete;

  /// Ok: queued (in order, after the hello). kUnavailable when the stream is closed. The deadline
  /// of the request is turned into what is left of it here.
  Status submit(const SubmissionView& submission);
  Status abort(core::RequestId id);
  Status abort_all();
  Status flush_cache();
  /// The worker answers with a tick.
  Status ping();
  /// Ends the stream in order, after what is queued.
  void close();
  /// Ends the stream now.
  void cancel(const Status& why);

 private:
  struct Impl;
  explicit SessionClient(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace tandem::rpc
