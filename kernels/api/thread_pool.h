// Persistent workers for one engine thread. Which worker runs which task never changes a result:
// every task owns the outputs that it writes, so thread counts and scheduling order cannot change a
// bit.
#pragma once

#include "kernels/api/topology.h"

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <thread>
#include <type_traits>
#include <vector>

namespace tandem::kernels {

/// A pool of `threads` (>= 1) threads, the caller of parallel_for included. With 1 nothing is
/// spawned and everything runs inline.
///
/// Workers without work spin for 100 microseconds, through a whole pass in most cases, and then
/// sleep on a futex, because several processes may share the cores. A job does not wait for
/// sleepers: the caller works too, and a worker that wakes late finds nothing to do. Jobs take no
/// lock and no memory.
///
/// Threads: one thread at a time may call parallel_for, and never from inside a task.
class ThreadPool {
 public:
  /// Scratch memory of each worker; touched only where a kernel needs it.
  static constexpr std::size_t kScratchBytes = std::size_t{3} << 19;
  static constexpr std::size_t kMaxThreads = 1024;

  /// `threads` is clamped to [1, kMaxThreads]. If the system refuses a thread, the pool runs with
  /// fewer (see thread_count()). Thread i keeps to places[i], if there is one (thread_places());
  /// where the system refuses that it runs anywhere. Only threads that are spawned here: what the
  /// caller is bound to, threads that it starts for others would inherit. It has the processor that
  /// is left.
  explicit ThreadPool(std::size_t threads, std::span<const CpuList> places = {});
  ~ThreadPool();

  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  [[nodiscard]] std::size_t thread_count() const { return workers_.size() + 1; }

  /// Calls fn(task, worker) once for each task in [0, tasks), worker in [0, thread_count()), and
  /// returns when all are done. tasks < 2^32. fn must not throw.
  template <class Fn>
  void parallel_for(std::size_t tasks, Fn&& fn) {
    using Callable = std::remove_reference_t<Fn>;
    auto* callable = const_cast<std::remove_const_t<Callable>*>(&fn);
    run(
        tasks,
        [](void* context, std::size_t task, std::size_t worker) {
          (*static_cast<Callable*>(context))(task, worker);
        },
        callable);
  }

  /// parallel_for of several tasks and threads calls `ask(context)` once, when the caller's own
  /// tasks are done, in most cases while it waits for the end of others': to begin to load what the
  /// caller looks at between this job and the next. What tasks read pushes everything else out of
  /// the caches, and all threads wait for a caller that waits for one line after the other. Null:
  /// nothing is asked for.
  void keep_near(void (*ask)(const void* context), const void* context) {
    ask_ = ask;
    ask_context_ = context;
  }

  /// kScratchBytes bytes, 64-byte aligned, that only `worker` may use, and only in tasks: the next
  /// one of the same parallel_for finds what it left there.
  [[nodiscard]] std::byte* scratch(std::size_t worker) const;

  /// As much again, for what all workers use.
  [[nodiscard]] std::byte* shared_scratch() const;

 private:
  using TaskFn = void (*)(void* context, std::size_t task, std::size_t worker);

  void run(std::size_t tasks, TaskFn fn, void* context);
  void worker_main(std::size_t worker);
  /// Claims a task of the job that `ticket` names, which was read from ticket_, and runs it. False
  /// where none is left; `ticket` is what was read last.
  bool run_task(std::uint64_t& ticket, std::size_t worker);

  struct FreeScratch {
    void operator()(std::byte* memory) const;
  };

  // (job number << 32) | next task. A compare-exchange on it claims a task of exactly that job.
  alignas(64) std::atomic<std::uint64_t> ticket_{0};
  std::atomic<TaskFn> fn_{nullptr};
  std::atomic<void*> context_{nullptr};
  std::atomic<std::uint32_t> tasks_{0};
  std::atomic<std::uint32_t> done_at_{0};  ///< done_ when the job is over
  std::atomic<bool> stop_{false};
  /// Tasks of all jobs, modulo 2^32: not to be reset, which would mean waiting for the line.
  alignas(64) std::atomic<std::uint32_t> done_{0};
  alignas(64) std::atomic<std::uint32_t> wake_{0};
  std::atomic<std::uint32_t> sleepers_{0};
  std::unique_ptr<std::byte, FreeScratch> scratch_;
  std::byte* shared_ = nullptr;  ///< in scratch_
  void (*ask_)(const void*) = nullptr;
  const void* ask_context_ = nullptr;
  std::vector<std::thread> workers_;
};

}  // namespace tandem::kernels
