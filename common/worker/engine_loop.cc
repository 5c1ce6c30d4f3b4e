#include "common/worker/engine_loop.h"

#include <pthread.h>

#include <algorithm>
#include <utility>

namespace tandem::worker {
namespace {

constexpr std::size_t kInboxMax = 65536;
/// An idle engine still turns this often: its progress counter is what peers judge it by.
constexpr Duration kIdleTurn = milliseconds(100);
/// Work that cannot start (no free pages) is looked at again this often, unless something comes in.
constexpr Duration kStarvedTurn = milliseconds(2);

}  // namespace

EngineLoop::EngineLoop(engine::Engine* engine, std::function<std::uint64_t()> model_progress)
    : engine_(engine),
      model_progress_(std::move(model_progress)),
      inbox_(std::make_shared<Inbox>(kInboxMax)) {
  publish();
}

EngineLoop::~EngineLoop() {
  stop();
}

void EngineLoop::start() {
  thread_ = std::thread([this] { run(); });
  pthread_setname_np(thread_.native_handle(), "engine");
}

void EngineLoop::stop() {
  inbox_->close();
  if (thread_.joinable()) thread_.join();
}

bool EngineLoop::try_post(Task task) {
  return inbox_->try_push(std::move(task));
}

void EngineLoop::post(Task task) {
  inbox_->push(std::move(task));
}

void EngineLoop::publish() {
  core::Load load = engine_->load();
  for (const LoopClient* client : clients_)
    load.waiting_requests += static_cast<std::int64_t>(client->waiting_count());
  const std::lock_guard lock(load_mutex_);
  load_ = load;
}

core::Load EngineLoop::load() const {
  core::Load load;
  {
    const std::lock_guard lock(load_mutex_);
    load = load_;
  }
  load.progress = progress();
  return load;
}

std::uint64_t EngineLoop::progress() const {
  const std::uint64_t layers = model_progress_ ? model_progress_() : 0;
  return turns_.load(std::memory_order_relaxed) + layers;
}

Duration EngineLoop::wait_time(Time now) const {
  const bool has_work = engine_->has_work();
  if (has_work && worked_) return {0};
  Duration wait = has_work ? kStarvedTurn : kIdleTurn;
  for (const LoopClient* client : clients_) {
    if (const auto deadline = client->next_deadline()) wait = std::min(wait, *deadline - now);
  }
  return {std::max<std::int64_t>(wait.ns, 0)};
}

void EngineLoop::run() {
  const Clock& clock = steady_clock();
  bool closing = false;
  while (!closing) {
    closing = inbox_->closed();
    for (Task& task : inbox_->pop_all(wait_time(clock.now())))
      task();
    const Time now = clock.now();
    for (LoopClient* client : clients_)
      client->before_step(now);
    worked_ = engine_->step(now);
    const Time after = clock.now();
    publish();
    for (LoopClient* client : clients_)
      client->after_step(after);
    turns_.fetch_add(1, std::memory_order_relaxed);
  }
}

}  // namespace tandem::worker
