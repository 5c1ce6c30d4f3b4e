// TaskLoop: a thread that runs posted tasks and gives its clients turns.
#pragma once

#include "common/async/channel.h"
#include "common/base/ids.h"

#include <cstddef>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

namespace tandem::worker {

/// Something that wants a turn on the thread of a loop besides posted tasks.
class LoopClient {
 public:
  virtual ~LoopClient() = default;
  /// After the tasks, before the loop's own work (the engine's step). May call into the engine when
  /// the loop is the engine's.
  virtual void before_step(Time now) = 0;
  /// After the loop's own work, also when there was none.
  virtual void after_step(Time now) = 0;

  /// Requests that it holds and the engine does not count as its own (waiting for links or room).
  [[nodiscard]] virtual std::size_t waiting_count() const { return 0; }

  /// When before_step wants to run at the latest though nothing else happens.
  [[nodiscard]] virtual std::optional<Time> next_deadline() const { return std::nullopt; }
};

class TaskLoop {
 public:
  using Task = std::function<void()>;
  using Inbox = async::Channel<Task>;

  /// `name` is the thread's, at most 15 characters.
  explicit TaskLoop(std::string name);
  /// Whoever derives calls stop() in its own destructor.
  virtual ~TaskLoop();
  TaskLoop(const TaskLoop&) = delete;
  TaskLoop& operator=(const TaskLoop&) = delete;

  /// Before start() only.
  void add_client(LoopClient* client) { clients_.push_back(client); }

  void start();
  /// Runs what is queued, then ends the thread. Any thread but its own; may be called again.
  void stop();

  /// Runs `task` on the loop's thread. False when the inbox is full or closed: tell the caller to
  /// try later.
  [[nodiscard]] bool try_post(Task task);
  /// For what must not be lost (aborts, messages of peers): waits for room. False, and the task is
  /// dropped, only after stop().
  bool post(Task task);
  /// Runs `task` there and waits for its end. Any thread but its own, and none that a task waits
  /// for. False, without a run, after stop().
  bool call(const Task& task);

  /// For callbacks that may come after this object is gone: a closed inbox takes nothing.
  [[nodiscard]] std::shared_ptr<Inbox> inbox() const { return inbox_; }

 protected:
  /// The loop's own share of a turn, between its clients' before_step and after_step.
  virtual void work(Time /*now*/) {}

  /// How long the next turn may wait for tasks, clients' deadlines aside.
  [[nodiscard]] virtual Duration longest_wait() const;

  [[nodiscard]] const std::vector<LoopClient*>& clients() const { return clients_; }

 private:
  void run();
  [[nodiscard]] Duration wait_time(Time now) const;

  std::string name_;
  std::shared_ptr<Inbox> inbox_;
  std::vector<LoopClient*> clients_;
  std::thread thread_;
};

}  // namespace tandem::worker
