// SessionEndpoint: what routers submit goes to the role, what it answers goes back one message per
// step.
#pragma once

#include "common/rpc/session.h"
#include "common/worker/engine_loop.h"
#include "common/worker/role.h"

#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <vector>

namespace tandem::worker {

/// Create as shared_ptr. rpc callbacks come on the pool's or gRPC's threads and post; the rest is
/// the engine thread's.
class SessionEndpoint final : public rpc::SessionHandler,
                              public LoopClient,
                              public std::enable_shared_from_this<SessionEndpoint> {
 public:
  /// `log_requests`: a line for each submission and for its end.
  SessionEndpoint(rpc::WorkerInfo info,
                  Role* role,
                  engine::Engine* engine,
                  EngineLoop* loop,
                  bool log_requests);

  rpc::WorkerInfo worker_info() override { return info_; }

  core::Load load() override { return loop_->load(); }

  void on_open(const rpc::WorkerSessionPtr& session) override;
  void on_submit(const rpc::WorkerSessionPtr& session, rpc::Submission&& submission) override;
  void on_abort(const rpc::WorkerSessionPtr& session, core::RequestId id) override;
  void on_abort_all(const rpc::WorkerSessionPtr& session) override;
  void on_flush_cache(const rpc::WorkerSessionPtr& session) override;
  void on_closed(const rpc::WorkerSessionPtr& session, const Status& status) override;

  /// Lets go of the streams, which hold this object. Only when the engine thread has ended.
  void release() { sessions_.clear(); }

  /// From now on routers are told to go elsewhere with new requests. Any thread.
  void drain() { draining_.store(true); }

  void before_step(Time /*now*/) override {}

  void after_step(Time now) override;

 private:
  struct Session {
    rpc::WorkerSessionPtr stream;
    std::map<core::RequestId, std::uint32_t> running;  // id -> attempt
    std::vector<core::TokenEvent> events;
  };

  void submit(std::uint64_t session, rpc::Submission&& submission);
  void abort_session(std::uint64_t session, const Status& why);
  Session* find(std::uint64_t session);

  rpc::WorkerInfo info_;
  Role* role_;
  engine::Engine* engine_;
  EngineLoop* loop_;
  bool log_requests_;
  std::map<std::uint64_t, Session> sessions_;
  std::atomic<bool> draining_{false};
};

}  // namespace tandem::worker
