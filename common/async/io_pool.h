// IoPool: the threads that run all socket and timer work of a process.
#pragma once

#include <functional>
#include <memory>
#include <string>

namespace boost::asio {
class io_context;
}  // namespace boost::asio

namespace tandem::async {

/// N threads over one Asio context. Create it before, and destroy it after, everything that uses
/// it.
class IoPool {
 public:
  /// `name` shows in the thread names (at most 11 bytes of it).
  explicit IoPool(int thread_count, const std::string& name = "io");
  /// Stops and joins.
  ~IoPool();
  IoPool(const IoPool&) = delete;
  IoPool& operator=(const IoPool&) = delete;

  /// Runs `task` on some pool thread. Any thread. Dropped after stop().
  void post(std::function<void()> task);

  /// Ends the threads after their current task; pending work is dropped. Not from a pool thread.
  /// May be called again.
  void stop();

  /// For code that speaks Asio itself.
  [[nodiscard]] boost::asio::io_context& context();

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace tandem::async
