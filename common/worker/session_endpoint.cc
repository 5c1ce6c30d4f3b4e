#include "common/worker/session_endpoint.h"

#include "common/obs/log.h"
#include "common/serve/request_log.h"

#include <fmt/format.h>

#include <utility>

namespace tandem::worker {

namespace {

/// A router knows the context of the workers that were there when it started. An answer that one of
/// these has room for, and this worker has not, would end early and look whole.
Status check_room(const rpc::WorkerInfo& info, const core::Request& request) {
  const auto prompt = static_cast<std::int64_t>(request.input_ids.size());
  const std::int64_t wanted = prompt + request.sampling.max_new_tokens;
  if (wanted <= info.model.context_length) return {};
  return {Code::kOutOfRange,
          fmt::format("the request is longer than the context of the {} worker: {} input tokens + "
                      "max_new_tokens {} = {} tokens, its --context-length is {}",
                      rpc::role_name(info.role),
                      prompt,
                      request.sampling.max_new_tokens,
                      wanted,
                      info.model.context_length)};
}

}  // namespace

SessionEndpoint::SessionEndpoint(
    rpc::WorkerInfo info, Role* role, engine::Engine* engine, EngineLoop* loop, bool log_requests)
    : info_(std::move(info)),
      role_(role),
      engine_(engine),
      loop_(loop),
      log_requests_(log_requests) {}

SessionEndpoint::Session* SessionEndpoint::find(std::uint64_t session) {
  const auto found = sessions_.find(session);
  return found == sessions_.end() ? nullptr : &found->second;
}

void SessionEndpoint::on_open(const rpc::WorkerSessionPtr& session) {
  loop_->post([self = shared_from_this(), session] {
    self->sessions_[session->number()].stream = session;
    obs::info("session_opened", {{"router", session->router_incarnation()}});
  });
}

void SessionEndpoint::on_submit(const rpc::WorkerSessionPtr& session,
                                rpc::Submission&& submission) {
  const core::RequestId id = submission.request.id;
  const std::uint32_t attempt = submission.attempt;
  if (draining_) {
    session->send_rejected(id, attempt, unavailable("the worker is shutting down"));
    return;
  }
  const auto shared = std::make_shared<rpc::Submission>(std::move(submission));
  const bool taken =
      loop_->try_post([self = shared_from_this(), number = session->number(), shared] {
        self->submit(number, std::move(*shared));
      });
  if (!taken)
    session->send_rejected(
        id, attempt, resource_exhausted("the worker's inbox is full; try again later"));
}

void SessionEndpoint::submit(std::uint64_t session, rpc::Submission&& submission) {
  Session* from = find(session);
  if (from == nullptr) return;  // closed meanwhile
  const core::RequestId id = submission.request.id;
  const std::uint32_t attempt = submission.attempt;
  from->running[id] = attempt;
  // Sinks run on the engine thread, as the rest of this class does.
  auto sink = [this, session, attempt](core::TokenEvent&& event) {
    Session* to = find(session);
    if (to == nullptr) return;
    // The end of an earlier attempt may come when a later one runs.
    const auto own = to->running.find(event.request);
    if (event.finish && own != to->running.end() && own->second == attempt) to->running.erase(own);
    to->events.push_back(std::move(event));
  };
  const auto take = [&](core::EventSink events) -> Status {
    TANDEM_TRY(check_room(info_, submission.request));
    return role_->submit(std::move(submission), std::move(events));
  };
  const Status status =
      log_requests_ ? serve::submit_logged(submission.request, sink, take) : take(sink);
  if (status.ok()) return;
  from->running.erase(id);
  from->stream->send_rejected(id, attempt, status);
}

void SessionEndpoint::on_abort(const rpc::WorkerSessionPtr& session, core::RequestId id) {
  loop_->post([self = shared_from_this(), number = session->number(), id] {
    Session* from = self->find(number);
    // A session may end only what it has begun.
    if (from == nullptr || from->running.erase(id) == 0) return;
    self->role_->abort(id, cancelled("aborted by the router"));
  });
}

void SessionEndpoint::on_abort_all(const rpc::WorkerSessionPtr& session) {
  loop_->post([self = shared_from_this(), number = session->number()] {
    self->abort_session(number, cancelled("aborted by the router"));
  });
}

void SessionEndpoint::abort_session(std::uint64_t session, const Status& why) {
  Session* from = find(session);
  if (from == nullptr) return;
  for (const auto& [id, attempt] : std::exchange(from->running, {}))
    role_->abort(id, why);
}

void SessionEndpoint::on_flush_cache(const rpc::WorkerSessionPtr& session) {
  loop_->post([self = shared_from_this(), session] {
    session->send_flushed(self->engine_->flush_cache());
  });
}

void SessionEndpoint::on_closed(const rpc::WorkerSessionPtr& session, const Status& status) {
  loop_->post([self = shared_from_this(), number = session->number(), status] {
    self->abort_session(number, cancelled("the router's session ended"));
    self->sessions_.erase(number);
    obs::info("session_closed", {{"reason", status.message()}});
  });
}

void SessionEndpoint::after_step(Time /*now*/) {
  for (auto& [number, session] : sessions_) {
    if (session.events.empty()) continue;
    session.stream->send_step(std::exchange(session.events, {}), loop_->load());
  }
}

}  // namespace tandem::worker
