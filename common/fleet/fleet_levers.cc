// What may be done to a fleet from outside besides asking it to generate: aborts and flushes.
#include "common/fleet/fleet.h"

#include <algorithm>
#include <utility>

namespace tandem::fleet {

void Fleet::abort(core::RequestId id) {
  post([this, id] { end_early(id); });
}

void Fleet::end_early(core::RequestId id) {
  const auto waiting = std::find_if(
      queue_.begin(), queue_.end(), [&](const Waiting& w) { return w.request.id == id; });
  if (waiting != queue_.end()) {
    const core::EventSink sink = std::move(waiting->sink);
    queue_.erase(waiting);
    sink(core::aborted_event(id, cancelled("aborted")));
    return;
  }
  std::vector<FlightAction> actions;
  flights_.abort(id, cancelled("aborted"), actions);
  apply(actions);
}

void Fleet::abort_all() {
  post([this] {
    for (Waiting& waiting : std::exchange(queue_, {})) {
      waiting.sink(core::aborted_event(waiting.request.id, cancelled("aborted")));
    }
    std::vector<FlightAction> actions;
    flights_.abort_all(cancelled("aborted"), actions);
    apply(actions);
  });
}

void Fleet::flush_cache(std::function<void(Status)> done) {
  post([this, done = std::move(done)] {
    flush_waiters_.push_back(done);
    if (flush_waiters_.size() > 1) return;  // one is under way; its result serves all
    flush_result_ = {};
    bool any = false;
    for (auto& [number, worker] : workers_) {
      if (worker.state != State::kUp || !worker.client->flush_cache().ok()) continue;
      worker.flush_pending = true;
      any = true;
    }
    if (!any) finish_flush(unavailable("no worker is up"));
  });
}

void Fleet::flushed(WorkerKey key, const Status& status) {
  for (auto& [number, worker] : workers_) {
    if (worker.key == key) worker.flush_pending = false;
  }
  if (!status.ok()) flush_result_ = status;
  const bool pending = std::any_of(workers_.begin(), workers_.end(), [](const auto& entry) {
    return entry.second.flush_pending;
  });
  if (!pending) finish_flush(flush_result_);
}

void Fleet::finish_flush(const Status& status) {
  for (auto& done : std::exchange(flush_waiters_, {}))
    done(status);
}

}  // namespace tandem::fleet
