#include "common/worker/local_generator.h"

#include <memory>
#include <utility>

namespace tandem::worker {
namespace {

/// An engine that has finished no layer and no idle turn for so long is not healthy.
constexpr Duration kStalledAfter = seconds(10);

}  // namespace

LocalGenerator::LocalGenerator(
    Role* role,
    engine::Engine* engine,
    EngineLoop* loop,
    std::function<std::vector<std::pair<std::string, std::string>>()> extra_info)
    : role_(role), engine_(engine), loop_(loop), extra_info_(std::move(extra_info)) {
  seen_at_ns_ = steady_clock().now().ns;
}

Status LocalGenerator::submit(core::Request request, core::EventSink sink) {
  if (draining_) return unavailable("the server is shutting down");
  // Refusals of the engine reach the sink: whether there is room is known on its thread alone.
  const auto shared = std::make_shared<std::pair<core::Request, core::EventSink>>(
      std::move(request), std::move(sink));
  const bool taken = loop_->try_post([this, shared] {
    const core::RequestId id = shared->first.id;
    const auto to = std::make_shared<core::EventSink>(std::move(shared->second));
    rpc::Submission submission;
    submission.request = std::move(shared->first);
    const Status status =
        role_->submit(std::move(submission), [this, to](core::TokenEvent&& event) {
          events_.push_back({to, std::move(event)});
        });
    if (!status.ok()) events_.push_back({to, core::aborted_event(id, status)});
  });
  return taken ? Status() : resource_exhausted("the engine's inbox is full; try again later");
}

void LocalGenerator::after_step(Time /*now*/) {
  sending_.swap(events_);
  for (Waiting& waiting : sending_)
    (*waiting.sink)(std::move(waiting.event));
  sending_.clear();
}

void LocalGenerator::abort(core::RequestId id) {
  loop_->post([this, id] { role_->abort(id, cancelled("aborted")); });
}

void LocalGenerator::abort_all() {
  loop_->post([this] { role_->abort_all(cancelled("aborted")); });
}

void LocalGenerator::flush_cache(std::function<void(Status)> done) {
  loop_->post([this, done = std::move(done)] { done(engine_->flush_cache()); });
}

Status LocalGenerator::ready() const {
  if (draining_) return unavailable("the server is shutting down");
  const std::uint64_t progress = loop_->progress();
  const std::int64_t now_ns = steady_clock().now().ns;
  if (seen_progress_.exchange(progress) != progress) {
    seen_at_ns_.store(now_ns);
    return {};
  }
  // An idle engine turns ten times a second, so an unmoved counter over this time is an engine that
  // hangs.
  if (now_ns - seen_at_ns_.load() > kStalledAfter.ns) {
    return unavailable("the engine has made no progress for 10 s");
  }
  return {};
}

}  // namespace tandem::worker
