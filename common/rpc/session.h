// The session stream, worker's side: what routers submit comes in, steps go out.
#pragma once

#include "common/base/status.h"
#include "common/core/request.h"
#include "common/rpc/server.h"
#include "common/rpc/types.h"

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string_view>
#include <vector>

namespace tandem::rpc {

/// One router's stream, as the worker sees it. Shared by the stream and whoever answers on it;
/// every method from any thread, none blocks. Sending on a closed session is a silent no-op: the
/// handler has heard on_closed, or will.
class WorkerSession {
 public:
  virtual ~WorkerSession() = default;

  /// Grows by one with every session of a process.
  [[nodiscard]] virtual std::uint64_t number() const = 0;
  /// 0 until the router's hello came (it has, in every callback but on_closed).
  [[nodiscard]] virtual std::uint64_t router_incarnation() const = 0;
  [[nodiscard]] virtual bool closed() const = 0;

  /// The events of one engine step for this session's requests. What piles up behind a slow router
  /// is merged into one message; over the bound the session closes with kResourceExhausted.
  virtual void send_step(std::vector<core::TokenEvent>&& events, const core::Load& load) = 0;
  virtual void send_rejected(core::RequestId id, std::uint32_t attempt, const Status& why) = 0;
  virtual void send_flushed(const Status& result) = 0;
  virtual void close(const Status& status) = 0;
};

using WorkerSessionPtr = std::shared_ptr<WorkerSession>;

/// The worker. Callbacks come on gRPC's threads, or the pool's where it serves the session
/// (ServerOptions::io), one at a time per session, and must not block: post and return. Callbacks
/// of different sessions run at the same time. A session holds its handler: a handler that keeps
/// sessions drops each in on_closed, or neither is ever freed.
class SessionHandler {
 public:
  virtual ~SessionHandler() = default;

  /// Sent to each router that connects.
  virtual WorkerInfo worker_info() = 0;
  /// For ticks; its `progress` must be the scheduler's own counter. Any thread, cheap.
  virtual core::Load load() = 0;

  /// After a valid hello, before anything else.
  virtual void on_open(const WorkerSessionPtr& session) = 0;
  virtual void on_submit(const WorkerSessionPtr& session, Submission&& submission) = 0;
  virtual void on_abort(const WorkerSessionPtr& session, core::RequestId id) = 0;
  /// Abort everything of this session.
  virtual void on_abort_all(const WorkerSessionPtr& session) = 0;
  /// Answer with send_flushed.
  virtual void on_flush_cache(const WorkerSessionPtr& session) = 0;
  /// Once, last, after on_open; ok when the router ended the stream in order. What it had submitted
  /// must be aborted.
  virtual void on_closed(const WorkerSessionPtr& session, const Status& status) = 0;
};

struct SessionServiceOptions {
  Duration tick_interval = milliseconds(250);
  /// Bytes that may wait for a slow router.
  std::size_t queued_bytes_max = 32U << 20U;
  std::uint32_t sessions_max = 256;
  /// Whether a peer with this `authorization` metadata ("Bearer KEY") may enter; empty: everybody.
  /// gRPC's threads or the pool's, must not block.
  std::function<bool(std::string_view)> authorize = {};
};

std::shared_ptr<Service> make_session_service(std::shared_ptr<SessionHandler> handler,
                                              SessionServiceOptions options = {});

}  // namespace tandem::rpc
