// Unmapper: lets go of peers' memory on other threads.
#pragma once

#include "common/base/shared_memory.h"

#include <atomic>
#include <memory>
#include <thread>
#include <vector>

namespace tandem::transfer {

/// Unmapping the pool of a peer that is gone takes seconds when it has many GiB, since its pages
/// are freed then; the progress thread must not stand still for that. One user thread; the
/// destructor waits for what is under way.
class Unmapper {
 public:
  Unmapper() = default;
  Unmapper(const Unmapper&) = delete;
  Unmapper& operator=(const Unmapper&) = delete;
  ~Unmapper();

  void take(PeerMemory&& memory);

 private:
  struct Running {
    std::thread thread;
    std::shared_ptr<std::atomic<bool>> done;
  };

  std::vector<Running> running_;
};

}  // namespace tandem::transfer
