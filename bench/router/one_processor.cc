#include "bench/router/one_processor.h"

#include <cstdlib>
#include <filesystem>
#include <string>
#include <system_error>
#include <utility>

namespace tandem::bench {

namespace {

std::vector<pid_t> threads_of(pid_t process) {
  std::vector<pid_t> threads;
  std::error_code error;
  // A process that has ended has none.
  for (std::filesystem::directory_iterator
           task("/proc/" + std::to_string(process) + "/task", error),
       end;
       !error && task != end;
       task.increment(error))
    threads.push_back(std::atoi(task->path().filename().c_str()));
  return threads;
}

cpu_set_t allowed(pid_t thread) {
  cpu_set_t set;
  CPU_ZERO(&set);
  ::sched_getaffinity(thread, sizeof set, &set);
  return set;
}

}  // namespace

bool OneProcessor::differs() {
  const cpu_set_t set = allowed(0);
  return CPU_COUNT(&set) > 1;
}

OneProcessor::OneProcessor(std::vector<pid_t> processes) : processes_(std::move(processes)) {
  const cpu_set_t set = allowed(0);
  int last = CPU_SETSIZE - 1;
  while (last > 0 && !CPU_ISSET(last, &set))
    --last;
  CPU_ZERO(&one_);
  CPU_SET(last, &one_);
  // A thread that another one starts meanwhile may have missed it.
  while (pin_new_threads()) {
  }
}

OneProcessor::~OneProcessor() {
  // A thread that was not free yet may have started another one meanwhile.
  std::set<pid_t> freed;
  while (free_new_threads(freed)) {
  }
}

bool OneProcessor::free_new_threads(std::set<pid_t>& freed) const {
  bool any = false;
  for (const pid_t process : processes_) {
    for (const pid_t thread : threads_of(process)) {
      if (!freed.insert(thread).second) continue;
      any = true;
      // Threads that started since then go where their process was.
      const auto found = before_.find(before_.contains(thread) ? thread : process);
      if (found != before_.end()) ::sched_setaffinity(thread, sizeof found->second, &found->second);
    }
  }
  return any;
}

bool OneProcessor::pin_new_threads() {
  bool any = false;
  for (const pid_t process : processes_) {
    for (const pid_t thread : threads_of(process)) {
      if (before_.contains(thread)) continue;
      any = true;
      const cpu_set_t mask = allowed(thread);
      // One that a thread has started that was pinned already goes where its process was.
      const bool inherited = CPU_EQUAL(&mask, &one_) != 0 && before_.contains(process);
      before_[thread] = inherited ? before_[process] : mask;
      ::sched_setaffinity(thread, sizeof one_, &one_);
    }
  }
  return any;
}

}  // namespace tandem::bench
