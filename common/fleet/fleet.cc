#include "common/fleet/fleet.h"

#include "common/base/random.h"
#include "common/obs/log.h"

#include <fmt/format.h>
#include <pthread.h>

#include <algorithm>
#include <utility>

namespace tandem::fleet {
namespace {

constexpr std::size_t kInboxMax = 1U << 16U;
// Silent workers are looked at so often. A turn costs more than a token, so what is due at a known
// time is not looked for: it moves the next turn.
constexpr Duration kTurn = milliseconds(50);
// While requests wait for a place, or the prefix tree is cut in slices.
constexpr Duration kBusyTurn = milliseconds(5);
// Of a step; room for more is not kept.
constexpr std::size_t kActionsKept = 256;
constexpr Duration kBackoffFirst = milliseconds(50);
constexpr Duration kBackoffMax = seconds(2);

}  // namespace

/// One life of one worker: gRPC threads in, the fleet's state out.
class Fleet::Handler final : public rpc::SessionClientHandler {
 public:
  /// The entrance is shared: the last callback may come when the fleet is gone, and one that has
  /// ended lets nobody in.
  Handler(Fleet* fleet, WorkerKey key) : fleet_(fleet), entrance_(fleet->entrance_), key_(key) {}

  void on_hello(rpc::WorkerInfo&& info) override {
    entrance_->leave([fleet = fleet_, key = key_, info = std::move(info)]() mutable {
      fleet->on_hello(key, std::move(info));
    });
  }

  void on_step(std::vector<core::TokenEvent>&& events, const core::Load& load) override {
    if (entrance_->try_now([&] { fleet_->heard(key_, std::move(events), load); })) return;
    const auto shared = std::make_shared<std::vector<core::TokenEvent>>(std::move(events));
    entrance_->leave([fleet = fleet_, key = key_, shared, load] {
      fleet->heard(key, std::move(*shared), load);
    });
  }

  void on_tick(const core::Load& load) override {
    const auto hear = [fleet = fleet_, key = key_, load] {
      fleet->on_heard(key, load, steady_clock().now());
    };
    if (!entrance_->try_now(hear)) entrance_->leave(hear);
  }

  void on_rejected(core::RequestId id, std::uint32_t /*attempt*/, const Status& why) override {
    entrance_->leave([fleet = fleet_, key = key_, id, why] {
      std::vector<FlightAction> actions;
      fleet->flights_.on_rejected(key, id, why, steady_clock().now(), actions);
      fleet->apply(actions);
    });
  }

  void on_flushed(const Status& result) override {
    entrance_->leave([fleet = fleet_, key = key_, result] { fleet->flushed(key, result); });
  }

  void on_closed(const Status& status) override {
    entrance_->leave([fleet = fleet_, key = key_, status] { fleet->on_closed(key, status); });
  }

 private:
  Fleet* fleet_;  // used inside the entrance alone
  std::shared_ptr<Entrance> entrance_;
  WorkerKey key_;
};

Fleet::Fleet(FleetOptions options)
    : options_(std::move(options)),
      incarnation_(system_random() | 1U),
      entrance_(std::make_shared<Entrance>(kInboxMax)),
      probe_inbox_(1024),
      turn_(options_.random_seed),
      pair_turns_(options_.random_seed),
      prefixes_({.tokens_max = options_.max_tree_size, .seed = system_random()}),
      flights_({}, [this](const core::Request& request, const std::set<WorkerKey>& tried) {
        return pick(request, tried);
      }) {
  options_.cache.prefixes = &prefixes_;
  trim_at_ = steady_clock().now() + options_.eviction_interval;
  published_.present = unavailable("the router is starting");
  published_.ready = published_.present;
}

Fleet::~Fleet() {
  stop();
}

void Fleet::start() {
  thread_ = std::thread([this] { run(); });
  pthread_setname_np(thread_.native_handle(), "fleet");
  probe_thread_ = std::thread([this] {
    while (!probe_inbox_.closed()) {
      if (auto task = probe_inbox_.pop(seconds(1))) (*task)();
    }
  });
  pthread_setname_np(probe_thread_.native_handle(), "probe");
}

void Fleet::stop() {
  draining_ = true;
  if (thread_.joinable()) {
    post([this] {
      std::vector<FlightAction> actions;
      flights_.abort_all(unavailable("the router is shutting down"), actions);
      apply(actions);
      for (Waiting& waiting : std::exchange(queue_, {})) {
        waiting.sink(
            core::aborted_event(waiting.request.id, unavailable("the router is shutting down")));
      }
      finish_flush(unavailable("the router is shutting down"));
      for (auto& [number, worker] : workers_) {
        if (worker.client) worker.client->cancel(cancelled("the router is shutting down"));
      }
    });
    entrance_->close();
    thread_.join();
  }
  entrance_->end();
  probe_inbox_.close();
  if (probe_thread_.joinable()) probe_thread_.join();
  workers_.clear();
}

void Fleet::post(std::function<void()> task) {
  entrance_->leave(std::move(task));
}

std::uint64_t Fleet::add_worker(WorkerAddress address, std::function<void()> on_hung) {
  const std::uint64_t number = number_source_.fetch_add(1);
  post([this, number, address = std::move(address), on_hung = std::move(on_hung)] {
    Worker& worker = workers_[number];
    worker.address = address;
    worker.on_hung = on_hung;
    worker.retry_at = steady_clock().now();
    worker.out_of_reach_since = worker.retry_at;
    turn_at_ = worker.retry_at;
  });
  return number;
}

void Fleet::remove_worker(std::uint64_t number) {
  post([this, number] {
    const auto found = workers_.find(number);
    if (found == workers_.end()) return;
    lose(found->second, unavailable("the worker was removed"));
    workers_.erase(number);
  });
}

void Fleet::run() {
  bool closing = false;
  Duration wait{0};
  while (!closing) {
    closing = entrance_->closed();
    entrance_->do_turn(wait, [this, &wait] {
      for (auto& task : std::exchange(deferred_, {}))
        task();
      const Time now = steady_clock().now();
      if (now >= turn_at_) {
        on_turn(now);
        turned_at_ = now;
        turn_at_ = next_turn(now);
      }
      publish(now);
      wait = wait_time(now);
    });
  }
}

Time Fleet::next_turn(Time now) const {
  Time at = now + (queue_.empty() && !tending_ ? kTurn : kBusyTurn);
  at = std::min(at, flights_.next_deadline().value_or(at));
  for (const auto& [number, worker] : workers_) {
    if (worker.state == State::kBackoff) at = std::min(at, worker.retry_at);
  }
  // Each looks at all flights, so that many deadlines share one.
  return std::max(at, now + kBusyTurn);
}

/// Has the fleet thread take its next turn by then, whoever is inside.
void Fleet::turn_by(Time time) {
  time = std::max(time, turned_at_ + kBusyTurn);
  if (time >= turn_at_) return;
  turn_at_ = time;
  entrance_->wake();
}

Duration Fleet::wait_time(Time now) const {
  if (!deferred_.empty()) return {0};
  return {std::max<std::int64_t>((turn_at_ - now).ns, 0)};
}

void Fleet::on_turn(Time now) {
  std::vector<FlightAction> actions;
  flights_.on_time(now, actions);
  apply(actions);
  std::vector<std::uint64_t> due;
  for (auto& [number, worker] : workers_) {
    if (worker.state == State::kBackoff && worker.retry_at <= now) due.push_back(number);
    if (worker.state != State::kUp) {
      if (worker.on_hung && now - worker.out_of_reach_since > options_.hung_after) {
        worker.out_of_reach_since = now;
        obs::error("worker_hung",
                   {{"worker", worker.address.text()}, {"reason", worker.last_error}});
        worker.on_hung();
      }
      continue;
    }
    worker.health.on_time(now);
    if (now - worker.heard_at > options_.stall_timeout) {
      lose(worker,
           unavailable(fmt::format("worker {} has been silent for {} ms",
                                   worker.address.text(),
                                   (now - worker.heard_at).milliseconds())));
    } else if (worker.health.health() == cluster::Health::kDead) {
      lose(worker,
           unavailable(fmt::format("the engine of worker {} has made no progress for {} ms",
                                   worker.address.text(),
                                   options_.no_progress_timeout.milliseconds())));
    }
  }
  for (const std::uint64_t number : due)
    probe(number);
  tend_prefixes(now);
  start_waiting();
}

Fleet::Worker* Fleet::by_key(WorkerKey key) {
  for (auto& [number, worker] : workers_) {
    if (worker.key == key) return &worker;
  }
  return nullptr;
}

void Fleet::probe(std::uint64_t number) {
  Worker& worker = workers_.at(number);
  worker.state = State::kProbing;
  if (worker.address.is_grpc) {
    connect(number, worker.address.text());
    return;
  }
  auto task = [this, number, address = worker.address] {
    const Result<std::string> found =
        probe_grpc_address(address, options_.api_key, steady_clock().now() + seconds(2));
    post([this, number, found] { connect(number, found); });
  };
  if (!probe_inbox_.try_push(std::move(task))) {
    worker.state = State::kBackoff;
    worker.retry_at = steady_clock().now() + kBackoffMax;
  }
}

void Fleet::connect(std::uint64_t number, const Result<std::string>& grpc_address) {
  const auto found = workers_.find(number);
  if (found == workers_.end()) return;
  Worker& worker = found->second;
  worker.key = {next_key_++};
  if (!grpc_address.ok()) {
    lose(worker, grpc_address.status());
    return;
  }
  rpc::SessionClient::Options options;
  options.client.address = *grpc_address;
  if (!options_.api_key.empty()) options.client.authorization = "Bearer " + options_.api_key;
  // Pings give up after three intervals: never before --worker-stall-timeout-ms does.
  options.client.keepalive =
      std::max(options.client.keepalive, Duration{options_.stall_timeout.ns / 2});
  options.io = options_.io;
  options.router_incarnation = incarnation_;
  auto client =
      rpc::SessionClient::open(std::move(options), std::make_shared<Handler>(this, worker.key));
  if (!client.ok()) {
    lose(worker, client.status());
    return;
  }
  worker.client = std::move(*client);
  worker.state = State::kConnecting;
}

Status Fleet::judge(const Worker& worker, const rpc::WorkerInfo& info) const {
  if (info.role != worker.address.role) {
    return failed_precondition(
        fmt::format("disaggregation-mode: the router uses it as {}, the worker runs as {}",
                    rpc::role_name(worker.address.role),
                    rpc::role_name(info.role)));
  }
  if (model_of_ && model_of_->model_digest != info.model_digest) {
    return failed_precondition(
        fmt::format("model: this worker serves {} (digest {}), the others {} (digest {})",
                    info.model.model_path,
                    info.model_digest,
                    model_of_->model.model_path,
                    model_of_->model_digest));
  }
  return {};
}

void Fleet::on_hello(WorkerKey key, rpc::WorkerInfo&& info) {
  Worker* worker = by_key(key);
  if (worker == nullptr || worker->state != State::kConnecting) return;
  if (const Status fit = judge(*worker, info); !fit.ok()) {
    obs::error("worker_refused", {{"worker", worker->address.text()}, {"reason", fit.message()}});
    lose(*worker, fit);
    worker->backoff = kBackoffMax;
    return;
  }
  const Time now = steady_clock().now();
  if (!model_of_) model_of_ = info;
  if (info.model.context_length != model_of_->model.context_length) {
    obs::warn("context_lengths_differ",
              {{"worker", worker->address.text()},
               {"context_length", info.model.context_length},
               {"first_worker_has", model_of_->model.context_length}});
  }
  worker->info = std::move(info);
  worker->state = State::kUp;
  worker->heard_at = now;
  worker->health = cluster::WorkerHealth(
      {.suspect_after = options_.stall_timeout, .dead_after = options_.no_progress_timeout});
  worker->health.on_hello(worker->info.incarnation, now);
  worker->backoff = {0};
  worker->last_error.clear();
  worker->load = {};
  changed_ = true;
  obs::info("worker_up",
            {{"worker", worker->address.text()},
             {"role", rpc::role_name(worker->info.role)},
             {"model", worker->info.model.served_model_name}});
  pairs_differ_ = options_.disaggregated && !all_pairs_fit();
  if (const Status pair = find_pair(); pair.code() == Code::kFailedPrecondition)
    obs::error("pair_does_not_fit", {{"reason", pair.message()}});
  std::vector<FlightAction> actions;
  flights_.on_worker_up(now, actions);
  apply(actions);
}

void Fleet::on_heard(WorkerKey key, const core::Load& load, Time now) {
  Worker* worker = by_key(key);
  if (worker == nullptr || worker->state != State::kUp) return;
  worker->heard_at = now;
  worker->health.on_progress(load.progress, now);
  worker->load = load;
}

/// One step of a worker.
void Fleet::heard(WorkerKey key, std::vector<core::TokenEvent>&& events, const core::Load& load) {
  const Time now = steady_clock().now();
  on_heard(key, load, now);
  for (core::TokenEvent& event : events)
    flights_.on_event(key, std::move(event), now, step_actions_);
  apply(step_actions_);
  if (step_actions_.capacity() > kActionsKept) std::vector<FlightAction>().swap(step_actions_);
  // A place has become free.
  if (!queue_.empty()) start_waiting();
}

void Fleet::on_closed(WorkerKey key, const Status& status) {
  Worker* worker = by_key(key);
  if (worker == nullptr || worker->state == State::kBackoff) return;
  lose(*worker,
       status.ok() ? unavailable("worker " + worker->address.text() + " ended the session")
                   : status);
}

/// The present life of this worker is over for the router; another is looked for after a pause.
void Fleet::lose(Worker& worker, const Status& why) {
  const bool was_up = worker.state == State::kUp;
  if (was_up) worker.out_of_reach_since = steady_clock().now();
  changed_ = true;
  const WorkerKey key = worker.key;
  if (worker.client) worker.client->cancel(why);
  worker.client.reset();
  worker.state = State::kBackoff;
  worker.retry_at = steady_clock().now() + worker.backoff;
  turn_at_ = std::min(turn_at_, worker.retry_at);
  worker.backoff = {std::clamp(worker.backoff.ns * 2, kBackoffFirst.ns, kBackoffMax.ns)};
  if (was_up || worker.last_error != why.message()) {
    obs::warn(was_up ? "worker_lost" : "worker_unreachable",
              {{"worker", worker.address.text()}, {"reason", why.message()}});
  }
  worker.last_error = why.message();
  prefixes_.remove_worker(key.value);
  worker.key = {0};
  if (std::exchange(worker.flush_pending, false))
    flushed(key, unavailable("a worker was lost: " + why.message()));
  std::vector<FlightAction> actions;
  flights_.on_worker_lost(key, unavailable(why.message()), steady_clock().now(), actions);
  apply(actions);
}

Status Fleet::submit(core::Request request, core::EventSink sink) {
  if (draining_) return unavailable("the router is shutting down");
  if (Status now = ready(); !now.ok()) return now;
  if (entrance_->try_now([&] { begin(std::move(request), std::move(sink)); })) return {};
  const auto shared = std::make_shared<Waiting>(Waiting{std::move(request), std::move(sink)});
  const bool taken = entrance_->try_leave(
      [this, shared] { begin(std::move(shared->request), std::move(shared->sink)); });
  return taken ? Status() : resource_exhausted("the router's inbox is full; try again later");
}

/// Never from within submit(): whoever called it may hold what the sink needs.
void Fleet::refuse(core::EventSink sink, core::TokenEvent event) {
  const auto shared = std::make_shared<core::TokenEvent>(std::move(event));
  deferred_.emplace_back([sink = std::move(sink), shared] { sink(std::move(*shared)); });
  entrance_->wake();
}

void Fleet::begin(core::Request request, core::EventSink sink) {
  const Time now = steady_clock().now();
  if (!request.deadline) request.deadline = now + options_.request_timeout;
  const bool full =
      options_.max_concurrent_requests >= 0 &&
      flights_.active_count() >= static_cast<std::size_t>(options_.max_concurrent_requests);
  const core::RequestId id = request.id;
  if (full) {
    if (queue_.size() >= options_.queue_size) {
      refuse(std::move(sink),
             core::aborted_event(
                 id,
                 resource_exhausted(fmt::format("{} requests run (--max-concurrent-requests) "
                                                "and {} wait (--queue-size); try again later",
                                                flights_.active_count(),
                                                queue_.size()))));
      return;
    }
    queue_.push_back({std::move(request), std::move(sink)});
    turn_by(now + kBusyTurn);
    return;
  }
  std::vector<FlightAction> actions;
  actions.reserve(2);
  if (const Status status = flights_.begin(std::move(request), now, actions); !status.ok()) {
    refuse(std::move(sink), core::aborted_event(id, status));
    return;
  }
  sinks_[id] = std::move(sink);
  apply(actions);
}

void Fleet::start_waiting() {
  const Time now = steady_clock().now();
  std::deque<Waiting> keep;
  while (!queue_.empty()) {
    Waiting next = std::move(queue_.front());
    queue_.pop_front();
    if (next.request.deadline && *next.request.deadline <= now) {
      next.sink(core::aborted_event(
          next.request.id, deadline_exceeded("the request's deadline passed while it waited")));
      continue;
    }
    keep.push_back(std::move(next));
  }
  queue_ = std::move(keep);
  while (!queue_.empty() && flights_.active_count() < static_cast<std::size_t>(std::max(
                                                          options_.max_concurrent_requests, 0))) {
    Waiting next = std::move(queue_.front());
    queue_.pop_front();
    begin(std::move(next.request), std::move(next.sink));
  }
}

void Fleet::apply(std::vector<FlightAction>& actions) {
  for (FlightAction& action : actions) {
    if (const auto* submit = std::get_if<SubmitTo>(&action)) {
      submit_to(*submit);
    } else if (const auto* end = std::get_if<AbortAt>(&action)) {
      Worker* worker = by_key(end->worker);
      if (worker != nullptr && worker->client) (void)worker->client->abort(end->wire_id).ok();
    } else if (auto* emit = std::get_if<Emit>(&action)) {
      const auto sink = sinks_.find(emit->event.request);
      if (sink == sinks_.end()) continue;
      if (!emit->event.finish) {
        sink->second(std::move(emit->event));
        continue;
      }
      const core::EventSink to = std::move(sink->second);
      sinks_.erase(sink);
      to(std::move(emit->event));
    }
  }
  actions.clear();
  if (const auto next = flights_.next_deadline()) turn_by(*next);
}

void Fleet::submit_to(const SubmitTo& submit) {
  Worker* worker = by_key(submit.worker);
  const Worker* peer = submit.peer ? by_key(*submit.peer) : nullptr;
  const bool there = worker != nullptr && worker->client && (!submit.peer || peer != nullptr);
  std::optional<rpc::Disaggregation> split;
  if (there && peer != nullptr) split = describe_pair(submit, *worker, *peer);
  const Status status = there ? worker->client->submit({*submit.request, submit.attempt, split})
                              : unavailable("the worker was lost");
  if (status.ok()) return;
  // Not from inside the table's own call: as an event of its own.
  deferred_.emplace_back([this, key = submit.worker, id = submit.request->id, status] {
    std::vector<FlightAction> actions;
    flights_.on_rejected(key, id, status, steady_clock().now(), actions);
    apply(actions);
  });
  entrance_->wake();
}

}  // namespace tandem::fleet
