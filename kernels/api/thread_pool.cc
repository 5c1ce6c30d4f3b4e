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
  const std::uint64_t job = (ticket_.load(std::memory_order_relaxed) >> 32) + 1;
  ticket_.store(((job - 1) << 32) | 0xFFFFFFFFU, std::memory_order_relaxed);
  fn_.store(fn, std::memory_order_release);
  context_.store(context, std::memory_order_release);
  tasks_.store(static_cast<std::uint32_t>(tasks), std::memory_order_release);
  done_.store(0, std::memory_order_relaxed);
  ticket_.store(job << 32, std::memory_order_release);
  // A worker counts itself as a sleeper before it looks at wake_ for the last time, and here wake_
  // changes before sleepers_ is read: one of the two sees the other (both sequentially consistent).
  wake_.fetch_add(1);
  if (sleepers_.load() != 0) wake_.notify_all();

  work(0);
  if (spin_until([&] { return done_.load(std::memory_order_acquire) == tasks; })) return;
  for (std::uint32_t done = done_.load(); done != tasks; done = done_.load())
    done_.wait(done);
}

void ThreadPool::work(std::size_t worker) {
  std::uint64_t ticket = ticket_.load(std::memory_order_acquire);
  while (true) {
    // These belong to the ticket's job if the exchange below succeeds: the next job is set up only
    // after every task of this one is done, and the exchange proves that one was not even claimed.
    // A value of a later job, seen with acquire, comes after the close of this ticket: the exchange
    // fails.
    const TaskFn fn = fn_.load(std::memory_order_acquire);
    void* const context = context_.load(std::memory_order_acquire);
    const std::uint32_t tasks = tasks_.load(std::memory_order_acquire);
    const auto task = static_cast<std::uint32_t>(ticket);
    if (task >= tasks) return;
    if (!ticket_.compare_exchange_weak(
            ticket, ticket + 1, std::memory_order_acq_rel, std::memory_order_acquire)) {
      continue;
    }
    fn(context, task, worker);
    if (done_.fetch_add(1) + 1 == tasks) done_.notify_all();
    ticket = ticket_.load(std::memory_order_acquire);
  }
}

void ThreadPool::worker_main(std::size_t worker) {
  std::uint32_t seen = 0;
  while (!stop_.load()) {
    work(worker);
    const bool woken = spin_until([&] { return wake_.load(std::memory_order_relaxed) != seen; });
    if (!woken && wake_.load() == seen) {
      sleepers_.fetch_add(1);
      wake_.wait(seen);
      sleepers_.fetch_sub(1);
    }
    seen = wake_.load();
  }
}

}  // namespace tandem::kernels
