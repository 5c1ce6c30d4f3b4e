#include "common/worker/task_loop.h"

#include "common/base/clock.h"

#include <pthread.h>

#include <algorithm>
#include <future>
#include <utility>

namespace tandem::worker {
namespace {

constexpr std::size_t kInboxMax = 65536;
/// An idle loop still turns this often: progress counters are what peers judge a process by.
constexpr Duration kIdleTurn = milliseconds(100);

}  // namespace

TaskLoop::TaskLoop(std::string name)
    : name_(std::move(name)), inbox_(std::make_shared<Inbox>(kInboxMax)) {}

TaskLoop::~TaskLoop() {
  stop();
}

void TaskLoop::start() {
  thread_ = std::thread([this] { run(); });
  pthread_setname_np(thread_.native_handle(), name_.c_str());
}

void TaskLoop::stop() {
  inbox_->close();
  if (thread_.joinable()) thread_.join();
}

bool TaskLoop::try_post(Task task) {
  return inbox_->try_push(std::move(task));
}

bool TaskLoop::post(Task task) {
  return inbox_->push(std::move(task));
}

bool TaskLoop::call(const Task& task) {
  std::promise<void> done;
  const bool taken = post([&] {
    task();
    done.set_value();
  });
  if (taken) done.get_future().wait();
  return taken;
}

Duration TaskLoop::longest_wait() const {
  return kIdleTurn;
}

Duration TaskLoop::wait_time(Time now) const {
  Duration wait = longest_wait();
  for (const LoopClient* client : clients_) {
    if (const auto deadline = client->next_deadline()) wait = std::min(wait, *deadline - now);
  }
  return {std::max<std::int64_t>(wait.ns, 0)};
}

void TaskLoop::run() {
  const Clock& clock = steady_clock();
  bool closing = false;
  while (!closing) {
    closing = inbox_->closed();
    for (Task& task : inbox_->pop_all(wait_time(clock.now())))
      task();
    const Time now = clock.now();
    for (LoopClient* client : clients_)
      client->before_step(now);
    work(now);
    const Time after = clock.now();
    for (LoopClient* client : clients_)
      client->after_step(after);
  }
}

}  // namespace tandem::worker
