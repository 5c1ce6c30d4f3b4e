#include "kernels/api/thread_pool.h"

#include <pthread.h>

#include <algorithm>
#include <chrono>
#include <new>
#include <string>
#include <system_error>

namespace tandem::kernels {
namespace {

// Longer than most waits inside a pass: for the end of somebody else's last task, and for what one
// thread does alone between two large ops. Much shorter than a time slice, so that an idle process
// gives its core back.
constexpr std::chrono::microseconds kSpin{100};
// A look at the clock takes as long as one pause or less.
constexpr int kPausesPerLook = 32;
constexpr std::align_val_t kScratchAlignment{64};
// Of a ticket; the rest is the job's number.
constexpr int kTaskBits = 32;
// A task that no job has.
constexpr std::uint64_t kClosed = 0xFFFFFFFFU;

void relax() {
#if defined(__x86_64__) || defined(__i386__)
  __builtin_ia32_pause();
#endif
}

// Waits actively, for a while, until done(); says whether it is.
template <class Done>
bool spin_until(Done done) {
  if (done()) return true;
  const auto end = std::chrono::steady_clock::now() + kSpin;
  do {
    for (int i = 0; i < kPausesPerLook; ++i) {
      relax();
      if (done()) return true;
    }
  } while (std::chrono::steady_clock::now() < end);
  return false;
}

}  // namespace

void ThreadPool::FreeScratch::operator()(std::byte* memory) const {
  ::operator delete[](memory, kScratchAlignment);
}

ThreadPool::ThreadPool(std::size_t threads, std::span<const CpuList> places) {
  threads = std::clamp<std::size_t>(threads, 1, kMaxThreads);
  scratch_.reset(
      static_cast<std::byte*>(::operator new[]((threads + 1) * kScratchBytes, kScratchAlignment)));
  shared_ = scratch_.get() + threads * kScratchBytes;
  workers_.reserve(threads - 1);
  for (std::size_t worker = 1; worker < threads; ++worker) {
    try {
      workers_.emplace_back(
          [this, worker, place = worker < places.size() ? places[worker] : CpuList()] {
            if (!place.empty()) (void)keep_to(place);
            worker_main(worker);
          });
      const std::string name = "compute-" + std::to_string(worker);
      pthread_setname_np(workers_.back().native_handle(), name.c_str());
    } catch (const std::system_error&) {
      break;
    }
  }
}

ThreadPool::~ThreadPool() {
  stop_.store(true);
  wake_.fetch_add(1);
  wake_.notify_all();
  for (std::thread& worker : workers_)
    worker.join();
}

std::byte* ThreadPool::scratch(std::size_t worker) const {
  return scratch_.get() + worker * kScratchBytes;
}

std::byte* ThreadPool::shared_scratch() const {
  return shared_;
}

void ThreadPool::run(std::size_t tasks, TaskFn fn, void* context) {
  if (workers_.empty() || tasks <= 1) {
    for (std::size_t task = 0; task < tasks; ++task)
      fn(context, task, 0);
    return;
  }
  // The finished job's ticket is closed first: a worker that still holds it and already sees the
  // new (larger) task count would otherwise claim a task that is none, and done_ would overshoot.
  // All of these lie in one line, for which workers wait: it goes to them once.
  const std::uint64_t job = (ticket_.load(std::memory_order_relaxed) >> kTaskBits) + 1;
  const std::uint32_t done_at =
      done_.load(std::memory_order_relaxed) + static_cast<std::uint32_t>(tasks);
  ticket_.store(((job - 1) << kTaskBits) | kClosed, std::memory_order_relaxed);
  fn_.store(fn, std::memory_order_release);
  context_.store(context, std::memory_order_release);
  tasks_.store(static_cast<std::uint32_t>(tasks), std::memory_order_release);
  done_at_.store(done_at, std::memory_order_release);
  // The first task is the caller's: to claim it would take the line away from workers again.
  ticket_.store((job << kTaskBits) | 1, std::memory_order_release);
  // A worker counts itself as a sleeper before it looks at wake_ and then at ticket_ for the last
  // time, and here ticket_ and wake_ change before sleepers_ is read: one of the two sees the other
  // (both sequentially consistent).
  wake_.fetch_add(1);
  if (sleepers_.load() != 0) wake_.notify_all();

  fn(context, 0, 0);
  std::uint32_t own = 1;
  std::uint64_t ticket = ticket_.load(std::memory_order_acquire);
  for (; run_task(ticket, 0); ticket = ticket_.load(std::memory_order_acquire))
    ++own;
  const bool last = done_.fetch_add(own) + own == done_at;
  if (ask_ != nullptr) ask_(ask_context_);
  if (last) return;
  if (spin_until([&] { return done_.load(std::memory_order_acquire) == done_at; })) return;
  for (std::uint32_t done = done_.load(); done != done_at; done = done_.load())
    done_.wait(done);
}

bool ThreadPool::run_task(std::uint64_t& ticket, std::size_t worker) {
  while (true) {
    // These belong to the ticket's job if the exchange below succeeds: the next job is set up only
    // after every task of this one is done, and the exchange proves that one was not even claimed.
    // A value of a later job, seen with acquire, comes after the close of this ticket: the exchange
    // fails.
    const TaskFn fn = fn_.load(std::memory_order_acquire);
    void* const context = context_.load(std::memory_order_acquire);
    const std::uint32_t tasks = tasks_.load(std::memory_order_acquire);
    const auto task = static_cast<std::uint32_t>(ticket);
    if (task >= tasks) return false;
    if (!ticket_.compare_exchange_weak(
            ticket, ticket + 1, std::memory_order_acq_rel, std::memory_order_acquire)) {
      continue;
    }
    fn(context, task, worker);
    return true;
  }
}

void ThreadPool::worker_main(std::size_t worker) {
  while (!stop_.load()) {
    std::uint64_t ticket = ticket_.load(std::memory_order_acquire);
    while (run_task(ticket, worker)) {
      // Of this job, which is not over yet.
      const std::uint32_t done_at = done_at_.load(std::memory_order_relaxed);
      if (done_.fetch_add(1) + 1 == done_at) done_.notify_all();
      ticket = ticket_.load(std::memory_order_acquire);
    }
    const std::uint64_t job = ticket >> kTaskBits;
    // stop_ too: it may have changed since the loop looked, and nothing changes after it.
    const auto is_over = [&] {
      return ticket_.load(std::memory_order_acquire) >> kTaskBits != job || stop_.load();
    };
    if (spin_until(is_over)) continue;
    sleepers_.fetch_add(1);
    const std::uint32_t seen = wake_.load();
    if (!is_over()) wake_.wait(seen);
    sleepers_.fetch_sub(1);
  }
}

}  // namespace tandem::kernels
